"""The training loop, with a trainer that only counts."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from mptcore.protocol.records import Record
from mptcore.runtime.state import RunState, TrainingState
from mptcore.training.loop import Trained, train


class Counting:
    """A trainer of three epochs."""

    schedule = SimpleNamespace(length=3, unit="epochs", curve_at=())

    def __init__(self) -> None:
        self.epoch = 0

    def heldout_points(self) -> list[Any]:
        return []

    def advance(self) -> list[Trained]:
        return [([], 10)]

    def tensors(self) -> dict[str, Any]:
        return {}

    def restore(self, tensors: Any) -> None:
        pass


def no_curves(epoch: int) -> Iterator[Record]:
    yield from ()


def test_a_resumed_training_keeps_the_plans_of_its_evaluations() -> None:
    """It also saves the plans again."""
    plans: Any = ("one plan", "another plan")
    state = RunState()
    resumed = TrainingState(2, 5, 20, plans, {})
    steps = train(Counting(), state, resumed, no_curves)  # type: ignore[arg-type]
    next(steps)
    assert state.plans == [*plans]
    next(steps)
    assert state.training is not None
    assert state.training().plans == plans
    assert len(list(steps)) > 0
