"""Random starts, the same for every linear Gaussian family."""

import torch

from mptcore.families.linear_gaussian.gaussian import LowRankGaussian
from mptcore.specs.families.linear_gaussian.models import LinearGaussian


def random_start(spec: LinearGaussian, dim: int, generator: torch.Generator) -> LowRankGaussian:
    """W from N(0, 1), mean 0, the noise precision of the spec."""
    assert spec.noise_precision is not None, "the spec's check asks for a number"
    loadings = torch.randn(dim, spec.latent_dim, generator=generator).double()
    variance = torch.full((dim,), 1 / spec.noise_precision, dtype=torch.float64)
    return LowRankGaussian(loadings, torch.zeros(dim, dtype=torch.float64), variance)
