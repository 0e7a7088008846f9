"""The course of a training: its records, the curves on the way, the places where it rests."""

from collections.abc import Callable

from mptcore.evaluate import Work
from mptcore.session import Session, TrainingState
from mptcore.trainer import DivergedError, Trainer

Curves = Callable[[int], Work]
"""The curves of all starts as they stand at an epoch."""


def train(
    trainer: Trainer, session: Session, resumed: TrainingState | None, curves: Curves
) -> Work:
    """The records of a training, each with the number of masks scored so far. The session may be
    saved between epochs. Raises DivergedError, after that epoch's records."""
    spec = trainer.spec
    done = 0
    if resumed is not None:
        trainer.restore(resumed)
        done = resumed.done
        yield done, None  # before the leap, so that no progress is told of what was skipped
        session.seq = resumed.seq
    steps = spec.steps_per_epoch(trainer.observations)
    per_step = len(trainer.seeds) * spec.masks_per_step(trainer.dim)
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
        done += per_step * (1 if trainer.epoch == spec.epochs else steps)
        for point in points:
            yield done, point
        yield done, None  # progress is told of here, and not at the place of rest
        trainer.epoch += 1
