"""Samples of the workers, one a minute, kept for a day."""

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import case, delete, exists, func, select
from sqlalchemy.orm import Session

from service.db.engine import insert_new, now
from service.experiments.models import Experiment
from service.queue.workers import Vitals
from service.vocabulary import Status
from service.workers.models import WorkerSample

MINUTE_S = 60
KEPT_MINUTES = 24 * 60


class Past(NamedTuple):
    """A worker in several minutes: the share of them with a run, and the minimum free memory."""

    worker_id: str
    stretch: int
    busy: float
    memory_free: int | None
    memory_total: int | None


def take(session: Session, worker_id: str, vitals: Vitals) -> None:
    """Add a sample, unless this minute has one."""
    runs = exists().where(Experiment.worker == worker_id, Experiment.status == Status.RUNNING)
    clock, busy = session.execute(select(now(), runs)).one()
    has_gpu = vitals.gpu is not None
    sample = {
        "minute": int(clock // MINUTE_S),
        "worker_id": worker_id,
        "busy": bool(busy),
        "memory_free": vitals.gpu_memory_free if has_gpu else vitals.memory_free,
        "memory_total": vitals.gpu_memory_total if has_gpu else None,
    }
    insert_new(session, WorkerSample, [sample])


def last_minute(session: Session) -> int:
    """Return the current minute of the database's clock."""
    return int(session.execute(select(now())).scalar_one() // MINUTE_S)


def past(session: Session, first: int, together: int) -> Sequence[Past]:
    """Return the samples from a minute on, aggregated over `together` minutes. The intervals are
    numbered from 1970."""
    stretch = (WorkerSample.minute // together).label("stretch")
    rows = session.execute(
        select(
            WorkerSample.worker_id,
            stretch,
            func.avg(case((WorkerSample.busy, 1.0), else_=0.0)),
            func.min(WorkerSample.memory_free),
            func.max(WorkerSample.memory_total),
        )
        .where(WorkerSample.minute >= first)
        .group_by(WorkerSample.worker_id, "stretch")
        .order_by(WorkerSample.worker_id, "stretch")
    )
    return [Past(worker, at, float(busy), free, total) for worker, at, busy, free, total in rows]


def forget(session: Session) -> None:
    """Delete samples older than a day."""
    old = WorkerSample.minute < last_minute(session) - KEPT_MINUTES
    session.execute(delete(WorkerSample).where(old))
