"""The density, and log-likelihoods and p-values of rows against sixty digits, from the dense
covariance, where one noise variance is far below the others."""

import csv
from pathlib import Path
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

from mptcore.data.dataset import Dataset
from mptcore.families.linear_gaussian.density import LowRankGaussian, log_probs
from mptcore.families.linear_gaussian.rounding import BY_RESIDUALS
from mptcore.families.linear_gaussian.routes import solver_for
from mptcore.families.linear_gaussian.rows import save_rows
from tests.support.exact import Exact, relative_error

DIM, K = 8, 3
BOUND = K * (DIM + K) * torch.finfo(torch.float64).eps
"""Relative error of a least-squares problem by Householder reflections, up to a small factor."""
SMALL_NOISE = (1e-8, 1e-12, 1e-16, 1e-20, 1e-28)


def density_of(noise: float, seed: int = 0, smallest_loading: float = 1.0) -> LowRankGaussian:
    """Return a density with one small noise variance."""
    generator = torch.Generator().manual_seed(seed)
    loadings = torch.randn(DIM, K, generator=generator, dtype=torch.float64)
    loadings[2, 0] *= smallest_loading
    noise_variance = torch.full((DIM,), 0.5, dtype=torch.float64)
    noise_variance[2] = noise
    return LowRankGaussian(
        loadings, torch.linspace(-3, 3, DIM, dtype=torch.float64), noise_variance
    )


def rows_of(density: LowRankGaussian, fits: bool) -> Tensor:
    """Return rows that are drawn from the density, or, if not `fits`, other rows."""
    generator = torch.Generator().manual_seed(9)
    z = torch.randn(6, K, generator=generator, dtype=torch.float64)
    x = torch.randn(6, DIM, generator=generator, dtype=torch.float64)
    if fits:
        x = z @ density.loadings.mT + density.noise_variance.sqrt() * x
    return x + density.mean


def exact(density: LowRankGaussian, row: Tensor) -> tuple[Any, Any]:
    """Return log p(x) of the observed values of a row, and its p-value."""
    with mpmath.workdps(60):
        seen = (~row.isnan()).nonzero().flatten().tolist()
        loadings = mpmath.matrix(density.loadings[seen].tolist())
        covariance = loadings * loadings.T
        for i, j in enumerate(seen):
            covariance[i, i] += mpmath.mpf(density.noise_variance[j].item())
        shift = mpmath.matrix([
            mpmath.mpf(row[j].item()) - mpmath.mpf(density.mean[j].item()) for j in seen
        ])  # fmt: skip
        factor = mpmath.cholesky(covariance)
        squares = (shift.T * mpmath.cholesky_solve(covariance, shift))[0]
        log_det = 2 * mpmath.fsum(mpmath.log(factor[i, i]) for i in range(len(seen)))
        log_prob = -(squares + log_det + len(seen) * mpmath.log(2 * mpmath.pi)) / 2
        half = mpmath.mpf(len(seen)) / 2
        return log_prob, mpmath.gammainc(half, squares / 2, regularized=True)


@pytest.mark.parametrize("fits", [True, False])
@pytest.mark.parametrize("noise", SMALL_NOISE)
def test_rows_keep_their_digits(noise: float, fits: bool) -> None:
    density = density_of(noise)
    x = rows_of(density, fits)
    for value, row in zip(log_probs(density, x).tolist(), x, strict=True):
        expected, _ = exact(density, row)
        assert abs(value - expected) <= BOUND * max(1, abs(expected))


@pytest.mark.parametrize("noise", SMALL_NOISE)
def test_a_small_loading_in_a_precise_dimension_costs_no_digits(noise: float) -> None:
    """Without pivoting of columns the first reflection would divide by it."""
    density = density_of(noise, smallest_loading=1e-9)
    x = rows_of(density, True)
    for value, row in zip(log_probs(density, x).tolist(), x, strict=True):
        expected, _ = exact(density, row)
        assert abs(value - expected) <= BOUND * max(1, abs(expected))


@pytest.mark.parametrize("noise", SMALL_NOISE)
def test_the_table_of_rows_with_missing_values_keeps_digits(noise: float, tmp_path: Path) -> None:
    """A row without the precise dimension, rows with it, and rows of many or few values."""
    density = density_of(noise)
    x = rows_of(density, True)
    for row, missing in enumerate([[], [2], [0], [4, 5, 6, 7], [0, 1, 3, 4, 5, 6, 7], [1, 2, 3]]):
        x[row, missing] = torch.nan
    save_rows({0: density}, Dataset(x), tmp_path)
    with (tmp_path / "rows.csv").open() as file:
        table = [*csv.DictReader(file)]
    for line, row in zip(table, x, strict=True):
        log_prob, p_value = exact(density, row)
        scale = max(1, abs(log_prob))
        assert abs(float(line["log_likelihood"]) - log_prob) <= BOUND * scale
        assert abs(float(line["p_value"]) - p_value) <= 4 * BOUND * scale


@pytest.mark.parametrize("noise", SMALL_NOISE[:4])
def test_scores_and_likelihoods_by_residuals_keep_their_digits(noise: float) -> None:
    """Masks that hide the precise dimension, and masks that show it."""
    density = density_of(noise)
    x = rows_of(density, True)
    model = solver_for(density, x, torch.device("cpu"))
    assert model.note == BY_RESIDUALS
    truth = Exact.of(x, density.mean, density.loadings, density.noise_variance)
    masks = torch.rand(20, DIM, generator=torch.Generator().manual_seed(2)) < 0.5
    masks[:, 0] = True
    joint = truth.log_prob(torch.ones(DIM, dtype=torch.bool))
    assert relative_error(model.log_marginal_likelihood(), joint) <= BOUND
    rows = zip(masks, model.scores(masks).tolist(), model.joint_scores(masks).tolist(), strict=True)
    for mask, score, of_masked in rows:
        assert relative_error(score, truth.score(mask)) <= BOUND
        assert relative_error(of_masked, joint - truth.log_prob(~mask)) <= 4 * BOUND


def test_a_density_checks_its_shapes() -> None:
    with pytest.raises(ValueError, match=r"not \[\(6, 2\), \(5,\), \(6,\)\]"):
        LowRankGaussian(torch.zeros(6, 2), torch.zeros(5), torch.zeros(6))
    with pytest.raises(ValueError, match=r"not \[\(6, 2\), \(6,\), \(5,\)\]"):
        LowRankGaussian(torch.zeros(6, 2), torch.zeros(6), torch.zeros(5))


def test_marginal_and_conditionals_equal_the_dense_normal() -> None:
    density = density_of(0.2)
    x, places = rows_of(density, False), torch.tensor([4, 1])
    dense = torch.distributions.MultivariateNormal(density.mean, density.covariance)
    assert torch.allclose(density.log_prob(x), dense.log_prob(x))  # type: ignore[no-untyped-call]
    some = density.marginal(places)
    expected = torch.distributions.MultivariateNormal(
        density.mean[places], density.covariance[places][:, places]
    )
    assert torch.allclose(some.log_prob(x[:, places]), expected.log_prob(x[:, places]))  # type: ignore[no-untyped-call]
    masked = torch.arange(DIM) < 2
    found = density.conditional_log_probs(x, masked)
    rest = density.marginal((~masked).nonzero().flatten())
    for j in (0, 1):
        both = torch.cat([torch.tensor([j]), (~masked).nonzero().flatten()])
        joint = density.marginal(both).log_prob(x[:, both])
        assert torch.allclose(found[:, j], joint - rest.log_prob(x[:, ~masked]))


def test_all_parts_of_a_density_are_moved() -> None:
    density = density_of(0.2).to(torch.device("cpu"), torch.float32)
    parts = density.loadings, density.mean, density.noise_variance
    assert {part.dtype for part in parts} == {torch.float32}
