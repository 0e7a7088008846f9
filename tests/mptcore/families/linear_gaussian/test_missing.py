"""Missing values: scores and fits by EM."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from mptcore.data.dataset import Dataset
from mptcore.families.linear_gaussian import fit
from mptcore.families.linear_gaussian.density import LowRankGaussian
from mptcore.families.linear_gaussian.fit import LikelihoodGradient, fit_complete, fit_of
from mptcore.families.linear_gaussian.initial import closed_form
from mptcore.families.linear_gaussian.moments import second_moment
from mptcore.families.linear_gaussian.pattern_solver import PatternSolver
from mptcore.families.linear_gaussian.routes import solver_for
from mptcore.protocol.records import RunError
from mptcore.runtime.compiled import kernels
from mptcore.specs import FactorAnalysisModel, PpcaModel
from mptlab_contract import masks_of
from tests.mptcore.families.linear_gaussian.test_solvers import (
    observed_log_prob,
    score_by_definition,
)

DIM, WIDE = 5, 10
CPU = torch.device("cpu")
PPCA: dict[str, Any] = {"family": "ppca", "latent_dim": 2, "init": "maximum_likelihood"}
FACTOR_ANALYSIS = {**PPCA, "family": "factor_analysis"}
MODELS: list[PpcaModel | FactorAnalysisModel] = [
    PpcaModel(**PPCA),
    PpcaModel(**PPCA, noise_precision=1.0),
    FactorAnalysisModel(**FACTOR_ANALYSIS),
]


def density_of(noise: float = 1.0, dim: int = DIM) -> LowRankGaussian:
    generator = torch.Generator().manual_seed(1)
    loadings = torch.randn(dim, 2, generator=generator, dtype=torch.float64)
    variance = noise * torch.linspace(0.3, 1, dim, dtype=torch.float64)
    return LowRankGaussian(loadings, torch.arange(dim).double(), variance)


def sample(n: int, share: float = 0.35, dim: int = DIM) -> Tensor:
    """Observations with at least one value each. Some have only one, and some have all."""
    generator = torch.Generator().manual_seed(2)
    density = density_of(dim=dim)
    z = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    x = z @ density.loadings.mT + density.mean + noise * density.noise_variance.sqrt()
    missing = torch.rand(n, dim, generator=generator) < share
    missing[0], missing[1] = False, torch.arange(dim) > 0
    missing[missing.all(1), 0] = False
    return x.masked_fill(missing, torch.nan)


@pytest.fixture(params=["numba", "torch"])
def route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Compute by compiled loops and by torch."""
    monkeypatch.setenv("MPT_KERNELS", request.param)
    kernels.cache_clear()
    yield request.param
    kernels.cache_clear()


def test_a_batch_of_masks_is_as_large_as_the_route_needs(route: str) -> None:
    x = torch.cat([sample(3), sample(400, 0.0)])
    model = solver_for(density_of(), x, CPU)
    if route == "torch":
        assert model.bytes_per_mask >= 8 * 8 * DIM
        assert model.efficient_batch == -(-512 // 2)
    else:
        assert model.bytes_per_mask == 6 * DIM + 8
        assert model.efficient_batch == 1


def test_a_pattern_that_compiled_loops_do_not_score_limits_the_batches() -> None:
    """The complete rows are scored by residuals."""
    x = torch.cat([sample(3), 1e5 * sample(2, 0.0)[:1]])
    model = solver_for(density_of(), x, CPU)
    assert isinstance(model, PatternSolver)
    assert {pattern.solver.fits_kernel for pattern in model.patterns} == {True, False}
    assert model.bytes_per_mask > 6 * DIM + 8
    masks = masks_of(DIM, 2)
    direct = [score_by_definition(density_of(), x, mask) for mask in masks]
    assert model.scores(masks).tolist() == pytest.approx(direct, rel=1e-8)


def test_tables_of_patterns_are_not_kept(route: str) -> None:
    model = solver_for(density_of(), sample(30), CPU)
    assert isinstance(model, PatternSolver)
    before = [dict(vars(pattern.solver)) for pattern in model.patterns]
    model.scores(masks_of(DIM, 2))
    assert [vars(pattern.solver).keys() for pattern in model.patterns] == [*map(dict.keys, before)]


@pytest.mark.usefixtures("route")
@pytest.mark.parametrize("spec", MODELS, ids=["ppca", "given noise", "factor analysis"])
def test_em_rises_to_a_maximum(spec: PpcaModel | FactorAnalysisModel) -> None:
    x = sample(300, 0.2, WIDE)
    states = fit_of(spec, Dataset(x))
    assert states is not None
    *_, before, last = found = [*states]
    assert all(b.lml > a.lml for a, b in itertools.pairwise(found[:-1]))
    assert last.lml >= before.lml - 2e-9
    assert last.lml == pytest.approx(observed_log_prob(last.density, x), rel=1e-12)
    assert last.converged
    each = isinstance(spec, FactorAnalysisModel)
    parts = [
        last.density.loadings,
        last.density.mean,
        last.density.noise_variance[: None if each else 1],
    ]
    free = [part.clone().requires_grad_() for part in parts[: 2 if spec.noise_precision else 3]]
    loadings, mean, noise = [*free, *parts[len(free) :]]
    covariance = loadings @ loadings.mT + torch.diag(noise.expand(WIDE))
    logs = [
        MultivariateNormal(mean[o], covariance[o][:, o]).log_prob(row[o])  # type: ignore[no-untyped-call]
        for row, o in zip(x, ~x.isnan(), strict=True)
    ]
    gradients = torch.autograd.grad(torch.stack(logs).mean(), free)
    assert max(gradient.abs().max().item() for gradient in gradients) < 1e-4


@pytest.mark.parametrize("gradient", [1.0, 0.0])
def test_a_standstill_on_a_slope_is_not_converged(
    gradient: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line search that failed far from the maximum counted as converged."""
    monkeypatch.setattr(fit, "EM_ITERATIONS", 10)
    monkeypatch.setattr(fit, "MAX_ITERATIONS", 50)
    density = density_of()
    zeros = torch.zeros(DIM, dtype=torch.float64)
    slope = LikelihoodGradient(-1.0, gradient * density.loadings.sign(), zeros, zeros)
    flat = fit.FitObjective(lambda density: density, lambda _: -1.0, lambda _: slope)
    *_, last = fit.iterate(density, flat, 1e-9 * density.noise_variance, DIM)
    assert last.converged == (gradient == 0)
    assert last.iteration == (20 if gradient == 0 else 50)


def with_gaps_and_units() -> Tensor:
    """400 × 10 values of three factors, in units from 0.1 to 1000, eight of them missing."""
    generator = torch.Generator().manual_seed(11)
    loadings = torch.randn(10, 3, generator=generator, dtype=torch.float64)
    z = torch.randn(400, 3, generator=generator, dtype=torch.float64)
    noise = torch.randn(400, 10, generator=generator, dtype=torch.float64)
    variances = torch.linspace(0.1, 1, 10, dtype=torch.float64)
    x = z @ loadings.mT + noise * variances.sqrt()
    x = x * torch.tensor([1, 0.1, 5, 1000, 1, 2, 0.5, 10, 1, 3], dtype=torch.float64)
    x[torch.arange(8) * 37, torch.arange(8)] = torch.nan
    return x


@pytest.mark.parametrize("latent_dim", [2, 5, 6, 7, 8])
def test_a_fit_is_never_worse_than_that_of_the_complete_rows(latent_dim: int) -> None:
    """PPCA began with a noise so large that small loadings fell to 0, where EM cannot move them."""
    x = with_gaps_and_units()
    complete = x[~x.isnan().any(1)]
    mean = complete.mean(0)
    usual = closed_form(second_moment(complete, mean), mean, latent_dim)
    spec = PpcaModel(**{**PPCA, "latent_dim": latent_dim})
    *_, last = fit.fit_missing(spec, x)
    assert last.converged
    gained = last.lml - observed_log_prob(usual, x)
    assert 0 < gained < 0.01


@pytest.mark.parametrize(("latent_dim", "gaps"), [(4, True), (5, False)])
def test_factor_analysis_with_too_many_dimensions_converges(latent_dim: int, gaps: bool) -> None:
    """A noise variance goes to 0 or nearly so. EM had not converged after 20,000 iterations."""
    x = with_gaps_and_units()
    x = x if gaps else x[~x.isnan().any(1)]
    spec = FactorAnalysisModel(**{**FACTOR_ANALYSIS, "latent_dim": latent_dim})
    states = fit_of(spec, Dataset(x))
    assert states is not None
    *_, last = found = [*states]
    assert last.converged
    assert last.iteration <= 1500
    assert last.lml > found[9].lml  # EM alone
    exact = observed_log_prob(last.density, x)
    assert last.lml == pytest.approx(exact, abs=1e-7)  # sums that differ by 1e6 nearly cancel
    scale = torch.from_numpy(np.nanstd(x.numpy(), 0))
    share = last.density.noise_variance / scale.square()
    loadings = (last.density.loadings / scale[:, None]).requires_grad_()
    log_noise = share.log().requires_grad_()
    covariance = loadings @ loadings.mT + torch.diag(log_noise.exp())
    centred = (x - last.density.mean) / scale
    zero = torch.zeros(10, dtype=torch.float64)
    logs = [
        MultivariateNormal(zero[o], covariance[o][:, o]).log_prob(row[o])  # type: ignore[no-untyped-call]
        for row, o in zip(centred, ~x.isnan(), strict=True)
    ]
    torch.stack(logs).mean().backward()  # type: ignore[no-untyped-call]
    assert loadings.grad is not None
    assert log_noise.grad is not None
    free = share > 1.5 * fit.MIN_SHARE
    assert loadings.grad[free].abs().max() < 1e-4
    assert log_noise.grad[free].abs().max() < 1e-4
    assert (log_noise.grad[~free] < 1e-6).all()


def test_a_fit_ends_after_the_maximum_number_of_iterations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Chunks of L-BFGS-B took it to 5100 of 5000 iterations."""
    monkeypatch.setattr(fit, "MAX_ITERATIONS", 250)
    x = sample(40, 0.5, 12)
    *_, last = found = [
        *fit.fit_missing(FactorAnalysisModel(**{**FACTOR_ANALYSIS, "latent_dim": 11}), x)
    ]
    assert not last.converged
    assert last.iteration == 250
    assert all(b.lml > a.lml for a, b in itertools.pairwise(found))


def test_columns_that_vary_only_in_rows_with_missing_values_are_fitted() -> None:
    """Without them the complete rows have no maximum."""
    x = sample(60, 0)
    x[:40, 0] = 1
    x[40:, 1] = torch.nan
    *_, last = fit.fit_missing(PpcaModel(**{**PPCA, "latent_dim": 4}), x)
    assert last.lml == pytest.approx(observed_log_prob(last.density, x), abs=1e-7)


@pytest.mark.parametrize("spec", [MODELS[0], MODELS[2]], ids=["ppca", "factor analysis"])
def test_em_of_complete_data_finds_the_fit_of_their_covariance(
    spec: PpcaModel | FactorAnalysisModel,
) -> None:
    x = sample(300, 0.0, WIDE)[2:]
    mean = x.mean(0)
    expected = closed_form(second_moment(x, mean), mean, 2)
    if isinstance(spec, FactorAnalysisModel):
        *_, complete = fit_complete(second_moment(x, mean), mean, 2)
        expected = complete.density
    *_, last = fit.fit_missing(spec, x)
    assert last.lml == pytest.approx(expected.log_prob(x).mean().item(), abs=1e-7)
    torch.testing.assert_close(last.density.covariance, expected.covariance, rtol=0, atol=1e-3)


def test_em_is_fast_for_small_noise() -> None:
    """One step with expanded parameters finds mean and covariance; without, 20,000 do not."""
    density = density_of(dim=WIDE)
    z = torch.randn(300, 2, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    exact = z @ density.loadings.mT + density.mean
    x = exact + 1e-3 * (sample(300, 0.2, WIDE) - exact)
    *_, last = fit.fit_missing(MODELS[0], x)
    assert last.converged
    assert last.iteration <= 50
    assert last.lml == pytest.approx(observed_log_prob(last.density, x), rel=1e-8)
    off = density.mean + density.loadings.sum(1)
    start = LowRankGaussian(density.loadings, off, torch.full((WIDE,), 1e-6).double())
    found = fit._Observations.of(exact).em_step(start, lambda each: start.noise_variance)
    torch.testing.assert_close(found.mean, exact.mean(0), rtol=0, atol=1e-5)
    covariance = second_moment(exact, exact.mean(0))
    torch.testing.assert_close(found.loadings @ found.loadings.mT, covariance, rtol=0, atol=1e-4)


def test_em_does_not_depend_on_its_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    x = sample(60)
    *_, expected = fit.fit_missing(MODELS[0], x)
    monkeypatch.setattr(fit, "CHUNK_NUMBERS", 63)  # 7 rows
    *_, found = fit.fit_missing(MODELS[0], x)
    assert found.lml == pytest.approx(expected.lml, rel=1e-12)
    torch.testing.assert_close(found.density.covariance, expected.density.covariance)


def test_an_exact_fit_has_no_maximum() -> None:
    density = density_of(dim=6)
    z = torch.randn(40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = z @ density.loadings.mT
    x[::3, 1] = torch.nan
    with pytest.raises(RunError, match="2 latent dimensions fit all observed values exactly"):
        [*fit.fit_missing(MODELS[0], x)]
    *_, last = itertools.islice(fit.fit_missing(MODELS[2], x), 50)
    least = fit.MIN_SHARE * x[1].new_tensor(np.nanvar(x.numpy(), 0))
    assert (last.density.noise_variance >= least * (1 - 1e-9)).all()
