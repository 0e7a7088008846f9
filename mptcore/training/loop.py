"""The training loop of every family: its records, the curves on the way, its safe points."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

from torch import Tensor

from mptcore.protocol.records import Point, RunError, Stage
from mptcore.runtime.session import Session, Step, TrainingState, Work
from mptcore.training.learned import OPTIMIZER

Curves = Callable[[int], Work[None]]
"""The curves that `evaluate` asks for, of all models as they stand at an epoch."""


class Schedule(Protocol):
    """How long a training goes on, in epochs (for language models in steps), and at which of them
    it gives the curves."""

    @property
    def length(self) -> int: ...
    @property
    def unit(self) -> Literal["epochs", "steps"]: ...
    @property
    def curve_at(self) -> tuple[int, ...]: ...


class Trainer(Protocol):
    """What trains, epoch by epoch."""

    epoch: int
    """The one to come; the loop raises it."""

    @property
    def schedule(self) -> Schedule: ...

    def heldout_points(self) -> list[Point]:
        """What is measured on held-out data before the curves of this epoch."""

    def advance(self) -> tuple[list[Point], int]:
        """One epoch: its points, and how many masks it scored. The last one, after `length`
        others, is recorded and not trained. Raises DivergedError."""

    def tensors(self) -> dict[str, Tensor]:
        """All that the rest of the training follows from."""

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from there."""


class DivergedError(RunError):
    """Training that reached a loss which is not finite; it carries that epoch's points."""

    def __init__(self, message: str, points: Sequence[Point]):
        super().__init__("error", message)
        self.points = points


def diverged(epoch: int, seeds: Sequence[int], points: Sequence[Point]) -> DivergedError:
    """The error for the starts of some seeds."""
    starts = ", ".join(map(str, dict.fromkeys(seeds)))
    cure = "lower train.learning_rate, or use precision float64"
    detail = f"the loss of seed {starts} is not finite at epoch {epoch}"
    return DivergedError(f"{detail}: {cure}", points)


def train(
    trainer: Trainer, session: Session, resumed: TrainingState | None, curves: Curves
) -> Work[None]:
    """The records of a training. The session may be saved between epochs, and once it is over.
    Raises DivergedError, after that epoch's records."""
    schedule = trainer.schedule
    if resumed is not None:
        trainer.restore(resumed.tensors)
        trainer.epoch = resumed.epoch
        session.plans = list(resumed.plans)
        yield Step(masks=resumed.masks)  # before the leap: no progress is told of what was skipped
        session.seq = resumed.seq
    while trainer.epoch <= schedule.length:
        session.stage = _stage(schedule, trainer.epoch)
        session.training = lambda: _state(trainer, session, trainer.tensors())
        session.at_safe_point = True
        yield Step()
        session.at_safe_point = False
        for point in trainer.heldout_points():
            yield Step(point)
        if trainer.epoch in schedule.curve_at:
            yield from curves(trainer.epoch)
        session.stage = _stage(schedule, trainer.epoch + 1)
        yield from _epoch(trainer)
        trainer.epoch += 1
    session.stage = None
    ended = {k: v for k, v in trainer.tensors().items() if not k.startswith(OPTIMIZER)}
    final = _state(trainer, session, ended)
    session.training = lambda: final


def _stage(schedule: Schedule, trained: int) -> Stage:
    """After so many epochs; the last one is recorded and not trained."""
    return Stage("training", min(trained, schedule.length), schedule.length, schedule.unit)


def _epoch(trainer: Trainer) -> Work[None]:
    """Progress is told of here, and not at a safe point."""
    try:
        points, masks = trainer.advance()
    except DivergedError as error:
        for point in error.points:
            yield Step(point)
        raise
    if not points:
        yield Step(masks=masks)
    for i, point in enumerate(points):
        yield Step(point, masks if i == 0 else 0)


def _state(trainer: Trainer, session: Session, tensors: dict[str, Tensor]) -> TrainingState:
    plans = tuple(session.plans)
    return TrainingState(trainer.epoch, session.seq, session.masks, plans, tensors)
