"""Random starts, shared by all linear Gaussian families."""

import torch

from mptcore.data.dataset import Dataset
from mptcore.families.linear_gaussian.density import LowRankGaussian
from mptcore.specs.families.linear_gaussian import LinearGaussian


def random_start(
    spec: LinearGaussian, data: Dataset, generator: torch.Generator
) -> LowRankGaussian:
    """Draw W from N(0, 1). Use the mean of the data and the noise precision of the spec."""
    assert spec.noise_precision is not None, "the spec's check asks for a number"
    loadings = torch.randn(data.dim, spec.latent_dim, generator=generator).double()
    variance = torch.full((data.dim,), 1 / spec.noise_precision, dtype=torch.float64)
    return LowRankGaussian(loadings, data.mean, variance)
