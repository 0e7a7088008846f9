"""Equivalence tests: agreement is shown within a margin, and its power is known."""

import math
from collections.abc import Callable
from random import Random
from statistics import fmean, stdev

import pytest

from mptcore.presets import PRESETS, student
from mptcore.presets.results import Comparison, equivalent, no_more

SEEDS = 1000
Test = Callable[[str, float, float, float, float, float], Comparison]


@pytest.mark.parametrize(
    ("probability", "degrees", "expected"),
    [(0.975, 4, 2.776445), (0.95, 2, 2.919986), (0.975, 1, 12.7062), (0.975, math.inf, 1.959964)],
)
def test_quantiles_are_those_of_the_tables(
    probability: float, degrees: float, expected: float
) -> None:
    assert student.quantile(probability, degrees) == pytest.approx(expected, rel=1e-6)
    assert student.cdf(expected, degrees) == pytest.approx(probability, abs=1e-6)
    assert student.cdf(-expected, degrees) == pytest.approx(1 - probability, abs=1e-6)


def shares(test: Test, off: float, margin: float, seeds: int) -> dict[str, float]:
    """Return the shares of outcomes where the truth is `off` and values over seeds have sd 1."""
    random, outcomes = Random(1), list[str]()
    for _ in range(SEEDS):
        values = [random.gauss(off, 1) for _ in range(seeds)]
        error = stdev(values) / math.sqrt(seeds)
        outcomes.append(test("", 0, fmean(values), margin, error, seeds - 1).outcome)
    return {one: outcomes.count(one) / SEEDS for one in ("agrees", "differs", "cannot tell")}


@pytest.mark.parametrize("test", [equivalent, no_more])
@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("margin", [0.5, 1.0, 4.0])
def test_values_a_margin_apart_agree_in_at_most_5_percent(
    test: Test, seeds: int, margin: float
) -> None:
    found = shares(test, margin, margin, seeds)
    assert found["agrees"] <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / SEEDS)


@pytest.mark.parametrize("test", [equivalent, no_more])
@pytest.mark.parametrize(("seeds", "margin"), [(5, 2.0), (5, 3.0)])
def test_the_power_is_the_share_of_equal_values_that_agree(
    test: Test, seeds: int, margin: float
) -> None:
    """It is computed with the spread known, which seeds only estimate: within 0.1."""
    power = test("", 0, 0, margin, 1 / math.sqrt(seeds), seeds - 1).power
    assert shares(test, 0, margin, seeds)["agrees"] == pytest.approx(power, abs=0.1)


MEASURED = {  # standard error of the figure, its degrees of freedom, one-sided
    "fig1-left": (0.0493, math.inf, False),
    "fig1-center": (0.0338, math.inf, False),
    "fig1-right": (0.0105, math.inf, False),
    "fig3-vae-mnist": (2.06, 2, True),
    "fig4-left": (0.47 / math.sqrt(5), 4, False),
    "fig4-right": (0.187 / math.sqrt(5), 4, False),
    "fig4-center": (0.03 / math.sqrt(5), 4, False),
}


@pytest.mark.parametrize("name", MEASURED)
def test_each_preset_has_a_power_of_90_percent(name: str) -> None:
    """Use the errors of the actual runs, the largest if there are several figures."""
    error, degrees, one_sided = MEASURED[name]
    (margin,) = PRESETS[name].published["margin"]
    test = no_more if one_sided else equivalent
    power = test("", 0, 0, margin, error, degrees).power
    assert power is not None
    assert power >= 0.9
