"""Groups of texts: order, decisions and metrics, by hand."""

import math

import pytest

from mptcore.families.masked_lm.text_table import Member, accuracy, rank_correlation, ranked
from mptcore.protocol.records import Metric


def metrics(groups: list[list[Member]]) -> dict[str, Metric]:
    return {one.name: one for one in accuracy(groups, {}) if isinstance(one, Metric)}


def test_places_of_three_texts() -> None:
    found = [*ranked([Member(4, -3.0, 0.3), Member(5, -1.0, 0.4), Member(6, -2.0, 0.4)])]
    assert [one.row for one in found] == [4, 5, 6]
    assert [one.difference for one in found] == [0, 2, 1]
    assert [one.rank for one in found] == [3, 1, 2]
    assert [one.difference_std_err for one in found] == pytest.approx([0, 0.5, 0.5])
    # 1 apart with a standard error of 0.57: not 1.96 of them
    assert {one.decided for one in found} == {False}


@pytest.mark.parametrize(("apart", "decided"), [(1.95, False), (1.97, True)])
def test_a_group_is_decided_from_196_standard_errors_on(apart: float, decided: bool) -> None:
    first, second = ranked([Member(0, apart, 0.6), Member(1, 0.0, 0.8)])
    assert first.decided is second.decided is decided


def test_equal_scores_have_equal_ranks() -> None:
    found = ranked([Member(i, value, 0.1) for i, value in enumerate([2.0, 5.0, 2.0, 1.0, 5.0])])
    assert [one.rank for one in found] == [3, 1, 3, 5, 1]


def test_a_tie_of_exact_scores_is_not_decided() -> None:
    assert {one.decided for one in ranked([Member(0, 1.0, 0), Member(1, 1.0, 0)])} == {False}


def test_accuracy_counts_groups_whose_first_text_is_the_best() -> None:
    good, bad = [Member(0, 2.0, 0), Member(1, 1.0, 0)], [Member(0, 1.0, 0), Member(1, 2.0, 0)]
    tie = [Member(0, 1.0, 0), Member(1, 1.0, 0)]
    alone, null = [Member(0, 1.0, 0)], [Member(0, 1.0, 0), Member(1, None, 0)]
    found = metrics([good, good, good, bad, tie, alone, null])
    assert found["accuracy"].value == 3 / 5
    assert found["accuracy"].std_err == pytest.approx(math.sqrt(5 / 9 * 4 / 9 / 9))
    assert found["groups_scored"].value == 5
    assert found["groups_left_out"].value == 2
    assert found["groups_decided"].value == 4
    assert metrics([good])["accuracy"].std_err
    assert metrics([alone])["accuracy"].reason == "no group has two texts with scores"


def test_the_rank_correlation_by_hand() -> None:
    labels = [1.0, 2.0, 2.0, 9.0, None]
    found = rank_correlation([0.1, 0.3, 0.2, 0.4, 7.0], labels, {})
    # ranks 1 3 2 4 and 1 2.5 2.5 4: Σ d² of the centred ranks gives 4.5 / √(5 · 4.5)
    assert found.value == pytest.approx(4.5 / math.sqrt(5 * 4.5))
    assert found.std_err == pytest.approx((1 - 0.9) * math.sqrt(1.45))
    assert rank_correlation([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], {}).value is None
    assert rank_correlation([1.0] * 4, [1.0, 2.0, 3.0, 4.0], {}).value is None
