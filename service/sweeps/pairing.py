"""Compare the points of a sweep on the held-out observations that they share."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.experiments.models import Block, Series
from service.experiments.titles import value_at
from service.records.curves import TooManyPoints, read_curves

HELDOUT = "lml_heldout"
BEHIND_BEST = "lml_heldout_behind_best"
"""Column with the difference of the best row's held-out LML and the row's own, in nats."""
SERIES = "lml_heldout_parts"
MIN_PARTS = 8
"""Minimum number of parts from which a standard error is computed."""
MAX_PAIRED = 1000
"""Maximum number of experiments that are compared. Nobody chooses among more by their errors."""
MAX_POINTS = 640_000
"""Maximum number of points of their series."""
MAX_BLOCKS = 20_000
"""Maximum number of blocks of their series. The time grows with them more than with the points."""


class Parts(NamedTuple):
    """The held-out LML of each part of the observations, and their number in each, (P,) both."""

    values: NDArray[np.float64]
    counts: NDArray[np.float64]


def heldout_parts(session: Session, experiment_ids: Sequence[str]) -> dict[str, Parts]:
    """Return the held-out LML of each part of the observations, the mean over seeds, by experiment.
    Experiments without labels other than the seed have one. The answer is empty for too many
    experiments, blocks or points."""
    if len(experiment_ids) > MAX_PAIRED or _blocks(session, experiment_ids) > MAX_BLOCKS:
        return {}
    try:
        curves = read_curves(
            session, experiment_ids, names=[SERIES], max_points=MAX_POINTS, max_stored=MAX_POINTS
        )
    except TooManyPoints:
        return {}
    found: dict[str, list[Parts]] = {}
    for curve in curves:
        if curve.labels.keys() <= {"seed"}:
            parts = Parts(curve.columns["value"], curve.columns["n"])
            found.setdefault(curve.experiment_id, []).append(parts)
    means = {experiment_id: mean_part(parts) for experiment_id, parts in found.items()}
    return {experiment_id: mean for experiment_id, mean in means.items() if mean is not None}


def _blocks(session: Session, experiment_ids: Sequence[str]) -> int:
    """Return the number of blocks of their series, without reading them."""
    count = select(func.count()).select_from(Series).join(Block, Block.series_id == Series.id)
    is_own = Series.experiment_id.in_(experiment_ids), Series.name == SERIES
    return session.scalar(count.where(*is_own)) or 0


def mean_part(parts: Sequence[Parts | None]) -> Parts | None:
    """Return the mean over seeds or experiments of their parts. None if one is unknown or has other
    parts."""
    known = [one for one in parts if one is not None]
    if not known or len(known) < len(parts) or not all(_are_alike(known[0], one) for one in known):
        return None
    return Parts(np.mean([one.values for one in known], axis=0), known[0].counts)


def _are_alike(one: Parts, other: Parts) -> bool:
    return np.array_equal(one.counts, other.counts)


def data_of(spec: Mapping[str, Any], fields: Iterable[str]) -> str | None:
    """Return the swept fields that choose the data, as text: points with equal texts have the same
    held-out observations. None if each seed has observations of its own."""
    if value_at(spec, "data.seed") == "run":
        return None
    chosen = {path: value_at(spec, path) for path in fields if path.split(".")[0] == "data"}
    return json.dumps(chosen)


def add_behind_best(
    rows: Sequence[dict[str, Any]], parts: Sequence[Parts | None], data: Sequence[str | None]
) -> None:
    """Add the column BEHIND_BEST to rows of a table, beside their held-out LML. `parts` has the
    held-out LML of parts of each row, and `data` names its data. The error is that of the mean of
    the parts' differences, whose variances are as 1 / their numbers of observations."""
    groups: dict[str, list[int]] = {}
    for i, (name, values) in enumerate(zip(data, parts, strict=True)):
        cell = rows[i]["metrics"].get(HELDOUT)
        if name is not None and values is not None and cell and cell["value"] is not None:
            groups.setdefault(name, []).append(i)
    for group in groups.values():
        best = max(group, key=lambda i: float(rows[i]["metrics"][HELDOUT]["value"]))
        for i in group if len(group) > 1 else ():
            _add(rows[i], rows[best], parts[i], parts[best])


def _add(row: dict[str, Any], best: dict[str, Any], own: Any, of_best: Any) -> None:
    cell = row["metrics"][HELDOUT]
    behind = best["metrics"][HELDOUT]["value"] - cell["value"]
    error = 0.0 if row is best else _error(of_best, own)
    added = {BEHIND_BEST: {"value": behind, "std_err": error, "count": cell["count"]}}
    cells: dict[str, Any] = {}
    for name, other in row["metrics"].items():
        cells |= {name: other} | (added if name == HELDOUT else {})
    row["metrics"] = cells


def _error(of_best: Parts, own: Parts) -> float | None:
    counts = own.counts
    if not _are_alike(own, of_best) or len(counts) < MIN_PARTS:
        return None
    differences = of_best.values - own.values
    mean = np.average(differences, weights=counts)
    variance = np.sum(counts * (differences - mean) ** 2) / (len(counts) - 1)  # of an observation
    error = math.sqrt(variance / np.sum(counts))
    return error if math.isfinite(error) else None
