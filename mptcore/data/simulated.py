"""Simulate data from a PPCA."""

import torch

from mptcore.data.dataset import Dataset
from mptcore.specs import PpcaData


def simulate_ppca(spec: PpcaData, generator: torch.Generator) -> Dataset:
    """Draw x = Z Wᵀ + e, in the order W, Z, e.

    With shared noise these are the published data, to the bit: float32 draws, one e for each
    observation with standard deviation 1/noise_precision, added to all its dimensions. The
    paper's model has variance 1/noise_precision in each dimension; that is isotropic noise.
    """
    loadings = torch.randn(spec.dim, spec.latent_dim, generator=generator)
    latent = torch.randn(spec.n, spec.latent_dim, generator=generator)
    match spec.noise:
        case "shared":
            x = latent @ loadings.mT
            x = x + torch.randn(spec.n, 1, generator=generator) / spec.noise_precision
        case "isotropic":
            x = latent.double() @ loadings.double().mT
            noise = torch.randn(spec.n, spec.dim, generator=generator, dtype=torch.float64)
            x = x + noise / spec.noise_precision**0.5
    variance = torch.full((spec.dim,), 1 / spec.noise_precision, dtype=torch.float64)
    mean = torch.zeros(spec.dim, dtype=torch.float64)
    parameters = {"loadings": loadings.double(), "mean": mean, "noise_variance": variance}
    return Dataset(x.double(), parameters)
