"""What is estimated from logarithms of importance weights, and how far it can be trusted."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mptcore.estimation.model import Evidence
from mptcore.estimation.quality import LEAST_ESS, doubtful_reason
from mptcore.families.vae.pareto import khats

GROUPS = 4
"""Of draws, by which the bias is estimated."""
LARGEST_KHAT = 0.7
"""Above it the proposal does not cover the target (Vehtari et al. 2024, Sec. 3)."""

DOUBTFUL_ERROR = 1.0
"""Nats by which log p(x) of an observation whose weights are in doubt may be wrong, all such in the
same direction: beyond the largest miss measured, 0.7."""


class WeightSummary(NamedTuple):
    """What importance weights say of each observation, (N,) each."""

    log_mean: Tensor
    """Below the truth in expectation."""
    debiased: Tensor
    """The same by the jackknife; but where the weights are uneven, whose halves tell nothing."""
    bias: Tensor
    """What is left of it there."""
    variance: Tensor
    """Of both, to the first order."""
    ess: Tensor
    """The effective sample size."""
    doubtful: Tensor
    """1 where the weights cannot be trusted, else 0."""

    def put(self, rows: Tensor, others: "WeightSummary") -> None:
        """Take those of others for some observations."""
        for part, other in zip(self, others, strict=True):
            part[rows] = other


def summary_of(log_weights: Tensor) -> WeightSummary:
    """From logarithms of unbiased weights (samples, N)."""
    log_weights = log_weights.double()
    samples = len(log_weights)
    sums = grouped(log_weights)
    counts = grouped(torch.zeros_like(log_weights))
    return WeightSummary(
        log_weights.logsumexp(0) - math.log(samples),
        *debiased(sums, counts, uneven(log_weights)),
        log_mean_variance(log_weights),
        1 / log_weights.softmax(0).square().sum(0),
        doubtful(log_weights),
    )


def joined(parts: Sequence[WeightSummary]) -> WeightSummary:
    """Those of all observations."""
    return WeightSummary(*(torch.cat(column) for column in zip(*parts, strict=True)))


def grouped(log_terms: Tensor) -> Tensor:
    """Logarithms of sums over the draws of each group, (GROUPS, ...), or of all where these are
    fewer."""
    groups = log_terms.tensor_split(GROUPS) if len(log_terms) >= GROUPS else [log_terms]
    return torch.stack([group.logsumexp(0) for group in groups])


def debiased(sums: Tensor, counts: Tensor, uneven: Tensor) -> tuple[Tensor, Tensor]:
    """log(Σ terms / Σ counts) without its bias of the first order in 1/draws, and an estimate of
    the bias that is left, from logarithms of sums over GROUPS of draws (GROUPS, ...).

    The logarithm of a mean is biased by c/n + d/n² + … for n draws: halves and quarters of the
    draws give c and d (Quenouille 1956; for log p(x) Nowozin 2018, Sec. 3). Where a draw or two
    hold all of the sum the expansion does not hold, and twice the whole less the halves can be any
    number of nats too high: there, `uneven`, nothing is taken off."""
    whole = sums.logsumexp(0) - counts.logsumexp(0)
    if len(sums) < GROUPS:
        return whole, torch.full_like(whole, math.nan)
    of_halves = [sums[i : i + 2].logsumexp(0) - counts[i : i + 2].logsumexp(0) for i in (0, 2)]
    halves = torch.stack(of_halves).mean(0)
    quarters = (sums - counts).mean(0)
    better, worse = 2 * whole - halves, 2 * halves - quarters
    left = torch.where(uneven, halves - whole, (worse - better) / 3)
    return torch.where(uneven, whole, better), left


def doubtful(log_weights: Tensor) -> Tensor:
    """1 where weights (samples, ...) have a k̂ above LARGEST_KHAT, or are uneven, else 0."""
    return (uneven(log_weights) | (khats(log_weights) > LARGEST_KHAT)).double()


def uneven(log_weights: Tensor) -> Tensor:
    """Whether the effective sample size of weights (samples, ...) is too small for a standard error
    by the delta method."""
    return ~(log_mean_variance(log_weights) <= 1 / LEAST_ESS)  # NaN is not known to be small


def log_mean_variance(log_weights: Tensor) -> Tensor:
    """Of the logarithm of a mean of weights (samples, ...), to the first order. It is 1/ESS for
    many samples."""
    samples, shares = len(log_weights), log_weights.softmax(0).square().sum(0)
    return (shares - 1 / samples).clamp(min=0) * samples / (samples - 1)


def weight_evidence(
    parts: Sequence[WeightSummary], *, cure: str, doubtful_error: float = DOUBTFUL_ERROR
) -> Evidence:
    """The mean over observations of log p(x) without its first bias, with its Monte Carlo standard
    error, to which those in doubt add `doubtful_error` nats each; unconverged where the weights do
    not bear it out."""
    columns = joined(parts)
    bias, share = columns.bias.mean().item(), columns.doubtful.mean().item()
    error = math.sqrt(columns.variance.sum().item()) / len(columns.debiased)
    error = math.hypot(error, share * doubtful_error)
    metrics = {"ess": columns.ess.median().item(), "bias_estimate": bias, "doubtful": share}
    reason = doubtful_reason(bias, error, share, cure)
    return Evidence(columns.debiased.mean().item(), error, reason, metrics)
