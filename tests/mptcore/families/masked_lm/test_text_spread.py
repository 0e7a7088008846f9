"""The variance of small samples, estimated from many of them."""

import math

import numpy as np
import pytest
from scipy.special import polygamma

from mptcore.families.masked_lm.text_spread import MOST_FREEDOM, UNKNOWN, Spread


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("freedom", [3.0, 12.0])
def test_the_distribution_of_variances_is_found(size: int, freedom: float) -> None:
    """Variances drawn from a scaled inverse χ² distribution. The standard errors follow from that
    of the variance of the logarithms of χ²."""
    draws, count, variance = np.random.default_rng(1), 40_000, 7.0
    variances = variance * freedom / draws.chisquare(freedom, count)
    samples = np.sqrt(variances)[:, None] * draws.standard_normal((count, size)) + 3.0
    found = Spread.of(list(samples))
    half = (size - 1) / 2
    logs = float(polygamma(1, half) + polygamma(1, freedom / 2))
    fourth = float(polygamma(3, half) + polygamma(3, freedom / 2))
    error_of_variance = math.sqrt((fourth + 2 * logs**2) / count)
    slope = -float(polygamma(2, freedom / 2)) / 2  # of the variance of the logarithms
    error = error_of_variance / slope
    assert abs(found.freedom - freedom) < 4 * error
    assert found.variance == pytest.approx(
        variance, rel=4 * (error / freedom + math.sqrt(logs / count))
    )


def test_a_variance_that_all_samples_share() -> None:
    samples = np.random.default_rng(2).standard_normal((4_000, 3))
    found = Spread.of(list(samples))
    assert found.freedom > 50
    assert found.variance == pytest.approx(1, rel=0.1)
    alike = Spread.of([np.array([1.0, 3.0])] * 5)
    assert alike.freedom == MOST_FREEDOM


def test_a_variance_is_pooled_by_hand() -> None:
    sample = np.array([1.0, 2.0, 6.0])  # squares about the mean: 14
    assert Spread(5.0, 4.0).variance_of(sample) == pytest.approx((34 / 6, 6.0))
    assert UNKNOWN.variance_of(sample) == pytest.approx((7.0, 2.0))


def test_samples_that_are_no_numbers_or_do_not_vary() -> None:
    draws = np.random.default_rng(3)
    samples = list(draws.standard_normal((50, 2)))
    without = Spread.of(samples)
    assert Spread.of([*samples, np.array([-np.inf, 1.0]), np.array([np.nan, 1.0])]) == without
    with_constant = Spread.of([*samples, np.zeros(2)])
    assert with_constant.freedom < without.freedom
    assert math.isfinite(with_constant.variance)
    for few in ([], samples[:1], [np.zeros(2)] * 9):
        assert Spread.of(few) == UNKNOWN
