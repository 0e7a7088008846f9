"""How the queue does as a whole, in numbers. No function commits."""

from collections import Counter
from typing import NamedTuple

from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from service.database import insert_new, now
from service.experiments.models import Experiment, Purged, Status


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


WAIT_S = Experiment.started_at - Experiment.created_at
RUN_S = Experiment.finished_at - Experiment.started_at


def waits(session: Session) -> Durations:
    """From submission to the first start."""
    return _durations(session, WAIT_S, Purged.waits, Purged.waits_s)


def runs(session: Session) -> Durations:
    """From the first start to the end."""
    return _durations(session, RUN_S, Purged.runs, Purged.runs_s)


def failures_by_kind(session: Session) -> dict[str, int]:
    kinds = session.execute(
        select(Experiment.failure_kind, func.count())
        .where(Experiment.failure_kind.is_not(None))
        .group_by(Experiment.failure_kind)
    )
    gone = session.execute(
        select(Purged.failure_kind, Purged.number).where(Purged.failure_kind != "")
    )
    found = Counter({str(kind): count for kind, count in kinds})
    found.update({str(kind): number for kind, number in gone})
    return dict(found)


def lost_attempts(session: Session) -> int:
    there, gone = (session.scalar(select(func.sum(t.lost))) for t in (Experiment, Purged))
    return int((there or 0) + (gone or 0))


def expired_leases(session: Session) -> int:
    """The running experiments whose workers have been silent for a whole lease."""
    expired = (Experiment.status == Status.RUNNING) & (Experiment.lease_expires_at < now())
    return session.scalar(select(func.count()).where(expired)) or 0


def _durations(
    session: Session,
    seconds: ColumnElement[float | None],
    gone_number: InstrumentedAttribute[int],
    gone_s: InstrumentedAttribute[float],
) -> Durations:
    count, total_s = session.execute(select(func.count(seconds), func.sum(seconds))).one()
    number, past_s = session.execute(select(func.sum(gone_number), func.sum(gone_s))).one()
    return Durations(count + int(number or 0), (total_s or 0.0) + (past_s or 0.0))


def count_purged(session: Session, experiment_id: str) -> None:
    """Keep what an experiment adds to the counters; to be called before it goes."""
    one = session.execute(
        select(
            func.coalesce(Experiment.failure_kind, "").label("failure_kind"),
            Experiment.lost,
            func.count(WAIT_S).label("waits"),
            func.coalesce(func.sum(WAIT_S), 0.0).label("waits_s"),
            func.count(RUN_S).label("runs"),
            func.coalesce(func.sum(RUN_S), 0.0).label("runs_s"),
        )
        .where(Experiment.id == experiment_id)
        .group_by(Experiment.id)
    ).mappings().one()  # fmt: skip
    added = {"number": 1, **{name: value for name, value in one.items() if name != KEY}}
    insert_new(session, Purged, [{KEY: one[KEY], **dict.fromkeys(added, 0)}])
    columns = Purged.__table__.columns
    values = {name: columns[name] + value for name, value in added.items()}
    session.execute(update(Purged).where(Purged.failure_kind == one[KEY]).values(values))


KEY = "failure_kind"
