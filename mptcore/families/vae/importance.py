"""Importance sampling of z given the observed part of x: weighted draws from proposals that are
refitted to them, estimates from logarithms of the weights, and the weights' diagnostics."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mptcore.estimation.model import Evidence
from mptcore.estimation.not_final import MIN_ESS, doubtful_reason
from mptcore.families.vae.proposal import Fit, Proposal
from mptcore.families.vae.vae import log_prior
from mptcore.runtime.out_of_memory import rowwise_on_oom
from mptcore.specs.compute import GPU_BATCH_BYTES

RETRIES, REFITS, TRIAL_GROWTH = 2, 3, 2
"""For observations with unreliable weights: maximum number of trials, number of refits after each,
and factor by which the draws of a trial grow."""
MORE_DRAWS = 4
"""Factor by which the draws of an estimate grow for observations whose trial draws had unreliable
weights."""
GROUPS = 4
"""Number of groups of draws from which the bias is estimated."""
MAX_KHAT = 0.7
"""Largest k̂ at which the proposal still covers the target (Vehtari et al. 2024, Sec. 3)."""
DOUBTFUL_OBSERVATION_ERROR = 1.0
"""Possible error in nats of log p(x) for an observation with unreliable weights, assumed to have
the same sign for all of them. The largest error measured was 0.7."""
MIN_TAIL_DRAWS = 25
"""Minimum number of draws with a tail to fit."""
MIN_TAIL_RANGE = 1e-6
"""Minimum range of the log weights of a column with a tail."""
TAIL_PRIOR_SCALE, TAIL_PRIOR_DRAWS = 3, 10
"""Prior scale of a fit to a tail, and the number of draws that its prior of k = 0.5 is worth."""


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


@dataclass(frozen=True)
class Sampler:
    """Importance sampling of p(z | x_R). At most `at_once` values of z are decoded together."""

    fit: Fit
    at_once: int
    generator: torch.Generator

    def of(self, rows: Tensor) -> "Sampler":
        """Return the sampler for some observations."""
        return Sampler(self.fit.of(rows), self.at_once, self.generator)

    def weighed(self, z: Tensor, proposal: Proposal) -> tuple[Tensor, Tensor]:
        """Return log weights (draws, N), and log p(x_j | z) for all j (draws, N, D)."""
        log_probs = self.fit.likelihood.log_prob(self.fit.x, self.fit.decoder(z))
        observed = (log_probs * self.fit.observed).sum(-1)
        return observed + log_prior(z) - proposal.log_prob(z), log_probs

    @torch.no_grad()
    def draw(self, proposal: Proposal, draws: int) -> tuple[Tensor, Tensor]:
        """Draw z (draws, N, K), and return their log weights (draws, N)."""
        z = proposal.draw(draws, self.generator)
        parts = torch.split(z, max(1, self.at_once // len(self.fit.x)))
        weights = [
            rowwise_on_oom(lambda rows: (self.weighed(rows, proposal)[0],), part)[0]
            for part in parts
        ]
        return z, torch.cat(weights)

    def refit_unreliable(self, proposal: Proposal, draws: int) -> Tensor:
        """Refit a proposal in place where trial draws have unreliable weights: to these draws, and
        then repeatedly to new ones. Return where, (N,)."""
        unreliable = torch.zeros(len(self.fit.x), dtype=torch.bool, device=self.fit.x.device)
        rows = torch.arange(len(unreliable), device=unreliable.device)
        for _ in range(RETRIES):
            z, weights = self.of(rows).draw(proposal.of(rows), draws)
            doubted = doubtful(weights) > 0
            rows = rows[doubted]
            if len(rows) == 0:
                break
            unreliable[rows] = True
            draws *= TRIAL_GROWTH
            sampler = self.of(rows)
            refitted = proposal.of(rows).refitted(z[:, doubted], weights[:, doubted])
            for _ in range(REFITS):
                refitted = refitted.refitted(*sampler.draw(refitted, draws))
            proposal.put(rows, refitted)
        return unreliable

    def summary(self, proposal: Proposal, draws: int) -> WeightSummary:
        """Return log p(x_R) of each observation. Only trial draws decide which observations get a
        refitted proposal and MORE_DRAWS times the draws, and whose weights are unreliable even
        then. If the draws of the estimate decided, those that are kept would be the ones that met
        no large weight, and the estimate would be too low."""
        unreliable = self.refit_unreliable(proposal, draws)
        reliable_trial = torch.zeros_like(unreliable).double()
        summary = summary_of(self.draw(proposal, draws)[1], reliable_trial)
        if unreliable.any():
            sampler, refitted = self.of(unreliable), proposal.of(unreliable)
            trial, weights = (sampler.draw(refitted, MORE_DRAWS * draws)[1] for _ in range(2))
            summary.put(unreliable, summary_of(weights, doubtful(trial)))
        return summary


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


def grouped(log_terms: Tensor) -> Tensor:
    """Return logarithms of the sums over the draws of each group, (GROUPS, ...). If there are fewer
    draws, each draw is a group."""
    groups = log_terms.tensor_split(GROUPS) if len(log_terms) >= GROUPS else [log_terms]
    return torch.stack([group.logsumexp(0) for group in groups])


def debiased(sums: Tensor, counts: Tensor, is_uneven: Tensor) -> tuple[Tensor, Tensor]:
    """Return log(Σ terms / Σ counts) without its first-order bias in 1/draws, and an estimate of
    the remaining bias, from logarithms of sums over GROUPS of draws (GROUPS, ...).

    For n draws the logarithm of a mean has the bias c/n + d/n² + …; halves and quarters of the
    draws give c and d (Quenouille 1956; for log p(x) Nowozin 2018, Sec. 3). If one or two draws
    dominate the sum, this expansion is wrong, and the corrected value can be many nats too high.
    In that case, `is_uneven`, no correction is made."""
    of_all = sums.logsumexp(0) - counts.logsumexp(0)
    if len(sums) < GROUPS:
        return of_all, torch.full_like(of_all, math.nan)
    of_halves = [sums[i : i + 2].logsumexp(0) - counts[i : i + 2].logsumexp(0) for i in (0, 2)]
    halves = torch.stack(of_halves).mean(0)
    quarters = (sums - counts).mean(0)
    corrected, halves_corrected = 2 * of_all - halves, 2 * halves - quarters
    bias = torch.where(is_uneven, halves - of_all, (halves_corrected - corrected) / 3)
    return torch.where(is_uneven, of_all, corrected), bias


def doubtful(log_weights: Tensor) -> Tensor:
    """Return 1 where weights (samples, ...) have a k̂ above MAX_KHAT or are uneven, else 0."""
    return (uneven(log_weights) | (khats(log_weights) > MAX_KHAT)).double()


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
    parts: Sequence[WeightSummary],
    *,
    advice: str,
    doubtful_error: float = DOUBTFUL_OBSERVATION_ERROR,
) -> Evidence:
    """Return the mean over observations of log p(x), bias-corrected to first order, with its Monte
    Carlo standard error. Each unreliable observation adds `doubtful_error` nats to the error. The
    result is not final if trial draws do not support it: then `advice` says what to change."""
    summary = WeightSummary(*(torch.cat(column) for column in zip(*parts, strict=True)))
    bias, share = summary.bias.mean().item(), summary.doubtful.mean().item()
    error = math.sqrt(summary.variance.sum().item()) / len(summary.debiased)
    error = math.hypot(error, share * doubtful_error)
    metrics = {"ess": summary.ess.median().item(), "bias_estimate": bias, "doubtful": share}
    reason = doubtful_reason(bias, error, summary.trial_doubtful.mean().item(), advice)
    return Evidence(summary.debiased.mean().item(), error, reason, metrics, summary.debiased)


def khats(log_weights: Tensor) -> Tensor:
    """Return k̂ of each column (draws, ...): (...), float64. It is 0 for a column without a tail,
    and infinite for a column with a value that is not finite."""
    columns = log_weights.double().flatten(1)  # (draws, n)
    khat = torch.zeros_like(columns[0])
    draws = len(columns)
    if draws >= MIN_TAIL_DRAWS:
        tail = math.floor(min(draws / 5, 3 * math.sqrt(draws)))
        top = (columns - columns.amax(0)).topk(tail + 1, 0).values.flip(0)  # (tail + 1, n)
        finite = columns.isfinite().all(0)
        has_tail = finite & (columns.amax(0) - columns.amin(0) > MIN_TAIL_RANGE)
        log_tails = top[:, has_tail].clamp(min=math.log(torch.finfo(top.dtype).tiny))
        excesses = log_tails[1:].exp() - log_tails[0].exp()
        khat[has_tail] = torch.where(excesses[-1] > 0, _shape(excesses), 0)
        khat[~finite] = math.inf
    return khat.view(log_weights.shape[1:])


def _shape(excesses: Tensor) -> Tensor:
    """Return the shapes (n,) of generalised Pareto distributions of ascending excesses (tail, n)
    (Zhang & Stephens 2009, with the prior of Vehtari et al. 2024, App. C)."""
    tail = len(excesses)
    points = 30 + math.isqrt(tail)
    ranks = torch.arange(points, dtype=excesses.dtype, device=excesses.device) + 0.5
    quartile, largest = excesses[int(tail / 4 + 0.5) - 1], excesses[-1]
    rates = (1 - (points / ranks).sqrt())[:, None] / (TAIL_PRIOR_SCALE * quartile) + 1 / largest
    if excesses.is_cuda:  # a launch costs more than the memory
        at_once = max(1, GPU_BATCH_BYTES // (4 * excesses.nbytes))
        parts = torch.split(rates[:, None], at_once)
        shapes = torch.cat([torch.log1p(-part * excesses).mean(1) for part in parts])
    else:
        shapes = torch.stack([torch.log1p(-rate * excesses).mean(0) for rate in rates])
    log_likelihood = tail * ((-rates / shapes).log() - shapes - 1)
    rate = (rates * log_likelihood.softmax(0)).sum(0)
    shape = torch.log1p(-rate * excesses).mean(0)
    return (tail * shape + TAIL_PRIOR_DRAWS / 2) / (tail + TAIL_PRIOR_DRAWS)
