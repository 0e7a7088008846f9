"""Factor analysis: PPCA with a noise variance for each dimension."""

from collections.abc import Iterator
from typing import NamedTuple, assert_never

import torch
from torch import Tensor

from mptcore.data.arrays import Dataset
from mptcore.families.linear_gaussian.gaussian import LOG_2PI, LowRankGaussian
from mptcore.families.linear_gaussian.moments import second_moment
from mptcore.families.linear_gaussian.ppca import maximum_likelihood as ppca_maximum_likelihood
from mptcore.families.linear_gaussian.starts import random_start
from mptcore.families.linear_gaussian.weights import kept_density
from mptcore.protocol.records import RunError
from mptcore.specs import FactorAnalysisModel
from mptcore.specs.families.linear_gaussian.experiment import MAX_ITERATIONS
from mptcore.specs.families.linear_gaussian.models import constant_columns

STANDSTILL = 1e-9
"""EM stops when ten steps raise the mean log likelihood by less than this, in nats."""
MIN_SHARE = 1e-6
"""Minimum noise variance as a share of the dimension's variance (Heywood cases)."""


def factor_analysis(
    spec: FactorAnalysisModel, data: Dataset, seed: int, generator: torch.Generator
) -> LowRankGaussian:
    """Return the density of a spec, in float64 on the CPU."""
    match spec.init:
        case "random":
            return random_start(spec, data, generator)
        case "maximum_likelihood":
            mean = data.x.double().mean(0)
            return maximum_likelihood(second_moment(data.x, mean), mean, spec.latent_dim)
        case "experiment":
            return kept_density(spec, data.dim, seed)
        case _:
            assert_never(spec.init)


def maximum_likelihood(covariance: Tensor, mean: Tensor, latent_dim: int) -> LowRankGaussian:
    """Return the density that `fit` finds."""
    *_, last = fit(covariance, mean, latent_dim)
    return last.density


class Fitted(NamedTuple):
    """State of a fit."""

    iteration: int
    lml: float
    density: LowRankGaussian


def fit(covariance: Tensor, mean: Tensor, latent_dim: int) -> Iterator[Fitted]:
    """Yield each tenth iteration of EM from PPCA's closed form (Rubin & Thayer 1982), until it
    stands still. With G = (I + Wᵀ Ψ⁻¹ W)⁻¹ Wᵀ Ψ⁻¹:
    W ← C Gᵀ (I − G W + G C Gᵀ)⁻¹, Ψ ← diag(C − W G C)."""
    variance = covariance.diagonal()
    start = ppca_maximum_likelihood(covariance, mean, latent_dim)
    loadings, noise = start.loadings, start.noise_variance
    best = -torch.inf
    for step in range(1, MAX_ITERATIONS + 1):
        loadings, noise = _em_step(covariance, loadings, noise)
        noise = torch.maximum(noise, MIN_SHARE * variance)
        if step % 10 == 0:
            reached = _mean_log_prob(covariance, loadings, noise)
            yield Fitted(step, reached, LowRankGaussian(loadings, mean, noise))
            if reached < best + STANDSTILL:
                break
            best = reached


def refuse_constant_columns(data: Dataset) -> None:
    """Raise RunError if a column has one value only, so that its noise variance has no maximum."""
    places = (data.x == data.x[0]).all(0).nonzero().flatten().tolist()
    if places:
        names = data.columns or [*map(str, range(data.dim))]
        detail = constant_columns([names[c] for c in places], data.columns is not None)
        raise RunError("invalid", detail)


def _em_step(covariance: Tensor, loadings: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    precise = loadings / noise[:, None]
    eye = torch.eye(loadings.shape[1], dtype=loadings.dtype)
    factor = torch.linalg.cholesky(eye + loadings.mT @ precise)
    gain = torch.cholesky_solve(precise.mT, factor)  # G, (K, D)
    cross = covariance @ gain.mT  # (D, K)
    second = eye - gain @ loadings + gain @ cross  # E[z zᵀ], (K, K)
    updated = torch.cholesky_solve(cross.mT, torch.linalg.cholesky(second)).mT
    return updated, covariance.diagonal() - (updated * cross).sum(1)


def _mean_log_prob(covariance: Tensor, loadings: Tensor, noise: Tensor) -> float:
    """Return the mean log density."""
    precise = loadings / noise[:, None]
    eye = torch.eye(loadings.shape[1], dtype=loadings.dtype)
    factor = torch.linalg.cholesky(eye + loadings.mT @ precise)
    explained = torch.cholesky_solve(precise.mT @ covariance @ precise, factor).trace()
    log_det = (LOG_2PI + noise.log()).sum() + 2 * factor.diagonal().log().sum()
    squares = (covariance.diagonal() / noise).sum() - explained
    return -0.5 * float(log_det + squares)
