"""Targets: their quantity, whether they are reached, and a check that estimate and error stay
unbiased although the scores determine the plan."""

import itertools
import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from mptcore.estimation.allocation import (
    affordable,
    neyman,
)
from mptcore.families.linear_gaussian.routes import solver_for
from mptcore.families.linear_gaussian.run import CPU, LinearGaussianRun
from mptcore.protocol.records import Log, Metric, Point, Progress, Record
from mptcore.run import run
from mptcore.runtime.session import Session
from mptcore.specs import LinearGaussianExperiment, SpecError, parse_spec
from tests.support.runs import metric, result_of, spec_of, std_err_of, value_of
from tests.support.strata import deviations, sampled, spiked

BASE: dict[str, Any] = {
    "model": {"family": "ppca", "latent_dim": 2, "noise_precision": 5.0, "init": "generator"},
    "data": {"source": "ppca", "n": 40, "dim": 10, "latent_dim": 2, "noise_precision": 5.0},
    "compute": {"threads": 1},
}
WIDE = {**BASE["data"], "dim": 30}
"""With too many masks of most sizes to enumerate them."""
BASELINE = {"family": "ppca", "latent_dim": 1, "noise_precision": 4.0, "init": "random"}


@pytest.fixture(scope="module")
def enumerated() -> list[Tensor]:
    """The scores of all masks of each size, D = 10."""
    spec = spec_of(BASE)
    assert isinstance(spec, LinearGaussianExperiment)
    (seed,) = spec.seeds
    run = LinearGaussianRun(spec, Session(), CPU, torch.float64)
    models = result_of(run.models_of(seed))
    model = solver_for(models.densities["model"], models.dataset.x, CPU)
    pools = []
    for size in range(1, 11):
        subsets = torch.tensor(list(itertools.combinations(range(10), size)))
        masked = torch.zeros(len(subsets), 10, dtype=torch.bool)
        pools.append(model.scores(masked.scatter_(1, subsets, True)))
    return pools


def test_the_plan_does_not_bias_skewed_scores() -> None:
    """Kept scores that choose the counts, or when to stop, push the sum upwards: those of this
    skewness by 0.5 of the error, and by 0.25 where each score has the same weight."""
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(10, 20_000, generator=generator, dtype=torch.float64)
    z = deviations(list(-(0.8 * normal).exp()), 0.5, seeds := 600)
    assert z.mean().abs() < 4 / math.sqrt(seeds)
    assert 0.88 < z.std() < 1.12  # within four standard errors of 1: 1 / sqrt(2 · 600) each


def test_errors_from_few_draws_are_calibrated(enumerated: list[Tensor]) -> None:
    """At a loose target two masks of each size are kept; their error is that of the pilot too."""
    z = deviations(enumerated, 1.0, seeds := 400)
    assert z.mean().abs() < 4 / math.sqrt(seeds)
    assert 0.85 < z.std() < 1.15
    assert z.abs().max() < 5


@pytest.mark.parametrize("target", [0.3, 0.1, 0.05])
def test_targets_are_reached(enumerated: list[Tensor], target: float) -> None:
    found = [sampled(enumerated, target, seed) for seed in range(100)]
    reached = [(one.std_err or math.inf) <= target for one, _ in found]
    assert sum(reached) >= 97
    least = sum(pool.std(correction=0).item() for pool in enumerated) ** 2 / target**2
    masks = sum(masks for _, masks in found) / 100
    assert (
        masks < 260 + 2 * 10 + 1.3 * least
    )  # a pilot of 26, two each, and the minimum of Neyman's plan


@pytest.mark.parametrize(("strata", "share", "target"), [(10, 0.05, 1.0), (1, 0.1, 0.3)])
def test_rare_large_scores_are_found_and_enter_the_error(
    strata: int, share: float, target: float
) -> None:
    """One of 20 masks, or of 10, has a score with a deviation 200 times as large. A pilot of eight
    masks of each size missed it in most sizes and left those sizes two masks each."""
    z = deviations(spiked(strata, share, 20.0), target, seeds := 150)
    assert len(z) > 0.95 * seeds  # few are null: their errors would rest on a score or two
    assert z.mean().abs() < 4 / math.sqrt(seeds)
    assert (z.std() - 1).abs() < 4 / math.sqrt(2 * seeds)


def test_an_error_based_on_few_large_scores_is_null() -> None:
    """Among 258 draws, k are lower by 20, and two are kept. The standard error is about
    20 √(k / 258) / √2 and has 2 k degrees of freedom."""
    found = [sampled(spiked(1, 0.01, 20.0), 100.0, seed)[0] for seed in range(60)]
    met = [258 * ((one.std_err or 0) / 20) ** 2 * 2 for one in found]
    known = [one.known_std_err is not None for one in found]
    assert [k for k, given in zip(met, known, strict=True) if 0.9 < k < 3.2 and given] == []
    assert [k for k, given in zip(met, known, strict=True) if k > 3.8 and not given] == []
    assert {round(k) for k in met} >= {1, 2, 3, 4}


def test_sizes_of_few_masks_are_enumerated(enumerated: list[Tensor]) -> None:
    """The pilot draws 26 of each size, and two at least follow: 28 are all masks of three sizes.
    Only the other sizes are sampled."""
    few = [pool for pool in enumerated if len(pool) <= 28]
    assert [len(pool) for pool in few] == [10, 10, 1]
    truth = sum(pool.mean().item() for pool in few)
    estimate, masks = sampled(few, 100.0, 0, finite=True)
    assert estimate.mean == pytest.approx(truth, abs=1e-12)
    assert estimate.std_err == 0
    assert masks == 21
    assert sampled(few, 100.0, 0)[0].std_err != 0


def test_a_tight_target_enumerates_sizes_with_few_masks(enumerated: list[Tensor]) -> None:
    """Even the tightest target uses at most all masks and the pilot. Enumerating a size because of
    its scores causes no bias, because its remaining weight was still free."""
    truth = sum(pool.mean().item() for pool in enumerated)
    estimate, masks = sampled(enumerated, 1e-3, 0, finite=True)
    assert estimate.mean == pytest.approx(truth, abs=1e-12)
    assert estimate.std_err == 0
    assert masks == 2**10 - 1 + 26 * 7
    z = deviations(enumerated, 0.1, seeds := 200, finite=True)
    assert z.mean().abs() < 4 / math.sqrt(seeds)
    assert (z.std() - 1).abs() < 4 / math.sqrt(2 * seeds)


def test_neyman_allocation_has_the_least_cost_for_a_variance() -> None:
    deviation = torch.tensor([0.1, 1.0, 5.0], dtype=torch.float64)
    counts = neyman(deviation, 0.01)
    assert ((deviation**2 / counts).sum()).item() <= 0.01
    assert counts[2] / counts[1] == pytest.approx(5, rel=0.01)
    equal = (deviation.square().sum() / 0.01).item() * 3
    assert counts.sum().item() < equal


def test_a_plan_is_cut_to_the_budget() -> None:
    counts, least = torch.tensor([2, 50, 1000]), torch.tensor([2, 2, 1])
    cut = affordable(counts, least, 100)
    assert int(cut.sum()) <= 100
    assert (cut >= least).all()
    assert cut[2] > 10 * cut[1]
    assert affordable(counts, least, 5).tolist() == [2, 2, 1]


def records(**changes: Any) -> list[Record]:
    return list(run(parse_spec(json.dumps({**BASE, **changes}).encode())))


def test_a_reached_target_is_recorded_with_its_mask_count() -> None:
    found = records(evaluate={"target_std_err": 0.05})
    assert std_err_of(metric(found, "mpt")) <= 0.05
    assert metric(found, "target_reached").value == 1
    used = sum(r.n for r in found if isinstance(r, Point) and r.series == "score")
    of_pilot = 10 + 26 * 7  # the single dimensions, and sizes that are not enumerated
    assert metric(found, "masks").value == used + of_pilot
    assert abs(value_of(metric(found, "difference"))) < 4 * 0.05
    assert not [r for r in found if isinstance(r, Log) and r.level == "warning"]


def test_an_unreachable_target_is_recorded_as_not_reached() -> None:
    found = records(evaluate={"target_std_err": 1e-6, "max_masks": 150})
    (warning,) = [r for r in found if isinstance(r, Log) and r.level == "warning"]
    assert "was not reached" in warning.message
    assert metric(found, "target_reached").value == 0
    assert value_of(metric(found, "masks")) <= 150


def test_the_target_of_one_size_applies_to_d_times_its_score() -> None:
    masks = {"schedule": "fixed", "size": 20}
    found = records(data=WIDE, evaluate={"masks": masks, "target_std_err": 0.2})
    assert 0.1 < std_err_of(metric(found, "biased_score")) <= 0.2
    (point,) = [r for r in found if isinstance(r, Point) and r.series == "score"]
    assert point.std_err == pytest.approx(std_err_of(metric(found, "biased_score")) / 30)


def test_the_target_of_listed_sizes_applies_to_their_sum() -> None:
    masks = {"schedule": "sizes", "sizes": [10, 27]}
    found = records(data=WIDE, evaluate={"masks": masks, "target_std_err": 0.02})
    total = metric(found, "score_sum")
    points = [r for r in found if isinstance(r, Point) and r.series == "score"]
    assert value_of(total) == pytest.approx(sum(value_of(one) for one in points))
    assert 0.01 < std_err_of(total) <= 0.02


@pytest.mark.parametrize("schedule", [{"schedule": "all"}, {"schedule": "fixed", "size": 20}])
def test_a_target_of_the_difference(schedule: dict[str, Any]) -> None:
    """The masks go where the models differ, not where the scores vary."""
    evaluate = {"masks": schedule, "target_std_err": 1.0, "target": "difference"}
    found = records(data=WIDE, baseline=BASELINE, evaluate=evaluate)
    assert 0.5 < std_err_of(metric(found, "score_difference")) <= 1
    assert metric(found, "target_reached").value == 1
    name = "mpt" if schedule["schedule"] == "all" else "biased_score"
    own, other = (value_of(metric(found, name, model=which)) for which in ("model", "baseline"))
    assert value_of(metric(found, "score_difference")) == pytest.approx(own - other)


@pytest.mark.parametrize(
    ("evaluate", "problem"),
    [
        ({"target_std_err": 0.1, "target": "difference"}, "give one, or use score"),
        ({"target": "difference"}, "only used with target_std_err: leave it score"),
        ({"target_std_err": 0.1, "target": "area"}, "score"),
    ],
)
def test_a_target_without_its_quantity_is_refused(evaluate: dict[str, Any], problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        records(evaluate=evaluate)
    (one,) = caught.value.problems
    assert one.pointer == "/evaluate/target"
    assert problem in one.detail


def test_progress_counts_towards_the_plan() -> None:
    evaluate = {"target_std_err": 0.1, "max_masks": 10_000}
    found = records(data=WIDE, evaluate=evaluate, seeds=[4, 44, 444])
    progress = [one for one in found if isinstance(one, Progress)]
    spent = [one for one in found if isinstance(one, Metric) and one.name == "masks"]
    masks = sum(map(value_of, spent))
    assert (progress[-1].done, progress[-1].total) == (masks, masks)
    planned = [one.total for one in progress if one.done > 300]  # the pilot is over
    assert len(planned) > 10
    assert all(0.5 * masks < total < 2 * masks for total in planned)
    assert [one.done for one in progress] == sorted(one.done for one in progress)
