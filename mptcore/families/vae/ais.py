"""Annealed importance sampling of log p(x) by Hamiltonian Monte Carlo: from a proposal q that is
fitted to x, to the posterior (Neal 2001), and backwards from a draw of the model (Grosse et al.
2015; Wu et al. 2017). The intermediate densities are proportional to q(z)^(1−β) p(x, z)^β. Its
results are compared with importance sampling of the same observations."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from mptcore.estimation.estimate import Estimate, lml_metrics, metric
from mptcore.estimation.model import Evidence
from mptcore.families.vae.importance import WeightSummary, summary_of, weight_evidence
from mptcore.families.vae.proposal import Proposal
from mptcore.families.vae.sampled import SampledVae
from mptcore.families.vae.trainer import TrainingStart
from mptcore.protocol.records import Metric
from mptcore.runtime.rng import draw_normal, draw_uniform, generator_for
from mptcore.runtime.state import Records
from mptcore.specs import Ais

ACCEPTED = 0.65
"""Target acceptance rate of the step sizes (Neal 2011)."""
FIRST_STEP = 0.5
"""First step size, in units of the fitted posterior's scale."""
RATE = 1.0
"""Speed at which step sizes follow the acceptance rate during the pilot."""
JITTER = 0.2
"""Relative range of the random variation of a transition's step size. It prevents trajectories from
returning to their start (Neal 2011, Sec. 3.2)."""
AGREE = 3
"""Number of standard errors by which two estimates of one quantity may differ."""
ADVICE = "raise evaluate.ais.temperatures or chains"


class Annealing:
    """AIS for observations (N, D). The covariance of the momenta is the inverse of the scale of the
    proposal's best mode, so that steps have the same length in all directions."""

    def __init__(
        self,
        model: SampledVae,
        x: Tensor,
        spec: Ais,
        proposal: Proposal,
        generator: torch.Generator,
    ):
        self.model, self.x, self.spec = model, x, spec
        self.proposal, self.generator = proposal, generator
        self.root = proposal.best_root()  # (N, K, K)
        self.shape = (spec.chains, len(x), model.latent_dim)
        # Closer together at both ends, where the distributions change most (Grosse et al. 2015).
        ends = torch.linspace(-4, 4, spec.temperatures, dtype=torch.float64).sigmoid()
        self.betas = ((ends - ends[0]) / (ends[-1] - ends[0])).tolist()
        self._steps: list[Tensor] = []

    def tune(self) -> Records[None]:
        """Choose the step sizes (N,) of each temperature with a pilot. The pilot's chains are not
        used otherwise: the weights of chains that choose their own step sizes would be biased."""
        z = self._start()
        size = torch.full_like(z[0, :, 0], FIRST_STEP)
        for beta in self.betas[1:]:
            z, acceptance = self._transition(z, beta, size)
            size = size * (RATE * (acceptance.mean(0) - ACCEPTED)).exp()
            self._steps.append(size)
            yield None

    def forward(self) -> Records[Tensor]:
        """Return log weights whose exponentials have the mean p(x), (chains, N)."""
        z = self._start()
        weight = torch.zeros(self.shape[:2], dtype=torch.float64, device=z.device)
        for i, beta in enumerate(self.betas[1:]):
            weight += (beta - self.betas[i]) * self._log_ratio(z)
            z, _ = self._transition(z, beta, self._steps[i])
            yield None
        return weight

    def backward(self, z: Tensor) -> Records[Tensor]:
        """Return log weights whose exponentials have the mean 1/p(x), for the z (N, K) from which x
        was drawn."""
        z = z.expand(self.shape).clone()
        weight = torch.zeros(self.shape[:2], dtype=torch.float64, device=z.device)
        for i in reversed(range(1, len(self.betas))):
            z, _ = self._transition(z, self.betas[i], self._steps[i - 1])
            weight -= (self.betas[i] - self.betas[i - 1]) * self._log_ratio(z)
            yield None
        return weight

    def _transition(self, z: Tensor, beta: float, size: Tensor) -> tuple[Tensor, Tensor]:
        """Return one transition that leaves q(z)^(1−β) p(x, z)^β invariant, and its acceptance
        (chains, N). The random step size does not depend on z."""
        jitter = 1 + JITTER * (2 * draw_uniform(self.shape[:2], self.x, self.generator) - 1)
        step = (size * jitter)[..., None]
        momentum = draw_normal(self.shape, self.x, self.generator)
        energy, gradient = self._energy(z, beta)
        before = energy + momentum.square().sum(-1) / 2
        proposal = z
        momentum = momentum - step / 2 * gradient
        for i in range(self.spec.leapfrog_steps):
            proposal = proposal + step * self._scaled(momentum)
            energy, gradient = self._energy(proposal, beta)
            last = i == self.spec.leapfrog_steps - 1
            momentum = momentum - (step / 2 if last else step) * gradient
        change = before - energy - momentum.square().sum(-1) / 2
        acceptance = change.nan_to_num(nan=-torch.inf).clamp(max=0).exp()
        accepted = draw_uniform(acceptance.shape, z, self.generator) < acceptance
        return torch.where(accepted[..., None], proposal, z), acceptance

    def _energy(self, z: Tensor, beta: float) -> tuple[Tensor, Tensor]:
        """Return −(1 − β) log q(z) − β log p(x, z) and its gradient in z/scale."""
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            energy = -beta * self.model.log_joint(self.x, z)
            if beta < 1:
                energy = energy - (1 - beta) * self.proposal.log_prob(z)
            (gradient,) = torch.autograd.grad(energy.sum(), z)
        return energy.detach(), self._scaled(gradient, transposed=True)

    def _scaled(self, vectors: Tensor, transposed: bool = False) -> Tensor:
        """Multiply vectors (chains, N, K) by the scale R⁻¹ or its transpose."""
        root = self.root.mT if transposed else self.root
        columns = vectors.permute(1, 2, 0)  # (N, K, chains)
        solved: Tensor = torch.linalg.solve_triangular(root, columns, upper=not transposed)
        return solved.permute(2, 0, 1)

    @torch.no_grad()
    def _log_ratio(self, z: Tensor) -> Tensor:
        """Return log p(x, z) − log q(z)."""
        return (self.model.log_joint(self.x, z) - self.proposal.log_prob(z)).double()

    def _start(self) -> Tensor:
        return self.proposal.draw(self.spec.chains, self.generator)


def annealed(start: TrainingStart, spec: Ais) -> Records[None]:
    """Run AIS on some observations, the importance-weighted bound on the same ones, and the bracket
    on simulated ones."""
    vae, labels = start.vae, start.labels
    assert isinstance(vae, SampledVae), "the spec's check refuses a grid"
    x = start.held_or_seen[: spec.observations]
    generator = generator_for(start.seed, "ais", start.x.device)
    forward, _ = yield from _both_ways(vae, x, None, spec, generator)
    sampled = yield from vae.evidence(x, generator)
    by_chains, sampled = compared(_by_chains(forward), sampled)
    for name, evidence in (("lml_ais", by_chains), ("lml_ais_iwae", sampled)):
        yield from lml_metrics(name, evidence, labels)
    if spec.simulated > 0:
        yield from _bracket(vae, start, spec, x)


def _by_chains(parts: Sequence[WeightSummary]) -> Evidence:
    """Summarise AIS weights with the error between chains. The few chains have an unreliable
    effective sample size, and a larger error would make the comparison less sensitive."""
    return weight_evidence(parts, advice=ADVICE, doubtful_error=0.0)


def compared(annealed: Evidence, sampled: Evidence) -> tuple[Evidence, Evidence]:
    """Return both estimates, the lower one not final if they differ by more than their errors
    explain. Everything that sampling misses, such as a mode, only lowers an estimate."""
    gap = annealed.value - sampled.value
    if abs(gap) <= AGREE * math.hypot(annealed.std_err, sampled.std_err):
        return annealed, sampled
    if gap < 0:
        return _below(annealed, "importance sampling", ADVICE), sampled
    return annealed, _below(sampled, "annealing", "it misses modes, and so may lml")


def _below(evidence: Evidence, other: str, advice: str) -> Evidence:
    reason = f"not final: {other} finds more, beyond {AGREE} standard errors; {advice}"
    return replace(evidence, not_final_reason=evidence.not_final_reason or reason)


def _bracket(vae: SampledVae, start: TrainingStart, spec: Ais, like: Tensor) -> Records[None]:
    """Bound the LML of simulated observations from below and from above. All backward chains of an
    observation start at the z from which it was drawn, so their spread does not measure their
    error. The spread over observations of the gap between the bounds does."""
    generator = generator_for(start.seed, "simulated", like.device)
    z = draw_normal((spec.simulated, vae.latent_dim), like, generator)
    with torch.no_grad():
        simulated = vae.likelihood.sample(vae.decoder(z), generator)
    forward, backward = yield from _both_ways(vae, simulated, z, spec, generator)
    below = torch.cat([part.log_mean for part in forward])
    above = -torch.cat([part.log_mean for part in backward])
    error = _by_chains(forward).std_err
    yield Metric("lml_simulated_below", below.mean().item(), error, start.labels)
    gap = Estimate.of(above - below)
    upper_bound = replace(gap, mean=above.mean().item())
    yield metric("lml_simulated_above", upper_bound, start.labels)
    yield metric("lml_simulated_gap", gap, start.labels)


def _both_ways(
    vae: SampledVae, x: Tensor, z: Tensor | None, spec: Ais, generator: torch.Generator
) -> Records[tuple[list[WeightSummary], list[WeightSummary]]]:
    """Run forward AIS and, if the z from which x was drawn is given, reverse AIS of −log p(x)."""
    forward: list[WeightSummary] = []
    backward: list[WeightSummary] = []
    first = 0
    for part in vae.parts(x, spec.chains):
        proposal = vae.evidence_proposal(part, vae.iwae.samples, generator, is_thorough=True)
        annealing = Annealing(vae, part, spec, proposal, generator)
        yield from annealing.tune()
        forward.append(summary_of((yield from annealing.forward())))
        if z is not None:
            z_of_part = z[first : first + len(part)]
            backward.append(summary_of((yield from annealing.backward(z_of_part))))
        first += len(part)
    return forward, backward
