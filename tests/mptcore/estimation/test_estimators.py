"""Estimates are unbiased, and their standard errors say how far they are off."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mptcore.data.dataset import load_arrays
from mptcore.estimation.estimate import (
    ONE_DRAW,
    TOO_FEW,
    Estimate,
    final_metric,
    metric,
    point,
    total_of,
)
from mptcore.estimation.masks import draw_masks
from mptcore.estimation.model import Evidence
from mptcore.estimation.scores import convergence, cumulative_estimate, score_sizes
from mptcore.families.linear_gaussian.density import LowRankGaussian
from mptcore.families.linear_gaussian.moments import (
    DenseMoment,
    FactoredMoment,
    compressed,
    moment_of,
    second_moment,
)
from mptcore.families.linear_gaussian.routes import moment_solver
from mptcore.families.linear_gaussian.solver import Solver
from mptcore.protocol.records import Labels, Metric, Point
from mptcore.run import run
from mptcore.runtime.state import RunState
from mptcore.specs import AllSizes, LinearGaussianExperiment, parse_spec
from mptcore.specs.masks import Design
from mptlab_contract import records as resumable_records
from tests.support.runs import spec_of, std_err_of, value_of

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
def test_the_fast_route_equals_the_direct_route(
    dim: int, latent_dim: int, n: int, design: Design, seed: int
) -> None:
    density, x = model_of(dim, min(latent_dim, dim - 1), n, seed)
    moment = moment_of(x, density.mean, density.noise_variance.min().item())
    model = moment_solver(density.loadings, density.noise_variance, moment)
    masks = AllSizes(per_size=2, design=design)
    for batch in draw_masks(masks, dim, torch.Generator().manual_seed(seed), 7):
        direct = [density.conditional_log_probs(x, mask).mean() for mask in batch.masks]
        torch.testing.assert_close(
            model.scores(batch.masks), torch.stack(direct), rtol=0, atol=1e-8
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
    dense = moment_solver(density.loadings, density.noise_variance, DenseMoment(matrix)).scores(
        masked
    )
    fast = moment_solver(density.loadings, density.noise_variance, moment).scores(masked)
    torch.testing.assert_close(fast, dense, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("left_out", "kind"), [(0.2e-8, FactoredMoment), (1.2e-8, DenseMoment)])
def test_a_low_rank_factor_drops_nothing_that_changes_a_score(left_out: float, kind: type) -> None:
    """λ_max / ψ of the omitted part, times D, is at most 1e-8. Half of this changes no sum of
    scores by more than 5e-9 nats."""
    dim, noise = 30, 0.2
    q = torch.linalg.qr(torch.randn(dim, dim, generator=torch.Generator().manual_seed(3)).double())
    eigenvalues = torch.zeros(dim, dtype=torch.float64)
    eigenvalues[:4] = torch.tensor([4.0, 3.0, 2.0, 1.0])
    rest = left_out / 2 * noise / dim  # the norm is doubled, as a margin
    eigenvalues[4:] = rest
    matrix = q.Q * eigenvalues @ q.Q.T
    assert isinstance(compressed(matrix, noise), kind)


def low_rank(n: int, rank: int, dim: int) -> torch.Tensor:
    """Data of low rank, with rounding."""
    generator = torch.Generator().manual_seed(rank)
    factors = torch.randn(n, rank, generator=generator), torch.randn(rank, dim, generator=generator)
    return (factors[0] @ factors[1]).double()


LATER = torch.cat([low_rank(40, 2, 90), low_rank(160, 5, 90)])
"""Data whose first observations span less than all."""


@pytest.mark.parametrize(
    ("x", "rank"),
    [
        (low_rank(200, 3, 90), 3),
        (LATER, 7),
        (low_rank(200, 10, 90), 10),
        (torch.zeros(200, 90, dtype=torch.float64), 0),
        (low_rank(200, 31, 90), None),
        (low_rank(200, 90, 90), None),
    ],
    ids=["low", "not in the first", "a tenth", "constant", "more than a third", "full"],
)
def test_the_moment_of_data_is_factored_where_their_rank_is_low(
    x: torch.Tensor, rank: int | None
) -> None:
    mean = torch.full((90,), 0.5, dtype=torch.float64)
    moment = moment_of(x + mean, mean, 0.2)
    assert isinstance(moment, DenseMoment if rank is None else FactoredMoment)
    if isinstance(moment, FactoredMoment):
        assert moment.factor.shape == (90, rank)
        expected = second_moment(x + mean, mean)
        torch.testing.assert_close(moment.factor @ moment.factor.T, expected, rtol=0, atol=1e-11)
        torch.testing.assert_close(moment.diagonal, expected.diagonal(), rtol=0, atol=1e-11)


@pytest.fixture(scope="module")
def model() -> Solver:
    density, x = model_of(8, 2, 20, 5)
    moment = moment_of(x, density.mean, density.noise_variance.min().item())
    return moment_solver(density.loadings, density.noise_variance, moment)


@pytest.mark.parametrize("design", ["independent", "balanced", "nested"])
def test_designs_are_unbiased_and_calibrated(model: Solver, design: Design) -> None:
    masks = AllSizes(per_size=144, design=design)
    estimates = []
    for seed in range(REPEATS):
        drawn = draw_masks(masks, 8, torch.Generator().manual_seed(seed), 2000)
        found = score_sizes([model], drawn, RunState())
        curve = [scores.values[0] for scores in found if scores is not None]
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
def test_the_requested_precision_is_used(precision: str) -> None:
    masks = {"schedule": "all", "design": "exhaustive"}
    found = records(evaluate={"masks": masks}, compute={"threads": 1, "precision": precision})
    assert abs(metrics(found)["difference"][0]) < (1e-11 if precision == "float64" else 1e-4)


def replicates(count: int) -> Estimate:
    return Estimate.of(torch.arange(count, dtype=torch.float64))


def test_errors_are_reported_from_twelve_replicates_on() -> None:
    """In metrics and points alike: seven degrees of freedom, two thirds of those that normal scores
    have, and derived values have as many."""
    few, enough = replicates(11), replicates(12)
    lml = Evidence(1.0, 0.5)
    changes: list[Callable[[Estimate], Estimate]] = [
        lambda one: one,
        lambda one: one.scaled(3),
        lambda one: one.beyond(lml),
        lambda one: one.exponential(),
    ]
    for change in changes:
        for record in (point_of(change(few)), metric_of(change(few))):
            assert record.value is not None
            assert record.std_err is None
            assert record.reason == f"{TOO_FEW}6.67 degrees of freedom, not 7"
        for record in (point_of(change(enough)), metric_of(change(enough))):
            assert record.std_err == change(enough).std_err
            assert record.reason is None
    assert point_of(replicates(1)).reason == ONE_DRAW
    assert metric_of(Estimate(2.0, 0.0, 1)).std_err == 0  # exact
    equal = Estimate.of(torch.full((11,), 2.0, dtype=torch.float64))
    assert (equal.std_err, metric_of(equal).std_err) == (0, None)


def point_of(estimate: Estimate) -> Point:
    return point("score", 1, estimate, {})


def metric_of(estimate: Estimate) -> Metric:
    return metric("mpt", estimate, {})


def test_a_sum_has_the_fewest_degrees_of_freedom_of_its_parts() -> None:
    """Eleven masks of one size leave a sum without an error, even if they are equal; exact parts
    count for nothing."""
    enough, exact = replicates(12), Estimate(1.0, 0.0, 1)
    equal = Estimate.of(torch.zeros(11, dtype=torch.float64))
    assert total_of([enough, enough]).known_std_err == pytest.approx(math.sqrt(2 * 13 / 12))
    assert total_of([enough, exact]).known_std_err == enough.std_err
    assert total_of([enough, replicates(11)]).known_std_err is None
    assert total_of([enough, equal]).known_std_err is None
    assert total_of([enough, replicates(1)]).std_err is None


def test_degrees_of_freedom_of_an_interval_by_hand() -> None:
    """Welch and Satterthwaite's: of variances 1 and 3 with 4 and 6 degrees, 16 / (1/4 + 9/6). A
    score of 1 among 19 of 0 has the kurtosis 1/0.0475 − 3: two of 19 degrees."""
    parts = [Estimate(0.0, 1.0, 9, 9, 4), Estimate(0.0, math.sqrt(3), 9, 9, 6)]
    assert total_of(parts).interval_degrees == pytest.approx(16 / (1 / 4 + 9 / 6))
    assert total_of([Estimate(0.0, 0.0, 9, 9, 4)]).interval_degrees == math.inf
    spike = torch.zeros(20, dtype=torch.float64)
    spike[3] = 1
    assert Estimate.of(spike).interval_degrees == pytest.approx(2 * 19 / (1 / 0.0475 - 4))
    assert replicates(12).interval_degrees == 11  # flat scores count as normal ones


def test_an_interval_is_reported_for_few_degrees_of_freedom() -> None:
    """2.0860 is the quantile of Student's t with 20 degrees by the tables."""
    labels: Labels = {"seed": 1}
    known = Estimate(3.0, 0.5, 20, 20, 20)
    value, half = final_metric("mpt", known, labels)
    assert isinstance(half, Metric)
    assert (value.name, half.name, half.labels) == ("mpt", "mpt_half_interval", labels)
    assert half.value == pytest.approx(2.0860 * 0.5, rel=1e-4)
    assert len(list(final_metric("mpt", Estimate(3.0, 0.5, 20, 20, 60), labels))) == 1
    assert len(list(final_metric("mpt", Estimate(3.0, 0.5, 20, 6, 20), labels))) == 1
    assert len(list(final_metric("mpt", Estimate(3.0, 0.0, 20, 20, 20), labels))) == 1


@pytest.mark.parametrize(("sizes", "per_size"), [(1, 12), (7, 12), (10, 13)])
def test_reported_errors_follow_the_t_distribution(sizes: int, per_size: int) -> None:
    """Normal scores: z has the standard deviation of Student's t with as many degrees of freedom,
    √(ν / (ν − 2)), within four standard errors."""
    generator = torch.Generator().manual_seed(0)
    shape = (seeds := 2000, sizes, per_size)
    scores = torch.randn(shape, generator=generator, dtype=torch.float64)
    totals = [total_of([Estimate.of(size) for size in one]) for one in scores]
    z = torch.tensor([total.mean / (total.known_std_err or math.nan) for total in totals])
    degrees = sizes * (per_size - 1)
    assert totals[0].degrees == pytest.approx(2 / 3 * (per_size - 1))
    spread = math.sqrt(degrees / (degrees - 2))
    assert z.mean().abs() < 4 * spread / math.sqrt(seeds)
    assert (z.std() / spread - 1).abs() < 4 / math.sqrt(2 * seeds) * (1 + 3 / degrees)


def test_convergence_by_hand() -> None:
    """Two sizes, three masks: the sum of the means, and Σ s² / p under the root."""
    values = torch.tensor([[1.0, 3.0, 2.0], [10.0, 14.0, 18.0]], dtype=torch.float64)
    first, second, third = convergence(values, AllSizes(per_size=3))
    assert (first.mean, first.std_err) == (11, None)
    assert (second.mean, second.degrees) == pytest.approx((14, 2 / 3))
    assert second.std_err == pytest.approx(math.sqrt((2 + 8) / 2))
    assert (third.mean, third.degrees) == pytest.approx((16, 4 / 3))
    assert third.std_err == pytest.approx(math.sqrt((1 + 16) / 3))
    nested = convergence(values, AllSizes(per_size=3, design="nested"))
    assert nested[2].std_err == pytest.approx(torch.tensor([11.0, 17, 20]).std().item() / 3**0.5)
    dependent = convergence(values, AllSizes(per_size=4, design="balanced"))
    assert [one.std_err for one in dependent] == [None, None, None]


def test_a_mean_by_hand() -> None:
    """The mean of 1, 2 and 6, and its standard error √(7 / 3)."""
    found = Estimate.of(torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64))
    assert (found.mean, found.n, found.degrees) == pytest.approx((3, 3, 4 / 3))
    assert found.std_err == pytest.approx(math.sqrt(7 / 3))
    nested = torch.tensor([[[1.0, 0, 2], [0, 2, 4]]], dtype=torch.float64)
    total = cumulative_estimate([nested], AllSizes(per_size=3, design="nested"))
    assert (total.mean, total.degrees) == (3, 2 * 2 / (9 - 1))
    assert total.std_err == pytest.approx(math.sqrt(7 / 3))


def test_the_error_of_a_difference_includes_that_of_the_lml() -> None:
    gap = Estimate(5.0, 3.0, 9, 8).beyond(Evidence(2.0, 4.0))
    assert gap == Estimate(3.0, 5.0, 9, 8)
    assert Estimate(5.0, None, 9).beyond(Evidence(2.0, 4.0)).std_err is None


@pytest.mark.parametrize("stop_after", [1, 3, 5])
def test_a_resumed_run_has_the_scores_of_its_masks_by_hand(tmp_path: Path, stop_after: int) -> None:
    """Three masks of each size, in the published order of draws, by the dense density: this detects
    code that is wrong twice in the same way."""
    evaluate = {"masks": {"schedule": "sizes", "sizes": [3, 7, 9], "per_size": 3}}
    spec = spec_of({**BASE, "evaluate": evaluate, "seeds": [5]})
    lines = [*resumable_records(spec, tmp_path, stop_after), *resumable_records(spec, tmp_path)]
    found = {row["x"]: row["value"] for row in map(json.loads, lines) if row["record"] == "point"}
    assert isinstance(spec, LinearGaussianExperiment)
    assert isinstance(spec.data.seed, int)
    dataset = load_arrays(spec.data, 0, torch.Generator().manual_seed(spec.data.seed))
    assert dataset.parameters is not None
    density = LowRankGaussian(**dataset.parameters)
    masks, expected = torch.Generator().manual_seed(5), {}
    for size in (3, 7, 9):
        scores = []
        for _ in range(3):
            masked = torch.zeros(10, dtype=torch.bool)
            masked[torch.randperm(10, generator=masks)[:size]] = True
            scores.append(density.conditional_log_probs(dataset.x, masked).mean().item())
        expected[size] = sum(scores) / 3
    assert found == pytest.approx(expected, abs=1e-9)
