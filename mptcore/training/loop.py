"""The training loop of every family: its records, its interim curves, its safe points."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from mptcore.protocol.records import Point, RunError, Stage
from mptcore.runtime.state import Records, RunState, TrainingState
from mptcore.training.learned import OPTIMIZER

Curves = Callable[[int], Records[None]]
"""Evaluate all models at an epoch, as `evaluate` in the spec asks."""


Trained = tuple[list[Point], int]
"""The points of an epoch, and the number of masks it scored."""


class Schedule(Protocol):
    """Length of a training in epochs (in steps for language models), and the epochs at which curves
    are evaluated."""

    @property
    def length(self) -> int: ...
    @property
    def unit(self) -> Literal["epochs", "steps"]: ...
    @property
    def curve_at(self) -> tuple[int, ...]: ...


class Trainer(Protocol):
    """Trains all starts of an experiment, epoch by epoch."""

    epoch: int
    """The next epoch. The loop increments it."""

    @property
    def schedule(self) -> Schedule: ...

    def heldout_points(self) -> list[Point]:
        """Return the held-out points that precede the curves of this epoch."""

    def advance(self) -> list[Trained]:
        """Train one epoch, or several at once if none of the later ones has curves. The last epoch,
        number `length`, is recorded but not trained. Raises DivergedError."""

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors that determine the rest of the training."""

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from these tensors."""


class DivergedError(RunError):
    """Training reached a loss that is not finite. Carries the points of that epoch."""

    def __init__(self, message: str, points: Sequence[Point]):
        super().__init__("error", message)
        self.points = points


def diverged(
    epoch: int, seeds: Sequence[int], points: Sequence[Point], dtype: torch.dtype
) -> DivergedError:
    """Return the error for the starts of these seeds, trained in this precision."""
    starts = ", ".join(map(str, dict.fromkeys(seeds)))
    cure = "lower train.learning_rate"
    if dtype != torch.float64:
        cure += ", or use precision float64"
    detail = f"the loss of seed {starts} is not finite at epoch {epoch}"
    return DivergedError(f"{detail}: {cure}", points)


def train(
    trainer: Trainer, state: RunState, resumed: TrainingState | None, curves: Curves
) -> Records[None]:
    """Train and yield records. The run may be saved between calls of `advance` and at the end.
    Raises DivergedError after the records of that epoch."""
    schedule = trainer.schedule
    if resumed is not None:
        trainer.restore(resumed.tensors)
        trainer.epoch = resumed.epoch
        state.plans = list(resumed.plans)
        state.count(resumed.masks)  # before the jump: not reported as progress
        yield None
        state.seq = resumed.seq
    while trainer.epoch <= schedule.length:
        state.stage = _stage(schedule, trainer.epoch)
        state.training = lambda: _state(trainer, state, trainer.tensors())
        state.at_safe_point = True
        yield None
        state.at_safe_point = False
        yield from trainer.heldout_points()
        if trainer.epoch in schedule.curve_at:
            yield from curves(trainer.epoch)
        state.stage = _stage(schedule, trainer.epoch + 1)
        epochs = yield from _advance(trainer)
        for trained in epochs:
            state.stage = _stage(schedule, trainer.epoch + 1)
            yield from _points(state, *trained)
            trainer.epoch += 1
    state.stage = None
    ended = {k: v for k, v in trainer.tensors().items() if not k.startswith(OPTIMIZER)}
    final = _state(trainer, state, ended)
    state.training = lambda: final


def _stage(schedule: Schedule, trained: int) -> Stage:
    """Return the stage after `trained` epochs. The last epoch is recorded but not trained."""
    return Stage("training", min(trained, schedule.length), schedule.length, schedule.unit)


def _advance(trainer: Trainer) -> Records[list[Trained]]:
    try:
        return trainer.advance()
    except DivergedError as error:
        yield from error.points
        raise


def _points(state: RunState, points: list[Point], masks: int) -> Records[None]:
    """Report an epoch and its progress. It is not a safe point."""
    state.count(masks)
    if not points:
        yield None
    yield from points


def _state(trainer: Trainer, state: RunState, tensors: dict[str, Tensor]) -> TrainingState:
    plans = tuple(state.plans)
    return TrainingState(trainer.epoch, state.seq, state.masks, plans, tensors)
