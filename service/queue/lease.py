"""Leases of running experiments: heartbeat, fence, ends, expiry.

Every function takes a session and commits nothing. Times are the database's own (`now()`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Row,
    Update,
    delete,
    func,
    literal,
    select,
    update,
)
from sqlalchemy.orm import Session, aliased

from service.accounts.models import User
from service.db.engine import now
from service.experiments.models import (
    GAVE_WAY,
    LOST,
    Artifact,
    Attempt,
    Block,
    Checkpoint,
    Event,
    Experiment,
    Metric,
    Queue,
    Series,
)
from service.queue import ledger
from service.queue.states import is_terminal, note_status
from service.vocabulary import TERMINAL, DesiredState, Status, Visibility
from service.workers.models import Worker


class LeaseLost(Exception):
    """The attempt no longer owns its experiment: kill the runner, write nothing more."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One attempt at an experiment."""

    experiment_id: str
    attempt: int
    spec: dict[str, Any]
    queue: str = Queue.CPU
    checkpoints: Sequence[Checkpoint] = ()
    """Checkpoints to resume from, the latest first. Empty: start from the beginning."""

    @property
    def after_seq(self) -> int:
        """Records up to this one were kept from earlier attempts."""
        return self.checkpoints[0].after_seq if self.checkpoints else 0


@dataclass(frozen=True, slots=True)
class FailureCause:
    """Cause of a failed run (oom, error, lost, timeout, disk_full or invalid) and a sentence."""

    kind: str
    message: str


def resume(session: Session, experiment_id: str) -> Sequence[Checkpoint]:
    """Return an experiment's checkpoints, and delete the records after the latest one, or all."""
    found = checkpoints(session, experiment_id)
    _delete_records(session, experiment_id, found[0].after_seq if found else 0)
    return found


def checkpoints(session: Session, experiment_id: str) -> Sequence[Checkpoint]:
    """Return an experiment's checkpoints, the latest first."""
    query = select(Checkpoint).where(Checkpoint.experiment_id == experiment_id)
    order = (Checkpoint.after_seq, Checkpoint.attempt, Checkpoint.file)
    return session.scalars(query.order_by(*(column.desc() for column in order))).all()


def _delete_records(session: Session, experiment_id: str, after: int) -> None:
    """Delete the records after `after`, which is a checkpoint's: no block goes beyond it."""
    series = select(Series.id).where(Series.experiment_id == experiment_id)
    session.execute(
        delete(Block).where(Block.series_id.in_(series.scalar_subquery()), Block.last_seq > after)
    )
    kept = select(Block.series_id).where(Block.series_id == Series.id).exists()
    session.execute(delete(Series).where(Series.experiment_id == experiment_id, ~kept))
    for table in (Metric, Event, Artifact):
        session.execute(
            delete(table).where(table.experiment_id == experiment_id, table.seq > after)
        )


def forget_records(session: Session, experiment_id: str) -> None:
    """Delete the records and unusable checkpoints of a run that restarts."""
    _delete_records(session, experiment_id, after=0)
    _forget_checkpoints(session, [experiment_id])


def _owned(claim: Claim) -> Update:
    """The fence: it matches only while this attempt owns its experiment."""
    return update(Experiment).where(
        Experiment.id == claim.experiment_id,
        Experiment.attempt == claim.attempt,
        Experiment.status == Status.RUNNING,
    )


@dataclass(frozen=True, slots=True)
class Requested:
    """Requests to a current run."""

    desired: DesiredState
    """State that its owner requests."""
    gives_way: bool
    """True if it has to give way to another experiment."""


def heartbeat(session: Session, claim: Claim, lease_s: float, **columns: object) -> Requested:
    """Check the fence, renew the lease and read what is requested of the run in one statement. It
    must be the first in every transaction of a run. Other columns may be set with it. Raises
    LeaseLost."""
    row = session.execute(
        _owned(claim)
        .values(lease_expires_at=now() + lease_s, **columns)
        .returning(Experiment.desired_state, Experiment.gives_way_to)
    ).one_or_none()
    if row is None:
        raise _lease_lost(claim)
    return Requested(DesiredState(row.desired_state), row.gives_way_to is not None)


def _lease_lost(claim: Claim) -> LeaseLost:
    return LeaseLost(f"attempt {claim.attempt} of {claim.experiment_id} lost its lease")


def finish(
    session: Session,
    claim: Claim,
    status: Status,
    failure: FailureCause | None = None,
    peak_bytes: int | None = None,
) -> None:
    """End the attempt and the experiment. `peak_bytes` is the memory that it used. Raises
    LeaseLost."""
    columns = {"finished_at": now(), **_failure_columns(failure)}
    _end(session, claim, status, status if failure is None else failure.kind, peak_bytes, columns)


def mark_lost(
    session: Session, claim: Claim, max_lost: int, peak_bytes: int | None = None
) -> Status:
    """Record that this attempt's runner was killed from outside, with the same result as
    an expired lease. Raises LeaseLost."""
    lost = session.execute(
        _owned(claim)
        .values(status=Status.QUEUED, lost=Experiment.lost + 1, lease_expires_at=None)
        .returning(Experiment.id, Experiment.lost, Experiment.attempt, Experiment.desired_state)
    ).one_or_none()
    if lost is None:
        raise _lease_lost(claim)
    ledger.end(session, claim.experiment_id, claim.attempt, LOST, peak_bytes=peak_bytes)
    return _after_loss(session, lost, max_lost)


def release(session: Session, claim: Claim, peak_bytes: int | None = None) -> Status:
    """End the attempt before the experiment is finished, at the request of its owner or worker. The
    experiment becomes paused or cancelled if that is requested, else queued. It is not counted as
    lost. Raises LeaseLost."""
    status = UNFINISHED[heartbeat(session, claim, lease_s=0).desired]
    columns = {"finished_at": now()} if status == Status.CANCELLED else {}
    _end(session, claim, status, status, peak_bytes, columns)
    return status


def give_way(session: Session, claim: Claim, peak_bytes: int | None = None) -> Status:
    """End the attempt to make room for the experiment that it was asked to give way to: its worker
    starts that next. The experiment is queued again and is not counted as lost. A request of its
    owner to pause or cancel it comes first. Raises LeaseLost."""
    if heartbeat(session, claim, lease_s=0).desired != DesiredState.RUN:
        return release(session, claim, peak_bytes)
    details = {"reason": GAVE_WAY, "message": _why_it_gave_way(session, claim)}
    of_it = Experiment.id == claim.experiment_id
    other = select(Experiment.gives_way_to).where(of_it).scalar_subquery()
    worker = select(Experiment.worker).where(of_it).scalar_subquery()
    session.execute(update(Worker).where(Worker.id == worker).values(reserved_for=other))
    _end(session, claim, Status.QUEUED, GAVE_WAY, peak_bytes, {}, **details)
    return Status.QUEUED


def _why_it_gave_way(session: Session, claim: Claim) -> str:
    """Return a sentence for everyone who may read the experiment, so it has the name of the other
    one only if everyone in the lab may read that."""
    other = aliased(Experiment)
    lasted_s, name, visibility, owner = session.execute(
        select(now() - Attempt.started_at, other.name, other.visibility, User.name)
        .join(Experiment, Experiment.id == Attempt.experiment_id)
        .outerjoin(other, other.id == Experiment.gives_way_to)
        .outerjoin(User, User.id == other.owner_id)
        .where(Attempt.experiment_id == claim.experiment_id, Attempt.attempt == claim.attempt)
    ).one()
    hours, minutes = divmod(int(lasted_s // 60), 60)
    which = name if visibility == Visibility.LAB and name else "run"
    to = "another run" if owner is None else f"{owner}'s {which}"
    return f"gave way to {to} after {hours}:{minutes:02} h; resumes when it is its turn"


def hand_back(
    session: Session,
    claim: Claim,
    reason: str,
    max_times: int,
    failure: FailureCause,
    peak_bytes: int | None = None,
) -> Status:
    """End the attempt because its machine lacked something: `disk_full` or `memory`. The experiment
    is queued again, and the attempt is not counted as lost. It fails with `failure` if `max_times`
    attempts were handed back for the same reason before. A request of its owner to pause or cancel
    it comes first. Raises LeaseLost."""
    status = UNFINISHED[heartbeat(session, claim, lease_s=0).desired]
    times = session.scalar(
        select(func.count()).where(
            Attempt.experiment_id == claim.experiment_id, Attempt.outcome == reason
        )
    )
    if status == Status.QUEUED and (times or 0) >= max_times:
        finish(session, claim, Status.FAILED, failure, peak_bytes)
        return Status.FAILED
    columns = {"finished_at": now()} if status == Status.CANCELLED else {}
    details = {"reason": reason, "message": failure.message}
    _end(session, claim, status, reason, peak_bytes, columns, **details)
    return status


UNFINISHED = {
    DesiredState.RUN: Status.QUEUED,
    DesiredState.PAUSE: Status.PAUSED,
    DesiredState.CANCEL: Status.CANCELLED,
}
"""Next status of an unfinished run, by the state that its owner requests."""


def _end(
    session: Session,
    claim: Claim,
    status: Status,
    outcome: str,
    peak_bytes: int | None,
    columns: Mapping[str, object],
    **details: object,
) -> None:
    ended = session.execute(
        _owned(claim)
        .values(status=status, lease_expires_at=None, **columns)
        .returning(Experiment.id)
    ).one_or_none()
    if ended is None:
        raise _lease_lost(claim)
    ledger.end(session, claim.experiment_id, claim.attempt, outcome, peak_bytes=peak_bytes)
    if is_terminal(status):
        _forget_checkpoints(session, [claim.experiment_id])
    note_status(session, claim.experiment_id, status, attempt=claim.attempt, **details)


def _failure_columns(failure: FailureCause | None) -> dict[str, object]:
    if failure is None:
        return {}
    return {"failure_kind": failure.kind, "failure_message": failure.message}


def expire(session: Session, max_lost: int, as_of: float | None = None) -> list[tuple[str, Status]]:
    """Requeue runs whose lease has expired. Rows that another, perhaps frozen, transaction has
    locked are left for the next call. Return the changes. Call it only if the database was up for a
    whole lease before `as_of`; it may have been unreachable between `as_of` and this statement."""
    clock = now() if as_of is None else literal(as_of)
    return [(row.id, _after_loss(session, row, max_lost)) for row in _lose_expired(session, clock)]


def begin_anew(session: Session) -> int:
    """Requeue everything that was running when a backup was made, after a restore, and return how
    many. It is not counted as lost. Attempt numbers continue above all earlier ones, so that the
    fence stops workers from before the restore."""
    taken = session.execute(
        select(Experiment.id, Experiment.attempt, Experiment.lease_expires_at,
               Experiment.desired_state)
        .where(Experiment.status == Status.RUNNING)
    ).all()  # fmt: skip
    for experiment_id, attempt, lease_expires_at, desired in taken:
        status = UNFINISHED[DesiredState(desired)]
        ledger.end(session, experiment_id, attempt, status, lease_expires_at)
        columns = {"finished_at": now()} if status == Status.CANCELLED else {}
        session.execute(
            update(Experiment)
            .where(Experiment.id == experiment_id)
            .values(status=status, lease_expires_at=None, **columns)
        )
        note_status(session, experiment_id, status, restored=True)
    unfinished = update(Experiment).where(Experiment.status.not_in(TERMINAL))
    session.execute(unfinished.values(attempt=Experiment.attempt + BEYOND))
    return len(taken)


BEYOND = 1000
"""Increment of attempt numbers at a restore. No experiment makes as many attempts between a backup
and its restore."""


def _lose_expired(
    session: Session, clock: ColumnElement[float]
) -> Sequence[Row[str, int, int, str]]:
    """Requeue the runs whose lease has expired. Their slots are charged until that moment, so that
    owners do not pay for an outage of the controller."""
    leases = session.execute(
        select(Experiment.id, Experiment.attempt, Experiment.lease_expires_at)
        .where(Experiment.status == Status.RUNNING, Experiment.lease_expires_at < clock)
        .with_for_update(skip_locked=True)
    ).all()
    if not leases:
        return ()
    for experiment_id, attempt, expired_at in leases:
        ledger.end(session, experiment_id, attempt, LOST, expired_at)
    return session.execute(
        update(Experiment)
        .where(Experiment.id.in_([row.id for row in leases]))
        .values(status=Status.QUEUED, lost=Experiment.lost + 1, lease_expires_at=None)
        .returning(Experiment.id, Experiment.lost, Experiment.attempt, Experiment.desired_state)
    ).all()


def _free(*conditions: ColumnElement[bool]) -> ColumnElement[bool]:
    """Select an experiment that meets these conditions and that no other transaction has locked. It
    is locked from then on."""
    return Experiment.id.in_(
        select(Experiment.id).where(*conditions).with_for_update(skip_locked=True)
    )


def forget_checkpoints(
    session: Session, experiment_ids: Sequence[str], after_s: float
) -> Sequence[str]:
    """Delete the checkpoint rows of the experiments among these that ended more than `after_s`
    seconds ago, and return these experiments. Their files may be deleted."""
    over = _free(
        Experiment.id.in_(experiment_ids),
        Experiment.status.in_(TERMINAL),
        Experiment.finished_at < now() - after_s,
    )
    ended = session.scalars(select(Experiment.id).where(over)).all()
    _forget_checkpoints(session, ended)
    return ended


def _forget_checkpoints(session: Session, experiment_ids: Sequence[str]) -> None:
    session.execute(delete(Checkpoint).where(Checkpoint.experiment_id.in_(experiment_ids)))


def _after_loss(session: Session, lost: Row[str, int, int, str], max_lost: int) -> Status:
    """Return the next status of an experiment (id, lost, attempt, desired_state) whose attempt was
    lost."""
    status, failure = UNFINISHED[DesiredState(lost.desired_state)], None
    if status == Status.QUEUED and lost.lost > max_lost:
        status = Status.FAILED
        message = f"its worker was lost {lost.lost} times; at most {max_lost} losses are allowed"
        failure = FailureCause(LOST, message)
    if status != Status.QUEUED:
        session.execute(
            update(Experiment)
            .where(Experiment.id == lost.id)
            .values(
                status=status,
                finished_at=None if status == Status.PAUSED else now(),
                **_failure_columns(failure),
            )
        )
    note_status(session, lost.id, status, lost_attempt=lost.attempt)
    return status
