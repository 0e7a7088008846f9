"""Short forms of `make calibration`: a standard error is as large as the error, over seeds."""

import math

import pytest

from benchmarks.calibration.any_order import CASES, Toy, calibrations
from benchmarks.calibration.few_rates import CASES as FEW_RATES
from benchmarks.calibration.few_rates import coverages
from mptcore.estimation.estimate import Estimate
from mptcore.families.masked_lm.estimates import root

REPEATS = 80


@pytest.mark.parametrize("case", CASES)
def test_the_error_over_orders_is_conditional_on_the_sequences(case: str) -> None:
    """The z-scores have sd 1 and mean 0, within four standard errors of these."""
    for one in calibrations(case, REPEATS):
        assert abs(one.sd - 1) < 4 / math.sqrt(2 * REPEATS), one.what
        assert abs(one.mean) < 4 / math.sqrt(REPEATS), one.what


NEARLY_ALL_HIDDEN = {
    "19 rates": {"S(0.9)", "S(0.95)"},
    "two masks, 0.5 and 0.95": {"S(0.95)"},
    "two masks, four rates": {"S(0.9)"},
}
"""Scores at rates where most masks hide all of a short text, so that few masks differ."""


@pytest.mark.parametrize("case", FEW_RATES)
def test_errors_of_few_rates_are_calibrated_or_null(case: str) -> None:
    """Two standard errors contain it in at least 88 % of the areas, within four standard errors.
    Otherwise the record has a reason instead of an error."""
    found = coverages(case, repeats := 60, truths=2)  # of 200 masks each sequence
    if not case.startswith(("19", "two masks")):
        assert all(one.given == 0 for one in found.values()), found
        assert all("raise per_size" in one.reason for one in found.values())
        return
    null = NEARLY_ALL_HIDDEN.get(case, set())
    assert {name: one.given for name, one in found.items()} == {
        name: 0 if name in null else repeats for name in found
    }
    assert all("too few replicates" in found[name].reason for name in null)
    low = 0.88 - 4 * math.sqrt(0.88 * 0.12 / repeats)
    assert found["area"].within > low
    assert min(one.within for name, one in found.items() if name not in null) > low - 0.04


def test_the_population_error_has_its_own_name() -> None:
    """It is the variation between sequences, for any orders; fewer than four orders give no other
    error."""
    toy = Toy.of(20)
    metrics = toy.measured(10, 20, 0)
    few = toy.measured(3, 20, 0)
    for name in ("any_order_spread", "any_order_spread_per_token"):
        own, population = metrics[name], metrics[f"{name}_population"]
        assert own.value == population.value
        assert own.std_err is not None
        assert population.std_err is not None
        assert 0 < own.std_err < 0.8 * population.std_err
        assert few[name].std_err is None
        assert "four orders" in (few[name].reason or "")
        assert few[f"{name}_population"].std_err is not None


def test_a_root_by_hand() -> None:
    assert root(Estimate(4.0, 0.8, 7)) == Estimate(2.0, 0.2, 7)
    assert root(Estimate(0.0, 0.0, 7)) == Estimate(0.0, 0.0, 7)
    assert root(Estimate(4.0, None, 7)) == Estimate(2.0, None, 7)
