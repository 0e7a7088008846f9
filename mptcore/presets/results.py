"""Inputs and outputs of a verdict, as plain values that do not depend on their storage."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from mptcore.stats import t_cdf, t_quantile

Label = int | float | str
Outcome = Literal["agrees", "differs", "cannot tell"]
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
    """A published figure and ours. They agree if the whole interval `measured` ± `half_width` is
    between `low` and `high`, and differ if it is completely outside."""

    what: str
    published: float
    measured: float
    low: float
    high: float
    half_width: float = 0.0
    power: float = 1.0
    """Probability that the figures are found to agree if they are equal or, for a bound on one
    side, if the true value is the expected one. It is 1 without sampling error. Figures that are a
    whole margin apart, or at a bound, are found to agree in at most 5 %, if seeds differ normally.
    Where a few seeds differ much more than the others, it is up to 23 % with three to five seeds
    (benchmarks/calibration/verdicts.py)."""

    @property
    def agrees(self) -> bool:
        return self.outcome == "agrees"

    @property
    def outcome(self) -> Outcome:
        least, most = self.measured - self.half_width, self.measured + self.half_width
        if not math.isfinite(self.measured) or most < self.low or least > self.high:
            return "differs"
        return "agrees" if self.low <= least and most <= self.high else "cannot tell"


@dataclass(frozen=True, slots=True)
class Verdict:
    verdict: Outcome | Literal["incomplete"]
    comparisons: tuple[Comparison, ...]
    missing: str | None = None
    """The missing part, if the verdict is incomplete."""


class Measured(NamedTuple):
    value: float
    std_err: float | None = None
    """Standard error. None: the value has none."""
    degrees: float = math.inf
    """Degrees of freedom of the standard error."""


def within(figure: str, measured: Measured, *, value: float, tolerance: float) -> Comparison:
    """Compare two values that have no sampling error."""
    return Comparison(figure, value, measured.value, value - tolerance, value + tolerance)


def equivalent(
    figure: str, measured: Measured, *, value: float, margin: float, relative: bool = False
) -> Comparison:
    """Test whether two values are less than `margin` apart, or that share of the published one:
    their 95 % interval by Student's t must be within it (Schuirmann 1987)."""
    width = margin * abs(value) if relative else margin
    std_err = _std_err(figure, measured)
    reach = t_quantile(0.975, measured.degrees)
    power = 2 * t_cdf(_in_errors(width, std_err) - reach, measured.degrees) - 1
    bounds = (value - width, value + width)
    return Comparison(figure, value, measured.value, *bounds, reach * std_err, max(0.0, power))


def no_more(
    figure: str,
    measured: Measured,
    *,
    value: float,
    margin: float | Annotated[list[float], Field(min_length=2, max_length=2)],
    log: bool = False,
) -> Comparison:
    """Test whether a value exceeds the published one by less than `margin`, at 95 % on one side. A
    margin of two numbers is their distance. With `log` the value is a log, the other numbers are
    not."""
    width = margin if isinstance(margin, float | int) else margin[1] - margin[0]
    limit, width = (math.log(value), math.log(width)) if log else (value, width)
    reach, power = _one_sided(figure, measured, width)
    return Comparison(figure, limit, measured.value, -math.inf, limit + width, reach, power)


def exceeds(
    figure: str, measured: Measured, *, least: float, expected: float, log: bool = False
) -> Comparison:
    """Test whether a value exceeds `least`, at 95 % on one side. The power is that for a true value
    of `expected`. With `log` the value is a log, the other numbers are not."""
    if log:
        least, expected = math.log(least), math.log(expected)
    reach, power = _one_sided(figure, measured, expected - least)
    return Comparison(figure, least, measured.value, least, math.inf, reach, power)


def _one_sided(figure: str, measured: Measured, margin: float) -> tuple[float, float]:
    """Return the distance of a one-sided 95 % bound from a value, and the power of its test for a
    true value that is `margin` within the limit."""
    std_err = _std_err(figure, measured)
    reach = t_quantile(0.95, measured.degrees)
    power = t_cdf(_in_errors(margin, std_err) - reach, measured.degrees)
    return reach * std_err, power


def _std_err(figure: str, measured: Measured) -> float:
    if measured.std_err is None:
        raise KeyError(f"the standard error of {figure}")
    return measured.std_err


def _in_errors(margin: float, std_err: float) -> float:
    return margin / std_err if std_err else 1000.0


def finite(curve: Curve) -> list[float]:
    """Return the curve's values. Raises KeyError if one is not finite."""
    values = [value for value in curve.value if value is not None]
    if len(values) < len(curve.value):
        raise KeyError("a value that is finite")
    return values


def verdict_of(figures: Iterable[Comparison]) -> Verdict:
    """Return the verdict on figures. It is incomplete if a curve or metric is missing."""
    try:
        comparisons = tuple(figures)
    except (KeyError, IndexError) as error:
        return Verdict("incomplete", (), f"missing: {error}")
    outcomes = {one.outcome for one in comparisons}
    if "differs" in outcomes or not comparisons:
        return Verdict("differs", comparisons)
    return Verdict("cannot tell" if "cannot tell" in outcomes else "agrees", comparisons)
