"""Build a density and a scorable model from a spec and its data."""

from typing import assert_never

import torch
from torch import Tensor

from mptcore.data.arrays import Dataset
from mptcore.families.linear_gaussian.conditionals import LinearGaussianModel
from mptcore.families.linear_gaussian.factor_analysis import factor_analysis
from mptcore.families.linear_gaussian.gaussian import LowRankGaussian
from mptcore.families.linear_gaussian.moments import data_factor, moment_of, variances
from mptcore.families.linear_gaussian.ppca import ppca
from mptcore.families.linear_gaussian.residuals import Residuals
from mptcore.families.linear_gaussian.rounding import keeps_digits
from mptcore.specs import FactorAnalysisModel, LinearGaussianSpec, PpcaModel

BY_RESIDUALS = (
    "the noise is so small beside loadings and data that sums of moments could move a score by "
    "more than 1e-8 of it: computed by residuals"
)


def initial_density(
    spec: LinearGaussianSpec, data: Dataset, seed: int, generator: torch.Generator
) -> LowRankGaussian:
    """Return the untrained density of a spec, in float64 on the CPU."""
    match spec:
        case PpcaModel():
            return ppca(spec, data, seed, generator)
        case FactorAnalysisModel():
            return factor_analysis(spec, data, seed, generator)
        case _:
            assert_never(spec)


def scorable(
    density: LowRankGaussian,
    x: Tensor,  # (N, D)
    device: torch.device,
) -> LinearGaussianModel:
    """Combine a density with data. Use sums of moments if they are precise enough, otherwise
    residuals."""
    placed = density.to(device, torch.float64)
    diagonal = variances(x, placed.mean)
    if keeps_digits(placed.loadings, placed.noise_variance, diagonal):
        moment = moment_of(x, placed.mean, density.noise_variance.min().item())
        return LinearGaussianModel(placed, moment)
    factor = data_factor(x, placed.mean)
    residuals = Residuals(placed.loadings, placed.noise_variance, factor).compressed()
    return LinearGaussianModel(placed, residuals, BY_RESIDUALS)
