"""Bound the rounding error of the fast formulas in `MomentSolver` for a model and its data."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LIMIT = 1e-8
"""Largest relative error of a score for which the fast formulas are used."""
BY_RESIDUALS = (
    "the noise is so small beside loadings and data that sums of moments could move a score by "
    "more than 1e-8 of it: computed by residuals"
)


def rounding(
    loadings: Tensor,  # (..., D, K)
    noise_variance: Tensor,  # (..., D)
    diagonal: Tensor,  # (..., D), of the data's moment
) -> NDArray[np.float64]:  # (...)
    """Return a bound on the relative error of any mask's score in float64.

    In units of each dimension's noise, with w² the largest |w_j|², c the largest C_jj, and f² their
    sum: |A_R| ≤ a = 1 + |W|² and Σ_R ≤ I, so that v_j / psi_j, which is 1 or more, moves by ε a w²;
    and M = Σ_R L_R has |M| ≤ f / 2, so that the terms of e_j / psi_j have the sizes c and w² f² /
    4, and an error ε a |M| of M moves its root by ε a w f / 2."""
    weights, noise, moment = _numbers(loadings, noise_variance, diagonal)
    scaled = weights / noise[..., None] ** 0.5
    power = np.linalg.eigvalsh(np.matmul(scaled.swapaxes(-1, -2), scaled))[..., -1]
    return _bound(power, np.square(scaled).sum(-1), moment / noise)


def _bound(
    power: NDArray[np.float64],  # (...), |W|² or more, in units of the noise
    squares: NDArray[np.float64],  # (..., D), |w_j|²
    data: NDArray[np.float64],  # (..., D), C_jj
) -> NDArray[np.float64]:  # (...)
    loading, variance, half = squares.max(-1), data.max(-1), data.sum(-1) / 4
    terms = (1 + power) * (loading + np.sqrt(loading * half)) + variance + loading * half
    bound: NDArray[np.float64] = np.finfo(np.float64).eps * terms
    return bound


def _numbers(*tensors: Tensor) -> list[NDArray[np.float64]]:
    """Return the values as numpy arrays, in one copy from a GPU. Numpy takes a third of torch's
    time on small arrays."""
    values = [tensor.detach().double() for tensor in tensors]
    if values[0].is_cuda:
        joined = torch.cat([value.flatten() for value in values]).cpu()
        parts = torch.split(joined, [value.numel() for value in values])
        values = [part.view(value.shape) for part, value in zip(parts, values, strict=True)]
    return [value.numpy() for value in values]


def keeps_digits(
    loadings: Tensor,  # (..., D, K)
    noise_variance: Tensor,  # (..., D)
    diagonal: Tensor,  # (..., D)
) -> bool:
    """Return whether the fast formulas are precise enough for all of these models."""
    weights, noise, moment = _numbers(loadings, noise_variance, diagonal)
    squares = np.square(weights).sum(-1) / noise
    if (_bound(squares.sum(-1), squares, moment / noise) <= LIMIT).all():
        return True  # |W|² is at most the sum of all squares, which is quicker than eigenvalues
    return bool((rounding(loadings, noise_variance, diagonal) <= LIMIT).all())
