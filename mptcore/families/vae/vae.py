"""Interface of all VAEs, with any method of integration over z: their prior, their ELBO, and the
ascent of an objective in parts that fit in memory."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import reduce

import torch
from torch import Tensor, nn

from mptcore.estimation.model import Evidence, Model
from mptcore.families.vae.likelihoods import Likelihood
from mptcore.families.vae.networks import Decoder, Encoder
from mptcore.runtime.out_of_memory import cut_alike, split_on_oom
from mptcore.runtime.rng import draw_normal
from mptcore.runtime.state import Records
from mptcore.specs.compute import GPU_BATCH_BYTES

CHUNK_BYTES = 2**27
"""Memory for draws × dimensions on a CPU."""
ROWS = 4096
"""Number of observations encoded together."""
LOG_2PI = math.log(2 * math.pi)


class Vae(nn.Module, ABC):
    """p(z) p(x | z), with q(z | x) if there is an encoder. Observations are x (N, D), latent
    variables z (N, K). All random draws use the given generator."""

    def __init__(
        self, encoder: Encoder | None, decoder: Decoder, likelihood: Likelihood, latent_dim: int
    ):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.likelihood, self.latent_dim = likelihood, latent_dim

    @property
    def width(self) -> int:
        """Approximate number of activations of one observation in the decoder."""
        return len(self.decoder.last.bias)

    def parts(self, x: Tensor, draws: int) -> tuple[Tensor, ...]:
        """Split observations into parts that fit in memory with `draws` draws each."""
        return torch.split(x, self.rows(draws))

    def rows(self, draws: int) -> int:
        """Return the number of observations that fit in memory with `draws` draws each."""
        bias = self.decoder.last.bias
        memory = GPU_BATCH_BYTES if bias.is_cuda else CHUNK_BYTES
        return max(1, memory // (4 * draws * self.width * bias.element_size()))

    @abstractmethod
    def score(self, x: Tensor, masks: Tensor, generator: torch.Generator) -> Tensor:
        """Return the mean over observations, masks and masked j of log p(x_j | x_R), in nats: Eq.
        (5) of the paper. Masks are (B, D). Differentiable."""

    def elbo(self, x: Tensor, normal: Tensor) -> Tensor:
        """Return the ELBO in nats of each observation (N,) from one draw, given by standard normal
        numbers (N, K). It is E_q[log p(x | z)] minus KL(q || prior) in closed form (Kingma &
        Welling 2014, Eq. 10)."""
        assert self.encoder is not None
        mean, log_variance = self.encoder(x)
        z = mean + (log_variance / 2).exp() * normal
        log_probs = self.likelihood.log_prob(x, self.decoder(z)).sum(-1)
        return log_probs - divergence(mean, log_variance).sum(-1)

    def normal(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Draw standard normal numbers (N, K), one draw of z for each observation."""
        return draw_normal((len(x), self.latent_dim), x, generator)

    @abstractmethod
    def log_marginal(self, x: Tensor) -> Tensor:
        """Return log p(x) of each observation, (N,), if it can be computed. Differentiable."""

    @abstractmethod
    def fit_encoder(self, x: Tensor, generator: torch.Generator) -> None:
        """Add the gradient that fits the encoder to the current decoder, if the encoder needs
        it."""

    @abstractmethod
    def evidence(self, x: Tensor, generator: torch.Generator) -> Records[Evidence]:
        """Return the log marginal likelihood with diagnostics."""

    @abstractmethod
    def quick_lml(self, x: Tensor, samples: int, generator: torch.Generator) -> Evidence:
        """Return the log marginal likelihood for a training curve. If it is sampled, it uses
        `samples` draws of z for each observation."""

    @abstractmethod
    def reconstruction(self, x: Tensor, mask: Tensor, generator: torch.Generator) -> Tensor:
        """Return the expected value of the masked dimensions (D,) given the others, and x
        elsewhere: (N, D)."""

    @abstractmethod
    def scored_on(self, x: Tensor, seed: int, evidence: Evidence) -> Model:
        """Return the model together with data whose evidence is known."""


def sample_posterior(mean: Tensor, log_variance: Tensor, generator: torch.Generator) -> Tensor:
    """Draw z from the posterior, differentiably (reparametrisation)."""
    return mean + (log_variance / 2).exp() * draw_normal(mean.shape, mean, generator)


def divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """Return KL(q || prior) of each latent dimension."""
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance)


def log_prior(z: Tensor) -> Tensor:
    """Return log p(z), summed over latent dimensions."""
    return -0.5 * (LOG_2PI + z.square()).sum(-1)


def ascend(
    objective: Callable[..., Tensor],
    rows: tuple[Tensor, ...],
    module: nn.Module,
    reset_draws: Callable[[], object] = lambda: None,
) -> Tensor:
    """Return an objective that is a mean over the rows of tensors (B, ...), and add the gradient of
    its descent to a module's parameters. If memory is short, it is computed in parts. `reset_draws`
    is called before each attempt, so that all have the same random draws."""

    def of_parts(parts: list[Tensor]) -> Tensor:
        reset_draws()
        module.zero_grad(set_to_none=True)
        values = []
        for some in cut_alike(rows, parts):
            share, value = len(some[0]) / len(rows[0]), objective(*some)
            descent = (-share * value).sum()  # a given gradient would import torch's compiler
            descent.backward()  # type: ignore[no-untyped-call]
            values.append(share * value.detach())
        return reduce(torch.add, values)

    return split_on_oom(of_parts, [torch.arange(len(rows[0]))])
