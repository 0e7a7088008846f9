"""Tables that show what several experiments share and where they differ."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mptlab.errors import Json

MISSING = object()


def comparison(experiments: Sequence[Json]) -> list[Json]:
    """Return a row for each experiment: id, name, status, the spec fields that differ by their
    dotted paths, and each metric by its name, with its standard error as `… std_err`. An object
    that others do not have is one column, with its fields that differ."""
    columns = differing([experiment["spec"] for experiment in experiments])
    metrics = [summary(experiment["summary"]) for experiment in experiments]
    names = _union(metrics)
    return [
        {
            "id": experiment["id"],
            "name": experiment["name"] or experiment["title"],
            "status": experiment["status"],
        }
        | {path: values[i] for path, values in columns.items()}
        | {name: metrics[i].get(name) for name in names}
        for i, experiment in enumerate(experiments)
    ]


def differing(values: Sequence[Any], path: str = "") -> dict[str, list[Any]]:
    """Return the values of each field that is not the same in all specs, by its dotted path. Of an
    object that some specs do not have, those that have it get its fields that differ among them."""
    if all(value == values[0] for value in values):
        return {}
    if all(isinstance(value, Mapping) for value in values):
        columns: dict[str, list[Any]] = {}
        for key in _union(values):
            parts = [value.get(key, MISSING) for value in values]
            columns |= differing(parts, f"{path}.{key}" if path else key)
        return columns
    objects = [value for value in values if isinstance(value, Mapping)]
    keys = {
        key
        for key in _union(objects)
        if any(value.get(key) != objects[0].get(key) for value in objects)
    }
    return {
        path: [
            {key: part for key, part in value.items() if key in (keys or value)}
            if isinstance(value, Mapping)
            else None
            if value is MISSING
            else value
            for value in values
        ]
    }


def data_note(experiments: Sequence[Json]) -> str | None:
    """Return a sentence that names the fields in which the data of experiments differ. None if they
    are the same."""
    paths = differing([{"data": experiment["spec"]["data"]} for experiment in experiments])
    seeds = [experiment["spec"]["seeds"] for experiment in experiments]
    if any(experiment["spec"]["data"].get("seed") == "run" for experiment in experiments):
        paths |= differing([{"seeds": run_seeds} for run_seeds in seeds])
    if not paths:
        return None
    return f"The data differ ({', '.join(paths)}): their metrics do not tell which model is better."


def for_people(rows: Sequence[Json], error: str = " std_err") -> list[Json]:
    """Put each number and its error, whose name ends in `error`, in one cell. Omit the ids of a
    sweep's experiments and the counts of seeds."""
    table = []
    for row in rows:
        metrics = {name for name in row if f"{name}{error}" in row}
        beside = {f"{name}{end}" for name in metrics for end in (error, " count")}
        table.append(
            {
                name: with_error(value, row[f"{name}{error}"]) if name in metrics else value
                for name, value in row.items()
                if name != "experiment_id" and name not in beside
            }
        )
    return table


def sweep_for_people(
    rows: Sequence[Json], best: Json | None = None, kept: str | None = None
) -> list[Json]:
    """Return a sweep's table as `for_people` does, without derived columns other than `kept` and
    columns that are the same in all rows, and with a mark at the row `best`, if there is one."""
    hidden = {"point", "points"}
    if all(row.get("status") in (None, "succeeded") for row in rows):
        hidden.add("status")
    return [
        {
            name: value
            for name, value in shown.items()
            if name == kept or not (name in hidden or _is_derived(name))
        }
        | ({"best": "*" if row is best else ""} if best is not None else {})
        for row, shown in zip(rows, for_people(rows), strict=True)
    ]


def _is_derived(name: str) -> bool:
    return (
        name.startswith("difference")
        or "half_interval" in name
        or name == "lml_heldout_population"  # the value of lml_heldout again
    )


BEHIND_BEST = "lml_heldout_behind_best"
HEADINGS = {
    BEHIND_BEST: "behind best",
    "lml_heldout_population_half_interval": "lml_heldout ± 95 % over rows",
    "lml_population_half_interval": "lml ± 95 % over rows",
}
"""Headings of metrics with long names."""


def heading(name: str) -> str:
    return HEADINGS.get(name, name)


def short_paths(fields: Sequence[str]) -> dict[str, str]:
    """Return the last part of each field's path, or the path if two fields have the same."""
    last = [path.rpartition(".")[2] for path in fields]
    pairs = zip(fields, last, strict=True)
    return {path: part if last.count(part) == 1 else path for path, part in pairs}


MAX_DECIMALS = 8
HALF_WIDTH = "In a verdict, ± is half the width of the 95 % interval, one-sided for a bound"


def with_error(mean: float | None, error: float | None) -> str | None:
    """Return a number with the digits that its standard error justifies: two of the error's, or six
    in all without an error."""
    if mean is None:
        return None
    if not error:
        return f"{mean:.6g}"
    decimals = max(0, 1 - math.floor(math.log10(error)))  # two digits of the error
    if decimals > MAX_DECIMALS:
        return f"{mean:.2g} ± {error:.2g}" if abs(mean) < 1 else f"{mean:.{MAX_DECIMALS}f}"
    return f"{mean:.{decimals}f} ± {error:.{decimals}f}"


def few_digits(row: Json) -> Json:
    """Return a row with its numbers as people compare them: two decimals, three digits below 1, and
    two of a p-value."""
    return {name: _short(name, value) for name, value in row.items()}


def _short(name: str, value: Any) -> Any:
    if not isinstance(value, float):
        return value
    if name == "p_value":
        return f"{value:.2g}"
    return f"{value:.3g}" if abs(value) < 1 else f"{value:.2f}"


def summary(rows: Sequence[Json]) -> Json:
    """Return each mean of a service's summary by its name and its labels other than the seed, and
    its standard error as `… std_err`."""
    columns: Json = {}
    for row in rows:
        columns |= {row["title"]: row["value"], f"{row['title']} std_err": row["std_err"]}
    return columns


def _union(mappings: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for mapping in mappings for key in mapping))
