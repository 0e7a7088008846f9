"""Probabilistic PCA (the paper, Sec. 3.1 and App. B; Tipping & Bishop 1999)."""

from typing import assert_never

import torch
from torch import Tensor

from mptcore.data.arrays import Dataset
from mptcore.families.linear_gaussian.gaussian import LowRankGaussian
from mptcore.families.linear_gaussian.moments import second_moment
from mptcore.families.linear_gaussian.starts import random_start
from mptcore.families.linear_gaussian.weights import kept_density
from mptcore.protocol.records import RunError
from mptcore.specs import PpcaModel


def ppca(spec: PpcaModel, data: Dataset, seed: int, generator: torch.Generator) -> LowRankGaussian:
    """Return the density of a spec, in float64 on the CPU. Raises RunError if the likelihood has no
    maximum."""
    match spec.init:
        case "generator":
            assert data.parameters is not None, "the spec's check lets only simulated data through"
            return LowRankGaussian(**data.parameters)
        case "random":
            return random_start(spec, data, generator)
        case "maximum_likelihood":
            mean = data.x.double().mean(0)
            moment = second_moment(data.x, mean)
            return maximum_likelihood(moment, mean, spec.latent_dim, spec.noise_precision)
        case "experiment":
            return kept_density(spec, data.dim, seed)
        case _:
            assert_never(spec.init)


def maximum_likelihood(
    covariance: Tensor,  # (D, D)
    mean: Tensor,  # (D,)
    latent_dim: int,
    noise_precision: float | None = None,
) -> LowRankGaussian:
    """Return the PPCA with the highest likelihood for data with this mean and covariance (divided
    by N).

    W = U_K (Λ_K − s2 I)^½ from the leading eigenpairs, s2 the mean of the others, or the given one
    (Tipping & Bishop 1999, Eqs. 7 and 8). Raises RunError if that mean is zero, because the
    likelihood is then unbounded."""
    eigenvalues, eigenvectors = torch.linalg.eigh(covariance)  # ascending
    leading = eigenvalues[-latent_dim:]
    variance = 1 / noise_precision if noise_precision else eigenvalues[:-latent_dim].mean().item()
    if variance <= 1e-12 * eigenvalues[-1].item():
        raise RunError(
            "invalid",
            f"the data have no variance beyond {latent_dim} dimensions, so the likelihood has no "
            "maximum: lower latent_dim or give a noise_precision",
        )
    scale = (leading - variance).clamp(min=0).sqrt()
    noise = torch.full_like(mean, variance)
    return LowRankGaussian(eigenvectors[:, -latent_dim:] * scale, mean, noise)
