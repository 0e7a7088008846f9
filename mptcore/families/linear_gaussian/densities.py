"""Build a density from a spec and its data, and compute log p(x) of rows."""

from collections.abc import Iterator
from typing import assert_never

import scipy.linalg
import torch
from torch import Tensor

from mptcore.data.dataset import Dataset
from mptcore.families.linear_gaussian.em import Fitted, fit_missing
from mptcore.families.linear_gaussian.factor_analysis import factor_analysis, fit
from mptcore.families.linear_gaussian.gaussian import LOG_2PI, LowRankGaussian
from mptcore.families.linear_gaussian.moments import ROWS, patterns_of, second_moment
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


def log_probs(density: LowRankGaussian, x: Tensor) -> Tensor:
    """Return log p(x) of the observed values of each row of x (N, D), NaN where a value is missing:
    (N,), in float64 on the CPU."""
    x = x.double()
    patterns, pattern_of = patterns_of(x)
    order = pattern_of.argsort(stable=True)
    found = torch.empty(len(x), dtype=torch.float64)
    of_pattern = torch.split(order, pattern_of.bincount().tolist())
    for seen, rows in zip(patterns, of_pattern, strict=True):
        found[rows] = _complete_log_probs(density.marginal(seen), x[rows][:, seen])
    return found


def _complete_log_probs(density: LowRankGaussian, x: Tensor) -> Tensor:
    """Return log p(x) of each row of complete x (N, D), by least squares as in `ResidualSolver`.

    In units of each dimension's noise, the squares are the least |z|² + |x − W z|² over z: with
    [I; W] = Q T, those of the entries of Qᵀ [0; x] after the first K. The rows of [I; W] differ in
    size as the noise variances do. Householder's reflections keep the digits of each row, small
    ones beside large ones too, if rows are sorted by size and columns are pivoted (Cox & Higham
    1998): the relative error does not depend on the noise. Woodbury's difference of two large
    numbers is 0.006 nats off at a noise precision of 1e12, and z by the normal equations 0.01 where
    one noise variance is 1e-16 of the others."""
    noise, latent_dim = density.noise_variance.sqrt(), density.loadings.shape[1]
    prior = torch.eye(latent_dim, dtype=x.dtype)
    design = torch.cat([prior, density.loadings / noise[:, None]])  # (K + D, K)
    order = design.abs().amax(1).argsort(descending=True)
    (reflectors, tau), root, _ = scipy.linalg.qr(
        design[order].numpy(), mode="raw", pivoting=True, check_finite=False
    )
    packed = torch.from_numpy(reflectors), torch.from_numpy(tau)
    columns = order.argsort()[latent_dim:]  # the places of x
    squares = torch.empty(len(x), dtype=x.dtype)
    for part, rows in zip(torch.split(squares, ROWS), torch.split(x, ROWS), strict=True):
        data = x.new_zeros(len(rows), len(design))
        data[:, columns] = (rows - density.mean) / noise
        rotated = torch.ormqr(*packed, data, left=False)  # (Qᵀ dataᵀ)ᵀ
        torch.sum(rotated[:, latent_dim:].square(), 1, out=part)
    log_det = 2 * (torch.from_numpy(root).diagonal().abs().log().sum() + noise.log().sum())
    found: Tensor = -0.5 * (squares + log_det + density.dim * LOG_2PI)
    return found
