"""What every VAE gives, however its integrals over z are taken."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from mptcore.estimation.model import Evidence, VectorModel
from mptcore.families.vae.likelihoods import Likelihood
from mptcore.families.vae.networks import Decoder, Encoder, draw_normal
from mptcore.families.vae.variational import elbo
from mptcore.runtime.session import Work

CHUNK_BYTES = 2**27
"""Memory for draws times dimensions."""


class Vae(nn.Module, ABC):
    """p(z) p(x | z), with q(z | x) where there is an encoder. Observations are x (N, D), the latent
    variables z (N, K); every random draw comes from the generator that is given."""

    def __init__(
        self, encoder: Encoder | None, decoder: Decoder, likelihood: Likelihood, latent_dim: int
    ):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.likelihood, self.latent_dim = likelihood, latent_dim

    @property
    def width(self) -> int:
        """About how many activations one observation has in the decoder."""
        return len(self.decoder.last.bias)

    def parts(self, x: Tensor, draws: int) -> tuple[Tensor, ...]:
        """Observations in parts that fit in memory with so many draws for each."""
        return torch.split(x, self.rows(draws))

    def rows(self, draws: int) -> int:
        """Observations that fit in memory with so many draws for each."""
        number_bytes = self.decoder.last.bias.element_size()
        return max(1, CHUNK_BYTES // (4 * draws * self.width * number_bytes))

    @abstractmethod
    def score(self, x: Tensor, masks: Tensor, generator: torch.Generator) -> Tensor:
        """The mean over observations, masks and their masked j of log p(x_j | x_R), in nats:
        Eq. (5) of the paper. Masks are (B, D), or (B, N, D) where each observation has its own
        (not over grids, nor by recursion). Differentiable."""

    def elbo(self, x: Tensor, normal: Tensor) -> Tensor:
        """The evidence lower bound of each observation from one draw, by its `normal`: (N,)."""
        assert self.encoder is not None
        return elbo(self.encoder, self.decoder, self.likelihood, x, normal)

    def normal(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Standard normal numbers (N, K), for a draw of z for each observation."""
        return draw_normal((len(x), self.latent_dim), x, generator)

    @abstractmethod
    def log_marginal(self, x: Tensor) -> Tensor:
        """log p(x) of each observation, (N,), where it can be computed. Differentiable."""

    @abstractmethod
    def fit_encoder(self, x: Tensor, generator: torch.Generator) -> None:
        """Leave the gradient by which the encoder follows the decoder as it stands, if it must."""

    @abstractmethod
    def evidence(self, x: Tensor, generator: torch.Generator) -> Work[Evidence]:
        """The log marginal likelihood, with what tells how good it is."""

    @abstractmethod
    def quick_lml(self, x: Tensor, samples: int, generator: torch.Generator) -> Evidence:
        """The log marginal likelihood for a curve of the training; where it is sampled, from so
        many samples of z for each observation."""

    @abstractmethod
    def reconstruction(self, x: Tensor, masked: Tensor, generator: torch.Generator) -> Tensor:
        """What is expected in the masked dimensions (D,) given the others, and x there: (N, D)."""

    @abstractmethod
    def scored_on(self, x: Tensor, seed: int, evidence: Evidence) -> VectorModel:
        """The model together with data, whose evidence is known."""
