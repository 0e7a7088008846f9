"""From a spec and its data to a density and a model that can be scored."""

from typing import assert_never

import torch
from torch import Tensor

from mptcore.data.arrays import Dataset
from mptcore.estimation.model import TractableModel
from mptcore.families.linear_gaussian.conditionals import LinearGaussianModel
from mptcore.families.linear_gaussian.factor_analysis import factor_analysis
from mptcore.families.linear_gaussian.gaussian import LowRankGaussian
from mptcore.families.linear_gaussian.moments import moment_of
from mptcore.families.linear_gaussian.ppca import ppca
from mptcore.specs import FactorAnalysisModel, LinearGaussianSpec, PpcaModel


def initial_density(
    spec: LinearGaussianSpec, data: Dataset, seed: int, generator: torch.Generator
) -> LowRankGaussian:
    """The density of a spec before any training, in float64 on the CPU."""
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
    dtype: torch.dtype,
) -> TractableModel:
    """A density together with data."""
    moment = moment_of(x, density.mean, density.noise_variance.min().item())
    return LinearGaussianModel(density.to(device, dtype), moment)
