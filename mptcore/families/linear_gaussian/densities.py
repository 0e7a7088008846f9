"""Build a density from a spec and its data."""

from collections.abc import Iterator
from typing import assert_never

import torch

from mptcore.data.dataset import Dataset
from mptcore.families.linear_gaussian.density import LowRankGaussian
from mptcore.families.linear_gaussian.em import Fitted, fit_missing
from mptcore.families.linear_gaussian.factor_analysis import factor_analysis, fit
from mptcore.families.linear_gaussian.moments import second_moment
from mptcore.families.linear_gaussian.ppca import ppca
from mptcore.specs import FactorAnalysisModel, LinearGaussianSpec, PpcaModel


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


def iterations(spec: LinearGaussianSpec, data: Dataset) -> Iterator[Fitted] | None:
    """Return the fit of a model that EM fits to the data, or None for other models."""
    if spec.init != "maximum_likelihood":
        return None
    if data.x.isnan().any():
        return fit_missing(spec, data.x)
    if isinstance(spec, FactorAnalysisModel):
        return fit(second_moment(data.x, data.mean), data.mean, spec.latent_dim)
    return None
