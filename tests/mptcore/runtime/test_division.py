"""Batches of a divided run, in one process."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mptcore.runtime.division import coordinated


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
