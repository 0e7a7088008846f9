"""Short forms of `make calibration`: a standard error is as large as the error, over seeds."""

import math

import pytest

from benchmarks.calibration.any_order import CASES, Toy, calibrations
from mptcore.estimation.estimate import Estimate
from mptcore.families.masked_lm.estimates import root

REPEATS = 80


@pytest.mark.parametrize("case", CASES)
def test_the_error_over_orders_is_that_of_the_sequences_given(case: str) -> None:
    """The z-scores have sd 1 and mean 0, within four standard errors of these."""
    for one in calibrations(case, REPEATS):
        assert abs(one.sd - 1) < 4 / math.sqrt(2 * REPEATS), one.what
        assert abs(one.mean) < 4 / math.sqrt(REPEATS), one.what


def test_the_population_s_error_has_a_name_of_its_own() -> None:
    """It is that between sequences, whatever the orders; fewer than four give no other."""
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
