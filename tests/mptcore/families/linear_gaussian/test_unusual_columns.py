"""The columns in which a row is unusual, against dense conditionals."""

import numpy as np
import pytest
import torch
from torch import Tensor

from mptcore.families.linear_gaussian.density import LowRankGaussian
from mptcore.families.linear_gaussian.unusual_columns import (
    largest_residuals,
    standardized_residuals,
)

DIM, K = 6, 2


def normal(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def gaussian(noise_variance: Tensor) -> LowRankGaussian:
    return LowRankGaussian(normal(DIM, K, seed=1), normal(DIM, seed=2), noise_variance)


def dense(density: LowRankGaussian, row: Tensor) -> np.ndarray:
    """Return the standardized residuals of the observed values of a row, one conditional of numpy
    for each; NaN where a value is missing."""
    covariance, centred = density.covariance.numpy(), (row - density.mean).numpy()
    residuals = np.full(len(row), np.nan)
    for j in np.flatnonzero(~np.isnan(centred)):
        others = np.flatnonzero(~np.isnan(centred))
        others = others[others != j]
        cross = covariance[j, others]
        gain = np.linalg.solve(covariance[np.ix_(others, others)], cross)
        variance = covariance[j, j] - gain @ cross
        residuals[j] = (centred[j] - gain @ centred[others]) / np.sqrt(variance)
    return residuals


PPCA = torch.full((DIM,), 0.3, dtype=torch.float64)
FACTOR_ANALYSIS = torch.tensor([0.1, 2.0, 0.5, 1e-4, 3.0, 0.7], dtype=torch.float64)


@pytest.mark.parametrize("noise", [PPCA, FACTOR_ANALYSIS], ids=["ppca", "factor_analysis"])
def test_residuals_are_those_of_dense_conditionals(noise: Tensor) -> None:
    density, x = gaussian(noise), 3 * normal(9, DIM, seed=3)
    expected = np.stack([dense(density, row) for row in x])
    assert standardized_residuals(density, x).numpy() == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("noise", [PPCA, FACTOR_ANALYSIS], ids=["ppca", "factor_analysis"])
def test_missing_values_are_integrated_out(noise: Tensor) -> None:
    density, x = gaussian(noise), 3 * normal(5, DIM, seed=3)
    x[1, 2] = x[3, 0] = x[3, 5] = torch.nan
    x[4, :4] = torch.nan
    largest = largest_residuals(density, x)
    for row, columns, values in zip(x, *largest, strict=True):
        expected = dense(density, row)
        order = np.argsort(-np.abs(np.nan_to_num(expected)))[:3]
        order = order[~np.isnan(expected[order])]
        known = ~values.isnan()
        assert columns[known].tolist() == order.tolist()
        assert values[known].tolist() == pytest.approx(expected[order].tolist(), rel=1e-8)
    assert (~largest.values.isnan()).sum(1).tolist() == [3, 3, 3, 3, 2]


def test_a_row_with_one_value_is_compared_with_the_mean() -> None:
    density, x = gaussian(PPCA), torch.full((1, DIM), torch.nan, dtype=torch.float64)
    x[0, 4] = density.mean[4] + 3 * density.covariance[4, 4].sqrt()
    columns, values = largest_residuals(density, x)
    assert columns[0, 0] == 4
    assert values[0, 0].item() == pytest.approx(3)
    assert values[0, 1:].isnan().all()


@pytest.mark.parametrize("variance", [1e-8, 1e-16])
def test_residuals_keep_their_digits_beside_a_small_noise(variance: float) -> None:
    """The conditional of the column with this noise is that without any, up to a share of 1e-8."""
    small, none = FACTOR_ANALYSIS.clone(), FACTOR_ANALYSIS.clone()
    small[3], none[3] = variance, 0
    x = normal(4, DIM, seed=3)
    expected = [dense(gaussian(none), row)[3] for row in x]
    found = standardized_residuals(gaussian(small), x)[:, 3]
    assert found.tolist() == pytest.approx(expected, rel=1e-7, abs=1e-7)


def test_no_rows_have_no_columns() -> None:
    columns, values = largest_residuals(gaussian(PPCA), torch.empty(0, DIM, dtype=torch.float64))
    assert columns.shape == values.shape == (0, 3)
