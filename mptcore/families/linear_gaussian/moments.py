"""The second moment of data. Together with the mean it determines a Gaussian's likelihood."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from mptcore.specs.families.linear_gaussian import MAX_RANK

ROWS = 8192
"""Number of observations that are centred and multiplied at a time."""
SMALL = 1e-4
"""Length, as a share of the largest, up to which a direction does not count for a rank."""


@dataclass(frozen=True)
class DenseMoment:
    """C = (x − mu)ᵀ (x − mu) / N."""

    matrix: Tensor  # (D, D)

    @property
    def diagonal(self) -> Tensor:  # (D,)
        return self.matrix.diagonal(dim1=-2, dim2=-1)

    def to(self, like: Tensor) -> Self:
        return type(self)(self.matrix.to(like))


@dataclass(frozen=True)
class FactoredMoment:
    """C = F Fᵀ of low rank Q, and the diagonal of C."""

    factor: Tensor  # (D, Q)
    diagonal: Tensor  # (D,)

    def to(self, like: Tensor) -> Self:
        return type(self)(self.factor.to(like), self.diagonal.to(like))


Moment = DenseMoment | FactoredMoment


def second_moment(x: Tensor, mean: Tensor) -> Tensor:
    """C = (x − mean)ᵀ (x − mean) / N of x (N, D) about a mean (D,): (D, D), in float64. Data of
    several models may be stacked along a leading dimension. The data may be on another device than
    the mean, for example because they are too large for it."""
    observations, dim = x.shape[-2:]
    total = torch.zeros(*x.shape[:-2], dim, dim, dtype=torch.float64, device=mean.device)
    for rows in torch.split(x, ROWS, -2):
        centred = rows.to(mean.device).double() - mean[..., None, :]
        total += centred.mT @ centred
    return total / observations


def moment_of(x: Tensor, mean: Tensor, min_variance: float) -> Moment:
    """The second moment of x (N, D) about a mean, in the form that is quickest to score with, for
    models whose noise variance is `min_variance` or more."""
    observations, dim = x.shape
    if 3 * observations <= dim:
        return of_factor(rows_factor(x, mean))
    matrix = second_moment(x, mean)
    if _are_independent(x[: _max_rank(dim) + 1].to(mean.device).double() - mean):
        return DenseMoment(matrix)
    return compressed(matrix, min_variance)


def compressed(matrix: Tensor, min_variance: float) -> Moment:
    """Return a moment (D, D) as a factor if its rank is low.

    With C = F Fᵀ + E, E positive semidefinite, a conditional's e_j / v_j moves by at most λ_max(E)
    / psi_min, because v_j ≥ psi_min |a|² for the residual aᵀ x. So where λ_max is small the sum of
    all D scores moves by less than 5e-9 nats."""
    dim = len(matrix)
    negligible = 1e-8 / dim * min_variance
    factor = _pivoted_cholesky(matrix, _max_rank(dim), negligible / 16)
    error = matrix - factor @ factor.mT
    if error.norm() > negligible and (
        error.trace() > negligible * dim or _spectral_norm(error) > negligible
    ):
        return DenseMoment(matrix)
    return FactoredMoment(factor, matrix.diagonal().clone())


def variances(x: Tensor, mean: Tensor) -> Tensor:
    """Return the diagonal of the second moment of x (N, D) about a mean, (D,), in float64."""
    chunks = (rows.to(mean.device).double() for rows in torch.split(x, ROWS))
    parts = [(rows - mean).square().sum(0) for rows in chunks]
    return torch.stack(parts).sum(0) / len(x)


def patterns_of(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the patterns of observed dimensions (P, D) of x (N, D), NaN where a value is missing,
    and the pattern of each observation (N,)."""
    patterns, pattern_of = torch.unique(~x.isnan(), dim=0, return_inverse=True)
    return patterns, pattern_of


def data_factor(x: Tensor, mean: Tensor) -> Tensor:
    """Return F (D, Q) with C = F Fᵀ for x (N, D), Q = min(N, D), in float64. It is computed from
    the data by Householder reflections, which keeps all digits; a factor computed from C would have
    half as many. Data of several models may be stacked along a leading dimension."""
    observations, dim = x.shape[-2:]
    factor = torch.zeros(*x.shape[:-2], 0, dim, dtype=torch.float64, device=mean.device)
    for rows in torch.split(x, max(ROWS, 2 * dim), -2):
        centred = rows.to(mean.device).double() - mean[..., None, :]
        factor = torch.linalg.qr(torch.cat([factor, centred], -2), mode="r").R
    return factor.mT / math.sqrt(observations)


def rows_factor(x: Tensor, mean: Tensor) -> Tensor:
    """Return F (D, N) with C = F Fᵀ for x (N, D): the centred and scaled observations."""
    return (x.to(mean.device) - mean[..., None, :]).double().mT / math.sqrt(x.shape[-2])


def of_factor(factor: Tensor) -> FactoredMoment:
    """Return the moment F Fᵀ."""
    return FactoredMoment(factor, factor.square().sum(-1))


def stacked(moments: Sequence[FactoredMoment]) -> FactoredMoment:
    """Stack the moments of several models along a leading dimension. A lower rank is padded with
    zero columns."""
    rank = max(moment.factor.shape[1] for moment in moments)
    wide = [pad(m.factor, (0, rank - m.factor.shape[1])) for m in moments]
    return FactoredMoment(torch.stack(wide), torch.stack([m.diagonal for m in moments]))


def _max_rank(dim: int) -> int:
    """Return the maximum rank up to which a factor is quicker to score with than a matrix."""
    return min(dim // 3, MAX_RANK)


def _are_independent(rows: Tensor) -> bool:
    """Return whether no row (R, D) is nearly a combination of the rows before it."""
    lengths = torch.linalg.qr(rows.mT, mode="r").R.diagonal().abs()
    return bool((lengths > SMALL * lengths.max()).all())


def _spectral_norm(matrix: Tensor) -> float:
    """The largest |eigenvalue| of a symmetric matrix, from twenty steps of a block power iteration,
    doubled as a margin because these may not have converged."""
    generator = torch.Generator().manual_seed(0)
    block = torch.randn(len(matrix), 8, generator=generator, dtype=torch.float64).to(matrix)
    for _ in range(20):
        block = torch.linalg.qr(matrix @ block).Q
    return 2 * float(torch.linalg.matrix_norm(matrix @ block, 2))


def _pivoted_cholesky(matrix: Tensor, max_rank: int, negligible: float) -> Tensor:
    """Return columns F (D, Q), Q at most `max_rank`, of a pivoted Cholesky factor: C − F Fᵀ is
    small."""
    factor = matrix.new_zeros(len(matrix), max_rank)
    remaining = matrix.diagonal().clone()
    for rank in range(max_rank):
        pivot = int(remaining.argmax())
        if remaining[pivot] <= negligible:
            return factor[:, :rank]
        column = matrix[:, pivot] - factor[:, :rank] @ factor[pivot, :rank]
        factor[:, rank] = column / remaining[pivot].sqrt()
        remaining = (remaining - factor[:, rank].square()).clamp(min=0)
    return factor
