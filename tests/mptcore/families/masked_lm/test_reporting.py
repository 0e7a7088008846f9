"""Names of the records of a language model's evaluation."""

import math
from collections.abc import Iterable

import pytest

from mptcore.estimation.estimate import Estimate
from mptcore.families.masked_lm.reporting import Report
from mptcore.protocol.records import Labels, Metric, Record

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
