"""Scores of a low-rank Gaussian from the data's second moment. The cost of a mask does not depend
on N."""

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mptcore.families.linear_gaussian import kernel_tables, step_gradient
from mptcore.families.linear_gaussian.density import LOG_2PI
from mptcore.families.linear_gaussian.kernel_tables import KernelTables
from mptcore.families.linear_gaussian.moments import DenseMoment, FactoredMoment, Moment
from mptcore.families.linear_gaussian.solver import ScoreGradient, Solver


@dataclass(frozen=True)
class LatentPosterior:
    """Posterior of the latent variable given the observed dimensions R of each mask, and the data's
    moments with it. An additional leading dimension may hold several models."""

    factor: Tensor  # (B, K, K), Cholesky factor of A_R = I + W_Rᵀ Ψ_R⁻¹ W_R
    covariance: Tensor  # (B, K, K), Σ_R = A_R⁻¹
    moment: Tensor  # (B, K, K), G_R = B_R[:, R] Ψ_R⁻¹ W_R
    cross: Tensor  # dense: B_R = W_Rᵀ Ψ_R⁻¹ C[R, :], (B, K, D); factored: B_R = L_R Fᵀ, (B, K, Q)


class MomentSolver(Solver):
    """The conditionals of a low-rank Gaussian, averaged over data, for many masks at once.

    With Σ_R = A_R⁻¹ the conditional variance and the mean squared residual of x_j given x_R are
        v_j = psi_j + w_jᵀ Σ_R w_j
        e_j = C_jj − 2 w_jᵀ Σ_R B_R[:, j] + w_jᵀ Σ_R G_R Σ_R w_j
    and the mean of log p(x_j | x_R) is −½ log(2π v_j) − ½ e_j / v_j. Each quadratic form w_jᵀ S w_j
    is a product of S, as a row of K² numbers, with the table of w_j w_jᵀ: so all that costs is a
    matrix product over all masks.
    """

    def __init__(self, loadings: Tensor, noise_variance: Tensor, moment: Moment):
        self.device = loadings.device
        self.loadings = loadings  # (D, K)
        self.noise_variance = noise_variance  # (D,)
        self.diagonal = moment.diagonal  # (D,)
        self.precise = loadings / noise_variance[..., None]  # Ψ⁻¹ W, (D, K)

    @property
    @abstractmethod
    def tables(self) -> KernelTables | None:
        """Return the tables of the compiled loops, if these score the masks."""

    @abstractmethod
    def posterior(self, weight: Tensor) -> LatentPosterior:
        """Compute the posteriors for observed dimensions given as 0 and 1, (B, D)."""

    @abstractmethod
    def conditional_moments(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return v_j and e_j for all j, (B, D) each, for observed dimensions as 0 and 1, (B, D)."""

    @abstractmethod
    def explained(self, factor: Tensor) -> Tensor:
        """Return the part of the squares that the latent variable explains, given the Cholesky
        factor (K, K) of I + Wᵀ Ψ⁻¹ W."""

    @property
    def dim(self) -> int:
        return self.noise_variance.shape[-1]

    @property
    def latent_dim(self) -> int:
        return self.loadings.shape[-1]

    @cached_property
    def outer(self) -> Tensor:
        """w_j w_jᵀ, (D, K²)."""
        return outer_products(self.loadings, self.loadings)

    @cached_property
    def _information(self) -> Tensor:
        return outer_products(self.precise, self.loadings)  # (D, K²)

    def scores(self, masks: Tensor) -> Tensor:
        if self.tables is not None:
            scores = self.tables.scores(masks)
            if scores.isfinite().all():
                return scores
        return self.scores_by_torch(masks)  # raises an error that names the cause

    def scores_by_torch(self, masks: Tensor) -> Tensor:  # (B, D) to (B,), float64
        """Return the mean over observations and masked j of log p(x_j | x_R)."""
        weight = (~masks).to(self.loadings)
        variance, residual = self.conditional_moments(weight)
        # in place: each pass over (B, D) costs as much as the formulas
        misfit = variance.log().add_(residual / variance).mul_(1 - weight)
        return -0.5 * (LOG_2PI + misfit.sum(-1) / masks.sum(-1))

    def log_probs(self, observed: Tensor) -> Tensor:
        weight = observed.to(self.loadings)
        posterior = self.posterior(weight)
        log_det = (weight @ self.noise_variance.log()[..., None])[..., 0]
        log_det = log_det + 2 * posterior.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        squares = (weight @ (self.diagonal / self.noise_variance)[..., None])[..., 0]
        squares = squares - (posterior.covariance * posterior.moment).sum((-2, -1))
        return -0.5 * (weight.sum(-1) * LOG_2PI + log_det + squares).double()

    def log_prob(self) -> Tensor:
        eye = torch.eye(self.latent_dim, dtype=self.loadings.dtype, device=self.loadings.device)
        factor = torch.linalg.cholesky(eye + self.precise.mT @ self.loadings)
        explained = self.explained(factor)
        log_det = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        each = self.noise_variance.log() + self.diagonal / self.noise_variance
        total: Tensor = self.loadings.shape[-2] * LOG_2PI + each.sum(-1) + log_det - explained
        return -0.5 * total.double()

    def _posterior_factor(self, weight: Tensor) -> Tensor:
        """Return the Cholesky factors of A_R (B, K, K) for observed dimensions (B, D), 0 and 1."""
        square = (*weight.shape[:-1], self.latent_dim, self.latent_dim)
        eye = torch.eye(self.latent_dim, dtype=weight.dtype, device=weight.device)
        factor: Tensor = torch.linalg.cholesky((weight @ self._information).view(square) + eye)
        return factor


class FactoredSolver(MomentSolver):
    """For a moment C = F Fᵀ of low rank Q. B_R[:, j] is L_R f_j with L_R = W_Rᵀ Ψ_R⁻¹ F_R, and
    nothing of size K · D is made for a mask."""

    def __init__(self, loadings: Tensor, noise_variance: Tensor, moment: FactoredMoment):
        super().__init__(loadings, noise_variance, moment)
        self.factor = moment.factor  # (D, Q)

    @cached_property
    def fits_kernel(self) -> bool:
        return kernel_tables.fits_factored(self.loadings, self.factor)

    @cached_property
    def tables(self) -> KernelTables | None:
        if not self.fits_kernel:
            return None
        return kernel_tables.factored(*self._tensors)

    @property
    def bytes_per_mask(self) -> int:
        if self.fits_kernel:
            return kernel_tables.bytes_per_mask(self.dim)
        numbers = 8 * self.dim + 4 * self.latent_dim * (self.latent_dim + self.factor.shape[-1])
        return numbers * self.loadings.element_size()

    @property
    def efficient_batch(self) -> int:
        if not self.fits_kernel:
            return 1
        products = kernel_tables.products(self.loadings, self.factor)
        return kernel_tables.efficient_batch(self.dim, products)

    @cached_property
    def _mixed(self) -> Tensor:
        """w_j f_jᵀ, (D, K Q)."""
        return outer_products(self.loadings, self.factor)

    @cached_property
    def _residual_products(self) -> Tensor:
        """Factors of the linear terms of e_j, (D, K² + K Q)."""
        return torch.cat([self.outer, -2 * self._mixed], -1)

    @cached_property
    def _projection(self) -> Tensor:
        return outer_products(self.precise, self.factor)  # (D, K Q)

    def posterior(self, weight: Tensor) -> LatentPosterior:
        factor = self._posterior_factor(weight)
        covariance = torch.cholesky_inverse(factor)
        cross = (weight @ self._projection).view(*covariance.shape[:-1], -1)
        return LatentPosterior(factor, covariance, cross @ cross.mT, cross)

    def conditional_moments(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        posterior = self.posterior(weight)
        gain = posterior.covariance @ posterior.cross  # Σ_R L_R
        quadratic = gain @ gain.mT  # Σ_R G_R Σ_R
        variance = posterior.covariance.flatten(-2) @ self.outer.mT
        variance = variance.add_(self.noise_variance[..., None, :])
        terms = torch.cat([quadratic.flatten(-2), gain.flatten(-2)], -1)
        residual = (terms @ self._residual_products.mT).add_(self.diagonal[..., None, :])
        return variance, residual

    def explained(self, factor: Tensor) -> Tensor:
        half = torch.linalg.solve_triangular(factor, self.precise.mT @ self.factor, upper=False)
        explained: Tensor = half.square().sum((-2, -1))
        return explained

    @torch.no_grad()
    def recorded_log_prob(self) -> Tensor:
        if step_gradient.fits_kernel(self.loadings, self.factor):
            return step_gradient.log_probs(self._tensors)
        return self.log_prob()

    @torch.no_grad()
    def score_gradient(self, masks: Tensor, count: int) -> ScoreGradient | None:
        if self.factor.requires_grad or not step_gradient.fits_kernel(self.loadings, self.factor):
            return None
        return step_gradient.score_gradient(self._tensors, masks, count)

    @property
    def _tensors(self) -> tuple[Tensor, ...]:
        return self.loadings, self.noise_variance, self.factor, self.diagonal


class DenseSolver(MomentSolver):
    """For a moment C of any rank."""

    def __init__(self, loadings: Tensor, noise_variance: Tensor, moment: DenseMoment):
        super().__init__(loadings, noise_variance, moment)
        self.matrix = moment.matrix  # (D, D)

    @cached_property
    def fits_kernel(self) -> bool:
        return kernel_tables.fits_dense(self.loadings)

    @cached_property
    def tables(self) -> KernelTables | None:
        if not self.fits_kernel:
            return None
        return kernel_tables.dense(self.loadings, self.noise_variance, self.matrix)

    @property
    def bytes_per_mask(self) -> int:
        if self.fits_kernel:
            return kernel_tables.bytes_per_mask(self.dim)
        numbers = (6 + 4 * self.latent_dim) * self.dim + 4 * self.latent_dim**2
        return numbers * self.loadings.element_size()

    @property
    def efficient_batch(self) -> int:
        """Minimum number of masks for efficiency. By torch, the D² numbers of the moment are then
        read once for 512 rows."""
        if not self.fits_kernel:
            return -(-512 // self.latent_dim)
        return kernel_tables.efficient_batch(self.dim, self.latent_dim * self.dim**2)

    def posterior(self, weight: Tensor) -> LatentPosterior:
        factor = self._posterior_factor(weight)
        covariance = torch.cholesky_inverse(factor)
        picked = weight[..., None, :] * self.precise.mT[..., None, :, :]  # (B, K, D)
        cross = (_rows(picked) @ self.matrix).view_as(picked)
        moment = (_rows(cross * weight[..., None, :]) @ self.precise).view_as(covariance)
        return LatentPosterior(factor, covariance, moment, cross)

    def conditional_moments(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        posterior = self.posterior(weight)
        quadratic = posterior.covariance @ posterior.moment @ posterior.covariance
        explained = posterior.covariance.flatten(-2) @ self.outer.mT
        variance = self.noise_variance[..., None, :] + explained
        residual = self.diagonal[..., None, :] + quadratic.flatten(-2) @ self.outer.mT
        gain = _rows(posterior.covariance) @ self.loadings.mT  # w_jᵀ Σ_R, (B K, D)
        return variance, residual - 2 * (gain.view_as(posterior.cross) * posterior.cross).sum(-2)

    def explained(self, factor: Tensor) -> Tensor:
        moment = self.precise.mT @ self.matrix @ self.precise
        return (torch.cholesky_inverse(factor) * moment).sum((-2, -1))


def outer_products(left: Tensor, right: Tensor) -> Tensor:
    """Return the products of all pairs of entries, row by row: (D, I J)."""
    return (left[..., :, None] * right[..., None, :]).flatten(-2)


def _rows(matrices: Tensor) -> Tensor:
    """Reshape (..., B, I, J) to (..., B I, J)."""
    return matrices.flatten(-3, -2)
