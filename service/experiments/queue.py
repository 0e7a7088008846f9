"""Who runs what, and until when: dispatch, claim, lease, fence, reap.

Every function takes a session and commits nothing. Times are the database's own (`now()`).
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, Update, delete, func, select, update
from sqlalchemy.orm import Session

from service.database import now
from service.experiments.models import (
    TERMINAL,
    WAITING,
    Block,
    DesiredState,
    Event,
    Experiment,
    Metric,
    Series,
    Status,
)


class LeaseLost(Exception):
    """This attempt no longer owns its experiment: kill the runner, write nothing more."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One attempt at an experiment."""

    experiment_id: str
    attempt: int
    spec: dict[str, Any]


@dataclass(frozen=True, slots=True)
class FailureCause:
    """Why a run failed: oom, error, lost, timeout or invalid, and a sentence."""

    kind: str
    message: str


def note_status(session: Session, experiment_id: str, status: Status, **details: object) -> None:
    data = {"status": status, **details}
    session.add(Event(experiment_id=experiment_id, kind="status", data=data))


def dispatch_next(session: Session) -> tuple[str, int] | None:
    """Choose the next queued experiment (priority, then age) and mark it dispatched, under a new
    number that only one claim can use. None where nothing waits."""
    chosen = (
        select(Experiment.id)
        .where(Experiment.status == Status.QUEUED)
        .order_by(Experiment.priority.desc(), Experiment.id)
        .limit(1)
        .with_for_update(skip_locked=True)
        .scalar_subquery()
    )
    row = session.execute(
        update(Experiment)
        .where(Experiment.id == chosen, Experiment.status == Status.QUEUED)
        .values(
            status=Status.DISPATCHED,
            dispatch_no=Experiment.dispatch_no + 1,
            dispatched_at=now(),
        )
        .returning(Experiment.id, Experiment.dispatch_no)
    ).one_or_none()
    if row is None:
        return None
    note_status(session, row.id, Status.DISPATCHED, dispatch_no=row.dispatch_no)
    return row.id, row.dispatch_no


def claim(
    session: Session, experiment_id: str, dispatch_no: int, worker: str, lease_s: float
) -> Claim | None:
    """Begin an attempt: raise the fence and take the lease. None where the dispatch is not the
    current one. The records of earlier attempts go, in the same transaction."""
    row = session.execute(
        update(Experiment)
        .where(
            Experiment.id == experiment_id,
            Experiment.status == Status.DISPATCHED,
            Experiment.dispatch_no == dispatch_no,
        )
        .values(
            status=Status.RUNNING,
            attempt=Experiment.attempt + 1,
            worker=worker,
            lease_expires_at=now() + lease_s,
            started_at=func.coalesce(Experiment.started_at, now()),
            last_seq=0,
            progress_done=None,
            progress_total=None,
            progress_unit=None,
        )
        .returning(Experiment.attempt, Experiment.spec)
    ).one_or_none()
    if row is None:
        return None
    _delete_records(session, experiment_id)
    note_status(session, experiment_id, Status.RUNNING, attempt=row.attempt, worker=worker)
    return Claim(experiment_id, row.attempt, row.spec)


def _delete_records(session: Session, experiment_id: str) -> None:
    series = select(Series.id).where(Series.experiment_id == experiment_id).scalar_subquery()
    session.execute(delete(Block).where(Block.series_id.in_(series)))
    session.execute(delete(Series).where(Series.experiment_id == experiment_id))
    session.execute(delete(Metric).where(Metric.experiment_id == experiment_id))
    session.execute(
        delete(Event).where(Event.experiment_id == experiment_id, Event.seq.is_not(None))
    )


def _owned(claim: Claim) -> Update:
    """The fence: matches only while this attempt owns its experiment."""
    return update(Experiment).where(
        Experiment.id == claim.experiment_id,
        Experiment.attempt == claim.attempt,
        Experiment.status == Status.RUNNING,
    )


def heartbeat(session: Session, claim: Claim, lease_s: float, **columns: object) -> DesiredState:
    """Fence, heartbeat and poll in one statement; first in every transaction of a run. Other
    columns may be set with it. Raises LeaseLost."""
    desired = session.execute(
        _owned(claim)
        .values(lease_expires_at=now() + lease_s, **columns)
        .returning(Experiment.desired_state)
    ).scalar_one_or_none()
    if desired is None:
        raise _lease_lost(claim)
    return DesiredState(desired)


def _lease_lost(claim: Claim) -> LeaseLost:
    return LeaseLost(f"attempt {claim.attempt} of {claim.experiment_id} lost its lease")


def finish(
    session: Session, claim: Claim, status: Status, failure: FailureCause | None = None
) -> None:
    """End the attempt and with it the experiment. Raises LeaseLost."""
    _end(session, claim, status, finished_at=now(), **_failure_columns(failure))


def lose(session: Session, claim: Claim, max_lost: int) -> Status:
    """Say that this attempt's runner was killed from outside: back to the queue, as the reaper
    would put it. Raises LeaseLost."""
    lost = session.execute(
        _owned(claim)
        .values(status=Status.QUEUED, lost=Experiment.lost + 1, lease_expires_at=None)
        .returning(Experiment.id, Experiment.lost, Experiment.attempt, Experiment.desired_state)
    ).one_or_none()
    if lost is None:
        raise _lease_lost(claim)
    return _after_loss(session, lost, max_lost)


def hand_back(session: Session, claim: Claim) -> None:
    """Give an unfinished run back to the queue; not counted as lost. Raises LeaseLost."""
    _end(session, claim, Status.QUEUED)


def _end(session: Session, claim: Claim, status: Status, **columns: object) -> None:
    ended = session.execute(
        _owned(claim)
        .values(status=status, lease_expires_at=None, **columns)
        .returning(Experiment.id)
    ).one_or_none()
    if ended is None:
        raise _lease_lost(claim)
    note_status(session, claim.experiment_id, status, attempt=claim.attempt)


def _failure_columns(failure: FailureCause | None) -> dict[str, object]:
    if failure is None:
        return {}
    return {"failure_kind": failure.kind, "failure_message": failure.message}


def request_cancel(session: Session, experiment_id: str) -> Status | None:
    """Cancel what waits; ask what runs to stop. The status after that, or None where it had
    ended already."""
    waiting = session.execute(
        update(Experiment)
        .where(Experiment.id == experiment_id, Experiment.status.in_(WAITING))
        .values(status=Status.CANCELLED, finished_at=now())
        .returning(Experiment.id)
    ).one_or_none()
    if waiting is not None:
        note_status(session, experiment_id, Status.CANCELLED)
        return Status.CANCELLED
    running = session.execute(
        update(Experiment)
        .where(Experiment.id == experiment_id, Experiment.status == Status.RUNNING)
        .values(desired_state=DesiredState.CANCEL)
        .returning(Experiment.id)
    ).one_or_none()
    return None if running is None else Status.RUNNING


def reap(session: Session, dispatch_timeout_s: float, max_lost: int) -> list[tuple[str, Status]]:
    """Put back what no one will finish: runs whose lease has expired, and dispatches that no one
    claimed. Returns what was done. To be called only once the database was up for a whole lease.
    """
    done = []
    expired = session.execute(
        update(Experiment)
        .where(Experiment.status == Status.RUNNING, Experiment.lease_expires_at < now())
        .values(status=Status.QUEUED, lost=Experiment.lost + 1, lease_expires_at=None)
        .returning(Experiment.id, Experiment.lost, Experiment.attempt, Experiment.desired_state)
    ).all()
    done += [(row.id, _after_loss(session, row, max_lost)) for row in expired]
    unclaimed = session.execute(
        update(Experiment)
        .where(
            Experiment.status == Status.DISPATCHED,
            Experiment.dispatched_at < now() - dispatch_timeout_s,
        )
        .values(status=Status.QUEUED)
        .returning(Experiment.id, Experiment.dispatch_no)
    ).all()
    for row in unclaimed:
        note_status(session, row.id, Status.QUEUED, unclaimed_dispatch=row.dispatch_no)
        done.append((row.id, Status.QUEUED))
    return done


def _after_loss(session: Session, lost: Row[str, int, int, str], max_lost: int) -> Status:
    """What becomes of an experiment (id, lost, attempt, desired_state) that was put back to the
    queue because its attempt was lost."""
    status, failure = Status.QUEUED, None
    if lost.desired_state == DesiredState.CANCEL:
        status = Status.CANCELLED
    elif lost.lost > max_lost:
        status = Status.FAILED
        message = f"its worker was lost {lost.lost} times; at most {max_lost} are borne"
        failure = FailureCause("lost", message)
    if status != Status.QUEUED:
        session.execute(
            update(Experiment)
            .where(Experiment.id == lost.id)
            .values(status=status, finished_at=now(), **_failure_columns(failure))
        )
    note_status(session, lost.id, status, lost_attempt=lost.attempt)
    return status


def position(session: Session, experiment: Experiment) -> int:
    """How many queued experiments come before this one."""
    before = select(func.count()).where(
        Experiment.status == Status.QUEUED,
        (Experiment.priority > experiment.priority)
        | ((Experiment.priority == experiment.priority) & (Experiment.id < experiment.id)),
    )
    return session.scalar(before) or 0


def is_terminal(status: str) -> bool:
    return status in TERMINAL
