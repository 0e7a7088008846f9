"""Curves, targets and whole sequences: each standard error is as large as the spread over seeds."""

import math
from collections.abc import Iterable, Iterator
from statistics import NormalDist, fmean, variance
from typing import Any

import pytest
import torch

from benchmarks.calibration.any_order import Toy
from mptcore.families.masked_lm.curve import CorpusEvaluation, total_masks
from mptcore.families.masked_lm.estimates import Report, cell_widths
from mptcore.families.masked_lm.masks import MaskedBatch, Masker
from mptcore.families.masked_lm.network import MaskedLm, ScoredBatch
from mptcore.families.masked_lm.sequences import Pass, Score, SequenceMetrics
from mptcore.protocol.records import Log, Point, Record
from mptcore.runtime.state import RunState
from mptcore.specs import MaskedLmEvaluate
from mptcore.specs.families.masked_lm import CUMULATIVE_STRATA
from tests.support import tiny_lm
from tests.support.runs import metric, records_of, result_of, std_err_of, value_of
from tests.support.strata import deviations
from tests.support.texts import CPU, corpus_of

RATES = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
SEEDS = 40


@pytest.fixture(scope="module")
def models() -> dict[str, MaskedLm]:
    return {
        "model": MaskedLm(tiny_lm.network(scale=8.0), CPU, torch.float32),
        "baseline": MaskedLm(tiny_lm.network("roberta", scale=8.0), CPU, torch.float32),
    }


def evaluated(
    models: dict[str, MaskedLm], seed: int, *, sequences: int = 12, **spec: Any
) -> list[Record]:
    masker = Masker(corpus_of(tiny_lm.lines(sequences)), 4, 15)
    asked = MaskedLmEvaluate.model_validate({"dimensions": 10, **spec})
    state = RunState()
    evaluation = CorpusEvaluation(asked, models, masker, {"seed": seed}, state)
    records = records_of(evaluation.records(torch.Generator().manual_seed(seed)))
    assert state.masks <= total_masks(asked, masker.corpus)
    return records


def check_calibration(values: list[float], errors: list[float | None]) -> None:
    """The variance of the values over that of their standard errors is within the 99 % interval for
    this number of normal values: for 40, variances are off by less than a factor of 2."""
    known = [error for error in errors if error is not None]
    assert len(known) == len(values)
    degrees = len(values) - 1
    ratio = variance(values) / fmean(error**2 for error in known)
    assert chi_square(0.005, degrees) < ratio * degrees < chi_square(0.995, degrees)


def chi_square(probability: float, degrees: int) -> float:
    """The quantile, by the cube of a normal one (Wilson and Hilferty 1931)."""
    spread = 2 / (9 * degrees)
    return degrees * (1 - spread + NormalDist().inv_cdf(probability) * math.sqrt(spread)) ** 3


@pytest.mark.parametrize("factor", [0.76, 1.96])
def test_the_calibration_check_detects_wrong_errors(factor: float) -> None:
    """The deviation is the largest that passed with 60 seeds when the bounds were about 0 and 2."""
    draws = torch.randn(SEEDS, generator=torch.Generator().manual_seed(2)).double()
    values = (draws / draws.std()).tolist()
    check_calibration(values, [1.0] * SEEDS)
    with pytest.raises(AssertionError):
        check_calibration(values, [factor] * SEEDS)


@pytest.mark.parametrize("per_size", [1, 3])
def test_the_area_s_error_is_its_spread(models: dict[str, MaskedLm], per_size: int) -> None:
    rates = RATES if per_size > 1 else [percent / 100 for percent in range(5, 100, 5)]
    masks = {"schedule": "rates", "rates": rates, "per_size": per_size}
    runs = [evaluated(models, seed, masks=masks, sequences=16) for seed in range(SEEDS)]
    for name, labels in (("area", {"model": "model"}), ("area_difference", {})):
        found = [metric(run, name, **labels) for run in runs]
        check_calibration([value_of(f) for f in found], [f.std_err for f in found])
    points = [
        p
        for run in runs
        for p in run
        if isinstance(p, Point) and p.x == 0.1 and p.labels.get("model") == "baseline"
    ]
    check_calibration([value_of(p) for p in points], [p.std_err for p in points])


def test_a_target_is_reached_and_its_error_is_its_spread(models: dict[str, MaskedLm]) -> None:
    own = {"model": models["model"]}
    masks = {"schedule": "rates", "rates": RATES}
    whole = evaluated(own, 1, masks={**masks, "per_size": 200})
    runs = [evaluated(own, s, masks=masks, target_std_err=0.25) for s in range(SEEDS)]
    found = [metric(run, "area") for run in runs]
    reached = [value_of(metric(run, "target_reached")) for run in runs]
    assert reached == [float(0 < std_err_of(f) <= 0.25) for f in found]
    assert sum(reached) >= 0.95 * SEEDS
    check_calibration([value_of(f) for f in found], [f.std_err for f in found])
    truth = metric(whole, "area")
    mean_error = 0.25 / math.sqrt(SEEDS)
    gap = fmean(value_of(f) for f in found) - value_of(truth)
    assert abs(gap) < 4 * math.hypot(mean_error, std_err_of(truth))


def test_a_loose_target_has_a_calibrated_error(models: dict[str, MaskedLm]) -> None:
    """Two draws at each rate are kept; their error is that of the pilot too."""
    spec = MaskedLmEvaluate.model_validate({"masks": {"rates": RATES}, "target_std_err": 5})
    masker = Masker(corpus_of(tiny_lm.lines(12)), 4, 15)
    evaluation = CorpusEvaluation(spec, {"model": models["model"]}, masker, {}, RunState())
    draw = evaluation._draw(torch.Generator().manual_seed(5), evaluation._at_rates)
    none = torch.zeros(len(RATES), dtype=torch.bool)
    values = result_of(draw(torch.full((len(RATES),), 2000), none))
    strata = values[0].view(len(RATES), -1)
    pools = [width * one for width, one in zip(cell_widths(RATES), strata, strict=True)]
    z = deviations(pools, 0.1, seeds := 600)
    assert z.mean().abs() < 4 / math.sqrt(seeds)
    assert (z.std() - 1).abs() < 4 / math.sqrt(2 * seeds)
    assert z.abs().max() < 5


def test_a_target_of_the_difference(models: dict[str, MaskedLm]) -> None:
    masks = {"schedule": "rates", "rates": RATES}
    spec: dict[str, Any] = {"masks": masks, "target_std_err": 0.5, "target": "difference"}
    records = evaluated(models, 4, **spec)
    assert 0.25 < std_err_of(metric(records, "area_difference")) <= 0.5
    assert metric(records, "target_reached").value == 1
    own = evaluated(models, 4, masks=masks, target_std_err=0.5)
    assert value_of(metric(own, "masks")) != value_of(metric(records, "masks"))


def test_a_target_of_the_cumulative_score(models: dict[str, MaskedLm]) -> None:
    masks = {"schedule": "rates", "rates": [0.5]}
    own = {"model": models["model"]}
    orders = metric(evaluated(own, 0, masks=masks, orders=30), "cumulative")
    spec: dict[str, Any] = {"masks": masks, "target_std_err": 0.5, "target": "cumulative"}
    runs = [evaluated(own, seed, **spec) for seed in range(SEEDS)]
    found = [metric(run, "cumulative") for run in runs]
    assert all(0.25 < std_err_of(one) <= 0.5 for one in found)
    check_calibration([value_of(one) for one in found], [one.std_err for one in found])
    gap = fmean(value_of(one) for one in found) - value_of(orders)
    assert abs(gap) < 4 * math.hypot(0.5 / math.sqrt(SEEDS), std_err_of(orders))
    bits = metric(runs[0], "bits_per_token", of="cumulative")
    tokens = corpus_of(tiny_lm.lines(12)).sizes.double().mean().item()
    assert value_of(bits) == pytest.approx(-value_of(found[0]) / tokens / math.log(2))
    assert not [record for record in runs[0] if isinstance(record, Point)]


def test_all_strata_together_have_uniform_sizes(models: dict[str, MaskedLm]) -> None:
    """The sizes are from 1 to D, as the sum over sizes requires."""
    spec = MaskedLmEvaluate.model_validate({"target_std_err": 1, "target": "cumulative"})
    masker = Masker(corpus_of(tiny_lm.lines(12)), 4, 15)
    evaluation = CorpusEvaluation(spec, {"model": models["model"]}, masker, {}, RunState())
    places = torch.arange(CUMULATIVE_STRATA).repeat_interleave(500)
    generator = torch.Generator().manual_seed(0)
    for sequence in range(3):
        chosen = torch.full((len(places),), sequence)
        masks, weights = evaluation._of_sizes(places, chosen, generator)
        counts = masks.counts.bincount()[1:]
        size = int(masker.corpus.sizes[sequence])
        expected = len(places) / size
        assert len(counts) == size
        assert ((counts - expected).abs() < 4 * math.sqrt(expected)).all()
        assert (weights == 1).all()


def test_an_unreachable_target_is_recorded(models: dict[str, MaskedLm]) -> None:
    masks = {"schedule": "rates", "rates": RATES}
    own = {"model": models["model"]}
    records = evaluated(own, 1, masks=masks, target_std_err=1e-6, max_masks=200)
    assert metric(records, "masks").value == pytest.approx(200, abs=20)
    (warning,) = (r for r in records if isinstance(r, Log))
    assert "raise max_masks" in warning.message


def test_orders_estimate_the_cumulative_score(models: dict[str, MaskedLm]) -> None:
    own = {"model": models["model"]}
    masks = {"schedule": "rates", "rates": [0.5]}
    seeds = range(120, 120 + SEEDS)
    runs = [evaluated(own, s, masks=masks, orders=2, sequences=9) for s in seeds]
    found = [metric(run, "cumulative") for run in runs]
    check_calibration([value_of(f) for f in found], [f.std_err for f in found])
    some = [evaluated(own, s, masks=masks, orders=1) for s in range(2)]
    assert metric(some[0], "cumulative").std_err is None
    many = evaluated(own, 0, masks=masks, orders=40)
    spread = metric(many, "any_order_spread")
    assert value_of(spread) > 3 * std_err_of(spread) > 0


def test_pll_of_the_whole_text_is_exact_and_of_a_part_has_an_error(
    models: dict[str, MaskedLm],
) -> None:
    own = {"model": models["model"]}
    masks = {"schedule": "rates", "rates": [0.5]}
    whole = metric(evaluated(own, 0, masks=masks, pll=True, sequences=40), "pll")
    assert whole.std_err == 0
    spec = MaskedLmEvaluate.model_validate({"masks": masks, "pll": True, "sequences": 10})
    masker = Masker(corpus_of(tiny_lm.lines(40)), 4, 15)
    found = []
    for seed in range(SEEDS):
        evaluation = CorpusEvaluation(spec, own, masker, {}, RunState())
        generator = torch.Generator().manual_seed(seed)
        found.append(metric(records_of(evaluation.records(generator)), "pll"))
    check_calibration([value_of(f) for f in found], [f.std_err for f in found])
    gap = fmean(value_of(f) for f in found) - value_of(whole)
    assert abs(gap) < 4 * math.sqrt(variance([value_of(f) for f in found]) / SEEDS)


def test_bits_and_perplexity_follow_from_the_score(models: dict[str, MaskedLm]) -> None:
    own = {"model": models["model"]}
    records = evaluated(own, 0, masks={"schedule": "rates", "rates": RATES}, pll=True)
    area = value_of(metric(records, "area"))
    bits = value_of(metric(records, "bits_per_token", of="area"))
    assert bits == pytest.approx(-area / 10 / sum(cell_widths(RATES)) / math.log(2))
    perplexity = metric(records, "perplexity", of="area").value
    assert perplexity == pytest.approx(2**bits)


def test_one_rate_with_one_mask_has_no_error(models: dict[str, MaskedLm]) -> None:
    masks = {"schedule": "rates", "rates": [0.5]}
    records = evaluated({"model": models["model"]}, 0, masks=masks)
    (point,) = (r for r in records if isinstance(r, Point))
    assert point.std_err is None
    assert point.reason is not None
    assert metric(records, "area_population").std_err is not None


def noted(toy: Toy, seen: list[ScoredBatch[list[Pass]]]) -> Score:
    """Return the toy's score function, which also appends what it has scored to `seen`."""

    def score(
        batches: Iterable[tuple[MaskedBatch, list[Pass]]],
    ) -> Iterator[ScoredBatch[list[Pass]] | None]:
        for one in toy.score(batches):
            if isinstance(one, ScoredBatch):
                seen.append(one)
            yield one

    return score


def test_each_sequence_has_its_own_orders() -> None:
    """Along an order the first mask hides all, and each next one token less. Over many orders
    each token is as often as the others the first to be seen."""
    toy, seen = Toy.of(4), list[ScoredBatch[list[Pass]]]()
    chosen, count = torch.tensor([2, 0]), 300
    metrics = SequenceMetrics(Report(("model",), {}), toy.masker, chosen, noted(toy, seen))
    records_of(metrics.orders(count, torch.Generator().manual_seed(0)))
    scored = [one.masks for one in seen]
    sizes = {int(i): int(toy.corpus.sizes[i]) for i in chosen}
    sequences = torch.cat([masks.sequences for masks in scored])
    assert sequences.tolist() == [i for i, size in sizes.items() for _ in range(size * count)]
    for i, size in sizes.items():
        firsts = [
            int(masks.positions[int(masks.counts[:b].sum())])
            for masks in scored
            for b in range(len(masks))
            if int(masks.sequences[b]) == i and int(masks.counts[b]) == size
        ]
        shares = torch.bincount(torch.tensor(firsts))[1:] / count
        assert shares.tolist() == pytest.approx([1 / size] * size, abs=0.1)


def test_the_errors_of_orders_by_hand() -> None:
    """Four sequences, three orders each: the variance of a mean over orders is a third, and a
    quarter of that of a mean over the sequences; the spread is the root of the mean variance, per
    token that of chains over their tokens."""
    toy, seen = Toy.of(4), list[ScoredBatch[list[Pass]]]()
    metrics = SequenceMetrics(Report(("model",), {}), toy.masker, torch.arange(4), noted(toy, seen))
    found = records_of(metrics.orders(3, torch.Generator().manual_seed(0)))
    lengths = toy.corpus.sizes.repeat_interleave(3).tolist()
    sums = [
        part.sum(1)
        for part in torch.split(torch.cat([one.values for one in seen], 2)[0], lengths, 1)
    ]
    scores, chains = torch.stack(sums).view(4, 3, 2).unbind(2)  # (sequences, orders)
    cumulative = metric(found, "cumulative")
    assert value_of(cumulative) == pytest.approx(scores.mean().item())
    expected = math.sqrt(sum(row.var().item() / 3 for row in scores)) / 4
    assert std_err_of(cumulative) == pytest.approx(expected)
    spread = metric(found, "any_order_spread")
    assert value_of(spread) == pytest.approx(math.sqrt(chains.var(1).mean().item()))
    quotients = chains / toy.corpus.sizes[:, None]
    token = metric(found, "any_order_spread_per_token")
    assert value_of(token) == pytest.approx(math.sqrt(quotients.var(1).mean().item()))
