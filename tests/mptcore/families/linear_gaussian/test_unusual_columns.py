"""The columns in which a row is unusual, against dense conditionals."""

import numpy as np
import pytest
import torch
from torch import Tensor

from mptcore.families.linear_gaussian.density import LowRankGaussian
from mptcore.families.linear_gaussian.unusual_columns import ResidualSpace, unusual_columns

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
    assert ResidualSpace(density).residuals(x).numpy() == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("noise", [PPCA, FACTOR_ANALYSIS], ids=["ppca", "factor_analysis"])
def test_each_column_is_named_given_those_that_are_not_named_yet(noise: Tensor) -> None:
    """Missing values are integrated out, as those of the named columns are."""
    density, x = gaussian(noise), 3 * normal(5, DIM, seed=3)
    x[1, 2] = x[3, 0] = x[3, 5] = torch.nan
    x[4, :4] = torch.nan
    named = unusual_columns(density, x, level=1)
    for row, columns, residuals in zip(x, *named, strict=True):
        for column, residual in zip(columns, residuals, strict=True):
            expected = dense(density, row)
            if np.isnan(expected).all():
                assert residual.isnan()
                break
            assert column == np.nanargmax(np.abs(expected))
            assert residual.item() == pytest.approx(expected[column], rel=1e-8)
            row[column] = torch.nan
    assert (~named.residuals.isnan()).sum(1).tolist() == [3, 3, 3, 3, 2]


def test_innocent_columns_are_not_named() -> None:
    """Rows have two wrong columns of twelve: both are named, and others in at most one row in ten.
    The three largest residuals would name an innocent column in each row."""
    count, dim = 400, 12
    density = LowRankGaussian(
        normal(dim, 3, seed=1), torch.zeros(dim, dtype=torch.float64),
        torch.ones(dim, dtype=torch.float64),
    )  # fmt: skip
    x = normal(count, 3, seed=2) @ density.loadings.mT + normal(count, dim, seed=3)
    wrong = torch.stack([torch.arange(count) % dim, (torch.arange(count) + 5) % dim], 1)
    x.scatter_add_(1, wrong, torch.tensor([[10.0, -10.0]], dtype=torch.float64).expand(count, 2))
    columns, residuals = unusual_columns(density, x, level=0.05)
    is_wrong = (columns[:, :, None] == wrong[:, None]).any(2)
    is_named = ~residuals.isnan()
    assert (is_wrong & is_named).sum() >= 0.98 * 2 * count
    assert (~is_wrong & is_named).sum() <= 0.1 * count


def test_a_row_with_one_value_is_compared_with_the_mean() -> None:
    density, x = gaussian(PPCA), torch.full((1, DIM), torch.nan, dtype=torch.float64)
    x[0, 4] = density.mean[4] + 3 * density.covariance[4, 4].sqrt()
    columns, values = unusual_columns(density, x, level=1)
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
    found = ResidualSpace(gaussian(small)).residuals(x)[:, 3]
    assert found.tolist() == pytest.approx(expected, rel=1e-7, abs=1e-7)


def test_a_column_that_a_named_one_equals_is_not_named() -> None:
    """Two columns with nearly no noise of their own: given all but the other, what either is off
    would need more digits than there are."""
    loadings, noise = normal(DIM, K, seed=1), torch.ones(DIM, dtype=torch.float64)
    loadings[1], noise[:2] = loadings[0], 1e-16
    density = LowRankGaussian(loadings, torch.zeros(DIM, dtype=torch.float64), noise)
    x = normal(1, K, seed=3) @ loadings.mT
    x[0, 1] += 1
    columns, residuals = unusual_columns(density, x, level=1)
    assert columns[0, 0] in (0, 1)
    assert not {0, 1} & {*columns[0, 1:].tolist()}
    assert residuals.isfinite().all()


def test_no_rows_have_no_columns() -> None:
    x = torch.empty(0, DIM, dtype=torch.float64)
    columns, residuals = unusual_columns(gaussian(PPCA), x, level=1)
    assert columns.shape == residuals.shape == (0, 3)
