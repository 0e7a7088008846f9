"""The fast conditionals of PPCA and factor analysis equal those of the dense Gaussian. The class of
a family overrides only `density`."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from mptcore.families.linear_gaussian.density import LowRankGaussian
from mptcore.families.linear_gaussian.moments import (
    DenseMoment,
    FactoredMoment,
    Moment,
    second_moment,
)
from mptcore.families.linear_gaussian.routes import moment_solver
from mptcore.families.linear_gaussian.solver import Solver
from mptlab_contract import masks_of


@dataclass(frozen=True)
class Problem:
    density: LowRankGaussian
    x: Tensor  # (N, D)
    factored: bool = False

    @property
    def dim(self) -> int:
        return self.density.dim

    @property
    def model(self) -> Solver:
        return moment_solver(self.density.loadings, self.density.noise_variance, self.moment)

    @property
    def moment(self) -> Moment:
        if not self.factored:
            return DenseMoment(second_moment(self.x, self.density.mean))
        factor = (self.x - self.density.mean).mT / math.sqrt(len(self.x))
        return FactoredMoment(factor, factor.square().sum(1))

    @property
    def lml(self) -> float:
        return self.density.log_prob(self.x).mean().item()


class DenseReference:
    @pytest.fixture
    def density(self, dim: int, latent_dim: int, generator: torch.Generator) -> LowRankGaussian:
        raise NotImplementedError

    @pytest.fixture(params=[(5, 1), (6, 2), (7, 3), (8, 7)], ids="D{0[0]}K{0[1]}".format)
    def shape(self, request: pytest.FixtureRequest) -> tuple[int, int]:
        shape: tuple[int, int] = request.param
        return shape

    @pytest.fixture
    def dim(self, shape: tuple[int, int]) -> int:
        return shape[0]

    @pytest.fixture
    def latent_dim(self, shape: tuple[int, int]) -> int:
        return shape[1]

    @pytest.fixture
    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(7)

    @pytest.fixture(params=[False, True], ids=["dense", "factored"])
    def problem(
        self, request: pytest.FixtureRequest, density: LowRankGaussian, generator: torch.Generator
    ) -> Problem:
        x = torch.randn(11, density.dim, generator=generator, dtype=torch.float64)
        return Problem(density, 2 * x + 0.3, request.param)

    def test_enumeration_is_the_log_density(self, problem: Problem) -> None:
        sizes = range(1, problem.dim + 1)
        curve = [problem.model.scores(masks_of(problem.dim, size)).mean() for size in sizes]
        assert math.fsum(curve) == pytest.approx(problem.lml, abs=1e-11)

    def test_fast_route_equals_the_direct_route(self, problem: Problem) -> None:
        for size in range(1, problem.dim + 1):
            masks = masks_of(problem.dim, size)
            direct = [problem.density.conditional_log_probs(problem.x, m).mean() for m in masks]
            torch.testing.assert_close(
                problem.model.scores(masks), torch.stack(direct), rtol=0, atol=1e-11
            )

    def test_density_equals_the_dense_gaussian(self, problem: Problem) -> None:
        density = problem.density
        dense = torch.distributions.MultivariateNormal(density.mean, density.covariance)
        expected: Tensor = dense.log_prob(problem.x)  # type: ignore[no-untyped-call]
        torch.testing.assert_close(density.log_prob(problem.x), expected)
        assert problem.model.log_marginal_likelihood() == pytest.approx(problem.lml, abs=1e-11)

    def test_joint_score_is_the_lml_minus_the_observed_marginal(self, problem: Problem) -> None:
        """Check log p(x_M | x_R) = log p(x) − log p(x_R)."""
        for mask in some_masks(problem.dim):
            seen = ~mask
            rest = problem.density.marginal(seen).log_prob(problem.x[:, seen]).mean().item()
            joint = problem.model.joint_scores(mask[None]).item()
            assert joint == pytest.approx(problem.lml - rest, abs=1e-11)

    def test_joint_score_of_one_dimension_is_its_score(self, problem: Problem) -> None:
        masks = masks_of(problem.dim, 1)
        torch.testing.assert_close(
            problem.model.joint_scores(masks), problem.model.scores(masks), rtol=0, atol=1e-11
        )

    def test_masking_everything_scores_the_marginals(self, problem: Problem) -> None:
        variance = problem.density.covariance.diagonal()
        squares = (problem.x - problem.density.mean).square() / variance
        log_probs = -0.5 * (math.log(2 * math.pi) + variance.log() + squares)
        everything = torch.ones(1, problem.dim, dtype=torch.bool)
        expected = log_probs.mean().item()
        assert problem.model.scores(everything).item() == pytest.approx(expected, abs=1e-12)

    def test_units_of_the_observations_do_not_change_the_score(self, problem: Problem) -> None:
        """Twice the same observations have the same mean."""
        twice = Problem(problem.density, problem.x.repeat(2, 1))
        masks = masks_of(problem.dim, 2)
        torch.testing.assert_close(twice.model.scores(masks), problem.model.scores(masks))


def some_masks(dim: int) -> Iterator[Tensor]:
    for size in range(1, dim + 1):
        yield from masks_of(dim, size)[:: max(1, math.comb(dim, size) // 3)]


class TestPpca(DenseReference):
    @pytest.fixture
    def density(self, dim: int, latent_dim: int, generator: torch.Generator) -> LowRankGaussian:
        loadings = torch.randn(dim, latent_dim, generator=generator, dtype=torch.float64)
        mean = torch.randn(dim, generator=generator, dtype=torch.float64)
        return LowRankGaussian(loadings, mean, torch.full((dim,), 0.2, dtype=torch.float64))


class TestFactorAnalysis(DenseReference):
    @pytest.fixture
    def density(self, dim: int, latent_dim: int, generator: torch.Generator) -> LowRankGaussian:
        loadings = torch.randn(dim, latent_dim, generator=generator, dtype=torch.float64)
        mean = torch.randn(dim, generator=generator, dtype=torch.float64)
        noise = 0.05 + torch.rand(dim, generator=generator, dtype=torch.float64)
        return LowRankGaussian(loadings, mean, noise)


def test_mismatched_shapes_are_named() -> None:
    with pytest.raises(ValueError, match=r"\(D, K\), \(D,\), \(D,\), not \[\(3, 2\), \(2,\)"):
        LowRankGaussian(torch.zeros(3, 2), torch.zeros(2), torch.ones(3))
