"""Tables of what several experiments have in common, and in what they differ."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence

from mptlab.errors import Json
from mptlab.specs import flat

MISSING = object()

SEED = re.compile(r"\[seed=[^],]*\]|seed=[^],]*,|,seed=[^],]*")
"""The seed among the labels in a metric's name."""


def comparison(experiments: Sequence[Json]) -> list[Json]:
    """A row for each experiment: id, name, status, the fields in which their specs differ by their
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
    """The rows of a sweep's table or a comparison, with each metric in one cell: its mean over
    seeds, with the error of that. Sweeps go without the ids of experiments."""
    return [_for_people(row) for row in rows]


def _for_people(row: Json) -> Json:
    shown: Json = {}
    metrics: dict[str, list[Json]] = {}
    for name, value in row.items():
        if f"{name} std_err" in row:
            metric = {"value": value, "std_err": row[f"{name} std_err"]}
            metrics.setdefault(SEED.sub("", name), []).append(metric)
        elif name != "experiment_id" and not name.endswith(" std_err"):
            shown[name] = value
    return shown | {name: _with_error(found) for name, found in metrics.items()}


def _with_error(metrics: Sequence[Json]) -> str | None:
    mean, error = _mean(metrics), _std_err(metrics)
    if mean is None:
        return None
    if not error:
        return f"{mean:.6g}"
    decimals = max(0, 1 - math.floor(math.log10(error)))  # two digits of the error
    return f"{mean:.{decimals}f} ± {error:.{decimals}f}"


def summary(metrics: Sequence[Json]) -> Json:
    """Each metric by its name and its labels other than the seed: the mean over seeds, and the
    standard error of that mean, where each seed has one."""
    named: dict[str, list[Json]] = {}
    for metric in metrics:
        labels = {key: value for key, value in metric["labels"].items() if key != "seed"}
        inner = ",".join(f"{key}={value}" for key, value in labels.items())
        named.setdefault(f"{metric['name']}[{inner}]" if inner else metric["name"], []).append(
            metric
        )
    columns: Json = {}
    for name, found in named.items():
        columns |= {name: _mean(found), f"{name} std_err": _std_err(found)}
    return columns


def _mean(metrics: Sequence[Json]) -> float | None:
    values = list(_given(metrics, "value"))
    return math.fsum(values) / len(values) if len(values) == len(metrics) else None


def _std_err(metrics: Sequence[Json]) -> float | None:
    errors = list(_given(metrics, "std_err"))
    return math.hypot(*errors) / len(errors) if len(errors) == len(metrics) else None


def _given(metrics: Sequence[Json], name: str) -> Iterator[float]:
    return (one[name] for one in metrics if one[name] is not None)


def _union(mappings: Iterable[Json]) -> list[str]:
    return list(dict.fromkeys(key for one in mappings for key in one))


def _differs(path: str, specs: Sequence[Json]) -> bool:
    first = specs[0].get(path, MISSING)
    return any(spec.get(path, MISSING) != first for spec in specs)
