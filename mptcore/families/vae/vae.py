"""Interface of all VAEs, with any method of integration over z."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from mptcore.estimation.model import Evidence, Model
from mptcore.families.vae.likelihoods import Likelihood
from mptcore.families.vae.networks import Decoder, Encoder, draw_normal
from mptcore.families.vae.variational import elbo
from mptcore.runtime.state import Records
from mptcore.specs.compute import GPU_BATCH_BYTES

CHUNK_BYTES = 2**27
"""Memory for draws × dimensions on a CPU."""


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
        """Return the evidence lower bound of each observation (N,) from one draw, given by
        `normal`."""
        assert self.encoder is not None
        return elbo(self.encoder, self.decoder, self.likelihood, x, normal)

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
