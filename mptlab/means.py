"""Means of metrics over seeds. The dashboard's `means.js` follows the same rule."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SEED = "seed"
"""The label that means are taken over; metrics whose other labels differ are never mixed."""


@dataclass(frozen=True)
class Mean:
    """The mean of one metric over seeds.

    `value` is None where a seed has no value. For one seed `std_err` is the metric's own error,
    which covers its masks or samples. For several it is the standard deviation of the values over
    √count, which covers all that differs between seeds, training too; it is at least the error that
    the seeds' own errors give, which few seeds may hide by chance.
    """

    name: str
    labels: dict[str, Any]
    value: float | None
    std_err: float | None
    count: int

    @property
    def title(self) -> str:
        """The name with its labels: `lml[model=baseline]`."""
        inner = ",".join(f"{key}={value}" for key, value in self.labels.items())
        return f"{self.name}[{inner}]" if inner else self.name


def over_seeds(metrics: Iterable[Mapping[str, Any]]) -> list[Mean]:
    """One mean for each name and set of labels other than the seed, in order of appearance."""
    groups: dict[tuple[str, tuple[tuple[str, Any], ...]], list[Mapping[str, Any]]] = {}
    for metric in metrics:
        labels = tuple((key, value) for key, value in metric["labels"].items() if key != SEED)
        groups.setdefault((metric["name"], labels), []).append(metric)
    return [_mean(name, dict(labels), found) for (name, labels), found in groups.items()]


def _mean(name: str, labels: dict[str, Any], metrics: Sequence[Mapping[str, Any]]) -> Mean:
    count = len(metrics)
    values = [one["value"] for one in metrics if one["value"] is not None]
    if len(values) < count:
        return Mean(name, labels, None, None, count)
    mean = math.fsum(values) / count
    if count == 1:
        return Mean(name, labels, mean, metrics[0]["std_err"], count)
    between = math.sqrt(math.fsum((one - mean) ** 2 for one in values) / (count - 1) / count)
    within = math.hypot(*(one["std_err"] or 0.0 for one in metrics)) / count
    return Mean(name, labels, mean, max(between, within), count)
