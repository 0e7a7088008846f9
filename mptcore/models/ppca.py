"""Probabilistic PCA (the paper, Sec. 3.1 and App. B; Tipping & Bishop 1999)."""

import torch
from torch import Tensor

from mptcore.data import Dataset
from mptcore.gaussian import LowRankGaussian
from mptcore.moments import second_moment
from mptcore.records import RunError
from mptcore.specs import PpcaModel


def ppca(spec: PpcaModel, data: Dataset, generator: torch.Generator) -> LowRankGaussian:
    """The density that a spec asks for, in float64 on the CPU. Raises RunError where the data
    have no maximum."""
    match spec.init:
        case "generator":
            assert data.density is not None, "the spec's check lets only generated data through"
            return data.density
        case "random":
            assert spec.noise_precision is not None, "the spec's check asks for a number"
            loadings = torch.randn(data.dim, spec.latent_dim, generator=generator).double()
            variance = torch.full((data.dim,), 1 / spec.noise_precision, dtype=torch.float64)
            return LowRankGaussian(loadings, torch.zeros(data.dim, dtype=torch.float64), variance)
        case "maximum_likelihood":
            mean = data.x.mean(0)
            moment = second_moment(data.x, mean)
            return maximum_likelihood(moment, mean, spec.latent_dim, spec.noise_precision)


def maximum_likelihood(
    covariance: Tensor,  # (D, D)
    mean: Tensor,  # (D,)
    latent_dim: int,
    noise_precision: float | None = None,
) -> LowRankGaussian:
    """The PPCA of highest likelihood for data of this mean and covariance (divided by N).

    W = U_K (Λ_K − s2 I)^½ from the leading eigenpairs, s2 the mean of the others, or the given
    one (Tipping & Bishop 1999, Eqs. 7 and 8). Raises RunError where that mean is zero: the
    likelihood is then unbounded.
    """
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
