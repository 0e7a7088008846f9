"""Scores of a low-rank Gaussian from the data's second moment. The cost of a mask does not depend
on N."""

from copy import copy
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mptcore.estimation.model import TractableModel
from mptcore.families.linear_gaussian.fused import (
    FusedScores,
    bytes_per_mask,
    can_fuse,
    fused_scores,
)
from mptcore.families.linear_gaussian.gaussian import LOG_2PI, LowRankGaussian
from mptcore.families.linear_gaussian.moments import DenseMoment, FactoredMoment, Moment
from mptcore.families.linear_gaussian.residuals import Residuals


@dataclass(frozen=True)
class Observed:
    """Posterior of the latent variable given the observed dimensions R of each mask, and the data's
    moments with it. An additional leading dimension may hold several models."""

    factor: Tensor  # (B, K, K), Cholesky factor of A_R = I + W_Rᵀ Ψ_R⁻¹ W_R
    posterior: Tensor  # (B, K, K), Σ_R = A_R⁻¹
    moment: Tensor  # (B, K, K), G_R = B_R[:, R] Ψ_R⁻¹ W_R
    cross: Tensor  # dense: B_R = W_Rᵀ Ψ_R⁻¹ C[R, :], (B, K, D); factored: B_R = L_R Fᵀ, (B, K, Q)


class Conditionals:
    """The conditionals of a low-rank Gaussian, averaged over data, for many masks at once.

    With Σ_R = A_R⁻¹ the conditional variance and the mean squared residual of x_j given x_R are
        v_j = psi_j + w_jᵀ Σ_R w_j
        e_j = C_jj − 2 w_jᵀ Σ_R B_R[:, j] + w_jᵀ Σ_R G_R Σ_R w_j
    and the mean of log p(x_j | x_R) is −½ log(2π v_j) − ½ e_j / v_j. Each quadratic form w_jᵀ S w_j
    is a product of S, as a row of K² numbers, with the table of w_j w_jᵀ: so all that costs is a
    matrix product over all masks. Where C = F Fᵀ has low rank Q, B_R[:, j] = L_R f_j with
    L_R = W_Rᵀ Ψ_R⁻¹ F_R, and nothing of size K · D is made for a mask.

    Differentiable. Several models, and moments, may be stacked along a leading dimension.
    """

    def __init__(self, loadings: Tensor, noise_variance: Tensor, moment: Moment):
        self.loadings = loadings  # (D, K)
        self.noise_variance = noise_variance  # (D,)
        self.moment = moment
        self.precise = loadings / noise_variance[..., None]  # Ψ⁻¹ W, (D, K)

    @property
    def latent_dim(self) -> int:
        return self.loadings.shape[-1]

    @property
    def bytes_per_mask(self) -> int:
        dim, latent_dim = self.loadings.shape
        match self.moment:
            case FactoredMoment(factor):
                numbers = 8 * dim + 4 * latent_dim * (latent_dim + factor.shape[1])
            case DenseMoment():
                numbers = (6 + 4 * latent_dim) * dim + 4 * latent_dim**2
        return numbers * self.loadings.element_size()

    @property
    def least_batch(self) -> int:
        """Minimum number of masks for efficiency. The dense moment, with its D² numbers, is then
        read once for 512 rows."""
        match self.moment:
            case FactoredMoment():
                return 1
            case DenseMoment():
                return -(-512 // self.latent_dim)

    @cached_property
    def outer(self) -> Tensor:
        """w_j w_jᵀ, (D, K²)."""
        return _outer(self.loadings, self.loadings)

    @cached_property
    def mixed(self) -> Tensor:
        """w_j f_jᵀ, (D, K Q)."""
        return _outer(self.loadings, self._factor)

    @cached_property
    def _spread_and_gain(self) -> Tensor:
        """Factors of the linear terms of e_j, (D, K² + K Q)."""
        return torch.cat([self.outer, -2 * self.mixed], -1)

    @cached_property
    def _information(self) -> Tensor:
        return _outer(self.precise, self.loadings)  # (D, K²)

    @cached_property
    def _seen(self) -> Tensor:
        return _outer(self.precise, self._factor)  # (D, K Q)

    @property
    def _factor(self) -> Tensor:  # (D, Q)
        assert isinstance(self.moment, FactoredMoment)
        return self.moment.factor

    def scores(self, masks: Tensor) -> Tensor:  # (B, D) to (B,), float64
        """Return the mean over observations and masked j of log p(x_j | x_R)."""
        weight = (~masks).to(self.loadings)
        variance, residual = self._conditional_moments(weight)
        # in place: each pass over (B, D) costs as much as the formulas
        misfit = variance.log().add_(residual / variance).mul_(1 - weight)
        return -0.5 * (LOG_2PI + misfit.sum(-1) / masks.sum(-1))

    def log_probs(self, observed: Tensor) -> Tensor:  # (B, D) to (B,), float64
        """Return the mean over observations of log p(x_R)."""
        weight = observed.to(self.loadings)
        seen = self.observe(weight)
        log_det = (weight @ self.noise_variance.log()[..., None])[..., 0]
        log_det = log_det + 2 * seen.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        squares = (weight @ (self.moment.diagonal / self.noise_variance)[..., None])[..., 0]
        squares = squares - (seen.posterior * seen.moment).sum((-2, -1))
        return -0.5 * (weight.sum(-1) * LOG_2PI + log_det + squares).double()

    def log_prob(self) -> Tensor:  # (), float64
        """Return the mean over observations of log p(x)."""
        eye = torch.eye(self.latent_dim, dtype=self.loadings.dtype, device=self.loadings.device)
        factor = torch.linalg.cholesky(eye + self.precise.mT @ self.loadings)
        match self.moment:
            case FactoredMoment():
                half = torch.linalg.solve_triangular(
                    factor, self.precise.mT @ self._factor, upper=False
                )
                explained = half.square().sum((-2, -1))
            case DenseMoment(matrix):
                moment = self.precise.mT @ matrix @ self.precise
                explained = (torch.cholesky_inverse(factor) * moment).sum((-2, -1))
        log_det = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        each = self.noise_variance.log() + self.moment.diagonal / self.noise_variance
        total: Tensor = self.loadings.shape[-2] * LOG_2PI + each.sum(-1) + log_det - explained
        return -0.5 * total.double()

    def moments_of(self, posterior: Tensor, spread: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
        """Return v_j and e_j for all j, (B, D) each, from Σ_R, Σ_R G_R Σ_R and Σ_R L_R."""
        variance = (posterior.flatten(-2) @ self.outer.mT).add_(self.noise_variance[..., None, :])
        terms = torch.cat([spread.flatten(-2), gain.flatten(-2)], -1)
        residual = (terms @ self._spread_and_gain.mT).add_(self.moment.diagonal[..., None, :])
        return variance, residual

    def observe(self, weight: Tensor) -> Observed:
        """Compute the posteriors for observed dimensions given as 0 and 1, (B, D)."""
        square = (*weight.shape[:-1], self.latent_dim, self.latent_dim)
        eye = torch.eye(self.latent_dim, dtype=weight.dtype, device=weight.device)
        factor = torch.linalg.cholesky((weight @ self._information).view(square) + eye)
        posterior = torch.cholesky_inverse(factor)
        match self.moment:
            case FactoredMoment():
                cross = (weight @ self._seen).view(*square[:-1], -1)
                moment = cross @ cross.mT
            case DenseMoment(matrix):
                picked = weight[..., None, :] * self.precise.mT[..., None, :, :]  # (B, K, D)
                cross = (_rows(picked) @ matrix).view_as(picked)
                moment = (_rows(cross * weight[..., None, :]) @ self.precise).view(square)
        return Observed(factor, posterior, moment, cross)

    def _conditional_moments(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        seen = self.observe(weight)
        match self.moment:
            case FactoredMoment():
                gain = seen.posterior @ seen.cross
                return self.moments_of(seen.posterior, gain @ gain.mT, gain)
            case DenseMoment():
                return self._dense_moments(seen)

    def _dense_moments(self, seen: Observed) -> tuple[Tensor, Tensor]:
        spread = seen.posterior @ seen.moment @ seen.posterior
        variance = self.noise_variance[..., None, :] + seen.posterior.flatten(-2) @ self.outer.mT
        residual = self.moment.diagonal[..., None, :] + spread.flatten(-2) @ self.outer.mT
        gain = _rows(seen.posterior) @ self.loadings.mT  # w_jᵀ Σ_R, (B K, D)
        return variance, residual - 2 * (gain.view_as(seen.cross) * seen.cross).sum(-2)


class LinearGaussianModel(TractableModel):
    """PPCA or factor analysis on data that are reduced to their second moment or residuals."""

    def __init__(self, density: LowRankGaussian, data: Moment | Residuals, note: str | None = None):
        self.device, self.note = density.loadings.device, note
        self.conditionals = (
            data
            if isinstance(data, Residuals)
            else Conditionals(density.loadings, density.noise_variance, data.to(density.loadings))
        )

    @cached_property
    def _fused(self) -> FusedScores | None:
        model = self.conditionals
        if isinstance(model, Residuals):
            return None
        return fused_scores(model.loadings, model.noise_variance, model.moment)

    def without_tables(self) -> "LinearGaussianModel":
        """Return a copy that computes its own tables."""
        found = copy(self)
        found.conditionals = copy(self.conditionals)
        return found

    @property
    def is_fused(self) -> bool:
        """Return whether compiled loops score the masks."""
        model = self.conditionals
        return isinstance(model, Conditionals) and can_fuse(model.loadings, model.moment)

    @property
    def dim(self) -> int:
        return self.conditionals.noise_variance.shape[-1]

    @property
    def bytes_per_mask(self) -> int:
        return bytes_per_mask(self.dim) if self.is_fused else self.conditionals.bytes_per_mask

    @property
    def least_batch(self) -> int:
        return (self._fused or self.conditionals).least_batch

    def scores(self, masks: Tensor) -> Tensor:
        if self._fused is not None:
            found = self._fused.scores(masks)
            if found.isfinite().all():
                return found
        return self.conditionals.scores(masks)  # raises an error that names the cause

    @cached_property
    def _log_prob(self) -> Tensor:
        return self.conditionals.log_prob()

    def log_marginal_likelihood(self) -> float:
        return self._log_prob.item()

    def joint_scores(self, masks: Tensor) -> Tensor:
        return self._log_prob - self.conditionals.log_probs(~masks)


def _outer(left: Tensor, right: Tensor) -> Tensor:
    """Return the products of all pairs of entries, row by row: (D, I J)."""
    return (left[..., :, None] * right[..., None, :]).flatten(-2)


def _rows(matrices: Tensor) -> Tensor:
    """Reshape (..., B, I, J) to (..., B I, J)."""
    return matrices.flatten(-3, -2)
