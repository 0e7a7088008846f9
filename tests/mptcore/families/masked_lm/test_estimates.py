"""Estimates of language models by hand, and the names of their records."""

import math
from collections.abc import Iterable
from dataclasses import astuple, replace
from statistics import stdev

import pytest
import torch

from mptcore.estimation.estimate import Estimate
from mptcore.families.masked_lm.estimates import (
    Area,
    Noise,
    RateScores,
    Report,
    Variance,
    cell_widths,
    degrees_of_spread,
    finite_mean,
    mean_so_far,
    per_token,
    population_mean,
    root,
    variance_of_one_mask,
    variance_of_variances,
)
from mptcore.protocol.records import Labels, Metric, Record
from mptcore.specs import MaskedLmEvaluate


def scores(sums: list[list[float]], weights: list[list[float]], rate: float = 0.5) -> RateScores:
    """Scores of a model, and of a model whose log probabilities are three times as low."""
    own = torch.tensor(sums, dtype=torch.float64)
    return RateScores(rate, torch.stack([own, 3 * own]), torch.tensor(weights).double())


TWO = scores([[-2.0, -6.0], [0.0, -2.0]], [[1, 2], [0, 2]])
"""Five tokens with the mean −2, from which the masks are off by 0 and −2, and by 0 and 2."""
ONE = scores([[-1.0, -7.0]], [[1, 3]])
"""Four tokens with the mean −2, from which the sequences are off by 1 and −1."""


def test_the_mean_over_masked_tokens() -> None:
    assert (TWO.total, TWO.n) == (5, 3)
    assert TWO.means().tolist() == [-2, -6]
    assert TWO.residuals().tolist() == [[0, 0], [0, 0]]
    assert ONE.residuals().tolist() == [[0.25, -0.25], [0.75, -0.75]]


def test_the_variance_over_masks_of_a_sequence() -> None:
    """The variance of −2 and 2 is 8, so two masks in five tokens give 2 · 8 / 25. Sequences of 1
    and 4 tokens count as 25 / 17, with two thirds of a degree of freedom each."""
    found = TWO.variance([ONE])
    assert found is not None
    assert found.value.tolist() == pytest.approx([16 / 25, 9 * 16 / 25])
    assert found.degrees == pytest.approx(2 / 3 * 25 / 17)
    three = scores([[-1.0], [-2.0], [-6.0]], [[1], [1], [1]]).variance([])
    assert three is not None
    assert three.value[0].item() == pytest.approx(3 * 7 / 9)
    assert three.degrees == pytest.approx(4 / 3)


def test_masks_that_hide_all_tokens_are_no_replicates() -> None:
    """With equal lengths a chance of 0.2 counts as a fifth of a sequence. A text whose masks cannot
    vary does not count, and its error of 0 is exact."""
    four = scores([[-2.0] * 4] * 2, [[1] * 4] * 2)
    chance = torch.tensor([0.2, 0.2, 0.2, 0.0], dtype=torch.float64)
    rare, never = replace(four, visible=chance), replace(four, visible=0 * chance)
    assert four.sequences == 4
    assert rare.sequences == pytest.approx(0.6)
    for one, degrees in ((rare, 2 / 3 * 0.6), (never, math.inf)):
        found = one.variance([])
        assert found is not None
        assert found.degrees == pytest.approx(degrees)
        assert found.estimate(-2.0, 8, 0).known_std_err == (0 if one is never else None)
        alone = variance_of_one_mask(replace(one, weights=one.weights[:1]), [one])
        assert alone is not None
        assert alone.degrees == (0 if one is rare else math.inf)


def test_the_variance_of_one_mask_is_that_of_its_neighbours() -> None:
    """Squares of differences, (1 / 4)² twice, in the share that the tokens give: with half as many
    at the other rate, a third. The mean over both neighbours."""
    flat = scores([[-3.0, -3.0]], [[1, 1]])
    turned = scores([[-7.0, -1.0]], [[3, 1]])
    one = ONE.variance([flat])
    assert one is not None
    assert one.value.tolist() == pytest.approx([2 / 16 / 3 * 2, 9 * 2 / 16 / 3 * 2])
    assert one.degrees == pytest.approx(2 / 3 * (16 / 10 - 1))
    both = variance_of_one_mask(ONE, [flat, turned])
    assert both is not None
    assert both.value[0].item() == pytest.approx((1 / 24 + 2 / 4 / 2) / 2 * 2)
    assert ONE.variance([]) is None
    alone = scores([[-3.0]], [[1]])
    assert variance_of_one_mask(alone, [alone]) is None
    three = scores([[-1.0, -2.0, -6.0]], [[1, 1, 1]])
    level = scores([[-1.0, -1.0, -1.0]], [[1, 1, 1]])
    found = three.variance([level])
    assert found is not None
    assert found.value[0].item() == pytest.approx((4 + 1 + 9) / 9 / 2 * 3 / 2)
    assert found.degrees == pytest.approx(4 / 3)
    assert three.variance([replace(level, rate=0.551)]) is None  # 0.5 and 0.551 are far apart
    assert three.variance([replace(level, rate=0.55)]) is not None
    assert three.variance([level, replace(level, rate=0.4)]) is None


def test_the_mean_so_far_counts_each_sequence_once() -> None:
    """Three masks of two sequences: the third is of the first again."""
    sums = torch.tensor([[-2.0, -3.0, -4.0]], dtype=torch.float64)
    weights = torch.tensor([1.0, 2.0, 1.0], dtype=torch.float64)
    (found,) = mean_so_far(sums, weights, 2)
    assert astuple(found)[:4] == pytest.approx((-9 / 4, math.sqrt(2 * 1.5**2 * 2 / 16), 3, 1))
    (early,) = mean_so_far(sums[:, :2], weights[:2], 9)
    assert astuple(early)[:4] == pytest.approx((-5 / 3, math.sqrt(2 * (1 / 3) ** 2 * 2 / 9), 2, 1))
    (three,) = mean_so_far(torch.tensor([[-1.0, -2.0, -6.0]]).double(), torch.ones(3).double(), 3)
    assert astuple(three)[:4] == pytest.approx((-3, math.sqrt((4 + 1 + 9) * 3 / 2 / 9), 3, 2))
    own, other = mean_so_far(torch.cat([sums, 3 * sums]), torch.tensor([1.0, 0.0, 1.0]).double(), 2)
    assert (own.n, other.n) == (2, 2)
    assert other.mean == pytest.approx(3 * own.mean)
    assert other.std_err == pytest.approx(3 * (own.std_err or 0))
    (first,) = mean_so_far(sums[:, :1], weights[:1], 2)
    assert first == Estimate(-2.0, None, 1)


def test_an_area_adds_up_its_rates() -> None:
    """Widths 0.2 and 0.5; residuals of a sequence add up over the rates."""
    area = Area(2, 2)
    area.add(ONE, Variance(torch.tensor([0.25, 1.0]).double(), 3), 0.2)
    area.add(TWO, Variance(torch.tensor([4.0, 9.0]).double(), 4), 0.5)
    area.add(ONE, Variance(torch.zeros(2).double(), 5), 0.4)
    own, other = area.estimate(0), area.estimate(1)
    assert astuple(own)[:4] == pytest.approx((-2.2, math.sqrt(0.25 * 0.04 + 4 * 0.25), 7, 12))
    assert astuple(other)[:4] == pytest.approx((-6.6, math.sqrt(1 * 0.04 + 9 * 0.25), 7, 12))
    spread = math.sqrt(2 * (0.6 * 0.25) ** 2 * 2)
    assert astuple(area.population(0))[:4] == pytest.approx((-2.2, spread, 7, 1))
    assert area.population(1).std_err == pytest.approx(3 * spread)


def test_rates_whose_masks_cannot_vary_add_no_degrees_to_an_area() -> None:
    area = Area(2, 2)
    area.add(ONE, Variance(torch.zeros(2).double(), math.inf), 0.5)
    assert area.estimate(0).known_std_err == 0
    area.add(TWO, Variance(torch.tensor([0.25, 1.0]).double(), 3), 0.5)
    assert area.estimate(0).degrees == 3


def test_an_area_with_a_rate_of_unknown_error_has_none() -> None:
    area = Area(2, 2)
    area.add(TWO, TWO.variance([]), 0.5)
    area.add(ONE, None, 0.5)
    assert astuple(area.estimate(0))[:4] == (-2, None, 5, math.inf)
    assert area.population(0).std_err is not None
    alone = Area(2, 1)
    alone.add(scores([[-3.0]], [[1]]), None, 1.0)
    assert alone.population(0) == Estimate(-3.0, None, 1)


def test_a_rate_covers_the_axis_halfway_to_its_neighbours() -> None:
    assert cell_widths([0.3]) == [1]
    assert cell_widths([0.1, 0.2, 0.4]) == pytest.approx([0.1, 0.15, 0.2])
    assert cell_widths([0.01, 0.9]) == pytest.approx([0.455, 0.545])


def test_each_rate_of_the_paper_covers_a_hundredth() -> None:
    spec = MaskedLmEvaluate()
    assert len(spec.masks.rates) == 99
    assert cell_widths(spec.masks.rates) == pytest.approx([0.01] * 99)
    assert sum(cell_widths([0.01, 0.15, 0.5])) == pytest.approx(0.675)


VALUES = torch.tensor([1.0, 3.0], dtype=torch.float64)
NOISE = Noise(torch.tensor([0.5, 1.5], dtype=torch.float64), 3)


def test_the_mean_of_a_part_and_of_all() -> None:
    assert finite_mean(VALUES, None, 2) == Estimate(2.0, None, 2)
    assert astuple(finite_mean(VALUES, NOISE, 8))[:4] == pytest.approx(
        (2, math.sqrt((0.75 * 2 + 0.25 * 1) / 2), 2, 1)
    )
    assert finite_mean(VALUES, NOISE, 2) == Estimate(2.0, math.sqrt(0.5), 2, 6)
    alone = Noise(NOISE.variances[:1], 3)
    assert finite_mean(VALUES[:1], alone, 1) == Estimate(1.0, math.sqrt(0.5), 1, 3)
    assert finite_mean(VALUES[:1], alone, 2) == Estimate(1.0, None, 1)


def test_the_population_error_has_the_covariances_of_shared_masks() -> None:
    """Scores are off by the error of their shared masks, 0.9, and by errors of their own, 0.3. In
    one group the mean of 20 texts is then off by more than its deviations show."""
    texts, generator = 20, torch.Generator().manual_seed(3)
    z, naive = [], []
    for _ in range(400):
        normal = torch.randn(3, texts, generator=generator, dtype=torch.float64)
        values = 2 * normal[0] + 0.3 * normal[1] + 0.9 * normal[2, 0]
        std_err = torch.full_like(values, math.hypot(0.3, 0.9))
        variances = torch.full_like(values, 0.3**2 + texts * 0.9**2)
        found = population_mean(values, std_err, variances)
        assert found.std_err is not None
        z.append(found.mean / found.std_err)
        alone = population_mean(values, std_err, std_err.square())
        assert alone == Estimate.of(values)
        naive.append(found.mean / (alone.std_err or 0.0))
    assert 0.85 < stdev(z) < 1.15
    assert stdev(naive) > 2


def test_a_ratio_per_token() -> None:
    """1 and 3 over one token and three, and then over two and three: the residuals are ∓0.6."""
    found = per_token(VALUES, NOISE, torch.tensor([2, 3]), 4)
    error = math.sqrt((0.5 * 0.72 / 1 + 0.5 * 1) / 2) / 2.5
    assert astuple(found)[:4] == pytest.approx((4 / 5, error, 2, 1))
    assert per_token(VALUES, None, torch.tensor([2, 3]), 4).std_err is None


def test_the_variance_of_a_variance_by_the_jackknife() -> None:
    """Leave each of 0, 0, 0 and 4 out: the variances are 16 / 3 three times, and 0. Of twice the
    values it is sixteen times as large."""
    values = torch.tensor([[0.0, 0.0]] * 3 + [[4.0, 8.0]], dtype=torch.float64)
    found = variance_of_variances(values)
    assert found is not None
    left_out = torch.tensor([16 / 3, 16 / 3, 16 / 3, 0.0])
    jackknife = 3 / 4 * (left_out - left_out.mean()).square().sum().item()
    assert found.tolist() == pytest.approx([jackknife * 2 / 3, 16 * jackknife * 2 / 3])
    assert variance_of_variances(values[1:]) is None


def test_the_degrees_of_a_spread() -> None:
    """One for two sequences; of all of few sequences, one for four orders above three."""
    assert degrees_of_spread(5, 7, True) == 2
    assert degrees_of_spread(2, 11, True) == 2
    assert degrees_of_spread(2, 11, False) == 0.5


def test_the_root_of_an_estimate() -> None:
    assert root(Estimate(4.0, 0.8, 7, 5)) == Estimate(2.0, 0.2, 7, 5)
    assert root(Estimate(0.0, 0.1, 7, 5)) == Estimate(0.0, 0.1, 7, 5)
    assert root(Estimate(9.0, None, 7)) == Estimate(3.0, None, 7)


SEED: Labels = {"seed": 4}
OWN: Labels = {"seed": 4, "model": "model"}
OTHER: Labels = {"seed": 4, "model": "baseline"}
BOTH, ALONE = Report(("model", "baseline"), SEED), Report(("model",), SEED)
SCORE = Estimate(-3.0, 0.1, 5)


def metrics(records: Iterable[Record]) -> list[Metric]:
    return [one for one in records if isinstance(one, Metric)]


def test_two_models_have_a_difference_and_labels() -> None:
    assert BOTH.model_names == ["model", "baseline", "difference"]
    assert [BOTH.labels_of(name) for name in BOTH.model_names] == [OWN, OTHER, SEED]
    assert (ALONE.model_names, ALONE.labels_of("model")) == (["model"], SEED)


def test_a_score_is_a_point_of_its_series() -> None:
    own, other, difference = (BOTH.point(name, 0.15, SCORE) for name in BOTH.model_names)
    assert (own.series, own.labels) == ("score_by_rate", OWN)
    assert (other.series, other.labels) == ("score_by_rate", OTHER)
    assert (difference.series, difference.labels) == ("score_difference", SEED)
    assert (own.x, own.value, own.std_err, own.n, own.reason) == (0.15, -3, 0.1, 5, None)


def test_interim_scores_are_points_of_each_model_at_a_rate() -> None:
    first, second = BOTH.interim_points(0.15, 700, [SCORE, SCORE.scaled(2), SCORE])
    assert (first.series, first.x, first.value) == ("score_by_rate_interim", 700, -3)
    assert (first.labels, second.labels) == ({**OWN, "rate": 0.15}, {**OTHER, "rate": 0.15})
    assert second.value == -6


def test_the_name_of_a_metric_says_what_it_measures() -> None:
    unknown = Estimate(1.0, None, 1)
    assert BOTH.metric("pll", "baseline", SCORE, "_x") == Metric("pll_x", -3.0, 0.1, OTHER)
    assert BOTH.metric("pll", "difference", SCORE, "_x") == Metric(
        "pll_difference_x", -3.0, 0.1, SEED
    )
    assert BOTH.metric("pll", "model", unknown, reason="why").reason == "why"
    told = BOTH.metric("pll", "model", unknown).reason
    assert told == "one draw gives no standard error"


def test_an_area_is_recorded_for_all_tokens_and_per_token() -> None:
    """Over rates of a width of one half."""
    population = Estimate(-3.0, None, 5)
    found = metrics(BOTH.area("model", SCORE, 0.5, 512, population))
    width, area, spread, bits, perplexity = found
    assert width == Metric("area_width", 0.5, 0.0, SEED)
    assert area == Metric("area", -3.0 * 512, 0.1 * 512, OWN)
    why = "sequences were sampled, or there is one"
    assert spread == Metric("area_population", -3.0 * 512, None, OWN, why)
    of_area: Labels = {**OWN, "of": "area"}
    assert (bits.name, bits.labels) == ("bits_per_token", of_area)
    assert (bits.value, bits.std_err) == pytest.approx((6 / math.log(2), 0.2 / math.log(2)))
    assert (perplexity.name, perplexity.labels) == ("perplexity", of_area)
    assert (perplexity.value, perplexity.std_err) == pytest.approx((math.exp(6), 0.2 * math.exp(6)))


def test_the_width_is_recorded_once_and_a_difference_has_no_perplexity() -> None:
    names = {
        model: [one.name for one in metrics(BOTH.area(model, SCORE, 0.5, 512, SCORE))]
        for model in BOTH.model_names
    }
    own = ["area", "area_population", "bits_per_token", "perplexity"]
    assert names == {
        "model": ["area_width", *own],
        "baseline": own,
        "difference": ["area_difference", "area_difference_population"],
    }
