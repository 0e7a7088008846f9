"""Allocate masks to strata until a target standard error is reached."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from mptcore.estimation.estimate import MIN_KURTOSIS, Estimate
from mptcore.protocol.records import Labels, Log, Metric, Record
from mptcore.runtime.state import MaskPlan, Records

SHARES = (0.25, 0.5, 1.0)
"""Fraction of the masks still planned that each round draws. The last round draws all of them."""
NEIGHBOURS = 21
"""Number of adjacent strata, including the stratum itself, that are pooled to estimate a variance.
"""
PRIOR_DEGREES = 2.0
"""Degrees of freedom given to the neighbours' variance."""
SAFETY = 3.0
"""Number of standard deviations by which the variances may still change before the target is
missed."""
MIN_LEFT = 1 / 8
"""Smallest share of the target variance left for the last round. If earlier rounds leave less, the
target is missed, and the last round costs no more than this share would."""

Draw = Callable[[Tensor, Tensor], Records[Tensor]]
"""Score a number of masks of each stratum, (strata,), which may be 0, and all masks of the strata
to enumerate, (strata,) bool. Return the values, (rows, masks), stratum by stratum. A row is a model
or the difference of two models."""


Interim = Callable[["StratifiedSample"], Iterable[Record]]
"""Records to emit after a round, from the sample so far."""


@dataclass(frozen=True)
class StratifiedSample:
    """Stratified estimate of Σ width × mean, built from rounds of masks.

    A stratum's mean is Σ_k λ_k · mean of round k with Σ_k λ_k = 1. Both λ_k and the number of masks
    of a round are fixed before it is drawn. So each round adds λ_k · S in expectation, whatever the
    scores of earlier rounds. The estimate is unbiased, although the plan depends on earlier rounds.
    A stratum whose masks are all scored has the mean S itself, without an error."""

    widths: Tensor  # (strata,), weights of the strata's means in the sum
    values: Tensor  # (rows, masks), with the pilot; variances use all values
    strata: Tensor  # (masks,), index of each value's stratum
    drawn: Tensor  # (strata,), number of values of each stratum
    counts: Tensor  # (strata,), without the pilot, whose λ is 0
    means: Tensor  # (rows, strata)
    remaining_weight: Tensor  # (strata,), the part of λ that is not assigned yet
    variance_factor: Tensor  # (strata,), Σ_k λ_k² / n_k, without those that were enumerated
    masks: int
    """Number of masks scored so far, including the pilot."""

    @classmethod
    def of_pilot(
        cls, widths: Tensor, pilot: Tensor, counts: Tensor, enumerated: Tensor
    ) -> "StratifiedSample":
        none, zero = torch.zeros_like(counts), torch.zeros_like(widths)
        means = zero.expand(len(pilot), -1)
        sample = cls(widths, pilot[:, :0], none[:0], none, none, means, zero + 1, zero, 0)
        sample = sample.with_round(pilot, counts, enumerated.double(), enumerated)
        return replace(sample, counts=counts * enumerated)

    def with_round(
        self, values: Tensor, counts: Tensor, share: Tensor, enumerated: Tensor
    ) -> "StratifiedSample":
        """Return the sample with the values of another round (rows, masks), stratum by stratum, and
        its weights λ (strata,). It contains all masks of the `enumerated` strata."""
        strata = torch.repeat_interleave(counts)
        drawn = counts.clamp(min=1)  # where nothing is drawn the sum and λ are 0
        sums = torch.zeros_like(self.means).index_add(1, strata, values)
        return StratifiedSample(
            widths=self.widths,
            values=torch.cat([self.values, values], 1),
            strata=torch.cat([self.strata, strata]),
            drawn=self.drawn + counts,
            counts=self.counts + counts,
            means=self.means + share * sums / drawn,
            remaining_weight=self.remaining_weight - share,
            variance_factor=self.variance_factor + share.square() / drawn * ~enumerated,
            masks=self.masks + len(strata),
        )

    @property
    def min_counts(self) -> Tensor:  # (strata,)
        """Minimum number of masks still to draw from each stratum. Every stratum gets at least two
        in all, so that the first draw contributes to the variance."""
        return (self.remaining_weight > 0).long() + (self.counts == 0)

    @cached_property
    def variances(self) -> tuple[Tensor, Tensor]:
        """The variance and the kurtosis of each stratum's scores, (rows, strata) each.

        A variance from n draws has about 2 (n − 1) / (κ − 1) degrees of freedom. Where large scores
        are rare it has few, so it is weighted less against the variance of its neighbours, which
        may contain large scores. With its own variance alone, a stratum with a lucky pilot would
        get too few masks.
        """

        def means(values: Tensor) -> Tensor:  # (rows, strata)
            return torch.zeros_like(self.means).index_add(1, self.strata, values) / self.drawn

        squares = (self.values - means(self.values)[:, self.strata]).square()
        second, fourth = means(squares), means(squares.square())
        others = (self.drawn - 1).clamp(min=1)
        unbiased = second * (others + 1) / others
        rows = torch.cat([fourth, second.square(), unbiased])
        near_fourth, near_square, near_variance = smoothed(rows).tensor_split(3)
        kurtosis = (near_fourth / near_square.clamp(min=1e-300)).clamp(min=MIN_KURTOSIS)
        degrees = 2 * others / (kurtosis - 1)
        pooled = degrees * unbiased + PRIOR_DEGREES * near_variance
        return pooled / (degrees + PRIOR_DEGREES), kurtosis

    def estimates(self) -> list[list[Estimate]]:
        """Return the estimates, by stratum and row. Their standard errors also use the pilot's
        scores and the variances of neighbouring strata."""
        errors = (self.variances[0] * self.variance_factor).sqrt().T.tolist()
        means, counts = self.means.T.tolist(), self.counts.tolist()
        return [
            [Estimate(mean, error, n) for mean, error in zip(*rows, strict=True)]
            for *rows, n in zip(means, errors, counts, strict=True)
        ]

    def estimates_so_far(self) -> list[list[Estimate]]:
        """Return interim estimates of each stratum for each row, from the weight λ assigned so
        far."""
        weights = (1 - self.remaining_weight).tolist()
        return [
            [estimate.scaled(1 / weight) for estimate in rows]
            for weight, rows in zip(weights, self.estimates(), strict=True)
        ]

    def total_estimates(self) -> list[Estimate]:
        """Return the estimate of the sum over strata for each row."""
        variances, kurtosis = self.variances
        means = (self.means * self.widths).sum(1).tolist()
        parts = self.widths.square() * variances * self.variance_factor
        relative = (kurtosis - 1) / self.drawn
        total = parts.sum(1)
        degrees = 2 * total.square() / (parts.square() * relative).sum(1)
        n = int(self.counts.sum())
        errors, of_rows = total.sqrt().tolist(), degrees.nan_to_num(torch.inf).tolist()
        rows = zip(means, errors, of_rows, strict=True)
        return [Estimate(mean, error, n, degree, degree) for mean, error, degree in rows]


def sample_to_target(
    draw: Draw,
    plan: MaskPlan,
    widths: Tensor,  # (strata,)
    target: float,
    pilot: int,
    row: int = 0,
    available: Tensor | None = None,  # (strata,), float64
    interim: Interim = lambda sample: (),
    more_in_pilot: int = 0,
) -> Records[StratifiedSample]:
    """Score a pilot, then rounds of masks, so that the sum over strata of one row gets the standard
    error `target`. At most the masks of the plan are used, with the pilot. No round is added if the
    final error exceeds the target: a decision that depends on the scores would bias the estimate.

    Masks go to the strata in proportion to width × standard deviation (Neyman 1934), measured from
    all draws so far. `available` is the number of different masks of each stratum. A stratum is
    enumerated if the pilot would draw nearly all of them, or if a plan would draw at least as many;
    then S itself gets the remaining weight.

    `more_in_pilot` masks are scored by the first `draw` without being values of a stratum.

    The records of `interim` are emitted after each round except the last."""
    max_masks = plan.max_masks
    if available is None:
        available = torch.full_like(widths, torch.inf)
    enumerated = available <= pilot + 2
    counts = torch.where(enumerated, available, pilot).long()
    first = yield from draw(counts, enumerated)
    sample = StratifiedSample.of_pilot(widths, first, counts, enumerated)
    sample = replace(sample, masks=sample.masks + more_in_pilot)
    for share in SHARES:
        if not sample.min_counts.any():
            break
        wanted = _planned(sample, row, target**2, max_masks)
        enumerated = wanted >= available
        wanted = torch.where(enumerated, available, wanted).long()
        plan.planned = sample.masks + int(wanted.sum())
        counts = torch.where(enumerated, wanted, (share * wanted).ceil().long())
        weight = sample.remaining_weight * (counts / wanted.clamp(min=1))
        values = yield from draw(counts, enumerated)
        sample = sample.with_round(values, counts, weight, enumerated)
        if sample.min_counts.any():
            yield from interim(sample)
    plan.planned = sample.masks
    return sample


def _planned(sample: StratifiedSample, row: int, target: float, max_masks: int) -> Tensor:
    """Return how many more masks of each stratum to draw, (strata,)."""
    wanted = _wanted(sample, row, target)
    return affordable(wanted, sample.min_counts, max_masks - sample.masks)


def _wanted(sample: StratifiedSample, row: int, target: float) -> Tensor:
    """Return how many masks of each stratum are still needed for the variance `target`,
    (strata,)."""
    variances, kurtosis = (of_rows[row] for of_rows in sample.variances)
    spent = (sample.widths.square() * variances * sample.variance_factor).sum()
    deviations = sample.widths * sample.remaining_weight * variances.sqrt()

    def counts(variance: float | Tensor) -> Tensor:
        remaining = (variance - spent).clamp(min=MIN_LEFT * target)
        return torch.maximum(neyman(deviations, remaining), sample.min_counts)

    exact = counts(target)
    return counts(target / (1 + SAFETY * _uncertainty(sample, variances, kurtosis, exact)))


def _uncertainty(
    sample: StratifiedSample, variances: Tensor, kurtosis: Tensor, counts: Tensor
) -> Tensor:
    """Return the relative standard deviation that `counts` more masks of each stratum (strata,) add
    to the estimated variance of the sum."""
    drawn = sample.drawn
    factor = sample.variance_factor + sample.remaining_weight.square() / counts.clamp(min=1)
    parts = sample.widths.square() * variances * factor
    relative = (kurtosis - 1) * (1 / drawn - 1 / (drawn + counts))
    return (parts.square() * relative).sum().sqrt() / parts.sum().clamp(min=1e-300)


def target_records(total: Estimate, masks: int, target: float, labels: Labels) -> Iterator[Record]:
    """Yield the records that report whether an estimate from a number of masks met its target."""
    std_err = total.known_std_err
    reached = std_err is not None and std_err <= target
    yield Metric("masks", masks, 0.0, labels)
    yield Metric("target_reached", float(reached), 0.0, labels)
    if not reached:
        error = "too few large scores for an error" if std_err is None else f"{std_err:.3g}"
        advice = "raise max_masks, or a slightly smaller target if masks were left"
        detail = f"{error} after {masks} masks: {advice}"
        yield Log("warning", f"target_std_err {target} was not reached: {detail}")


def neyman(deviations: Tensor, variance: float | Tensor) -> Tensor:
    """Return the smallest counts with Σ sd² / n = `variance`: n ∝ sd (Neyman 1934)."""
    return (deviations * deviations.sum() / variance).clamp(max=1e15).ceil().long()


def affordable(counts: Tensor, min_counts: Tensor, max_masks: int) -> Tensor:
    """Return counts whose sum is at most `max_masks`. The part above each stratum's minimum is
    reduced in proportion."""
    spare, wanted = max_masks - int(min_counts.sum()), int((counts - min_counts).sum())
    if wanted <= spare:
        return counts
    return min_counts + ((counts - min_counts).double() * (spare / wanted)).floor().long()


def smoothed(values: Tensor, over: int = NEIGHBOURS) -> Tensor:
    """Return the mean over the `over` neighbours of each stratum (rows, strata), itself included.
    There are fewer neighbours at the ends."""
    half = min(over, values.shape[1]) // 2
    ones = torch.ones(1, 1, 2 * half + 1, dtype=values.dtype)
    counted = torch.cat([values, torch.ones_like(values[:1])])[:, None]
    sums = torch.nn.functional.conv1d(counted, ones, padding=half)[:, 0]
    return sums[:-1] / sums[-1]
