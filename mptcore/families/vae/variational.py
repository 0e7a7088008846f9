"""The ELBO and other functions of an encoder's q(z | x)."""

import math

import torch
from torch import Tensor

from mptcore.families.vae.likelihoods import Likelihood
from mptcore.families.vae.networks import Decoder, Encoder, draw_normal

ROWS = 4096
"""Number of observations encoded together."""
LOG_2PI = math.log(2 * math.pi)
ACTIVE = 0.01
"""KL divergence in nats below which a latent dimension carries no information about the data."""


def elbo(
    encoder: Encoder,
    decoder: Decoder,
    likelihood: Likelihood,
    x: Tensor,
    normal: Tensor,
) -> Tensor:
    """Return the ELBO in nats for each observation (N, D) and its standard normal numbers (N, K):
    (N,). It is E_q[log p(x | z)] from one draw minus KL(q || prior) in closed form (Kingma &
    Welling 2014, Eq. 10)."""
    mean, log_variance = encoder(x)
    z = mean + (log_variance / 2).exp() * normal
    return likelihood.log_prob(x, decoder(z)).sum(-1) - divergence(mean, log_variance).sum(-1)


def sample_posterior(mean: Tensor, log_variance: Tensor, generator: torch.Generator) -> Tensor:
    """Draw z from the posterior, differentiably (reparametrisation)."""
    return mean + (log_variance / 2).exp() * draw_normal(mean.shape, mean, generator)


def divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """Return KL(q || prior) of each latent dimension."""
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance)


def log_prior(z: Tensor) -> Tensor:
    """Return log p(z), summed over latent dimensions."""
    return -0.5 * (LOG_2PI + z.square()).sum(-1)
