"""VAEs whose conditionals log p(x_j | x_R) are taken by sampling, through an encoder."""

import math

import torch
from torch import Tensor

from mptcore.estimation.estimate import Estimate
from mptcore.estimation.model import Evidence, VectorModel
from mptcore.families.vae.importance import summary_of, weight_evidence
from mptcore.families.vae.likelihoods import Likelihood
from mptcore.families.vae.networks import Decoder, Encoder, draw_normal
from mptcore.families.vae.vae import CHUNK_BYTES, Vae
from mptcore.families.vae.variational import log_posterior, log_prior, sample_posterior
from mptcore.runtime.rng import generator_for
from mptcore.runtime.session import Step, Work
from mptcore.specs import Importance, Recursive


class SampledVae(Vae):
    """A VAE that samples z by its encoder. `width`: the activations of one observation in the
    decoder; `iwae_samples`: draws of z for the evidence of an observation."""

    encoder: Encoder

    def __init__(
        self,
        encoder: Encoder,
        decoder: Decoder,
        likelihood: Likelihood,
        latent_dim: int,
        conditionals: Recursive | Importance,
        width: int,
        iwae_samples: int = 500,
    ):
        super().__init__(encoder, decoder, likelihood, latent_dim)
        self.conditionals, self._width = conditionals, width
        self.iwae_samples = iwae_samples

    @property
    def width(self) -> int:
        return self._width

    def score(self, x: Tensor, masks: Tensor, generator: torch.Generator) -> Tensor:
        """Its gradient goes to the decoder, through the last decoding alone."""
        means = [self.conditional(x, mask, generator).mean() for mask in masks]
        return torch.stack(means).mean()

    def conditional(self, x: Tensor, masked: Tensor, generator: torch.Generator) -> Tensor:
        """log p(x_j | x_R) for each masked j of one mask (D,), (N, M)."""
        match self.conditionals:
            case Importance():
                return self._by_importance(x, masked, generator)
            case Recursive():
                return self._by_recursion(x, masked, generator)

    def _by_recursion(self, x: Tensor, masked: Tensor, generator: torch.Generator) -> Tensor:
        z = self._chains(x, masked, generator)
        columns = masked.nonzero().flatten()  # (M,)
        log_probs = self.likelihood.log_prob(x[:, columns], self.decoder(z, columns))
        return log_probs.logsumexp(0) - math.log(len(z))  # (draws, N, M) to (N, M)

    @torch.no_grad()
    def _chains(self, x: Tensor, masked: Tensor, generator: torch.Generator) -> Tensor:
        """z at the ends of chains of their own, (draws, N, K)."""
        copies = x.expand(self.conditionals.draws, *x.shape)  # (draws, N, D)
        filled = self.filled(copies, masked, self.conditionals.rounds - 1, generator)
        mean, log_variance = self.encoder(filled)
        return sample_posterior(mean, log_variance, generator)

    def _by_importance(self, x: Tensor, masked: Tensor, generator: torch.Generator) -> Tensor:
        """Half of the draws from q, half from the prior, each weighted by the density of the
        mixture (Veach & Guibas 1995): no weight is above twice p(x_R | z)."""
        draws, rounds = self.conditionals.draws, self.conditionals.rounds
        with torch.no_grad():
            mean, log_variance = self.encoder(self.filled(x, masked, rounds - 1, generator))
            z = draw_normal((draws, *mean.shape), mean, generator)  # (draws, N, K)
            near = draws // 2
            z[:near] = mean + (log_variance / 2).exp() * z[:near]
            ratio = near / draws
            proposal = torch.logaddexp(
                log_posterior(z, mean, log_variance) + math.log(ratio),
                log_prior(z) + math.log1p(-ratio),
            )
        log_probs = self.likelihood.log_prob(x, self.decoder(z))  # (draws, N, D)
        weight = log_prior(z) - proposal + (log_probs * ~masked).sum(-1)
        joint = weight[..., None] + log_probs[..., masked]  # (draws, N, M)
        return joint.logsumexp(0) - weight.logsumexp(0)[..., None]

    @torch.no_grad()
    def filled(self, x: Tensor, masked: Tensor, rounds: int, generator: torch.Generator) -> Tensor:
        """Observations (..., D) whose masked dimensions are drawn by so many rounds of encoding and
        decoding (Rezende et al. 2014, App. F), from a draw of the model."""
        z = draw_normal((*x.shape[:-1], self.latent_dim), x, generator)
        filled = torch.where(masked, self.likelihood.sample(self.decoder(z), generator), x)
        for _ in range(rounds):
            mean, log_variance = self.encoder(filled)
            z = sample_posterior(mean, log_variance, generator)
            filled = torch.where(masked, self.likelihood.sample(self.decoder(z), generator), x)
        return filled

    def log_marginal(self, x: Tensor) -> Tensor:
        raise NotImplementedError("it has no closed form: the spec lets lml through for grids only")

    def fit_encoder(self, x: Tensor, generator: torch.Generator) -> None:
        """The ELBO's gradient in the encoder, with the decoder as it stands."""
        decoder = list(self.decoder.parameters())
        for parameter in decoder:
            parameter.requires_grad_(False)
        (-self.elbo(x, generator).mean()).backward()  # type: ignore[no-untyped-call]
        for parameter in decoder:
            parameter.requires_grad_(True)

    def evidence(self, x: Tensor, generator: torch.Generator) -> Work[Evidence]:
        """The importance weighted bound of Burda et al. (2016, Eq. 8)."""
        summaries = []
        for part in self.parts(x, self.iwae_samples):
            summaries.append(summary_of(self.log_weights(part, self.iwae_samples, generator)))
            yield Step()
        return weight_evidence(summaries)

    def quick_lml(self, x: Tensor, samples: int, generator: torch.Generator) -> Estimate:
        """The same bound."""
        parts = self.parts(x, samples)
        bound = weight_evidence(
            [summary_of(self.log_weights(part, samples, generator)) for part in parts]
        )
        return Estimate(bound.value, bound.std_err, samples)

    @torch.no_grad()
    def log_weights(self, x: Tensor, samples: int, generator: torch.Generator) -> Tensor:
        """log p(x, z) − log q(z | x) for z from q(z | x), (samples, N)."""
        mean, log_variance = self.encoder(x)
        at_once = max(1, CHUNK_BYTES // (4 * len(x) * self.width * x.element_size()))
        log_weights = []
        for first in range(0, samples, at_once):
            shape = (min(at_once, samples - first), *mean.shape)
            z = sample_posterior(mean.expand(shape), log_variance.expand(shape), generator)
            likelihood = self.likelihood.log_prob(x, self.decoder(z)).sum(-1)
            log_weights.append(likelihood + log_prior(z) - log_posterior(z, mean, log_variance))
        return torch.cat(log_weights)

    @torch.no_grad()
    def reconstruction(self, x: Tensor, masked: Tensor, generator: torch.Generator) -> Tensor:
        """The mean of the chains' last decodings where masked."""
        z = self._chains(x, masked, generator)
        return torch.where(masked, self.likelihood.mean(self.decoder(z)).mean(0), x)

    def scored_on(self, x: Tensor, seed: int, evidence: Evidence) -> VectorModel:
        return SampledVaeModel(self, x, seed, evidence)


class SampledVaeModel(VectorModel):
    """A VAE together with the data it is scored on. The draws of z for a mask follow from the seed
    and the mask's place in the order they are scored in: the same mask scored again has others, so
    that errors over masks tell of both."""

    def __init__(self, vae: SampledVae, x: Tensor, seed: int, evidence: Evidence):
        self.vae, self.x, self.seed = vae, x, seed
        self._evidence = evidence
        self.device = x.device

    @property
    def dim(self) -> int:
        return self.x.shape[1]

    @property
    def bytes_per_mask(self) -> int:
        """Masks are scored one at a time; a batch is what a run does between two safe points."""
        return 2**22

    def scores(self, masks: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.stack([self._score(mask) for mask in masks])

    def _score(self, mask: Tensor) -> Tensor:
        generator = generator_for(self.seed, f"conditionals {self.masks_scored}")
        self.skip(1)
        parts = self.vae.parts(self.x, self.vae.conditionals.draws)
        sums = [self.vae.conditional(x, mask, generator).sum(dtype=torch.float64) for x in parts]
        return torch.stack(sums).sum() / (len(self.x) * mask.sum())

    def evidence(self) -> Evidence:
        return self._evidence
