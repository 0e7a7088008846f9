"""Points kept of a line: its ends and all extremes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.records.downsampling import downsampled, points_per_series

NUMBERS = st.floats(-1e6, 1e6) | st.just(float("nan"))


@settings(deadline=None)
@given(st.lists(NUMBERS, min_size=2, max_size=300), st.integers(2, 60))
def test_few_points_in_order_with_both_ends(values: list[float], most: int) -> None:
    line = np.array(values)
    places = downsampled(line, most)
    assert len(places) <= max(most, 2)
    assert (np.diff(places) > 0).all()
    assert (places[0], places[-1]) == (0, len(line) - 1)
    assert (downsampled(line, most) == places).all()


@settings(deadline=None)
@given(st.lists(NUMBERS, min_size=10, max_size=300), st.integers(5, 60))
def test_extremes_and_gaps_survive(values: list[float], most: int) -> None:
    line = np.array(values)
    shown = line[downsampled(line, most)]
    if not np.isnan(line).all():
        assert (np.nanmin(shown), np.nanmax(shown)) == (np.nanmin(line), np.nanmax(line))
    assert np.isnan(shown).any() == np.isnan(line).any()


def test_a_spike_just_before_the_end_survives() -> None:
    for length in range(10, 120):
        line = np.zeros(length)
        line[-2] = 1.0
        lost = [most for most in range(5, length) if length - 2 not in downsampled(line, most)]
        assert lost == [], length


@pytest.mark.parametrize("values", [np.zeros(100_000), np.full(100_000, np.nan)])
def test_a_line_without_features(values: NDArray[np.float64]) -> None:
    assert len(downsampled(values, 1000)) <= 1000


def test_every_spike_of_a_long_line_survives() -> None:
    """One in a hundred stretches each, up or down, and a gap."""
    line = np.random.default_rng(1).normal(size=1_000_000)
    spikes = np.arange(5_000, 1_000_000, 10_000)
    line[spikes] = np.where(np.arange(100) % 2, 100.0, -100.0)
    line[400_001:400_004] = np.nan
    places = downsampled(line, 2000)
    assert {*spikes, 400_001} <= {*places}
    assert 1900 <= len(places) <= 2000


@settings(deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=20), st.integers(0, 500))
def test_shares(totals: list[int], spare: int) -> None:
    most = sum(min(total, 2) for total in totals) + spare
    found = points_per_series(totals, most)
    assert sum(found) <= most
    assert all(min(t, 2) <= one <= t for one, t in zip(found, totals, strict=True))
    cut = [one for one, t in zip(found, totals, strict=True) if one < t]
    assert not cut or max(cut) - min(cut) <= 1
    assert not cut or sum(found) == most
