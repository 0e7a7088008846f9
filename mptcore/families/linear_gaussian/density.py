"""Gaussians whose covariance is low rank plus diagonal: the tractable families' common density.

x = W z + mu + e, z ~ N(0, I_K), e ~ N(0, diag(psi)), so x ~ N(mu, W Wᵀ + diag(psi)).
"""

import math
from dataclasses import dataclass
from typing import Self

import scipy.linalg
import torch
from torch import Tensor

from mptcore.families.linear_gaussian.moments import ROWS, patterns_of

LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True)
class LowRankGaussian:
    """N(mean, loadings loadingsᵀ + diag(noise_variance))."""

    loadings: Tensor  # (D, K)
    mean: Tensor  # (D,)
    noise_variance: Tensor  # (D,)

    def __post_init__(self) -> None:
        dim = self.loadings.shape[0]
        if self.mean.shape != (dim,) or self.noise_variance.shape != (dim,):
            shapes = [tuple(t.shape) for t in (self.loadings, self.mean, self.noise_variance)]
            raise ValueError(f"shapes are (D, K), (D,), (D,), not {shapes}")

    @property
    def dim(self) -> int:
        return self.loadings.shape[0]

    @property
    def covariance(self) -> Tensor:
        """Return the dense covariance, (D, D)."""
        return self.loadings @ self.loadings.mT + torch.diag(self.noise_variance)

    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        return type(self)(
            self.loadings.to(device, dtype),
            self.mean.to(device, dtype),
            self.noise_variance.to(device, dtype),
        )

    def log_prob(self, x: Tensor) -> Tensor:
        """Return log p(x) of each row of x (N, D), (N,), by the dense Cholesky factor."""
        factor = torch.linalg.cholesky(self.covariance)
        whitened = torch.linalg.solve_triangular(factor, (x - self.mean).mT, upper=False)
        log_det = 2 * factor.diagonal().log().sum()
        log_prob: Tensor = -0.5 * (whitened.square().sum(0) + log_det + self.dim * LOG_2PI)
        return log_prob

    def marginal(self, index: Tensor) -> Self:
        """Return the distribution of x[index]."""
        return type(self)(self.loadings[index], self.mean[index], self.noise_variance[index])

    def conditional_log_probs(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return log p(x_j | x_R) for each row of x (N, D) and masked j: (N, M), for one mask (D,).

        This is the direct computation by the paper's Eq. (7), whose plus sign in the variance is a
        misprint: a dense Cholesky factor of the observed block, and the residual of every
        observation. It is slow, and serves as the reference for all solvers."""
        observed = ~mask
        covariance = self.covariance
        centred = x - self.mean
        factor = torch.linalg.cholesky(covariance[observed][:, observed])
        cross = covariance[observed][:, mask]  # (R, M)
        gain = torch.cholesky_solve(cross, factor)  # S_RR⁻¹ S_RM
        variance = covariance.diagonal()[mask] - (cross * gain).sum(0)
        residual = centred[:, mask] - centred[:, observed] @ gain
        return -0.5 * (LOG_2PI + variance.log() + residual.square() / variance)


def log_probs(density: LowRankGaussian, x: Tensor) -> Tensor:
    """Return log p(x) of the observed values of each row of x (N, D), NaN where a value is missing:
    (N,), in float64 on the CPU."""
    x = x.double()
    patterns, pattern_of = patterns_of(x)
    order = pattern_of.argsort(stable=True)
    values = torch.empty(len(x), dtype=torch.float64)
    rows_of_patterns = torch.split(order, pattern_of.bincount().tolist())
    for observed, rows in zip(patterns, rows_of_patterns, strict=True):
        values[rows] = _complete_log_probs(density.marginal(observed), x[rows][:, observed])
    return values


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
    columns = order.argsort()[latent_dim:]  # those of x
    squares = torch.empty(len(x), dtype=x.dtype)
    for part, rows in zip(torch.split(squares, ROWS), torch.split(x, ROWS), strict=True):
        data = x.new_zeros(len(rows), len(design))
        data[:, columns] = (rows - density.mean) / noise
        rotated = torch.ormqr(*packed, data, left=False)  # (Qᵀ dataᵀ)ᵀ
        torch.sum(rotated[:, latent_dim:].square(), 1, out=part)
    log_det = 2 * (torch.from_numpy(root).diagonal().abs().log().sum() + noise.log().sum())
    log_prob: Tensor = -0.5 * (squares + log_det + density.dim * LOG_2PI)
    return log_prob
