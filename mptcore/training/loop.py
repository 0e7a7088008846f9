"""The course of a training: its records, the curves on the way, the places where it rests."""

from collections.abc import Callable
from typing import Protocol

from mptcore.estimation.evaluate import Work
from mptcore.protocol.records import Point
from mptcore.runtime.session import Session, TrainingState
from mptcore.specs.train import Steps
from mptcore.training.step_masks import DivergedError

Curves = Callable[[int], Work]
"""The curves of all starts as they stand at an epoch."""


class Trains(Protocol):
    """What trains, epoch by epoch."""

    epoch: int

    @property
    def course(self) -> Steps: ...
    @property
    def observations(self) -> int: ...
    @property
    def masks_per_step(self) -> int:
        """Over all starts."""

    def step(self) -> list[Point]:
        """One epoch: its records, and its steps."""

    def state(self, seq: int, done: int) -> TrainingState: ...
    def restore(self, state: TrainingState) -> None: ...


def train(trainer: Trains, session: Session, resumed: TrainingState | None, curves: Curves) -> Work:
    """The records of a training, each with the number of masks scored so far. The session may be
    saved between epochs. Raises DivergedError, after that epoch's records."""
    spec = trainer.course
    done = 0
    if resumed is not None:
        trainer.restore(resumed)
        done = resumed.done
        yield done, None  # before the leap, so that no progress is told of what was skipped
        session.seq = resumed.seq
    steps = spec.steps_per_epoch(trainer.observations)
    while trainer.epoch <= spec.epochs:
        session.training = lambda: trainer.state(session.seq, done)  # noqa: B023
        session.at_rest = True
        yield done, None
        session.at_rest = False
        if trainer.epoch in spec.curve_at:
            before = done
            for scored, record in curves(trainer.epoch):
                done = before + scored
                yield done, record
        try:
            points = trainer.step()
        except DivergedError as error:
            for point in error.points:
                yield done, point
            raise
        done += trainer.masks_per_step * (1 if trainer.epoch == spec.epochs else steps)
        for point in points:
            yield done, point
        yield done, None  # progress is told of here, and not at the place of rest
        trainer.epoch += 1
