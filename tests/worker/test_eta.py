"""Estimated end of a run, compared with its actual duration."""

import pytest

from worker.eta import ENOUGH_S, MIN_PIECES, MIN_S, EtaEstimate

TOTAL = 1000
BEGAN = 500.0
"""Time of the first report; everything before was loading."""


def etas(pieces: list[tuple[int, float]], first: int = 0) -> list[float | None]:
    """After the first word of progress and after each piece (work, seconds)."""
    pace, done, at = EtaEstimate(), first, BEGAN
    found = [pace.eta_s(done, TOTAL, at)]
    for work, time_s in pieces:
        done, at = done + work, at + time_s
        found.append(pace.eta_s(done, TOTAL, at))
    return found


def last(pieces: list[tuple[int, float]], first: int = 0) -> float:
    found = etas(pieces, first)[-1]
    assert found is not None
    return found


def test_steady_work_is_extrapolated() -> None:
    """Work before the first report, by loading or by another attempt, does not count."""
    assert last([(10, 2.0)] * 5, first=450) == pytest.approx(100.0)


def test_too_few_updates_give_no_estimate() -> None:
    found = etas([(10, 0.5)] * MIN_PIECES)
    assert [one is None for one in found] == [*[True] * MIN_PIECES, False]


def test_long_pieces_give_an_early_estimate() -> None:
    """A batch of masks of a language model may take ten seconds."""
    assert etas([(10, ENOUGH_S)])[-1] == pytest.approx((TOTAL - 10) / 10 * ENOUGH_S)


def test_updates_read_together_count_once() -> None:
    """Otherwise a pipe that was read late would suggest unlimited speeds."""
    late = [(10, 0.5), (10, 0.0), (10, 1.5), (10, 0.0), (10, MIN_S / 2)]
    found = etas([*late, (10, 1.0 - MIN_S / 2)])
    assert [one is None for one in found] == [*[True] * 6, False]
    joined = last([(10, 0.5), (20, 1.5), (30, 1.0)])
    assert found[-1] == pytest.approx(joined)


def test_a_report_without_new_work_is_no_piece() -> None:
    """Its time counts for the next one."""
    still = [(10, 0.5), *[(0, 0.3)] * MIN_PIECES]
    assert etas(still) == [None] * (len(still) + 1)
    joined = [(10, 0.5), (10, 1.4), (10, 0.5)]
    assert last([*still, (10, 0.5), (10, 0.5)]) == pytest.approx(last(joined))


def test_time_before_the_first_work_does_not_count() -> None:
    """A model is fitted, which is reported too."""
    assert last([(0, 50.0), (0, 70.0), *[(10, 2.0)] * 5]) == pytest.approx(190.0)


def test_the_end_is_now() -> None:
    assert last([(250, 1.0), (250, 3.0), (500, 2.0)]) == 0.0


def test_the_latest_pieces_count_most() -> None:
    """Scoring after a training ten times as slow."""
    training = [(10, 10.0)] * 50
    assert last(training) == pytest.approx(500.0)
    assert last(training + [(10, 1.0)] * 30) < 1.2 * 20.0
