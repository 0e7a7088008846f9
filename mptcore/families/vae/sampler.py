"""Weighted draws of z given the observed part of x, from proposals that are adapted to them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mptcore.families.vae.importance import WeightSummary, doubtful, summary_of
from mptcore.families.vae.proposal import Fit, Proposal
from mptcore.families.vae.vae import log_prior
from mptcore.runtime.out_of_memory import by_rows

RETRIES, REFITS, MORE_DRAWS = 2, 3, 2
"""For observations with unreliable weights: maximum number of trials, number of refits after each,
and factor by which the draws of a trial grow."""
HARD = 4
"""Factor by which the draws of an estimate grow for observations whose trial draws had unreliable
weights."""


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
