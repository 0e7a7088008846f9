"""Every way to compute a linear Gaussian gives the numbers of its dense covariance."""

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch import Tensor

from mptcore.families.linear_gaussian.density import LowRankGaussian
from mptcore.families.linear_gaussian.moment_solvers import DenseSolver, FactoredSolver
from mptcore.families.linear_gaussian.moments import (
    DenseMoment,
    data_factor,
    of_factor,
    second_moment,
)
from mptcore.families.linear_gaussian.pattern_solver import PatternSolver
from mptcore.families.linear_gaussian.residual_solver import ResidualSolver
from mptcore.families.linear_gaussian.solver import Solver
from mptcore.runtime.compiled import kernels
from mptlab_contract import masks_of


class Problem(NamedTuple):
    dim: int
    latent_dim: int
    is_shared: bool  # the noise variance

    @property
    def density(self) -> LowRankGaussian:
        generator = torch.Generator().manual_seed(self.dim)
        loadings = torch.randn(self.dim, self.latent_dim, generator=generator, dtype=torch.float64)
        mean = torch.randn(self.dim, generator=generator, dtype=torch.float64)
        noise = 0.05 + torch.rand(self.dim, generator=generator, dtype=torch.float64)
        return LowRankGaussian(loadings, mean, 0 * noise + 0.2 if self.is_shared else noise)

    def x(self, has_gaps: bool) -> Tensor:
        """Return 11 rows that the density did not draw, some with missing values."""
        generator = torch.Generator().manual_seed(7)
        x = 2 * torch.randn(11, self.dim, generator=generator, dtype=torch.float64) + 0.3
        if has_gaps:
            missing = torch.rand(x.shape, generator=generator) < 0.35
            missing[0], missing[1] = False, torch.arange(self.dim) > 0
            missing[missing.all(1), 0] = False
            x[missing] = torch.nan
        return x


Build = Callable[[LowRankGaussian, Tensor], Solver]


def factored(density: LowRankGaussian, x: Tensor) -> Solver:
    moment = of_factor(data_factor(x, density.mean))
    return FactoredSolver(density.loadings, density.noise_variance, moment)


def dense(density: LowRankGaussian, x: Tensor) -> Solver:
    moment = DenseMoment(second_moment(x, density.mean))
    return DenseSolver(density.loadings, density.noise_variance, moment)


def residuals(density: LowRankGaussian, x: Tensor) -> Solver:
    factor = data_factor(x, density.mean)
    return ResidualSolver(density.loadings, density.noise_variance, factor)


def patterns(
    of_pattern: Callable[[LowRankGaussian, Tensor], Solver],
) -> Callable[[LowRankGaussian, Tensor], Solver]:
    def build(density: LowRankGaussian, x: Tensor) -> Solver:
        def solver_of(observed: Tensor, rows: Tensor) -> Solver:
            return of_pattern(density.marginal(observed), rows)

        return PatternSolver(x, solver_of, torch.device("cpu"))

    return build


class Route(NamedTuple):
    build: Build
    has_gaps: bool = False


ROUTES = {
    "factored": Route(factored),
    "dense": Route(dense),
    "residuals": Route(residuals),
    "patterns, factored": Route(patterns(factored), True),
    "patterns, dense": Route(patterns(dense), True),
    "patterns, residuals": Route(patterns(residuals), True),
}
PROBLEMS = [Problem(5, 1, True), Problem(6, 2, False), Problem(7, 3, False), Problem(8, 7, True)]


def observed_log_prob(density: LowRankGaussian, x: Tensor) -> float:
    """Return the mean over rows of log p(x_O), by scipy. It is 0 for a row without a value."""
    covariance, mean, total = density.covariance.numpy(), density.mean.numpy(), 0.0
    for row in x.numpy():
        o = ~np.isnan(row)
        if o.any():
            total += multivariate_normal(mean[o], covariance[np.ix_(o, o)]).logpdf(row[o])
    return total / len(x)


def score_by_definition(density: LowRankGaussian, x: Tensor, mask: Tensor) -> float:
    """Return the score of a mask a row at a time, by dense matrices."""
    total = 0.0
    for row in x:
        seen = ~row.isnan()
        if (mask & seen).any():
            scores = density.marginal(seen).conditional_log_probs(row[None, seen], mask[seen])
            total += (seen.sum().item() + 1) / (density.dim + 1) * scores.mean().item()
    return total / len(x)


@cache
def scores_by_definition(problem: Problem, has_gaps: bool) -> list[list[float]]:
    """Return the scores of all masks of each size."""
    density, x = problem.density, problem.x(has_gaps)
    return [
        [score_by_definition(density, x, mask) for mask in masks_of(problem.dim, size)]
        for size in range(1, problem.dim + 1)
    ]


@pytest.fixture(params=["numba", "torch"])
def arithmetic(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compute by compiled loops, where these apply, and by torch."""
    monkeypatch.setenv("MPT_KERNELS", request.param)
    kernels.cache_clear()
    yield
    kernels.cache_clear()


@pytest.mark.usefixtures("arithmetic")
@pytest.mark.parametrize("problem", PROBLEMS, ids="D{0[0]}K{0[1]}".format)
@pytest.mark.parametrize("name", ROUTES)
class TestRoutes:
    def test_scores_are_those_of_the_dense_covariance(self, name: str, problem: Problem) -> None:
        """And the sum of their means over all sizes is the log marginal likelihood."""
        route = ROUTES[name]
        solver = route.build(problem.density, problem.x(route.has_gaps))
        expected, curve = scores_by_definition(problem, route.has_gaps), []
        for size in range(1, problem.dim + 1):
            scores = solver.scores(masks_of(problem.dim, size)).tolist()
            assert scores == pytest.approx(expected[size - 1], rel=0, abs=1e-11)
            curve.append(sum(scores) / len(scores))
        assert math.fsum(curve) == pytest.approx(solver.log_marginal_likelihood(), abs=1e-11)

    def test_joint_scores_are_those_of_the_marginals(self, name: str, problem: Problem) -> None:
        """Check log p(x_M | x_R) = log p(x) − log p(x_R)."""
        route = ROUTES[name]
        density, x = problem.density, problem.x(route.has_gaps)
        solver = route.build(density, x)
        lml = observed_log_prob(density, x)
        assert solver.log_marginal_likelihood() == pytest.approx(lml, abs=1e-11)
        masks = torch.cat([some_masks(problem.dim, size + 1) for size in range(problem.dim)])
        expected = [
            lml - observed_log_prob(density, x.masked_fill(mask, torch.nan)) for mask in masks
        ]
        assert solver.joint_scores(masks).tolist() == pytest.approx(expected, rel=0, abs=1e-11)


def some_masks(dim: int, size: int) -> Tensor:
    return masks_of(dim, size)[:: max(1, math.comb(dim, size) // 3)]
