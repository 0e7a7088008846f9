"""Means of metrics over seeds. The dashboard's `means.js` follows the same rule for points of
curves."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mptcore.protocol.metrics import OF_ROWS, POPULATION

SEED = "seed"
"""Label over which means are computed; metrics that differ in other labels are never mixed."""

MIN_SEEDS = 3
"""Number of seeds from which their spread alone is an error. That of two has one degree of freedom:
a third of all such errors is less than half of the true one."""


@dataclass(frozen=True)
class Mean:
    """The mean of one metric over seeds.

    `value` is None where a seed has no value. For one seed `std_err` is the metric's own error. For
    several it is the standard deviation of the values over √count, and at least the error that the
    seeds' own errors give if they are independent: few seeds may agree by chance. It is None for
    two seeds without errors of their own, whose difference tells too little. The choice of texts
    or rows is the same for all seeds, so the mean's error over the population is not smaller than
    that of one seed; the spread over seeds is added to it.
    """

    name: str
    labels: dict[str, Any]
    value: float | None
    std_err: float | None
    count: int
    reason: str | None = None
    """Reason of the first seed why a number is null, or the method that computed it."""

    @property
    def title(self) -> str:
        """The name with its labels: `lml[model=baseline]`."""
        return title(self.name, self.labels)

    @property
    def covers(self) -> str:
        """Description of the variation that the standard error covers."""
        chosen = OF_ROWS.get(self.name, "texts")
        texts = f"the choice of {chosen} and " if self.name.endswith(POPULATION) else ""
        if self.count == 1:
            return f"{texts}the masks or samples of this seed, not its training"
        return f"{texts}the variation between seeds: training, masks, samples"


def title(name: str, labels: Mapping[str, Any]) -> str:
    """Return a metric's name with labels: `lml[model=baseline]`."""
    inner = ",".join(f"{key}={value}" for key, value in labels.items())
    return f"{name}[{inner}]" if inner else name


def over_seeds(metrics: Iterable[Mapping[str, Any]]) -> list[Mean]:
    """Return a mean for each name and set of labels other than the seed, in order of appearance."""
    groups: dict[tuple[str, tuple[tuple[str, Any], ...]], list[Mapping[str, Any]]] = {}
    for metric in metrics:
        labels = tuple((key, value) for key, value in metric["labels"].items() if key != SEED)
        groups.setdefault((metric["name"], labels), []).append(metric)
    means = []
    for (name, labels), found in groups.items():
        values, errors = [one["value"] for one in found], [one["std_err"] for one in found]
        reason = None
        for one in found:
            reason = reason or one.get("reason")
        means.append(Mean(name, dict(labels), *mean_of(name, values, errors), len(found), reason))
    return means


def mean_of(
    name: str, found: Sequence[float | None], errors: Sequence[float | None]
) -> tuple[float | None, float | None]:
    """Return the mean of a metric's values, one for each seed, and its standard error."""
    if found[0] is not None and len(found) == 1:
        return float(found[0]), errors[0]
    values = [one for one in found if one is not None]
    count = len(found)
    if len(values) < count:
        return None, None
    try:
        mean = math.fsum(values) / count
        between = math.sqrt(math.fsum((one - mean) ** 2 for one in values) / (count - 1) / count)
    except OverflowError:
        return None, None
    if name.endswith(POPULATION):
        return mean, _with_shared(errors, between)
    within = math.hypot(*(error or 0.0 for error in errors)) / count
    if count < MIN_SEEDS and between and not within:
        return mean, None
    return mean, max(between, within)


def _with_shared(errors: Sequence[float | None], between: float) -> float | None:
    """Return the error of a mean whose seeds' `errors` are mostly one common error. None if one of
    them is unknown."""
    known = [error for error in errors if error is not None]
    if len(known) < len(errors):
        return None
    return math.hypot(between, math.hypot(*known) / math.sqrt(len(known)))
