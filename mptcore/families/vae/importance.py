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
from mptcore.runtime.out_of_memory import by_rows
from mptcore.specs.compute import GPU_BATCH_BYTES

RETRIES, REFITS, MORE_DRAWS = 2, 3, 2
"""For observations with unreliable weights: maximum number of trials, number of refits after each,
and factor by which the draws of a trial grow."""
HARD = 4
"""Factor by which the draws of an estimate grow for observations whose trial draws had unreliable
weights."""
GROUPS = 4
"""Number of groups of draws from which the bias is estimated."""
LARGEST_KHAT = 0.7
"""Largest k̂ at which the proposal still covers the target (Vehtari et al. 2024, Sec. 3)."""
DOUBTFUL_ERROR = 1.0
"""Possible error in nats of log p(x) for an observation with unreliable weights, assumed to have
the same sign for all of them. The largest error measured was 0.7."""
MIN_DRAWS = 25
"""Minimum number of draws with a tail to fit."""
EQUAL = 1e-6
"""Range of log weights below which a column has no tail."""
PRIOR_SCALE, PRIOR_DRAWS = 3, 10
"""Prior scale of the fit, and the number of draws that its prior of k = 0.5 is worth."""


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
        weights = [by_rows(lambda some: (self.weighed(some, proposal)[0],), one) for one in parts]
        return z, torch.cat([of_part for (of_part,) in weights])

    def settle(self, proposal: Proposal, draws: int) -> Tensor:
        """Refit a proposal in place where trial draws have unreliable weights, and return where,
        (N,)."""
        hard = torch.zeros(len(self.fit.x), dtype=torch.bool, device=self.fit.x.device)
        rows = torch.arange(len(hard), device=hard.device)
        for _ in range(RETRIES):
            z, weights = self.of(rows).draw(proposal.of(rows), draws)
            doubted = doubtful(weights) > 0
            rows = rows[doubted]
            if len(rows) == 0:
                break
            hard[rows] = True
            draws *= MORE_DRAWS
            weighed = z[:, doubted], weights[:, doubted]
            proposal.put(rows, self.of(rows)._refitted(proposal.of(rows), *weighed, draws))
        return hard

    def summary(self, proposal: Proposal, draws: int) -> WeightSummary:
        """Return log p(x_R) of each observation. Only trial draws decide which observations get a
        refitted proposal and HARD times the draws, and whose weights are unreliable even then. If
        the draws of the estimate decided, those that are kept would be the ones that met no large
        weight, and the estimate would be too low."""
        hard = self.settle(proposal, draws)
        found = summary_of(self.draw(proposal, draws)[1], torch.zeros_like(hard).double())
        if hard.any():
            sampler, fitted = self.of(hard), proposal.of(hard)
            trial, weights = (sampler.draw(fitted, HARD * draws)[1] for _ in range(2))
            found.put(hard, summary_of(weights, doubtful(trial)))
        return found

    def _refitted(self, proposal: Proposal, z: Tensor, weights: Tensor, draws: int) -> Proposal:
        """Refit the proposal to z and their weights, and then repeatedly to `draws` new draws."""
        proposal = proposal.refitted(z, weights)
        for _ in range(REFITS):
            proposal = proposal.refitted(*self.draw(proposal, draws))
        return proposal


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


def khats(log_weights: Tensor) -> Tensor:
    """Return k̂ of each column (draws, ...): (...), float64. It is 0 for a column without a tail,
    and infinite for a column with a value that is not finite."""
    columns = log_weights.double().flatten(1)  # (draws, n)
    found = torch.zeros_like(columns[0])
    draws = len(columns)
    if draws >= MIN_DRAWS:
        tail = math.floor(min(draws / 5, 3 * math.sqrt(draws)))
        top = (columns - columns.amax(0)).topk(tail + 1, 0).values.flip(0)  # (tail + 1, n)
        finite = columns.isfinite().all(0)
        uneven = finite & (columns.amax(0) - columns.amin(0) > EQUAL)
        chosen = top[:, uneven].clamp(min=math.log(torch.finfo(top.dtype).tiny))
        excesses = chosen[1:].exp() - chosen[0].exp()
        found[uneven] = torch.where(excesses[-1] > 0, _shape(excesses), 0)
        found[~finite] = math.inf
    return found.view(log_weights.shape[1:])


def _shape(excesses: Tensor) -> Tensor:
    """Return the shapes (n,) of generalised Pareto distributions of ascending excesses (tail, n)
    (Zhang & Stephens 2009, with the prior of Vehtari et al. 2024, App. C)."""
    tail = len(excesses)
    points = 30 + math.isqrt(tail)
    ranks = torch.arange(points, dtype=excesses.dtype, device=excesses.device) + 0.5
    quartile, largest = excesses[int(tail / 4 + 0.5) - 1], excesses[-1]
    rates = (1 - (points / ranks).sqrt())[:, None] / (PRIOR_SCALE * quartile) + 1 / largest
    if excesses.is_cuda:  # a launch costs more than the memory
        at_once = max(1, GPU_BATCH_BYTES // (4 * excesses.nbytes))
        parts = torch.split(rates[:, None], at_once)
        shapes = torch.cat([torch.log1p(-some * excesses).mean(1) for some in parts])
    else:
        shapes = torch.stack([torch.log1p(-rate * excesses).mean(0) for rate in rates])
    log_likelihood = tail * ((-rates / shapes).log() - shapes - 1)
    rate = (rates * log_likelihood.softmax(0)).sum(0)
    shape = torch.log1p(-rate * excesses).mean(0)
    return (tail * shape + PRIOR_DRAWS / 2) / (tail + PRIOR_DRAWS)
