"""Find the columns in which a row is unusual: those far from their expectation given the others.

With E_j = E[x_j | x_-j] and s_j = sd[x_j | x_-j], the standardized residual of column j is

    e_j = (x_j − E_j) / s_j = (Λ (x − mu))_j / Λ_jj^½,    Λ = (W Wᵀ + Ψ)⁻¹

(Rue & Held 2005, Theorem 2.3). It is N(0, 1) if the row comes from the model.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mptcore.families.linear_gaussian.density import LowRankGaussian
from mptcore.families.linear_gaussian.moments import patterns_of

MAX_COLUMNS = 3
"""Maximum number of columns for each row."""
BLOCK_NUMBERS = 2**24
"""Numbers of data that are treated at once."""
HIGH_LEVERAGE = 0.99
"""Leverage h_j from which on 1 − h_j is computed without the difference."""


class LargestResiduals(NamedTuple):
    """The largest standardized residuals of N rows, in order of size, at most MAX_COLUMNS each."""

    columns: Tensor  # (N, C), indices
    values: Tensor  # (N, C), NaN where a row has fewer observed values


def largest_residuals(
    density: LowRankGaussian,
    x: Tensor,  # (N, D), NaN where a value is missing
) -> LargestResiduals:
    """Return the columns in which each row is farthest from what its other observed values
    predict."""
    count = min(MAX_COLUMNS, density.dim)
    columns = torch.zeros(len(x), count, dtype=torch.long)
    values = torch.full((len(x), count), torch.nan, dtype=torch.float64)
    patterns, pattern_of = patterns_of(x)
    rows_of_patterns = torch.split(pattern_of.argsort(stable=True), pattern_of.bincount().tolist())
    for observed, rows in zip(patterns, rows_of_patterns, strict=True):
        marginal, indices = density.marginal(observed), observed.nonzero().flatten()
        observed_count = min(count, len(indices))
        for block in torch.split(rows, max(1, BLOCK_NUMBERS // density.dim)):
            residuals = standardized_residuals(marginal, x[block][:, observed].double())
            largest = residuals.abs().topk(observed_count, dim=1).indices
            columns[block, :observed_count] = indices[largest]
            values[block, :observed_count] = residuals.gather(1, largest)
    return LargestResiduals(columns, values)


def standardized_residuals(density: LowRankGaussian, x: Tensor) -> Tensor:
    """Return e (N, D) for complete x (N, D).

    In units of the noise, with the QR factors of [I; W] as in `ResidualSolver`, the last D rows and
    columns of Q⊥ Q⊥ᵀ are Λ. Its rows q_j give e_j = q_j · (Q⊥ᵀ [0; x − mu]) / |q_j|, where nothing
    large cancels. |q_j|² is 1 − h_j with the leverage h_j; where h_j is near 1, q_j is computed."""
    noise = density.noise_variance.sqrt()
    dim, latent_dim = density.loadings.shape
    prior = torch.eye(latent_dim, dtype=torch.float64)
    design = torch.cat([prior, density.loadings / noise[:, None]])  # (K + D, K)
    reflectors, scales = torch.geqrf(design)
    units = torch.zeros(latent_dim + dim, len(x), dtype=torch.float64)
    units[latent_dim:] = ((x - density.mean) / noise).mT
    whitened = torch.ormqr(reflectors, scales, units, transpose=True)  # Qᵀ [0; x], (K + D, N)
    whitened[:latent_dim] = 0
    residuals = torch.ormqr(reflectors, scales, whitened)[latent_dim:]

    basis = torch.linalg.householder_product(reflectors, scales)[latent_dim:]  # (D, K)
    leverage = basis.square().sum(1)
    squares = 1 - leverage
    high = (leverage > HIGH_LEVERAGE).nonzero().flatten()  # at most about K: the h_j sum to K
    if len(high):
        unit = torch.zeros(latent_dim + dim, len(high), dtype=torch.float64)
        unit[latent_dim + high, torch.arange(len(high))] = 1
        rows = torch.ormqr(reflectors, scales, unit, transpose=True)[latent_dim:]
        squares[high] = rows.square().sum(0)
    standardized: Tensor = (residuals / squares.sqrt()[:, None]).mT
    return standardized
