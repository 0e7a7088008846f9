"""Estimates with Monte Carlo errors, and the records that report them."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from mptcore.estimation.model import Evidence
from mptcore.protocol.records import Labels, Metric, Point, SeriesName

ONE_DRAW = "one draw gives no standard error"
MIN_DEGREES = 7
"""Minimum degrees of freedom for a standard error to be reported: those of eight replicates.
Student's t then has a standard deviation of 1.18, and 91 % of it lies within two. With three
replicates its standard deviation is infinite."""
TOO_FEW = "its standard error would rest on too few replicates: "


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its Monte Carlo standard error, from n draws. The error is None if one draw gives
    none. `degrees` are the error's degrees of freedom: the number of replicates minus the number of
    means subtracted, over all parts of a sum. Records contain errors with MIN_DEGREES or more."""

    mean: float
    std_err: float | None
    n: int
    degrees: float = math.inf

    @classmethod
    def of(cls, values: Tensor, n: int | None = None) -> "Estimate":
        """Estimate the mean of independent values (R,). They stand for `n` draws if that differs
        from R."""
        count = len(values)
        std_err = (values.std() / math.sqrt(count)).item() if count > 1 else None
        return cls(values.mean().item(), std_err, count if n is None else n, count - 1)

    @property
    def known_std_err(self) -> float | None:
        """The standard error, if it is known well enough to be reported."""
        return self.std_err if self.degrees >= MIN_DEGREES or self.std_err == 0 else None

    def unknown_reason(self, without: str) -> str | None:
        """Return why there is no known standard error, or `without` if there is none at all."""
        if self.std_err is None:
            return without
        if self.known_std_err is None:
            return f"{TOO_FEW}{self.degrees:.3g} degrees of freedom, not {MIN_DEGREES}"
        return None

    def scaled(self, factor: float) -> "Estimate":
        """Return the estimate of `factor` times the quantity."""
        std_err = None if self.std_err is None else abs(factor) * self.std_err
        return Estimate(factor * self.mean, std_err, self.n, self.degrees)

    def beyond(self, other: Evidence) -> "Estimate":
        """Return the difference from an independent estimate."""
        std_err = None if self.std_err is None else math.hypot(self.std_err, other.std_err)
        return Estimate(self.mean - other.value, std_err, self.n, self.degrees)

    def exponential(self) -> "Estimate":
        """Return the estimate of the quantity's exponential, by the delta method."""
        value = math.exp(self.mean) if self.mean < 700 else math.inf
        std_err = None if self.std_err is None else value * self.std_err
        return Estimate(value, std_err, self.n, self.degrees)


def total_of(estimates: Sequence[Estimate]) -> Estimate:
    """Return the sum of independent estimates."""
    errors = [estimate.std_err for estimate in estimates if estimate.std_err is not None]
    std_err = math.hypot(*errors) if len(errors) == len(estimates) else None
    n, degrees = sum(one.n for one in estimates), math.fsum(one.degrees for one in estimates)
    return Estimate(math.fsum(one.mean for one in estimates), std_err, n, degrees)


def point(
    series: SeriesName,
    x: float,
    estimate: Estimate,
    labels: Labels,
    unconverged_reason: str | None = None,
    reason: str = ONE_DRAW,
) -> Point:
    """Return an estimate as a point of a series. An unconverged estimate has no standard error.
    `reason` says why the error is missing, if it is."""
    why = unconverged_reason or estimate.unknown_reason(reason)
    error = estimate.known_std_err if why is None else None
    return Point(series, x, estimate.mean, error, estimate.n, labels, why)


def metric(name: str, estimate: Estimate, labels: Labels, reason: str = ONE_DRAW) -> Metric:
    """Return an estimate as a metric. `reason` says why it has no standard error, if it has
    none."""
    why = estimate.unknown_reason(reason)
    return Metric(name, estimate.mean, estimate.known_std_err, labels, why)


def final_metric(
    name: str, estimate: Estimate, labels: Labels, unconverged_reason: str | None
) -> Iterator[Metric]:
    """Yield an estimate as a metric, under another name if it has not converged."""
    if unconverged_reason is None:
        yield metric(name, estimate, labels)
    else:
        yield Metric(name, None, None, labels, unconverged_reason)
        yield metric(f"{name}_not_final", estimate, labels)


def lml_metrics(name: str, evidence: Evidence, labels: Labels) -> Iterator[Metric]:
    """Yield a log marginal likelihood and the metrics of its quality."""
    estimate = Estimate(evidence.value, evidence.std_err, 0)
    yield from final_metric(name, estimate, labels, evidence.unconverged_reason)
    for quality, value in evidence.metrics.items():
        yield Metric(f"{name}_{quality}", value, 0.0, labels)
