"""Estimates with Monte Carlo errors, and the records that report them."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mptcore.estimation.model import Evidence
from mptcore.protocol.records import Labels, Metric, Point, SeriesName
from mptcore.stats import t_quantile

ONE_DRAW = "one draw gives no standard error"
MIN_DEGREES = 7
"""Minimum degrees of freedom for a standard error to be reported. Student's t then has a standard
deviation of 1.18, and 91 % of it lies within two."""
MIN_KURTOSIS = 4.0
"""Lower bound on the kurtosis of scores: a few draws measure too small a value."""
NORMAL_KURTOSIS = 3.0
MAX_FOURTH = 1e280
"""Sum of fourth powers from which on scores are scaled, as those of data near 1e70."""
CONSTANT = 1.0
"""Kurtosis that stands for scores that cannot vary."""
MAX_INTERVAL_DEGREES = 60
"""Degrees of freedom from which on two standard errors make a 95 % interval."""
PARTS = 32
"""Number of parts of held-out observations whose LML is recorded."""
OF_ONE_PART = "the spread over the parts gives the error"
TOO_FEW = "its standard error would rest on too few replicates: "


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its Monte Carlo standard error, from n draws. The error is None if it cannot be
    estimated, for example from one draw.

    `degrees` are the error's degrees of freedom. They depend only on the design, not on the scores:
    otherwise mainly errors that are too small by chance would be reported. Records contain only
    errors with MIN_DEGREES or more. `interval_degrees` are the degrees of freedom for intervals,
    measured from the scores."""

    mean: float
    std_err: float | None
    n: int
    degrees: float = math.inf
    interval_degrees: float = math.inf
    bias: float = 0.0
    """Estimated bias of sampled scores."""
    doubtful: float = 0.0
    """Share of averaged terms with unreliable importance weights, of the worst mask size."""
    doubt: float = 0.0
    """Error that these weights may cause, in addition to `std_err`. It adds up over sizes."""
    not_final_reason: str | None = None
    """Reason not to quote the mean."""

    @classmethod
    def of(cls, values: Tensor, n: int | None = None, kurtosis: float = MIN_KURTOSIS) -> "Estimate":
        """Estimate the mean of independent values (R,), whose kurtosis may be as large as
        `kurtosis`. `n` is the number of draws, if that differs from R."""
        return cls.of_rows(values.cpu().numpy()[None], [kurtosis], n)[0]

    @classmethod
    def of_rows(
        cls, rows: NDArray[np.float64], kurtoses: Iterable[float], n: int | None = None
    ) -> "list[Estimate]":
        """Estimate the mean of each row of independent values (rows, R). An estimate does not
        depend on the other rows."""
        count = rows.shape[1]
        estimates = []
        for (mean, variance, measured), kurtosis in zip(_moments(rows), kurtoses, strict=False):
            std_err = math.sqrt(variance / count) if count > 1 else None
            degrees = variance_degrees(count - 1, kurtosis)
            interval_degrees = variance_degrees(count - 1, max(measured, NORMAL_KURTOSIS))
            estimates.append(
                cls(mean, std_err, count if n is None else n, degrees, interval_degrees)
            )
        return estimates

    @property
    def half_interval(self) -> float | None:
        """Half the width of the 95 % interval by Student's t. None if there are enough degrees of
        freedom that two standard errors are this half width."""
        if not self.known_std_err or self.interval_degrees >= MAX_INTERVAL_DEGREES:
            return None
        return t_quantile(0.975, self.interval_degrees) * self.known_std_err

    @property
    def known_std_err(self) -> float | None:
        """The standard error, if it is known well enough to be reported. An error of 0 needs as
        many degrees of freedom: two masks may be equal by chance."""
        return self.std_err if self.degrees >= MIN_DEGREES else None

    def unknown_reason(self, without: str) -> str | None:
        """Return why the standard error is not reported, or `without` if there is none at all."""
        if self.std_err is None:
            return without
        if self.known_std_err is None:
            return f"{TOO_FEW}{self.degrees:.3g} degrees of freedom, not {MIN_DEGREES}"
        return None

    def scaled(self, factor: float) -> "Estimate":
        """Return the estimate of `factor` times the quantity."""
        std_err = None if self.std_err is None else abs(factor) * self.std_err
        return replace(
            self,
            mean=factor * self.mean,
            std_err=std_err,
            bias=factor * self.bias,
            doubt=abs(factor) * self.doubt,
        )

    def widened(self, error: float) -> "Estimate":
        """Return the estimate with another, independent error added."""
        std_err = None if self.std_err is None else math.hypot(self.std_err, error)
        return replace(self, std_err=std_err)

    def with_doubts_of(self, other: "Estimate") -> "Estimate":
        """Return the estimate with the bias and the doubt of another that rests on the same
        scores."""
        return replace(self, bias=other.bias, doubtful=other.doubtful, doubt=other.doubt)

    def beyond(self, other: Evidence) -> "Estimate":
        """Return the difference from an independent estimate. It is not final if either is not."""
        reason = self.not_final_reason or other.not_final_reason
        difference = replace(self, mean=self.mean - other.value, not_final_reason=reason)
        return difference.widened(other.std_err)

    def exponential(self) -> "Estimate":
        """Return the estimate of the quantity's exponential, by the delta method."""
        value = math.exp(self.mean) if self.mean < 700 else math.inf
        std_err = None if self.std_err is None else value * self.std_err
        return replace(self, mean=value, std_err=std_err)


def variance_degrees(known: float, kurtosis: float) -> float:
    """Return the degrees of freedom of a variance with `known` = replicates − 1: those of the χ²
    distribution with the same relative variance. They are infinite for the kurtosis CONSTANT."""
    return math.inf if kurtosis == CONSTANT else 2 * known / (kurtosis - 1)


def _moments(rows: NDArray[np.float64]) -> list[tuple[float, float, float]]:
    """Return the mean, the unbiased variance and the kurtosis of each row (rows, R). Numpy takes a
    third of torch's time on small arrays."""
    count = rows.shape[1]
    means = rows.sum(1) / count
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.square(rows - means[:, None])
        fourths = np.square(squares).sum(1)
    if (fourths > MAX_FOURTH).any() and np.isfinite(rows).all():
        scales = np.abs(rows).max(1, keepdims=True).clip(min=1.0)
        scaled = zip(_moments(rows / scales), scales[:, 0].tolist(), strict=True)
        return [(s * mean, s * s * variance, kurt) for (mean, variance, kurt), s in scaled]
    sums = zip(means.tolist(), squares.sum(1).tolist(), fourths.tolist(), strict=True)
    return [
        (mean, total / max(count - 1, 1), count * fourth / total**2 if total > 0 else 0.0)
        for mean, total, fourth in sums
    ]


def total_of(estimates: Sequence[Estimate]) -> Estimate:
    """Return the sum of independent estimates. One of them may contribute all of the variance, so
    the sum has the fewest `degrees` of any. `interval_degrees` follow from the variances (Welch
    1938, Satterthwaite 1946)."""
    total = Estimate(
        math.fsum(estimate.mean for estimate in estimates),
        None,
        sum(estimate.n for estimate in estimates),
        bias=sum(estimate.bias for estimate in estimates),
        doubtful=max((estimate.doubtful for estimate in estimates), default=0.0),
        doubt=sum(estimate.doubt for estimate in estimates),
    )
    errors = [estimate.std_err for estimate in estimates if estimate.std_err is not None]
    if len(errors) < len(estimates):
        return total
    degrees = min((estimate.degrees for estimate in estimates), default=math.inf)
    unit = max(errors, default=0.0) or 1.0  # fourth powers might overflow
    shares = [error / unit for error in errors]
    pairs = zip(shares, estimates, strict=True)
    parts = math.fsum(share**4 / estimate.interval_degrees for share, estimate in pairs)
    interval_degrees = math.hypot(*shares) ** 4 / parts if parts else math.inf
    std_err = math.hypot(*errors)
    return replace(total, std_err=std_err, degrees=degrees, interval_degrees=interval_degrees)


def point(
    series: SeriesName, x: float, estimate: Estimate, labels: Labels, reason: str = ONE_DRAW
) -> Point:
    """Return an estimate as a point of a series. One that is not final has no standard error.
    `reason` says why the error is missing, if it is."""
    why = estimate.not_final_reason or estimate.unknown_reason(reason)
    error = estimate.known_std_err if why is None else None
    return Point(series, x, estimate.mean, error, estimate.n, labels, why)


def metric(name: str, estimate: Estimate, labels: Labels, reason: str = ONE_DRAW) -> Metric:
    """Return an estimate as a metric. `reason` says why it has no standard error, if it has
    none."""
    why = estimate.unknown_reason(reason)
    return Metric(name, estimate.mean, estimate.known_std_err, labels, why)


def final_metric(name: str, estimate: Estimate, labels: Labels) -> Iterator[Metric]:
    """Yield an estimate as a metric, under another name if it is not final. Half the width of its
    95 % interval follows if that is more than two standard errors."""
    if estimate.not_final_reason is None:
        yield metric(name, estimate, labels)
        if estimate.half_interval is not None:
            yield Metric(f"{name}_half_interval", estimate.half_interval, 0.0, labels)
    else:
        yield Metric(name, None, None, labels, estimate.not_final_reason)
        yield metric(f"{name}_not_final", estimate, labels)


def lml_metrics(name: str, evidence: Evidence, labels: Labels) -> Iterator[Metric]:
    """Yield a log marginal likelihood and the metrics of its quality."""
    reason = evidence.not_final_reason
    estimate = Estimate(evidence.value, evidence.std_err, 0, not_final_reason=reason)
    yield from final_metric(name, estimate, labels)
    for quality, value in evidence.metrics.items():
        yield Metric(f"{name}_{quality}", value, 0.0, labels)


def over_rows(log_probs: Tensor, labels: Labels) -> Metric:
    """Return the LML with its standard error over observations, from log p(x) of each (N,)."""
    return metric("lml_population", Estimate.of(log_probs), labels)


def over_observations(
    log_probs: Tensor, labels: Labels, not_final_reason: str | None
) -> Iterator[Metric | Point]:
    """Yield the held-out LML with its standard error over observations, from log p(x) of each
    (N,), and the LML of PARTS parts of them. Two models that have the same held-out observations
    are compared by the differences of their parts: most observations are hard or easy for both."""
    population = replace(Estimate.of(log_probs), not_final_reason=not_final_reason)
    yield from final_metric("lml_heldout_population", population, labels)
    reason = not_final_reason or OF_ONE_PART
    for i, part in enumerate(log_probs.tensor_split(min(PARTS, len(log_probs)))):
        yield Point("lml_heldout_parts", i, part.mean().item(), None, len(part), labels, reason)
