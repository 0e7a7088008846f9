"""Numbers that must not be final, each next to the nearest number that may be."""

import math

import pytest
import torch

from mptcore.estimation.quality import Grade, doubtful_reason
from mptcore.estimation.scores import SizeScores

CURE = "raise draws"


@pytest.mark.parametrize(
    ("bias", "std_err", "share", "final"),
    [
        (0.10, 0.11, 0.0, True),
        (0.12, 0.11, 0.0, False),
        (-0.12, 0.11, 0.0, False),
        (0.04, None, 0.0, True),  # one mask gives no error: an absolute limit
        (0.06, None, 0.0, False),
        (math.nan, None, 0.0, False),  # too few draws for an estimate
        (math.nan, 0.5, 0.0, False),
        (0.0, 0.1, 0.05, True),
        (0.0, 0.1, 0.06, False),
    ],
)
def test_too_large_bias_or_weights_are_doubtful(
    bias: float, std_err: float | None, share: float, final: bool
) -> None:
    assert (doubtful_reason(bias, std_err, share, CURE) is None) == final


def test_unfinished_scores_give_a_reason_and_a_cure() -> None:
    share = "the importance weights of 6% of its terms cannot be trusted, more than 5%"
    assert doubtful_reason(9.0, 0.1, 0.06, CURE) == f"not final: {share}; raise draws"
    bias = "its estimated bias of -0.12 nats is beyond"
    error = doubtful_reason(-0.123, 0.11, 0.0, CURE)
    assert error == f"not final: {bias} its error of 0.11; raise draws"
    assert doubtful_reason(-0.123, None, 0.0, CURE) == f"not final: {bias} 0.05; raise draws"


def test_a_sum_is_as_doubtful_as_its_most_doubtful_size() -> None:
    def of_size(size: int, bias: float, share: float) -> SizeScores:
        grades = torch.tensor([[[bias] * 3], [[share] * 3], [[0.0] * 3]])
        return SizeScores([size], torch.zeros(1, 3), grades=grades)

    curve = [of_size(size, 0.5, 1.0 if size == 7 else 0.0) for size in range(1, 101)]
    grade = Grade.of(curve, factor=2)
    assert grade is not None
    assert grade.bias == pytest.approx(100.0)
    assert grade.share == 1.0
    assert grade.doubt == pytest.approx(2 * 0.5 * 1.0)
    exact = SizeScores([1], torch.zeros(1, 3))
    assert Grade.of([exact]) is None
    assert Grade.of_each(exact) == []
    assert Grade.of([exact, of_size(2, 0.5, 0.25)]) == Grade(0.5, 0.25, 0.125)
    two = [of_size(2, 0.5, 0.25), of_size(3, -1.0, 0.5)]
    grades = torch.cat([one.grades for one in two if one.grades is not None], 1)
    both = SizeScores([2, 3], torch.zeros(2, 3), grades=grades)
    assert Grade.of([both], factor=2) == Grade.of(two, factor=2) == Grade(-1.0, 0.5, 0.75)
    assert Grade.of_each(both) == [Grade(0.5, 0.25, 0.125), Grade(-1.0, 0.5, 0.25)]
