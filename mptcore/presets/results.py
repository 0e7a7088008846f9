"""Inputs and outputs of a verdict, as plain values that do not depend on their storage."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Label = int | float | str
LabelSet = frozenset[tuple[str, Label]]


@dataclass(frozen=True, slots=True)
class Curve:
    """The points of one series, by increasing x. Values that are not finite are None."""

    x: Sequence[float]
    value: Sequence[float | None]
    std_err: Sequence[float | None]
    n: Sequence[int]

    def at(self, x: float) -> float:
        """Return the value at x. Raises KeyError if there is none."""
        for own, value in zip(self.x, self.value, strict=True):
            if own == x and value is not None:
                return value
        raise KeyError(f"x = {x}")


@dataclass(frozen=True, slots=True)
class Results:
    """The curves and metrics (value, standard error) of one experiment, by name and labels."""

    curves: Mapping[tuple[str, LabelSet], Curve] = field(default_factory=dict)
    metrics: Mapping[tuple[str, LabelSet], tuple[float | None, float | None]] = field(
        default_factory=dict
    )

    @classmethod
    def of_records(cls, records: Iterable[Mapping[str, Any]]) -> "Results":
        """Collect the results from a run's decoded records."""
        points: dict[tuple[str, LabelSet], list[Mapping[str, Any]]] = {}
        metrics: dict[tuple[str, LabelSet], tuple[float | None, float | None]] = {}
        for record in records:
            if record["record"] == "point":
                key = (record["series"], frozenset(record["labels"].items()))
                points.setdefault(key, []).append(record)
            elif record["record"] == "metric":
                key = (record["name"], frozenset(record["labels"].items()))
                metrics[key] = (record["value"], record["std_err"])
        return cls({key: _curve(rows) for key, rows in points.items()}, metrics)

    def metric(self, name: str, **labels: Label) -> float:
        """Return a metric's value. Raises KeyError if it is missing or not finite."""
        value = self.metrics[name, frozenset(labels.items())][0]
        if value is None:
            raise KeyError(name)
        return value

    def std_err(self, name: str, **labels: Label) -> float:
        value = self.metrics[name, frozenset(labels.items())][1]
        if value is None:
            raise KeyError(f"the standard error of {name}")
        return value

    def curve(self, series: str, **labels: Label) -> Curve:
        return self.curves[series, frozenset(labels.items())]


def _curve(rows: list[Mapping[str, Any]]) -> Curve:
    rows = sorted(rows, key=lambda row: row["x"])
    columns = ([row[name] for row in rows] for name in ("x", "value", "std_err", "n"))
    return Curve(*columns)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One published figure beside ours. They agree if `measured` is between `low` and `high`."""

    what: str
    published: float
    measured: float
    low: float
    high: float

    @property
    def agrees(self) -> bool:
        return math.isfinite(self.measured) and self.low <= self.measured <= self.high


@dataclass(frozen=True, slots=True)
class Verdict:
    verdict: Literal["agrees", "differs", "incomplete"]
    comparisons: tuple[Comparison, ...]
    missing: str | None = None
    """The missing part, if the verdict is incomplete."""


Judge = Callable[[Mapping[str, tuple[float, ...]], Sequence[Results]], Iterable[Comparison]]


def within(what: str, published: float, measured: float, tolerance: float) -> Comparison:
    """Compare two values with a tolerance."""
    return Comparison(what, published, measured, published - tolerance, published + tolerance)


def at_least(what: str, published: float, measured: float) -> Comparison:
    return Comparison(what, published, measured, published, math.inf)


def finite(curve: Curve) -> list[float]:
    """Return the curve's values. Raises KeyError if one is not finite."""
    values = [value for value in curve.value if value is not None]
    if len(values) < len(curve.value):
        raise KeyError("a value that is finite")
    return values


def judged(
    judge: Judge, published: Mapping[str, tuple[float, ...]], results: Sequence[Results]
) -> Verdict:
    """Return a judge's verdict. It is incomplete if a curve or metric is missing."""
    try:
        comparisons = tuple(judge(published, results))
    except (KeyError, IndexError) as error:
        return Verdict("incomplete", (), f"missing: {error}")
    agrees = bool(comparisons) and all(c.agrees for c in comparisons)
    return Verdict("agrees" if agrees else "differs", comparisons)
