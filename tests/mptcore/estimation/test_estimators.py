"""Estimates are unbiased, and their standard errors say how far they are off."""

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mptcore.estimation.estimate import Estimate
from mptcore.estimation.masks import draw_masks
from mptcore.estimation.scores import cumulative_estimate, score_masks
from mptcore.families.linear_gaussian.conditionals import LinearGaussianModel
from mptcore.families.linear_gaussian.gaussian import LowRankGaussian
from mptcore.families.linear_gaussian.moments import (
    DenseMoment,
    FactoredMoment,
    compressed,
    moment_of,
    second_moment,
)
from mptcore.protocol.records import Metric, Point
from mptcore.run import run
from mptcore.runtime.session import ScoreCache
from mptcore.specs import AllSizes, parse_spec
from mptcore.specs.masks import Design
from tests.support.runs import result_of, std_err_of, value_of

REPEATS = 200


def model_of(dim: int, latent_dim: int, n: int, seed: int) -> tuple[LowRankGaussian, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    loadings = torch.randn(dim, latent_dim, generator=generator, dtype=torch.float64)
    noise = 0.1 + torch.rand(dim, generator=generator, dtype=torch.float64)
    x = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    return LowRankGaussian(loadings, x[0] * 0.1, noise), x


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    dim=st.integers(2, 30),
    latent_dim=st.integers(1, 6),
    n=st.integers(1, 40),
    design=st.sampled_from(["independent", "balanced", "nested"]),
    seed=st.integers(0, 10**6),
)
def test_fast_is_direct(dim: int, latent_dim: int, n: int, design: Design, seed: int) -> None:
    density, x = model_of(dim, min(latent_dim, dim - 1), n, seed)
    moment = moment_of(x, density.mean, density.noise_variance.min().item())
    model = LinearGaussianModel(density, moment)
    masks = AllSizes(per_size=2, design=design)
    for batch in draw_masks(masks, dim, torch.Generator().manual_seed(seed), 7):
        direct = [density.conditional_log_probs(x, mask).mean() for mask in batch.masked]
        torch.testing.assert_close(
            model.scores(batch.masked), torch.stack(direct), rtol=0, atol=1e-8
        )


@pytest.mark.parametrize("rank", [3, 90])
def test_a_moment_is_factored_where_its_rank_is_low(rank: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, rank, generator=generator) @ torch.randn(rank, 90, generator=generator)
    x = x.float().double()  # with rounding, as published data have it
    matrix = second_moment(x, torch.zeros(90, dtype=torch.float64))
    moment = compressed(matrix, 0.2)
    if rank == 90:
        assert isinstance(moment, DenseMoment)
        return
    assert isinstance(moment, FactoredMoment)
    assert moment.factor.shape == (90, rank)
    density, _ = model_of(90, 4, 2, 1)
    masked = torch.rand(50, 90, generator=generator) < 0.5
    dense = LinearGaussianModel(density, DenseMoment(matrix)).scores(masked)
    fast = LinearGaussianModel(density, moment).scores(masked)
    torch.testing.assert_close(fast, dense, rtol=0, atol=1e-10)


@pytest.fixture(scope="module")
def model() -> LinearGaussianModel:
    density, x = model_of(8, 2, 20, 5)
    moment = moment_of(x, density.mean, density.noise_variance.min().item())
    return LinearGaussianModel(density, moment)


@pytest.mark.parametrize("design", ["independent", "balanced", "nested"])
def test_designs_are_unbiased_and_calibrated(model: LinearGaussianModel, design: Design) -> None:
    masks = AllSizes(per_size=144, design=design)
    estimates = []
    for seed in range(REPEATS):
        drawn = draw_masks(masks, 8, torch.Generator().manual_seed(seed), 2000)
        found = result_of(score_masks([model], drawn, ScoreCache()))
        curve = [scores[0] for scores in found]
        estimates.append(cumulative_estimate(curve, masks))
    _unbiased_and_calibrated(estimates, model.log_marginal_likelihood())


def _unbiased_and_calibrated(estimates: list[Estimate], truth: float) -> None:
    means = torch.tensor([estimate.mean for estimate in estimates])
    errors = torch.tensor([estimate.std_err for estimate in estimates])
    bias = (means.mean() - truth).item()
    assert abs(bias) < 4 * (means.std() / math.sqrt(len(means))).item()
    assert 0.85 < ((means - truth) / errors).std().item() < 1.15


BASE: dict[str, Any] = {
    "model": {"family": "ppca", "latent_dim": 2, "noise_precision": 5.0, "init": "generator"},
    "data": {"source": "ppca", "n": 40, "dim": 10, "latent_dim": 2, "noise_precision": 5.0},
    "compute": {"threads": 1},
}


def records(**changes: Any) -> list[Any]:
    return list(run(parse_spec(json.dumps({**BASE, **changes}).encode())))


def metrics(found: list[Any]) -> dict[str, tuple[float, float]]:
    """(value, standard error) by name, with the model's label where there is one."""
    values = {}
    for record in found:
        if isinstance(record, Metric):
            assert record.value is not None
            model = record.labels.get("model")
            name = f"{record.name}/{model}" if model else record.name
            values[name] = (record.value, std_err_of(record))
    return values


def test_a_baseline_is_scored_on_the_same_masks() -> None:
    baseline = {"family": "ppca", "latent_dim": 1, "noise_precision": 4.0, "init": "random"}
    found = records(baseline=baseline, evaluate={"masks": {"schedule": "all", "per_size": 30}})
    own, other = metrics(found)["mpt/model"], metrics(found)["mpt/baseline"]
    paired = metrics(found)["score_difference"]
    assert paired[0] == pytest.approx(own[0] - other[0])
    assert paired[1] < math.hypot(own[1], other[1])
    alone = metrics(records(evaluate={"masks": {"schedule": "all", "per_size": 30}}))
    assert own == alone["mpt"]
    points = [r for r in found if isinstance(r, Point) and r.series == "score_difference"]
    assert [point.x for point in points] == list(range(1, 11))


def test_the_bias_over_sizes_is_that_of_enumeration() -> None:
    masks = {"schedule": "all", "design": "exhaustive"}
    found = records(evaluate={"masks": masks, "bias": True})
    bias = {r.x: value_of(r) for r in found if isinstance(r, Point) and r.series == "bias"}
    fixed = records(evaluate={"masks": {"schedule": "fixed", "size": 3, "design": "exhaustive"}})
    assert bias[3] == pytest.approx(metrics(fixed)["bias"][0], abs=1e-10)
    score = metrics(fixed)["biased_score"][0] - metrics(found)["lml"][0]
    assert bias[3] == pytest.approx(score, abs=1e-10)
    assert sum(bias.values()) / 10 == pytest.approx(0, abs=1e-10)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_precision_is_that_asked_for(precision: str) -> None:
    masks = {"schedule": "all", "design": "exhaustive"}
    found = records(evaluate={"masks": masks}, compute={"threads": 1, "precision": precision})
    assert abs(metrics(found)["difference"][0]) < (1e-11 if precision == "float64" else 1e-4)
