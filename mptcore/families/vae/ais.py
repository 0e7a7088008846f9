"""Annealed importance sampling of log p(x) by Hamiltonian Monte Carlo, from the prior to the
posterior (Neal 2001), and backwards from a draw of the model (Grosse et al. 2015; Wu et al. 2017).
"""

import torch
from torch import Tensor

from mptcore.families.vae.networks import draw_normal
from mptcore.families.vae.vae import Vae
from mptcore.families.vae.variational import log_prior
from mptcore.runtime.session import Step, Work
from mptcore.specs import Ais

ACCEPTED = 0.65
"""The share of accepted proposals that step sizes are tuned for (Neal 2011)."""
FIRST_STEP = 0.5
RATE = 1.0
"""How fast step sizes follow the acceptance, in the pilot."""


class Annealing:
    """AIS for some observations (N, D)."""

    def __init__(self, model: Vae, x: Tensor, spec: Ais, generator: torch.Generator):
        self.model, self.x, self.spec, self.generator = model, x, spec, generator
        self.shape = (spec.chains, len(x), model.latent_dim)
        # Closer together at both ends, where the distributions change most (Grosse et al. 2015).
        ends = torch.linspace(-4, 4, spec.temperatures, dtype=torch.float64).sigmoid()
        self.betas = ((ends - ends[0]) / (ends[-1] - ends[0])).tolist()
        self._steps: list[Tensor] = []

    def tune(self) -> Work[None]:
        """A pilot, whose chains serve to choose the step sizes (N,) of each temperature alone: the
        weights of chains that choose their own would be biased."""
        z = self._normal()
        size = torch.full_like(z[0, :, 0], FIRST_STEP)
        for beta in self.betas[1:]:
            z, acceptance = self._transition(z, beta, size)
            size = size * (RATE * (acceptance.mean(0) - ACCEPTED)).exp()
            self._steps.append(size)
            yield Step()

    def forward(self) -> Work[Tensor]:
        """Logarithms of weights whose mean is p(x), (chains, N)."""
        z = self._normal()
        weight = torch.zeros(self.shape[:2], dtype=torch.float64, device=z.device)
        for i, beta in enumerate(self.betas[1:]):
            weight += (beta - self.betas[i]) * self._log_likelihood(z)
            z, _ = self._transition(z, beta, self._steps[i])
            yield Step()
        return weight

    def backward(self, z: Tensor) -> Work[Tensor]:
        """Logarithms of weights whose mean is 1/p(x), for z (N, K) that x was drawn with."""
        z = z.expand(self.shape).clone()
        weight = torch.zeros(self.shape[:2], dtype=torch.float64, device=z.device)
        for i in reversed(range(1, len(self.betas))):
            z, _ = self._transition(z, self.betas[i], self._steps[i - 1])
            weight -= (self.betas[i] - self.betas[i - 1]) * self._log_likelihood(z)
            yield Step()
        return weight

    def _transition(self, z: Tensor, beta: float, size: Tensor) -> tuple[Tensor, Tensor]:
        """One proposal that leaves p(z) p(x | z)^β as it is, and its acceptance (chains, N)."""
        step = size[:, None]
        momentum = self._normal()
        energy, slope = self._energy(z, beta)
        before = energy + momentum.square().sum(-1) / 2
        proposal = z
        momentum = momentum - step / 2 * slope
        for i in range(self.spec.leapfrog_steps):
            proposal = proposal + step * momentum
            energy, slope = self._energy(proposal, beta)
            last = i == self.spec.leapfrog_steps - 1
            momentum = momentum - (step / 2 if last else step) * slope
        change = before - energy - momentum.square().sum(-1) / 2
        acceptance = change.nan_to_num(nan=-torch.inf).clamp(max=0).exp()
        uniform = torch.rand(acceptance.shape, generator=self.generator, dtype=z.dtype)
        accepted = uniform.to(z.device) < acceptance
        return torch.where(accepted[..., None], proposal, z), acceptance

    def _energy(self, z: Tensor, beta: float) -> tuple[Tensor, Tensor]:
        """−log p(z) − β log p(x | z), and its gradient."""
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            likelihood = self.model.likelihood.log_prob(self.x, self.model.decoder(z)).sum(-1)
            energy = -log_prior(z) - beta * likelihood
            (slope,) = torch.autograd.grad(energy.sum(), z)
        return energy.detach(), slope

    def _log_likelihood(self, z: Tensor) -> Tensor:
        with torch.no_grad():
            log_probs = self.model.likelihood.log_prob(self.x, self.model.decoder(z)).sum(-1)
        return log_probs.double()

    def _normal(self) -> Tensor:
        return draw_normal(self.shape, self.x, self.generator)
