"""Estimates with their Monte Carlo errors, and the records that tell of them."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from mptcore.estimation.model import Evidence
from mptcore.protocol.records import Labels, Metric, Point, SeriesName

ONE_DRAW = "one draw gives no standard error"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its Monte Carlo standard error (None where one draw gives none), from n draws."""

    mean: float
    std_err: float | None
    n: int

    @classmethod
    def of(cls, values: Tensor, n: int | None = None) -> "Estimate":
        """From independent values (R,), which stand for `n` draws where these are not R."""
        count = len(values)
        std_err = (values.std() / math.sqrt(count)).item() if count > 1 else None
        return cls(values.mean().item(), std_err, count if n is None else n)

    def scaled(self, factor: float) -> "Estimate":
        """Of a multiple of the quantity."""
        std_err = None if self.std_err is None else abs(factor) * self.std_err
        return Estimate(factor * self.mean, std_err, self.n)

    def beyond(self, other: Evidence) -> "Estimate":
        """The difference from an independent estimate."""
        std_err = None if self.std_err is None else math.hypot(self.std_err, other.std_err)
        return Estimate(self.mean - other.value, std_err, self.n)

    def exponential(self) -> "Estimate":
        """Of the exponential of the quantity, by the delta method."""
        value = math.exp(self.mean) if self.mean < 700 else math.inf
        return Estimate(value, None if self.std_err is None else value * self.std_err, self.n)


def total_of(estimates: Sequence[Estimate]) -> Estimate:
    """The sum of estimates that are independent of each other."""
    errors = [estimate.std_err for estimate in estimates if estimate.std_err is not None]
    std_err = math.hypot(*errors) if len(errors) == len(estimates) else None
    n = sum(estimate.n for estimate in estimates)
    return Estimate(math.fsum(estimate.mean for estimate in estimates), std_err, n)


def point(
    series: SeriesName,
    x: float,
    estimate: Estimate,
    labels: Labels,
    unconverged_reason: str | None = None,
) -> Point:
    """An estimate as a point of a series. What has not converged has no standard error."""
    reason = ONE_DRAW if estimate.std_err is None else None
    error = estimate.std_err if unconverged_reason is None else None
    return Point(series, x, estimate.mean, error, estimate.n, labels, unconverged_reason or reason)


def metric(name: str, estimate: Estimate, labels: Labels, reason: str = ONE_DRAW) -> Metric:
    """An estimate as a metric; `reason` says why it has no standard error, if it has none."""
    why = reason if estimate.std_err is None else None
    return Metric(name, estimate.mean, estimate.std_err, labels, why)


def final_metric(
    name: str, estimate: Estimate, labels: Labels, unconverged_reason: str | None
) -> Iterator[Metric]:
    """An estimate as a metric. What has not converged has another name."""
    if unconverged_reason is None:
        yield metric(name, estimate, labels)
    else:
        yield Metric(name, None, None, labels, unconverged_reason)
        yield metric(f"{name}_not_final", estimate, labels)


def lml_metrics(name: str, evidence: Evidence, labels: Labels) -> Iterator[Metric]:
    """A log marginal likelihood, and how good it is."""
    estimate = Estimate(evidence.value, evidence.std_err, 0)
    yield from final_metric(name, estimate, labels, evidence.unconverged_reason)
    for quality, value in evidence.metrics.items():
        yield Metric(f"{name}_{quality}", value, 0.0, labels)
