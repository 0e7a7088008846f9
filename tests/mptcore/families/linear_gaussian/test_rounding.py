"""No digit is lost in silence: scores, likelihoods and gradients against fifty digits, from large
noise to next to none."""

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mptcore.data.dataset import Dataset
from mptcore.families.linear_gaussian.density import LowRankGaussian
from mptcore.families.linear_gaussian.residual_solver import ResidualSolver
from mptcore.families.linear_gaussian.rounding import BY_RESIDUALS
from mptcore.families.linear_gaussian.routes import solver_for
from mptcore.families.linear_gaussian.run import RAISED
from mptcore.families.linear_gaussian.solver import Solver
from mptcore.families.linear_gaussian.trainer import LinearGaussianTrainer
from mptcore.protocol.records import Log, Metric, Record
from mptcore.run import run
from mptcore.specs import LinearGaussianExperiment, parse_spec
from tests.support.exact import Exact, relative_error

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    density: LowRankGaussian
    x: Tensor

    @property
    def exact(self) -> Exact:
        d = self.density
        return Exact.of(self.x, d.mean, d.loadings, d.noise_variance)

    def model(self) -> Solver:
        return solver_for(self.density, self.x, CPU)


def case(
    dim: int, latent_dim: int, n: int, noise: Tensor, fits: bool, seed: int = 0, offset: float = 0
) -> Case:
    """Return a model with data drawn from it, or with other data if `fits` is false."""
    g = torch.Generator().manual_seed(seed)
    loadings = torch.randn(dim, latent_dim, generator=g, dtype=torch.float64)
    mean = offset * torch.randn(dim, generator=g, dtype=torch.float64)
    x = torch.randn(n, dim, generator=g, dtype=torch.float64)
    if fits:
        latent = torch.randn(n, latent_dim, generator=g, dtype=torch.float64)
        x = latent @ loadings.mT + noise.sqrt() * x
    return Case(LowRankGaussian(loadings, mean, noise), x + mean)


def alike(dim: int, precision: float) -> Tensor:
    return torch.full((dim,), 1 / precision, dtype=torch.float64)


def spread(dim: int) -> Tensor:
    """Noise of every size, as factor analysis has it."""
    order = torch.randperm(dim, generator=torch.Generator().manual_seed(2))
    return 10 ** torch.linspace(4, -8, dim, dtype=torch.float64)[order]


def mask_of(dim: int, size: int, seed: int = 1) -> Tensor:
    order = torch.randperm(dim, generator=torch.Generator().manual_seed(seed))
    return torch.zeros(dim, dtype=torch.bool).index_fill_(0, order[:size], True)


@pytest.mark.parametrize("fits", [True, False])
@pytest.mark.parametrize("precision", [1e-4, 1, 1e2, 1e4, 1e6, 1e8, None])
def test_scores_have_eight_digits(precision: float | None, fits: bool) -> None:
    """Near |R| = K digits are lost first. None: a noise of each size."""
    dim, latent_dim = 12, 5
    problem = case(dim, latent_dim, 7, alike(dim, precision) if precision else spread(dim), fits)
    model, exact = problem.model(), problem.exact
    for size in (1, dim - latent_dim - 1, dim - latent_dim, dim - latent_dim + 1, dim):
        mask = mask_of(dim, size, size)
        assert relative_error(model.scores(mask[None]).item(), exact.score(mask)) < 1e-8
        seen = exact.log_prob(~mask)
        joint = exact.log_prob(mask | ~mask) - seen
        assert relative_error(model.joint_scores(mask[None]).item(), joint) < 1e-8
    everything = torch.ones(dim, dtype=torch.bool)
    assert relative_error(model.log_marginal_likelihood(), exact.log_prob(everything)) < 1e-8


def test_a_wide_model_with_next_to_no_noise() -> None:
    problem = case(200, 50, 3, alike(200, 1e8), True)
    mask = mask_of(200, 190)
    found = problem.model().scores(mask[None]).item()
    assert relative_error(found, problem.exact.score(mask)) < 1e-8


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    exponents=st.tuples(st.floats(-4, 8), st.floats(0, 4)),
    shape=st.tuples(st.integers(2, 7), st.integers(1, 6), st.integers(1, 9)),
    fits=st.booleans(),
    offset=st.sampled_from([0.0, 1.0, 1e3]),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
    seed=st.integers(0, 1000),
)
def test_scores_have_eight_digits_at_any_offset(
    exponents: tuple[float, float],
    shape: tuple[int, int, int],
    fits: bool,
    offset: float,
    scale: float,
    seed: int,
) -> None:
    """Loadings of different sizes, and noise of different sizes, over the whole range."""
    dim, latent_dim, n = shape[0], min(shape[1], shape[0] - 1), shape[2]
    lowest, width = exponents
    noise = 10.0 ** -(lowest + (width * torch.linspace(0, 1, dim)).double()).clamp(max=8)
    problem = case(dim, latent_dim, n, noise, fits, seed, offset)
    stretch = scale ** torch.linspace(0, 1, latent_dim, dtype=torch.float64)
    density = LowRankGaussian(problem.density.loadings * stretch, problem.density.mean, noise)
    problem = Case(density, problem.x)
    model, exact = problem.model(), problem.exact
    masks = [mask_of(dim, size, seed) for size in range(1, dim + 1)]
    found = model.scores(torch.stack(masks)).tolist()
    for mask, score in zip(masks, found, strict=True):
        assert relative_error(score, exact.score(mask)) < 1e-8


def spec_of(precision: float, **changes: Any) -> dict[str, Any]:
    common = {"latent_dim": 2, "noise_precision": precision}
    return {
        "model": {"family": "ppca", "init": "generator", **common},
        "data": {"source": "ppca", "n": 20, "dim": 6, **common},
        "evaluate": {"masks": {"schedule": "all", "design": "exhaustive"}},
        "compute": {"threads": 1},
        **changes,
    }


def records_of(spec: dict[str, Any]) -> list[Record]:
    return list(run(parse_spec(json.dumps(spec).encode())))


def metrics_of(records: list[Record]) -> dict[str, Metric]:
    return {record.name: record for record in records if isinstance(record, Metric)}


def said(records: list[Record], note: str) -> list[str]:
    return [r.message for r in records if isinstance(r, Log) and note in r.message]


def test_enumeration_without_noise_is_the_likelihood() -> None:
    """The sum of all scores is reported without an error, because it has none."""
    records = records_of(spec_of(1e8))
    found = metrics_of(records)
    assert found["mpt"].std_err == 0
    assert found["difference"].value == pytest.approx(0, abs=1e-9)
    assert said(records, BY_RESIDUALS) == [f"seed 0: {BY_RESIDUALS}"]


def test_well_conditioned_scores_log_no_change_of_route() -> None:
    assert not said(records_of(spec_of(5.0)), "computed")


@pytest.mark.parametrize("train", [None, {"epochs": 2}])
def test_float32_is_raised_to_float64(train: dict[str, Any] | None) -> None:
    init = "generator" if train is None else "random"
    model = {"family": "ppca", "latent_dim": 2, "noise_precision": 50.0, "init": init}
    changes = {"model": model, "train": train}
    low = records_of(spec_of(50.0, **changes, compute={"threads": 1, "precision": "float32"}))
    assert said(low, RAISED) == [RAISED]
    assert metrics_of(low) == metrics_of(records_of(spec_of(50.0, **changes)))


def test_data_of_low_rank_keep_few_residuals() -> None:
    """The published noise, one value for an observation: K + 1 numbers say all of its residuals."""
    g = torch.Generator().manual_seed(0)
    density = case(30, 3, 1, alike(30, 1e4), True).density
    x = torch.randn(50, 3, generator=g, dtype=torch.float64) @ density.loadings.mT
    problem = Case(density, x + 0.01 * torch.randn(50, 1, generator=g, dtype=torch.float64))
    model = problem.model()
    assert model.note == BY_RESIDUALS
    assert isinstance(model, ResidualSolver)
    assert model.residuals.factor.shape[1] == 4
    mask = mask_of(30, 26)
    error = relative_error(model.scores(mask[None]).item(), problem.exact.score(mask))
    assert error < 1e-8


def derivative(problem: Case, masks: list[Tensor], i: int, k: int) -> float:
    """Derivative of the mean score with respect to W_ik, with fifty digits."""
    exact, step = problem.exact, mpmath.mpf(10) ** -22
    before = mpmath.fsum(exact.score(mask) for mask in masks)
    exact.loadings[i][k] += step
    after = mpmath.fsum(exact.score(mask) for mask in masks)
    return float((after - before) / step / len(masks))


def trainer_on(
    problem: Case, per_dimension: bool, **train: Any
) -> tuple[LinearGaussianTrainer, list[Tensor]]:
    """Return a trainer, also of the noise, at the density of a problem, and the masks of its
    step."""
    d = problem.density
    family = "factor_analysis" if per_dimension else "ppca"
    model = {"family": family, "init": "random", "noise_precision": 1.0}
    spec = spec_of(1.0)
    spec |= {"model": {**model, "latent_dim": d.loadings.shape[1]}, "evaluate": {}}
    spec["data"] |= {"dim": d.dim, "n": len(problem.x)}
    spec["train"] = {"epochs": 1, "learn_noise_precision": True, **train}
    experiment = parse_spec(json.dumps(spec).encode())
    assert isinstance(experiment, LinearGaussianExperiment)
    assert experiment.train is not None
    data = [Dataset(problem.x)]
    trainer = LinearGaussianTrainer(experiment.model, experiment.train, [0], [d], data, CPU)
    masks = trainer._masks(0)
    trainer._masks = lambda fraction: masks  # type: ignore[method-assign]
    return trainer, list(masks[0])


@pytest.mark.parametrize("fits", [True, False])
@pytest.mark.parametrize("precision", [1.0, 1e3, 1e6, 1e8, None])
def test_gradients_have_six_digits(precision: float | None, fits: bool) -> None:
    """Compare the gradients of a training step, on every route, with finite differences with fifty
    digits."""
    dim, latent_dim = 6, 2
    noise = alike(dim, precision) if precision else spread(dim)
    problem = case(dim, latent_dim, 5, noise, fits)
    trainer, masks = trainer_on(problem, precision is None)
    trainer._choose_route(trainer._full)
    assert (trainer.by_residuals_from == 0) == (precision not in (1.0,))
    trainer._descent(trainer._full, 0)
    gradient = trainer.loadings.grad
    assert gradient is not None
    largest = gradient.abs().max().item()
    for i, k in itertools.product(range(dim), range(latent_dim)):
        expected = -dim * loading_derivative(problem, masks, i, k)
        assert gradient[0, i, k].item() == pytest.approx(expected, abs=1e-6 * largest)
    noises = trainer.log_noise.grad
    assert noises is not None
    rows = [range(dim)] if noises.numel() == 1 else [[i] for i in range(dim)]
    for found, learned in zip(noises.flatten().tolist(), rows, strict=True):
        expected = -dim * log_noise_derivative(problem, masks, learned)
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-6 * noises.abs().max().item())


STEP = mpmath.mpf(10) ** -22


def loading_derivative(problem: Case, masks: list[Tensor], i: int, k: int) -> float:
    """Derivative of the mean score with respect to W_ik."""
    exact = problem.exact
    before = [exact.score(mask) for mask in masks]
    exact.loadings[i][k] += STEP
    after = [exact.score(mask) for mask in masks]
    return float((mpmath.fsum(after) - mpmath.fsum(before)) / STEP / len(masks))


def log_noise_derivative(problem: Case, masks: list[Tensor], rows: Sequence[int]) -> float:
    """Derivative of the mean score with respect to the logarithm of the noise variance that some
    dimensions share."""
    exact = problem.exact
    before = [exact.score(mask) for mask in masks]
    for i in rows:
        exact.noise[i] *= 1 + STEP
    after = [exact.score(mask) for mask in masks]
    return float((mpmath.fsum(after) - mpmath.fsum(before)) / STEP / len(masks))


def test_a_training_keeps_its_route_and_logs_it() -> None:
    """Noise that is learned from data without any goes down until sums of moments do not do."""
    model = {"family": "ppca", "latent_dim": 2, "noise_precision": 5.0, "init": "random"}
    train = {"objective": "lml", "epochs": 60, "learning_rate": 0.5, "learn_noise_precision": True}
    records = records_of(spec_of(1e12, model=model, train=train, evaluate={}))
    spoken = [message for message in said(records, BY_RESIDUALS) if "epoch" in message]
    assert len(spoken) == 1
    assert 5 < int(spoken[0].split()[2]) < 60


def test_the_route_is_chosen_for_each_step() -> None:
    """Steps of few observations, as large as they come, leave the first epoch's bound behind."""
    model = {"family": "ppca", "latent_dim": 2, "noise_precision": 100.0, "init": "random"}
    train = {"objective": "lml", "epochs": 1, "learning_rate": 50.0, "batch_size": 2}
    records = records_of(spec_of(5.0, model=model, train=train, evaluate={}))
    spoken = [message for message in said(records, BY_RESIDUALS) if "epoch" in message]
    assert [message.split()[2] for message in spoken] == ["0"]


def test_a_mean_far_from_the_data_uses_residuals() -> None:
    """The data's own moment is small there; that about the model's mean is not."""
    problem = case(6, 2, 5, alike(6, 1.0), True)
    for distance, by_residuals in ((0.0, False), (1e5, True)):
        far = Case(problem.density, problem.x + distance)
        trainer, _ = trainer_on(far, False, learn_mean=True)
        assert trainer._choose_route(trainer._full) == by_residuals


def test_a_resumed_training_keeps_its_route() -> None:
    problem = case(6, 2, 5, alike(6, 1e6), True)
    trainer, _ = trainer_on(problem, False)
    fresh, _ = trainer_on(problem, False)
    trainer.advance()
    fresh.restore(trainer.tensors())
    assert fresh.by_residuals_from == 0
    density = problem.density
    everything = torch.ones(6, dtype=torch.bool)
    with torch.no_grad():
        trainer.loadings[0], trainer.log_noise[0] = density.loadings, math.log(1e-6)
        found = trainer._solver(trainer._full).log_prob().item()
    assert relative_error(found, problem.exact.log_prob(everything)) < 1e-8
