"""Find the columns in which a row is unusual: those far from their expectation given the others.

With E_j = E[x_j | x_-j] and s_j = sd[x_j | x_-j], the standardized residual of column j is

    e_j = (x_j − E_j) / s_j = (Λ (x − mu))_j / Λ_jj^½,    Λ = (W Wᵀ + Ψ)⁻¹

(Rue & Held 2005, Theorem 2.3). It is N(0, 1) if the row comes from the model. One wrong value also
moves the residuals of the columns that it predicts. So columns are named one after another: the one
with the largest residual, then the largest of those given the columns that are not yet named.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from mptcore.families.linear_gaussian.density import LowRankGaussian
from mptcore.families.linear_gaussian.moments import patterns_of

MAX_COLUMNS = 3
"""Maximum number of columns for each row."""
BLOCK_NUMBERS = 2**22
"""Numbers of data that are treated at once."""
HIGH_LEVERAGE = 0.99
"""Leverage h_j from which on 1 − h_j is computed without the difference."""
LOST_DIGITS = 1e-10
"""Share of |q_j|² below which what is left of it has too few digits."""


class NamedColumns(NamedTuple):
    """Columns of N rows with their standardized residuals, as they are named one after another."""

    columns: Tensor  # (N, C), indices
    residuals: Tensor  # (N, C), NaN where no further column is named


def unusual_columns(
    density: LowRankGaussian,
    x: Tensor,  # (N, D), NaN where a value is missing
    level: float,
) -> NamedColumns:
    """Return the columns that make each row unusual, at most MAX_COLUMNS: the one that is farthest
    from what the other observed values predict, and further ones, each given the values that are
    not named before it. The first is always named; a further one, if fewer than `level` of the
    model's own rows have one as far, with independent residuals (Šidák 1967)."""
    count = min(MAX_COLUMNS, density.dim)
    columns = torch.zeros(len(x), count, dtype=torch.long)
    residuals = torch.full((len(x), count), torch.nan, dtype=torch.float64)
    patterns, pattern_of = patterns_of(x)
    rows_of_patterns = torch.split(pattern_of.argsort(stable=True), pattern_of.bincount().tolist())
    for observed, rows in zip(patterns, rows_of_patterns, strict=True):
        space, indices = ResidualSpace(density.marginal(observed)), observed.nonzero().flatten()
        for block in torch.split(rows, max(1, BLOCK_NUMBERS // density.dim)):
            named = space.named(x[block][:, observed].double(), min(count, len(indices)))
            for step, (column, residual) in enumerate(named):
                columns[block, step], residuals[block, step] = indices[column], residual
    compared = (~x.isnan()).sum(1, keepdim=True) - torch.arange(count)
    p_values = 1 - torch.erf(residuals.abs() / math.sqrt(2)) ** compared
    is_usual = p_values >= level
    is_usual[:, :1] = False
    residuals[is_usual.cumsum(1) > 0] = torch.nan
    return NamedColumns(columns, residuals)


class ResidualSpace:
    """QR factors of [I; W] in units of the noise, as in `ResidualSolver`, for residuals of rows.

    Λ is the last D rows and columns of Q⊥ Q⊥ᵀ. Its rows q_j give e_j = q_j · (Q⊥ᵀ [0; x − mu]) /
    |q_j|, where nothing large cancels. |q_j|² is 1 − h_j with the leverage h_j; where h_j is near
    1, q_j is computed."""

    def __init__(self, density: LowRankGaussian) -> None:
        self.mean, self.noise = density.mean, density.noise_variance.sqrt()
        dim, self.latent_dim = density.loadings.shape
        prior = torch.eye(self.latent_dim, dtype=torch.float64)
        design = torch.cat([prior, density.loadings / self.noise[:, None]])  # (K + D, K)
        self.factors = torch.geqrf(design)
        basis = torch.linalg.householder_product(*self.factors)[self.latent_dim :]  # (D, K)
        leverage = basis.square().sum(1)
        self.squares = 1 - leverage  # |q_j|², (D,)
        high = (leverage > HIGH_LEVERAGE).nonzero().flatten()  # at most about K: the h_j sum to K
        if len(high):
            units = torch.eye(dim, dtype=torch.float64)[:, high]
            self.squares[high] = self.coordinates(units).square().sum(0)

    def coordinates(self, values: Tensor) -> Tensor:
        """Return Q⊥ᵀ [0; values], (D, N), for values (D, N) in units of the noise."""
        above = torch.zeros(self.latent_dim, values.shape[1], dtype=torch.float64)
        rotated: Tensor = torch.ormqr(*self.factors, torch.cat([above, values]), transpose=True)
        return rotated[self.latent_dim :]

    def products(self, coordinates: Tensor) -> Tensor:
        """Return q_j · coordinates for each j, (D, N), for coordinates (D, N)."""
        above = torch.zeros(self.latent_dim, coordinates.shape[1], dtype=torch.float64)
        products: Tensor = torch.ormqr(*self.factors, torch.cat([above, coordinates]))
        return products[self.latent_dim :]

    def residuals(self, x: Tensor) -> Tensor:
        """Return e (N, D) for complete x (N, D)."""
        products = self.products(self.coordinates(((x - self.mean) / self.noise).mT))
        residuals: Tensor = (products / self.squares.sqrt()[:, None]).mT
        return residuals

    def named(self, x: Tensor, count: int) -> list[tuple[Tensor, Tensor]]:
        """Return `count` pairs of columns (N,) and residuals (N,) of complete x (N, D): each is the
        largest residual given the columns that are not named before it.

        Without a column, its q_j is projected out of the other rows of Q⊥, by Gram and Schmidt."""
        row = self.coordinates(((x - self.mean) / self.noise).mT)  # (D, N)
        squares = self.squares[:, None].repeat(1, len(x))  # |q_j|² of what is left of each
        directions: list[Tensor] = []  # those of the columns that are named, (D, N)
        named = []
        for _ in range(count):
            residuals = self.products(row) / squares.sqrt()
            column = residuals.abs().argmax(0)
            named.append((column, residuals.gather(0, column[None])[0]))
            direction = self.coordinates(torch.zeros_like(row).scatter_(0, column[None], 1.0))
            for earlier in directions:
                direction -= earlier * (earlier * direction).sum(0)
            direction /= direction.norm(dim=0)
            directions.append(direction)
            row = row - direction * (direction * row).sum(0)
            squares -= self.products(direction).square()
            squares[squares < LOST_DIGITS * self.squares[:, None]] = torch.inf
            squares.scatter_(0, column[None], torch.inf)
        return named
