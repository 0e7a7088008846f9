"""Tables that show what several experiments share and where they differ."""

import json
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mptlab.errors import Json
from mptlab.means import over_seeds
from mptlab.sorting import BESIDE
from mptlab.specs import flat

MISSING = object()


def comparison(experiments: Sequence[Json]) -> list[Json]:
    """Return a row for each experiment: id, name, status, the spec fields that differ by their
    dotted paths, and each metric by its name, with its standard error as `… std_err`."""
    specs = [flat(one["spec"]) for one in experiments]
    paths = [path for path in _union(specs) if _differs(path, specs)]
    metrics = [summary(one["metrics"]) for one in experiments]
    names = _union(metrics)
    return [
        {"id": one["id"], "name": one["name"], "status": one["status"]}
        | {path: spec.get(path) for path in paths}
        | {name: found.get(name) for name in names}
        for one, spec, found in zip(experiments, specs, metrics, strict=True)
    ]


def for_people(rows: Sequence[Json]) -> list[Json]:
    """Put each metric and its error in one cell, for a sweep's table or a comparison. Omit the ids
    of a sweep's experiments and the counts of seeds."""
    return [_for_people(row) for row in rows]


def sweep_for_people(rows: Sequence[Json], kept: str | None = None) -> list[Json]:
    """Return a sweep's table as `for_people` does, without derived columns other than `kept` and
    columns that are the same in all rows, and with a mark at the best row."""
    best = best_of(rows)
    hidden = {"point", "points"}
    if all(row.get("status") in (None, "succeeded") for row in rows):
        hidden.add("status")
    return [
        {
            name: value
            for name, value in row.items()
            if name == kept or not (name in hidden or _is_derived(name))
        }
        | ({"best": "*" if i == best.row else ""} if best else {})
        for i, row in enumerate(for_people(rows))
    ]


def _is_derived(name: str) -> bool:
    return (
        name.startswith("difference")
        or "half_interval" in name
        or name == "lml_heldout_population"  # the value of lml_heldout again
    )


class Best(NamedTuple):
    """The metric that decides, the index of its best row, and of the rows that its error does not
    tell from the best."""

    metric: str
    row: int
    alike: list[int]


def best_of(rows: Sequence[Json]) -> Best | None:
    """Return the best row by the held-out LML or, without one, by the best known measure. None if
    the rows differ in nothing but their measurement."""
    if rows and not deciding(rows):
        return None
    metric = next((name for name in BY_MERIT if any(name in row for row in rows)), None)
    known = [i for i, row in enumerate(rows) if row.get(metric or "") is not None]
    if metric is None or len(known) < 2:
        return None
    best = max(known, key=lambda i: float(rows[i][metric]))
    others = (i for i in known if i != best)
    return Best(metric, best, [i for i in others if _is_as_good(rows[i], rows[best], metric)])


def deciding(rows: Sequence[Json]) -> list[str]:
    """Return the swept fields that choose the model, its data or its training."""
    metrics = {name for row in rows for name in row if f"{name} std_err" in row}
    beside = {f"{name} {what}" for name in metrics for what in ("std_err", "count")}
    fields = (name for name in rows[0] if name not in {*BESIDE, *metrics, *beside})
    return [name for name in fields if name.split(".")[0] not in MEASURING]


def choosing(rows: Sequence[Json], fields: Iterable[str]) -> list[str]:
    """Return the swept fields that tell rows apart: none that has one value only, and the first of
    those that change together."""
    groups: dict[tuple[int, ...], str] = {}
    for field in fields:
        known: dict[str, int] = {}
        values = (json.dumps(row.get(field)) for row in rows)
        group = tuple(known.setdefault(value, len(known)) for value in values)
        if len(known) > 1:
            groups.setdefault(group, field)  # fields with equal groups change together
    return [*groups.values()]


def smallest_as_good(best: Best, rows: Sequence[Json], fields: Sequence[str]) -> Json | None:
    """Return the row with the fewest latent dimensions of those that are as good as the best. None
    if other fields than the family were swept too, or if the best is the only one."""
    if SIZE not in fields or not {*fields} <= {SIZE, "model.family"} or not best.alike:
        return None
    return min((rows[i] for i in (best.row, *best.alike)), key=lambda row: int(row[SIZE]))


def _is_as_good(row: Json, best: Json, metric: str) -> bool:
    """Return whether a row is behind the best by at most two standard errors of the difference:
    over held-out rows that both share, where the service has compared these two, otherwise from the
    errors of both."""
    gap, error = best[metric] - row[metric], f"{metric} std_err"
    if metric == "lml_heldout" and row.get(BEHIND_BEST) == gap:
        spread = row[f"{BEHIND_BEST} std_err"] or 0.0
    else:
        spread = math.hypot(best.get(error) or 0.0, row.get(error) or 0.0)
    return bool(gap <= max(2 * spread, TIE))


MEASURING = ("evaluate", "compute", "seeds")
"""Parts of a spec that change the measurement, and nothing that is measured."""
BY_MERIT = ("lml_heldout", "mpt_heldout", "lml", "mpt")
"""Metrics that choose between models, the most trustworthy first; larger is better."""
TIE = 1e-6
"""Difference in nats up to which rows are equal."""
SIZE = "model.latent_dim"
BEHIND_BEST = "lml_heldout_behind_best"


def _for_people(row: Json) -> Json:
    metrics = {name for name in row if f"{name} std_err" in row}
    beside = {f"{name} {what}" for name in metrics for what in ("std_err", "count")}
    return {
        name: with_error(value, row[f"{name} std_err"]) if name in metrics else value
        for name, value in row.items()
        if name != "experiment_id" and name not in beside
    }


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


def summary(metrics: Sequence[Json]) -> Json:
    """Return each metric by its name and its labels other than the seed: the mean over seeds, and
    its standard error as `… std_err` (see `mptlab.means`)."""
    columns: Json = {}
    for mean in over_seeds(metrics):
        columns |= {mean.title: mean.value, f"{mean.title} std_err": mean.std_err}
    return columns


def _union(mappings: Iterable[Json]) -> list[str]:
    return list(dict.fromkeys(key for one in mappings for key in one))


def _differs(path: str, specs: Sequence[Json]) -> bool:
    first = specs[0].get(path, MISSING)
    return any(spec.get(path, MISSING) != first for spec in specs)
