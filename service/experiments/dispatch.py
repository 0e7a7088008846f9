"""Choosing what runs next.

Every function takes a session and commits nothing. Times are the database's own (`now()`).
"""

from dataclasses import dataclass
from typing import TypeVarTuple

from sqlalchemy import (
    ScalarSelect,
    Select,
    Subquery,
    select,
    union_all,
    update,
)
from sqlalchemy.orm import Session

from service.database import now
from service.experiments.models import (
    DEVICES,
    Device,
    Experiment,
    Queue,
    Status,
)
from service.experiments.states import note_status

Ts = TypeVarTuple("Ts")


@dataclass(frozen=True, slots=True)
class Dispatch:
    """An experiment chosen to run next: what the doorbell says."""

    experiment_id: str
    dispatch_no: int
    queue: Queue


def dispatch_next(session: Session, for_queue: Queue = Queue.CPU) -> Dispatch | None:
    """Choose the next queued experiment (priority, then age) that a worker of this queue may run
    and mark it dispatched, under a new number that only one claim can use. None where nothing
    waits."""
    row = session.execute(_DISPATCH_NEXT[for_queue]).one_or_none()
    if row is None:
        return None
    note_status(session, row.id, Status.DISPATCHED, dispatch_no=row.dispatch_no)
    return Dispatch(row.id, row.dispatch_no, for_queue)


def _next(for_queue: Queue) -> ScalarSelect[str]:
    """Of the first of each device, each one look into the index, the very first."""
    firsts = union_all(*(select(_first(device)) for device in DEVICES[for_queue])).subquery()
    first = select(firsts.c.id).order_by(firsts.c.priority.desc(), firsts.c.id).limit(1)
    return first.scalar_subquery()


def _first(device: Device) -> Subquery:
    """The oldest of the highest priority: two looks, each along one end of the index. No index of
    plain columns has both orders at once, and by id alone PostgreSQL would walk along all that
    ever ran."""
    waits = (Experiment.status == Status.QUEUED) & (Experiment.device == device)
    highest = select(Experiment.priority).where(waits).order_by(Experiment.priority.desc())
    oldest = (
        select(Experiment.id, Experiment.priority)
        .where(waits, Experiment.priority >= _one_free(highest).scalar_subquery())
        .order_by(Experiment.priority, Experiment.id)
    )
    return _one_free(oldest).subquery()


def _one_free(query: Select[*Ts]) -> Select[*Ts]:
    """The first that no other transaction holds: it may be frozen."""
    return query.limit(1).with_for_update(skip_locked=True)


_DISPATCH_NEXT = {
    for_queue: update(Experiment)
    .where(Experiment.id == _next(for_queue), Experiment.status == Status.QUEUED)
    .values(
        status=Status.DISPATCHED,
        queue=for_queue,
        dispatch_no=Experiment.dispatch_no + 1,
        dispatched_at=now(),
    )
    .returning(Experiment.id, Experiment.dispatch_no)
    .execution_options(synchronize_session=False)
    for for_queue in Queue
}
"""Made once: idle workers ask ten times a second."""
