"""Machines that are emptied, for example before their maintenance.

Every function takes a session and commits nothing. Times are the database's own (`now()`).
"""

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from service.db.engine import now
from service.db.notices import notify
from service.queue.workers import lock_claims
from service.workers.models import HAS_NOT_ENDED, Drain, Worker, WorkerSample

HAND_BACK_AFTER_S = 3600.0
"""Time in which the runs of a drained machine may end by themselves, unless an admin gives one."""


def drain(
    session: Session,
    host: str,
    drained_by: str,
    hand_back_after_s: float | None = None,
    lasts_s: float | None = None,
    starts_in_s: float | None = None,
) -> Drain:
    """Drain a machine, or change its drain: its workers start no run, and hand back their runs
    after `hand_back_after_s` seconds. Default: an hour, or half of a shorter drain. It ends after
    `lasts_s` seconds, or when an admin ends it. No claim is under way when this returns. With
    `starts_in_s` it begins after these seconds, and by default runs are handed back then."""
    if hand_back_after_s is None and starts_in_s is not None:
        hand_back_after_s = starts_in_s
    if hand_back_after_s is None:
        hand_back_after_s = HAND_BACK_AFTER_S
        if lasts_s is not None:
            hand_back_after_s = min(hand_back_after_s, lasts_s / 2)
    lock_claims(session)
    session.execute(delete(Drain).where(Drain.host == host))
    clock: float = session.execute(select(now())).scalar_one()
    row = Drain(
        host=host,
        since=clock,
        starts_at=clock + (starts_in_s or 0.0),
        hand_back_at=clock + hand_back_after_s,
        until=None if lasts_s is None else clock + lasts_s,
        drained_by=drained_by,
    )
    session.add(row)
    session.flush()
    session.refresh(row)
    return row


def undrain(session: Session, host: str) -> bool:
    """End the drain of a machine, also a planned one. Return False if it has none."""
    ended = delete(Drain).where(Drain.host == host, HAS_NOT_ENDED).returning(Drain.host)
    notify(session)  # queued experiments may start
    return session.scalar(ended) is not None


def drains(session: Session) -> dict[str, Drain]:
    """Return the drains that have not ended, also planned ones, by machine, the earliest first."""
    rows = session.scalars(select(Drain).where(HAS_NOT_ENDED).order_by(Drain.starts_at, Drain.host))
    return {row.host: row for row in rows}


def hosts_of_a_day(session: Session) -> set[str]:
    """Return the machines that have workers, or had some in the last day."""
    samples = session.scalars(select(WorkerSample.worker_id).distinct())
    return {
        *session.scalars(select(Worker.host)),
        *(worker_id.rpartition(":")[0] for worker_id in samples),
    }
