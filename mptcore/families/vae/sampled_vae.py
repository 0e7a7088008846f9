"""VAEs whose conditionals log p(x_j | x_R) are taken by sampling, through an encoder."""

import math

import torch
from torch import Tensor, nn

from mptcore.estimation.model import Evidence, MaskedModel
from mptcore.families.vae.likelihoods import Outputs
from mptcore.families.vae.networks import Decoder, Encoder, draw_normal
from mptcore.families.vae.variational import drawn, elbo, log_posterior, log_prior
from mptcore.runtime.rng import stream
from mptcore.specs import Importance, Recursive

CHUNK_BYTES = 2**27
"""Memory for draws times dimensions."""


class DeepVae(nn.Module):
    """p(z) p(x | z), with q(z | x) to sample it by. Observations are (N, D), a mask is (D,).
    `width`: the activations of one observation in the decoder."""

    def __init__(
        self,
        encoder: Encoder,
        decoder: Decoder,
        outputs: Outputs,
        conditionals: Recursive | Importance,
        latent_dim: int,
        width: int,
    ):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.outputs, self.conditionals = outputs, conditionals
        self.latent_dim, self.width = latent_dim, width

    def parts(self, x: Tensor, draws: int) -> tuple[Tensor, ...]:
        """Observations in parts that fit in memory with so many draws for each."""
        rows = CHUNK_BYTES // (4 * draws * self.width * x.element_size())
        return torch.split(x, max(1, rows))

    def score(self, x: Tensor, masked: Tensor, generator: torch.Generator) -> Tensor:
        """The mean over observations, masked j and masks (B, D) of log p(x_j | x_R), in nats. Its
        gradient goes to the decoder, through the last decoding alone."""
        found = [self.conditional(x, mask, generator).mean() for mask in masked]
        return torch.stack(found).mean()

    def conditional(self, x: Tensor, masked: Tensor, generator: torch.Generator) -> Tensor:
        """log p(x_j | x_R) for each masked j, (N, M)."""
        if isinstance(self.conditionals, Importance):
            return self._by_importance(x, masked, generator)
        z = self._chains(x, masked, generator)
        columns = masked.nonzero().flatten()
        log_probs = self.outputs.log_prob(x[:, columns], self.decoder(z, columns))
        return log_probs.logsumexp(0) - math.log(len(z))

    @torch.no_grad()
    def _chains(self, x: Tensor, masked: Tensor, generator: torch.Generator) -> Tensor:
        """z at the ends of chains of their own, (draws, N, K)."""
        copies = x.expand(self.conditionals.draws, *x.shape)
        filled = self.filled(copies, masked, self.conditionals.rounds - 1, generator)
        mean, log_variance = self.encoder(filled)
        return drawn(mean, log_variance, generator)

    def _by_importance(self, x: Tensor, masked: Tensor, g: torch.Generator) -> Tensor:
        """Half of the draws from q, half from the prior, each weighted by the density of the
        mixture (Veach & Guibas 1995): no weight is above twice p(x_R | z)."""
        draws = self.conditionals.draws
        with torch.no_grad():
            mean, log_variance = self.encoder(
                self.filled(x, masked, self.conditionals.rounds - 1, g)
            )
            z = draw_normal((draws, *mean.shape), mean, g)
            near = draws // 2
            z[:near] = mean + (log_variance / 2).exp() * z[:near]
            ratio = near / draws
            proposal = torch.logaddexp(
                log_posterior(z, mean, log_variance) + math.log(ratio),
                log_prior(z) + math.log1p(-ratio),
            )
        log_probs = self.outputs.log_prob(x, self.decoder(z))  # (draws, N, D)
        weight = log_prior(z) - proposal + (log_probs * ~masked).sum(-1)
        joint = weight[..., None] + log_probs[..., masked]
        return joint.logsumexp(0) - weight.logsumexp(0)[..., None]

    @torch.no_grad()
    def filled(self, x: Tensor, masked: Tensor, rounds: int, generator: torch.Generator) -> Tensor:
        """Observations (..., D) whose masked dimensions are drawn by so many rounds of encoding and
        decoding (Rezende et al. 2014, App. F), from a draw of the model."""
        z = draw_normal((*x.shape[:-1], self.latent_dim), x, generator)
        filled = torch.where(masked, self.outputs.sample(self.decoder(z), generator), x)
        for _ in range(rounds):
            mean, log_variance = self.encoder(filled)
            z = drawn(mean, log_variance, generator)
            filled = torch.where(masked, self.outputs.sample(self.decoder(z), generator), x)
        return filled

    def elbo(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """The evidence lower bound of each observation from one draw, (N,)."""
        return elbo(self.encoder, self.decoder, self.outputs, x, generator)

    @torch.no_grad()
    def log_weights(self, x: Tensor, samples: int, generator: torch.Generator) -> Tensor:
        """log p(x, z) − log q(z | x) for z from q(z | x), (samples, N)."""
        mean, log_variance = self.encoder(x)
        at_once = max(1, CHUNK_BYTES // (4 * len(x) * self.width * x.element_size()))
        found = []
        for first in range(0, samples, at_once):
            shape = (min(at_once, samples - first), *mean.shape)
            z = drawn(mean.expand(shape), log_variance.expand(shape), generator)
            likelihood = self.outputs.log_prob(x, self.decoder(z)).sum(-1)
            found.append(likelihood + log_prior(z) - log_posterior(z, mean, log_variance))
        return torch.cat(found)

    @torch.no_grad()
    def reconstruction(self, x: Tensor, masked: Tensor, generator: torch.Generator) -> Tensor:
        """The mean of the chains' last decodings where masked, x elsewhere: (N, D)."""
        z = self._chains(x, masked, generator)
        return torch.where(masked, self.outputs.mean(self.decoder(z)).mean(0), x)


class DeepScored(MaskedModel):
    """A VAE together with the data it is scored on. The draws of z for a mask follow from the seed
    and the mask's place in the order they are scored in: the same mask scored again has others, so
    that errors over masks tell of both."""

    def __init__(self, model: DeepVae, x: Tensor, seed: int, evidence: Evidence):
        self.model, self.x, self.seed = model, x, seed
        self._evidence = evidence
        self.device = x.device

    @property
    def dim(self) -> int:
        return self.x.shape[1]

    @property
    def bytes_per_mask(self) -> int:
        """Masks are scored one at a time; a batch is what a run does between two rests."""
        return 2**22

    def scores(self, masked: Tensor) -> Tensor:
        return torch.stack([self._score(mask) for mask in masked])

    def _score(self, mask: Tensor) -> Tensor:
        generator = stream(self.seed, f"conditionals {self.passed}")
        self.pass_over(1)
        parts = self.model.parts(self.x, self.model.conditionals.draws)
        sums = [self.model.conditional(x, mask, generator).sum(dtype=torch.float64) for x in parts]
        return torch.stack(sums).sum() / (len(self.x) * mask.sum())

    def evidence(self) -> Evidence:
        return self._evidence
