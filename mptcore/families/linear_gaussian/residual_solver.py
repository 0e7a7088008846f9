"""Scores of a low-rank Gaussian without differences of large terms, for arbitrarily small noise."""

import torch
from torch import Tensor

from mptcore.families.linear_gaussian.density import LOG_2PI
from mptcore.families.linear_gaussian.moments import FactoredMoment, compressed
from mptcore.families.linear_gaussian.rounding import BY_RESIDUALS
from mptcore.families.linear_gaussian.solver import Solver


class ResidualSolver(Solver):
    """Least squares by Householder reflections.

    In units of each dimension's noise, given x_R, z is the least-squares solution of
    [I; W_R] z = [0; x_R]: the prior is K observations of zero, which are never masked. With
    [I; W_R] = Q T and t_j = T⁻ᵀ w_j, and with the residuals r of all data in place of the data,
    which changes no residual given x_R,
        v_j / psi_j = 1 + |t_j|²,   e_j / psi_j = |r_j − (Qᵀ r)ᵀ t_j|².
    Nothing large cancels: the relative error is about ε |[I; W]|, where sums of moments have its
    square and more (Björck 1996, Sec. 1.4 and 2.4). If rows are sorted by size, it is ε where few
    rows are far larger than the others (Cox & Higham 1998). Data enter by a factor F of their
    moment F Fᵀ.

    Differentiable. Several models, and factors, may be stacked along a leading dimension.
    """

    note = BY_RESIDUALS

    def __init__(self, loadings: Tensor, noise_variance: Tensor, factor: Tensor):
        self.device = loadings.device
        deviation = noise_variance.sqrt()[..., None]
        latent_dim = loadings.shape[-1]
        eye = torch.eye(latent_dim, dtype=loadings.dtype, device=loadings.device)
        prior = eye.expand(*loadings.shape[:-2], latent_dim, latent_dim)
        self.noise_variance = noise_variance  # (D,)
        self.loadings = loadings / deviation  # (D, K)
        design = torch.cat([prior, self.loadings], -2)  # (K + D, K)
        sizes = design.detach().abs().amax(-1)
        self.order = sizes.argsort(dim=-1, descending=True, stable=True)  # (K + D,)
        self.design = _rows(design, self.order)  # the largest rows first
        basis, self.root = torch.linalg.qr(self.design)
        basis = _rows(basis, self.order.argsort(-1))
        scaled = factor / deviation
        data = torch.cat([scaled.new_zeros(*prior.shape[:-1], factor.shape[-1]), scaled], -2)
        data = data - basis @ (basis.mT @ data)
        data = data - basis @ (basis.mT @ data)  # again, to remove rounding errors (Björck 1996)
        self.residuals = FactoredMoment(data, data.square().sum(-1))  # (K + D, Q)

    @property
    def dim(self) -> int:
        return self.noise_variance.shape[-1]

    @property
    def bytes_per_mask(self) -> int:
        rows, latent_dim = self.design.shape[-2:]
        numbers = latent_dim * (6 * rows + 2 * self.residuals.factor.shape[-1]) + 4 * rows
        return numbers * self.design.element_size()

    def compressed(self) -> "ResidualSolver":
        """Return the same with low-rank residuals, if their rank is low up to a negligible
        error."""
        factor = self.residuals.factor
        if isinstance(smaller := compressed(factor @ factor.mT, 1.0), FactoredMoment):
            self.residuals = smaller
        return self

    def scores(self, masks: Tensor) -> Tensor:
        _, root, seen = self._observe(~masks)
        loadings = self.loadings[..., None, :, :].mT
        towards = torch.linalg.solve_triangular(root.mT, loadings, upper=False)  # t, (B, K, D)
        residuals = self.residuals.factor[..., self.loadings.shape[-1] :, :]  # (D, Q)
        cross = (seen.flatten(-3, -2) @ residuals.mT).view_as(towards)
        moved = (towards * ((seen @ seen.mT) @ towards - 2 * cross)).sum(-2)
        gain = towards.square().sum(-2)
        residual = self.residuals.diagonal[..., None, -masks.shape[-1] :] + moved
        misfit: Tensor = (
            self.noise_variance.log()[..., None, :] + gain.log1p() + residual / (1 + gain)
        )
        total: Tensor = (misfit * masks.to(misfit)).sum(-1, dtype=torch.float64)
        return -0.5 * (LOG_2PI + total / masks.sum(-1))

    def log_probs(self, observed: Tensor) -> Tensor:
        weight, root, seen = self._observe(observed)
        squares = (weight @ self.residuals.diagonal[..., None])[..., 0]
        squares = squares - seen.square().sum((-2, -1))
        seen_noise = LOG_2PI + self.noise_variance.log()  # (D,)
        noise = (observed.to(weight) @ seen_noise[..., None])[..., 0]
        return -0.5 * (noise + _log_det(root) + squares).double()

    def log_prob(self) -> Tensor:
        squares = self.residuals.diagonal.sum(-1)
        log_det = self.noise_variance.log().sum(-1) + _log_det(self.root)
        total: Tensor = self.noise_variance.shape[-1] * LOG_2PI + log_det + squares
        return -0.5 * total.double()

    def _observe(self, observed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return, for observed dimensions R (B, D), the observed rows of [I; W] as 1 and 0 (B, K +
        D), T (B, K, K) and Qᵀ r (B, K, Q)."""
        latent_dim = self.loadings.shape[-1]
        prior = observed.new_ones(*observed.shape[:-1], latent_dim)
        weight = torch.cat([prior, observed], -1).to(self.design)
        order = self.order[..., None, :].expand(weight.shape)
        is_seen = weight.gather(-1, order)[..., None]
        basis, root = torch.linalg.qr(is_seen * self.design[..., None, :, :])
        picked = (is_seen * basis).mT  # (B, K, K + D)
        seen = picked.flatten(-3, -2) @ _rows(self.residuals.factor, self.order)
        return weight, root, seen.view(*picked.shape[:-1], -1)


def _rows(matrix: Tensor, order: Tensor) -> Tensor:
    """Return the rows of a matrix (R, C) in an order (R,)."""
    return matrix.gather(-2, order[..., None].expand(*order.shape, matrix.shape[-1]))


def _log_det(root: Tensor) -> Tensor:
    """Return log |Tᵀ T|."""
    return 2 * root.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)
