"""Factor analysis: PPCA with a noise variance for each dimension."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from mptcore.data.dataset import Dataset
from mptcore.families.linear_gaussian.density import LOG_2PI, LowRankGaussian
from mptcore.families.linear_gaussian.em import MIN_SHARE, Fitted, Likelihood, fit_missing, iterate
from mptcore.families.linear_gaussian.initial import closed_form
from mptcore.families.linear_gaussian.moments import second_moment
from mptcore.families.linear_gaussian.quasi_newton import Slope
from mptcore.protocol.records import RunError
from mptcore.specs import FactorAnalysisModel, LinearGaussianSpec
from mptcore.specs.families.linear_gaussian import constant_columns


def iterations(spec: LinearGaussianSpec, data: Dataset) -> Iterator[Fitted] | None:
    """Return the fit of a model that EM fits to the data, or None for other models."""
    if spec.init != "maximum_likelihood":
        return None
    if data.x.isnan().any():
        return fit_missing(spec, data.x)
    if isinstance(spec, FactorAnalysisModel):
        return fit(second_moment(data.x, data.mean), data.mean, spec.latent_dim)
    return None


def fit(covariance: Tensor, mean: Tensor, latent_dim: int) -> Iterator[Fitted]:
    """Yield states on the way from PPCA's closed form to a maximum of the likelihood: EM (Rubin &
    Thayer 1982), then L-BFGS-B. The closed form is that of the correlations: with the covariance,
    the start and so the maximum that is found would depend on the units of the columns."""
    least = MIN_SHARE * covariance.diagonal()

    def step(density: LowRankGaussian) -> LowRankGaussian:
        expected = _Expected.of(covariance, density)
        second = torch.linalg.cholesky(expected.second)
        loadings = torch.cholesky_solve(expected.cross.mT, second).mT
        noise = covariance.diagonal() - (loadings * expected.cross).sum(1)
        return LowRankGaussian(loadings, mean, torch.maximum(noise, least))

    def slope(density: LowRankGaussian) -> Slope:
        expected = _Expected.of(covariance, density)
        loadings, noise = density.loadings, density.noise_variance
        through = loadings @ expected.second
        squares = covariance.diagonal() + (loadings * (through - 2 * expected.cross)).sum(1)
        found = (expected.cross - through) / noise[:, None]
        return Slope(log_prob(density), found, torch.zeros_like(mean), 0.5 * (squares / noise - 1))

    def log_prob(density: LowRankGaussian) -> float:
        return _mean_log_prob(covariance, density.loadings, density.noise_variance)

    scale = covariance.diagonal().sqrt()
    correlation = covariance / (scale[:, None] * scale)
    alike = closed_form(correlation, mean, latent_dim)
    noise = scale.square() * alike.noise_variance
    start = LowRankGaussian(scale[:, None] * alike.loadings, mean, noise)
    return iterate(start, Likelihood(step, log_prob, slope), least, len(mean))


def refuse_constant_columns(data: Dataset) -> None:
    """Raise RunError if a column has one value only, so that its noise variance has no maximum.
    Missing values do not count."""
    if constant := data.constant:
        raise RunError("invalid", constant_columns(constant, data.columns is not None))


class _Expected(NamedTuple):
    """Means over data with covariance C. E[z | x] is G (x − mu), G = (I + Wᵀ Ψ⁻¹ W)⁻¹ Wᵀ Ψ⁻¹."""

    cross: Tensor  # of (x − mu) E[z]ᵀ, C Gᵀ, (D, K)
    second: Tensor  # of E[z zᵀ], I − G W + G C Gᵀ, (K, K)

    @classmethod
    def of(cls, covariance: Tensor, density: LowRankGaussian) -> "_Expected":
        loadings = density.loadings
        precise = loadings / density.noise_variance[:, None]
        eye = torch.eye(loadings.shape[1], dtype=loadings.dtype)
        factor = torch.linalg.cholesky(eye + loadings.mT @ precise)
        gain = torch.cholesky_solve(precise.mT, factor)
        cross = covariance @ gain.mT
        return cls(cross, eye - gain @ loadings + gain @ cross)


def _mean_log_prob(covariance: Tensor, loadings: Tensor, noise: Tensor) -> float:
    """Return the mean log density. The squares are those of x − mu − W E[z] and E[z], which do not
    cancel: where two noise variances are small, diag(C) / psi less what z explains has errors of
    1e-5 nats."""
    precise = loadings / noise[:, None]
    eye = torch.eye(loadings.shape[1], dtype=loadings.dtype)
    factor = torch.linalg.cholesky(eye + loadings.mT @ precise)
    gain = torch.cholesky_solve(precise.mT, factor)
    cross = covariance @ gain.mT
    means = gain @ cross
    left = covariance.diagonal() + (loadings * (loadings @ means - 2 * cross)).sum(1)
    log_det = (LOG_2PI + noise.log()).sum() + 2 * factor.diagonal().log().sum()
    return -0.5 * float(log_det + (left / noise).sum() + means.trace())
