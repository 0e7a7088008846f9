"""Batches of a divided run, in one process."""

from collections.abc import Callable
from contextlib import suppress

import pytest
import torch
from torch import Tensor

from mptcore.runtime.division import MEASURE_S, MIN_SHARE, NotWorthwhile, coordinated, helped


class Foreign:
    """The part of a coordinator whose helper sends scores of the same shape for each batch."""

    helps = False

    def __init__(self, masks: int):
        self.masks = masks

    def claim(self, least: int) -> int | None:
        return None

    def found(self, number: int) -> Tensor | None:
        return torch.full((1, 1, self.masks), 7.0, dtype=torch.float64)

    def put(self, number: int, scores: Tensor) -> None:
        raise AssertionError

    def plan(self, number: int, compute: Callable[[], Tensor]) -> Tensor | None:
        raise AssertionError


@pytest.mark.parametrize(("masks", "expected"), [(3, 7.0), (4, 0.0)])
def test_scores_of_another_shape_are_computed_again(masks: int, expected: float) -> None:
    """A helper that cuts its batches differently does not change the run."""
    batches = coordinated(
        iter([3, 3]),
        0,
        lambda batch: torch.zeros(1, 1, batch, dtype=torch.float64),
        lambda batch: (1, 1, batch),
        Foreign(masks),
    )
    scores = [scored[1] for scored in batches if scored is not None]
    assert [one.shape[2] for one in scores] == [3, 3]
    assert {*torch.stack(scores).flatten().tolist()} == {expected}


class Clock:
    """A clock that its users set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class EveryOther(Foreign):
    """The part of a helper that computes every other batch from the fourth on. Each claim takes a
    minute."""

    helps = True

    def __init__(self, clock: Clock):
        super().__init__(1)
        self.clock = clock

    def claim(self, least: int) -> int | None:
        self.clock.now += 60.0
        return max(4, least + least % 2)

    def put(self, number: int, scores: Tensor) -> None:
        assert number % 2 == 0
        assert number >= 4


def helped_for(batches: int, draw_s: float, compute_s: float) -> int:
    """Return how many batches a helper has yielded before it ended."""
    clock = Clock()

    def drawn(number: int) -> int:
        clock.now += draw_s if number >= 4 else 3600.0  # those before its first batch do not count
        return 1

    def compute(_: int) -> Tensor:
        clock.now += compute_s
        return torch.zeros(1, 1, 1, dtype=torch.float64)

    part = helped(map(drawn, range(batches)), 0, compute, lambda _: (1, 1, 1), EveryOther(clock),
                  clock)  # fmt: skip
    yielded = 0
    with suppress(NotWorthwhile):
        for scored in part:
            yielded += scored is not None
    return yielded


def test_a_helper_that_mostly_draws_masks_ends() -> None:
    """Computing every other batch, it draws twice for each that it computes."""
    limit_s = MEASURE_S / 20
    at_the_limit = 2 * limit_s * MIN_SHARE / (1 - MIN_SHARE)
    assert helped_for(100, limit_s, 1.1 * at_the_limit) == 100
    ended = helped_for(100, limit_s, 0.9 * at_the_limit)
    assert ended * limit_s > MEASURE_S / 2
    assert ended < 50
