"""Gaussians whose covariance is low rank plus diagonal: the tractable families' common density.

x = W z + mu + e, z ~ N(0, I_K), e ~ N(0, diag(psi)), so x ~ N(mu, W Wᵀ + diag(psi)).
"""

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

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
