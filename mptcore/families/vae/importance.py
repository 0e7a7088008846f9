"""Estimates from logarithms of importance weights, and their diagnostics."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mptcore.estimation.model import Evidence
from mptcore.estimation.not_final import MIN_ESS, doubtful_reason
from mptcore.families.vae.pareto import khats

GROUPS = 4
"""Number of groups of draws from which the bias is estimated."""
LARGEST_KHAT = 0.7
"""Largest k̂ at which the proposal still covers the target (Vehtari et al. 2024, Sec. 3)."""

DOUBTFUL_ERROR = 1.0
"""Possible error in nats of log p(x) for an observation with unreliable weights, assumed to have
the same sign for all of them. The largest error measured was 0.7."""


class WeightSummary(NamedTuple):
    """Summary of the importance weights of each observation, (N,) each."""

    log_mean: Tensor
    """Logarithm of the mean weight. Its expectation is below the true value."""
    debiased: Tensor
    """The same, without the bias that the jackknife estimates. Uneven weights are not corrected,
    because their halves carry no information."""
    bias: Tensor
    """Bias that remains in `debiased`."""
    variance: Tensor
    """First-order variance of `log_mean` and of `debiased`."""
    ess: Tensor
    """Effective sample size."""
    doubtful: Tensor
    """1 if the weights are unreliable, else 0."""
    trial_doubtful: Tensor
    """1 if the weights of independent trial draws are unreliable, else 0. They decide whether the
    mean is final: if its own weights decided, the final ones would be those that met no large
    weight, and would be too low."""

    def put(self, rows: Tensor, others: "WeightSummary") -> None:
        """Replace the entries of some observations."""
        for part, other in zip(self, others, strict=True):
            part[rows] = other


def summary_of(log_weights: Tensor, trial_doubtful: Tensor | None = None) -> WeightSummary:
    """Summarise logarithms of unbiased weights (samples, N). Without `trial_doubtful` (N,) of a
    trial, the weights themselves decide whether their mean is final."""
    log_weights = log_weights.double()
    samples, doubts = len(log_weights), doubtful(log_weights)
    sums = grouped(log_weights)
    counts = grouped(torch.zeros_like(log_weights))
    return WeightSummary(
        log_weights.logsumexp(0) - math.log(samples),
        *debiased(sums, counts, uneven(log_weights)),
        log_mean_variance(log_weights),
        1 / log_weights.softmax(0).square().sum(0),
        doubts,
        doubts if trial_doubtful is None else trial_doubtful,
    )


def joined(parts: Sequence[WeightSummary]) -> WeightSummary:
    """Join the summaries of parts of the observations."""
    return WeightSummary(*(torch.cat(column) for column in zip(*parts, strict=True)))


def grouped(log_terms: Tensor) -> Tensor:
    """Return logarithms of the sums over the draws of each group, (GROUPS, ...). If there are fewer
    draws, each draw is a group."""
    groups = log_terms.tensor_split(GROUPS) if len(log_terms) >= GROUPS else [log_terms]
    return torch.stack([group.logsumexp(0) for group in groups])


def debiased(sums: Tensor, counts: Tensor, uneven: Tensor) -> tuple[Tensor, Tensor]:
    """Return log(Σ terms / Σ counts) without its first-order bias in 1/draws, and an estimate of
    the remaining bias, from logarithms of sums over GROUPS of draws (GROUPS, ...).

    For n draws the logarithm of a mean has the bias c/n + d/n² + …; halves and quarters of the
    draws give c and d (Quenouille 1956; for log p(x) Nowozin 2018, Sec. 3). If one or two draws
    dominate the sum, this expansion is wrong, and the corrected value can be many nats too high.
    In that case, `uneven`, no correction is made."""
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
    """Return 1 where weights (samples, ...) have a k̂ above LARGEST_KHAT or are uneven, else 0."""
    return (uneven(log_weights) | (khats(log_weights) > LARGEST_KHAT)).double()


def uneven(log_weights: Tensor) -> Tensor:
    """Return whether the effective sample size of weights (samples, ...) is too small for a
    standard error by the delta method."""
    return ~(log_mean_variance(log_weights) <= 1 / MIN_ESS)  # NaN is not known to be small


def log_mean_variance(log_weights: Tensor) -> Tensor:
    """Return the first-order variance of the logarithm of a mean of weights (samples, ...). It is
    1/ESS for many samples."""
    samples, shares = len(log_weights), log_weights.softmax(0).square().sum(0)
    return (shares - 1 / samples).clamp(min=0) * samples / (samples - 1)


def weight_evidence(
    parts: Sequence[WeightSummary], *, cure: str, doubtful_error: float = DOUBTFUL_ERROR
) -> Evidence:
    """Return the mean over observations of log p(x), bias-corrected to first order, with its Monte
    Carlo standard error. Each unreliable observation adds `doubtful_error` nats to the error. The
    result is not final if trial draws do not support it."""
    columns = joined(parts)
    bias, share = columns.bias.mean().item(), columns.doubtful.mean().item()
    error = math.sqrt(columns.variance.sum().item()) / len(columns.debiased)
    error = math.hypot(error, share * doubtful_error)
    metrics = {"ess": columns.ess.median().item(), "bias_estimate": bias, "doubtful": share}
    reason = doubtful_reason(bias, error, columns.trial_doubtful.mean().item(), cure)
    return Evidence(columns.debiased.mean().item(), error, reason, metrics, columns.debiased)
