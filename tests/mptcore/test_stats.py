"""Tests of distributions, shares and ranks against tables."""

import math

import pytest

from mptcore.stats import centred_share, mean_ranks, t_cdf, t_quantile


@pytest.mark.parametrize(
    ("probability", "degrees", "expected"),
    [
        (0.975, 1, 12.7062),
        (0.95, 2, 2.919986),
        (0.975, 4, 2.776445),
        (0.975, 7, 2.364624),
        (0.975, 20, 2.085963),
        (0.975, math.inf, 1.959964),
    ],
)
def test_quantiles_are_those_of_the_tables(
    probability: float, degrees: float, expected: float
) -> None:
    assert t_quantile(probability, degrees) == pytest.approx(expected, rel=1e-6)
    assert t_cdf(expected, degrees) == pytest.approx(probability, abs=1e-6)
    assert t_cdf(-expected, degrees) == pytest.approx(1 - probability, abs=1e-6)


def test_a_share_is_centred_and_its_error_is_never_0() -> None:
    assert centred_share(6, 6) == pytest.approx((0.8, math.sqrt(0.8 * 0.2 / 10)))


def test_equal_values_share_their_mean_rank() -> None:
    assert mean_ranks([2.0, 5.0, 2.0, 1.0, 5.0]) == [2.5, 4.5, 2.5, 1.0, 4.5]
