"""What is estimated from logarithms of importance weights, and how far it can be trusted."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from arviz_stats.base.array import array_stats
from torch import Tensor

from mptcore.estimation.model import Evidence
from mptcore.estimation.quality import LEAST_ESS, doubtful_reason

GROUPS = 4
"""Of draws, by which the bias is estimated."""
LARGEST_KHAT = 0.7
"""Above it the proposal does not cover the target (Vehtari et al. 2024, Sec. 3)."""
KHAT_SAMPLE = 32
"""Observations of a part for which it is fitted: a fit takes as long as some draws of z."""
LEAST_FOR_KHAT = 25
"""Draws: fewer have no tail to fit."""

_psis: Callable[..., Any] = array_stats.psislw


class WeightSummary(NamedTuple):
    """What importance weights say of each observation, (N,) each."""

    log_mean: Tensor
    """Below the truth in expectation."""
    debiased: Tensor
    """The same by the jackknife."""
    bias: Tensor
    """What is left of it there."""
    variance: Tensor
    """Of both, to the first order."""
    ess: Tensor
    """The effective sample size."""
    doubtful: Tensor
    """1 where the weights cannot be trusted, 0 where they can, NaN where this is not known."""


def summary_of(log_weights: Tensor) -> WeightSummary:
    """From logarithms of unbiased weights (samples, N)."""
    log_weights = log_weights.double()
    samples = len(log_weights)
    shares = log_weights.softmax(0).square().sum(0)  # 1/ESS
    sums = grouped(log_weights)
    counts = grouped(torch.zeros_like(log_weights))
    return WeightSummary(
        log_weights.logsumexp(0) - math.log(samples),
        *debiased(sums, counts),
        _variance(shares, samples),
        1 / shares,
        doubtful(log_weights),
    )


def grouped(log_terms: Tensor) -> Tensor:
    """Logarithms of sums over the draws of each group, (GROUPS, ...), or of all where these are
    fewer."""
    groups = log_terms.tensor_split(GROUPS) if len(log_terms) >= GROUPS else [log_terms]
    return torch.stack([group.logsumexp(0) for group in groups])


def debiased(sums: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """log(Σ terms / Σ counts) without its bias of the first order in 1/draws, and an estimate of
    the bias that is left, from logarithms of sums over GROUPS of draws (GROUPS, ...).

    The logarithm of a mean is biased by c/n + d/n² + … for n draws: halves and quarters of the
    draws give c and d (Quenouille 1956; for log p(x) Nowozin 2018, Sec. 3)."""
    whole = sums.logsumexp(0) - counts.logsumexp(0)
    if len(sums) < GROUPS:
        return whole, torch.full_like(whole, math.nan)
    of_halves = [sums[i : i + 2].logsumexp(0) - counts[i : i + 2].logsumexp(0) for i in (0, 2)]
    halves = torch.stack(of_halves).mean(0)
    quarters = (sums - counts).mean(0)
    better, worse = 2 * whole - halves, 2 * halves - quarters
    return better, (worse - better) / 3


def doubtful(log_weights: Tensor) -> Tensor:
    """1 for each observation whose weights (samples, N) have a k̂ above LARGEST_KHAT, or an
    effective sample size that is too small for a standard error by the delta method, else 0; NaN
    for those that are left out of a sample of KHAT_SAMPLE."""
    count = log_weights.shape[1]
    chosen = torch.linspace(0, count - 1, min(count, KHAT_SAMPLE)).round().long()
    sample = log_weights[:, chosen.to(log_weights.device)].double()
    small = _variance(sample.softmax(0).square().sum(0), len(sample)) > 1 / LEAST_ESS
    found = log_weights.new_full((count,), math.nan, dtype=torch.float64)
    found[chosen] = (small | (khats(sample) > LARGEST_KHAT)).double()
    return found


def khats(log_weights: Tensor) -> Tensor:
    """Pareto's k̂ of each column (samples, N): (N,); 0 where it has no tail to tell of."""
    found = torch.zeros_like(log_weights[0], dtype=torch.float64)
    if len(log_weights) >= LEAST_FOR_KHAT:
        for i, column in enumerate(log_weights.double().cpu().T):
            if not column.isfinite().all():
                found[i] = math.inf
            elif column.max() - column.min() > 1e-6:  # equal weights have no tail
                found[i] = float(_psis(-column.numpy())[1])  # of −log weights
    return found


def _variance(shares: Tensor, samples: int) -> Tensor:
    """Of the logarithm of a mean, to the first order. It is 1/ESS for many samples."""
    return (shares - 1 / samples).clamp(min=0) * samples / (samples - 1)


def weight_evidence(parts: Sequence[WeightSummary], *, cure: str) -> Evidence:
    """The mean over observations of log p(x) without its first bias, with its Monte Carlo standard
    error; unconverged where the weights do not bear it out."""
    columns = WeightSummary(*(torch.cat(column) for column in zip(*parts, strict=True)))
    error = math.sqrt(columns.variance.sum().item()) / len(columns.debiased)
    bias, share = columns.bias.mean().item(), columns.doubtful.nanmean().item()
    metrics = {"ess": columns.ess.median().item(), "bias_estimate": bias, "doubtful": share}
    reason = doubtful_reason(bias, error, share, cure)
    return Evidence(columns.debiased.mean().item(), error, reason, metrics)
