"""How the queue does as a whole, in numbers. No function commits."""

from typing import NamedTuple

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from service.database import now
from service.experiments.models import Experiment, Status


class Durations(NamedTuple):
    """How many there were, and their sum in seconds."""

    number: int
    total_s: float


def count_by_status(session: Session) -> dict[Status, int]:
    """Of every status, 0 where there is none."""
    counts = session.execute(
        select(Experiment.status, func.count()).group_by(Experiment.status)
    ).all()
    return dict.fromkeys(Status, 0) | {Status(status): count for status, count in counts}


def oldest_queued_s(session: Session) -> float:
    """The age of the experiment that has been queued for longest, or 0."""
    queued = Experiment.status == Status.QUEUED
    age = select(now() - func.min(Experiment.created_at)).where(queued)
    return session.scalar(age) or 0.0


def waits(session: Session) -> Durations:
    """From submission to the first start."""
    return _durations(session, Experiment.started_at - Experiment.created_at)


def runs(session: Session) -> Durations:
    """From the first start to the end."""
    return _durations(session, Experiment.finished_at - Experiment.started_at)


def failures_by_kind(session: Session) -> dict[str, int]:
    kinds = session.execute(
        select(Experiment.failure_kind, func.count())
        .where(Experiment.failure_kind.is_not(None))
        .group_by(Experiment.failure_kind)
    )
    return {str(kind): count for kind, count in kinds}


def lost_attempts(session: Session) -> int:
    return session.scalar(select(func.sum(Experiment.lost))) or 0


def _durations(session: Session, seconds: ColumnElement[float | None]) -> Durations:
    count, total = session.execute(select(func.count(seconds), func.sum(seconds))).one()
    return Durations(count, total or 0.0)
