"""Scores of a low-rank Gaussian from the data's second moment: the price does not depend on N."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mptcore.gaussian import LOG_2PI, LowRankGaussian
from mptcore.models.base import TractableModel


def second_moment(x: Tensor, mean: Tensor) -> Tensor:
    """C = (x − mean)ᵀ (x − mean) / N of x (N, D), (D, D), in float64."""
    centred = (x - mean).double()
    return centred.mT @ centred / len(x)


@dataclass(frozen=True)
class _Observed:
    """What the observed dimensions of each mask say about the latent variable, and the data's
    moments with it: `posterior` holds the Cholesky factors of A_R = I + W_Rᵀ Ψ_R⁻¹ W_R."""

    posterior: Tensor  # (B, K, K)
    cross: Tensor  # (B, K, D), B_R = W_Rᵀ Ψ_R⁻¹ C[R, :]
    moment: Tensor  # (B, K, K), G_R = B_R[:, R] Ψ_R⁻¹ W_R


class LinearGaussianModel(TractableModel):
    """PPCA or factor analysis on data of which only the second moment is kept.

    With Σ_R = A_R⁻¹ the conditional variance and the mean squared residual of x_j given x_R are
        v_j = psi_j + w_jᵀ Σ_R w_j
        e_j = C_jj − 2 w_jᵀ Σ_R B_R[:, j] + w_jᵀ Σ_R G_R Σ_R w_j
    and the mean of log p(x_j | x_R) is −½ log(2π v_j) − ½ e_j / v_j.
    """

    def __init__(self, density: LowRankGaussian, moment: Tensor):  # moment: (D, D)
        self.density = density
        self.moment = moment.to(density.loadings)
        self.device = self.moment.device
        self._precise_loadings = density.loadings / density.noise_variance[:, None]  # Ψ⁻¹ W
        self._outer = torch.einsum("dk,dl->dkl", self._precise_loadings, density.loadings)

    @property
    def dim(self) -> int:
        return self.density.dim

    @property
    def bytes_per_mask(self) -> int:
        return 6 * self.density.loadings.numel() * self.moment.element_size()

    def scores(self, masked: Tensor) -> Tensor:
        log_probs = self._mean_log_probs(masked).double()  # (B, D)
        return torch.where(masked, log_probs, 0.0).sum(1) / masked.sum(1)

    def log_marginal_likelihood(self) -> float:
        everything = torch.ones(1, self.dim, dtype=torch.bool, device=self.moment.device)
        return self._observed_log_prob(everything).item()

    def joint_scores(self, masked: Tensor) -> Tensor:
        return self.log_marginal_likelihood() - self._observed_log_prob(~masked)

    def _mean_log_probs(self, masked: Tensor) -> Tensor:
        """The mean over observations of log p(x_j | x_R) for all j, masked or not, (B, D)."""
        seen = self._observe(~masked)
        loadings = self.density.loadings.mT.expand(len(masked), -1, -1)  # (B, K, D)
        gain = torch.cholesky_solve(loadings, seen.posterior)  # Σ_R w_j for each j, (B, K, D)
        variance = self.density.noise_variance + (loadings * gain).sum(1)
        residual = (gain * (seen.moment @ gain - 2 * seen.cross)).sum(1)
        residual = self.moment.diagonal() + residual
        return -0.5 * (LOG_2PI + variance.log() + residual / variance)

    def _observe(self, observed: Tensor) -> _Observed:
        latent_dim = self.density.loadings.shape[1]
        weight = observed.to(self.moment)  # (B, D)
        information = (weight @ self._outer.flatten(1)).view(-1, latent_dim, latent_dim)
        eye = torch.eye(latent_dim, dtype=weight.dtype, device=weight.device)
        picked = weight[:, None, :] * self._precise_loadings.mT  # (B, K, D): W_Rᵀ Ψ_R⁻¹
        cross = (picked.flatten(0, 1) @ self.moment).view_as(picked)
        return _Observed(torch.linalg.cholesky(eye + information), cross, cross @ picked.mT)

    def _observed_log_prob(self, observed: Tensor) -> Tensor:
        """The mean over observations of log p(x_R) for each observed set R (B, D), float64 (B,)."""
        seen = self._observe(observed)
        weight = observed.to(self.moment)
        log_det = weight @ self.density.noise_variance.log()
        log_det = log_det + 2 * seen.posterior.diagonal(dim1=1, dim2=2).log().sum(1)
        explained = torch.cholesky_solve(seen.moment, seen.posterior)
        squares = weight @ (self.moment.diagonal() / self.density.noise_variance)
        squares = squares - explained.diagonal(dim1=1, dim2=2).sum(1)
        return -0.5 * (weight.sum(1) * LOG_2PI + log_det + squares).double()
