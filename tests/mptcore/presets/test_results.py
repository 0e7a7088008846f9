"""Tests of a measured value against a published one: how often they agree, differ, or neither."""

import math
from collections.abc import Callable
from random import Random
from statistics import fmean, stdev

import pytest

from benchmarks.calibration import verdicts
from mptcore.presets.results import Comparison, Measured, equivalent, exceeds, no_more

REPEATS = 1000
Test = Callable[[Measured, float], Comparison]
"""A test of a value, whose published one is 0, with a margin."""


def is_near(measured: Measured, margin: float) -> Comparison:
    return equivalent("", measured, value=0, margin=margin)


def not_above(measured: Measured, margin: float) -> Comparison:
    return no_more("", measured, value=0, margin=margin)


def above(measured: Measured, margin: float) -> Comparison:
    """Test the value with the other sign, so that the margin is a limit from above."""
    value, std_err, degrees = measured
    return exceeds("", Measured(-value, std_err, degrees), least=-margin, expected=0)


TESTS = (is_near, not_above, above)


def shares(test: Test, off: float, margin: float, seeds: int) -> dict[str, float]:
    """Return the shares of outcomes where the truth is `off` and values over seeds have sd 1."""
    random, outcomes = Random(1), list[str]()
    for _ in range(REPEATS):
        values = [random.gauss(off, 1) for _ in range(seeds)]
        error = stdev(values) / math.sqrt(seeds)
        outcomes.append(test(Measured(fmean(values), error, seeds - 1), margin).outcome)
    return {one: outcomes.count(one) / REPEATS for one in ("agrees", "differs", "cannot tell")}


@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("margin", [0.5, 1.0, 4.0])
def test_values_a_margin_apart_agree_in_at_most_5_percent(
    test: Test, seeds: int, margin: float
) -> None:
    """If seeds differ normally."""
    found = shares(test, margin, margin, seeds)
    assert found["agrees"] <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / REPEATS)


@pytest.mark.parametrize(
    ("differences", "one_sided", "expected"),
    [("normal", True, 0.05), ("normal", False, 0.025), ("exponential", True, 0.16),
     ("exponential", False, 0.114), ("lognormal, σ = 1", True, 0.229)],
)  # fmt: skip
def test_skewed_seeds_at_a_bound_agree_as_often_as_documented(
    differences: str, one_sided: bool, expected: float
) -> None:
    """Five seeds, as in the table of docs/estimators.md."""
    share = verdicts.agreement(verdicts.DRAWS[differences], 5, 1, 10_000, one_sided)
    assert share == pytest.approx(expected, abs=4 * math.sqrt(expected / 10_000))


@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize(("seeds", "margin"), [(5, 2.0), (5, 3.0)])
def test_the_power_is_the_share_of_equal_values_that_agree(
    test: Test, seeds: int, margin: float
) -> None:
    """It is computed with the spread known, which seeds only estimate: within 0.1."""
    power = test(Measured(0, 1 / math.sqrt(seeds), seeds - 1), margin).power
    assert shares(test, 0, margin, seeds)["agrees"] == pytest.approx(power, abs=0.1)


@pytest.mark.parametrize("test", TESTS)
def test_a_value_without_an_error_always_agrees_with_its_equal(test: Test) -> None:
    found = test(Measured(0, 0, 4), 0.5)
    assert found.outcome == "agrees"
    assert found.power == pytest.approx(1, abs=1e-6)
    assert test(Measured(0.51, 0, 4), 0.5).outcome == "differs"
