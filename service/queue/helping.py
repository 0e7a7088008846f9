"""Idle workers that help the running experiments of others: lease and end of a help.

Every function takes a session and commits nothing. Times are the database's own (`now()`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import (
    ColumnElement,
    ScalarSelect,
    and_,
    delete,
    exists,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Session, aliased, undefer

from service.queue import lease
from service.tables.engine import limit_hanging, now
from service.tables.experiments import (
    Attempt,
    Checkpoint,
    Experiment,
    Queue,
    Status,
)
from service.tables.helpers import Barred, DividedRun, Help, SentBatch
from service.tables.workers import Worker

MAX_SHOWN = 50
"""Maximum number of helps that are shown of an experiment."""
UNLIKE = "its worker is unlike the run's: "
"""Beginning of the reason of a help that ended because the results could differ in bits."""
FAILED = "its process failed: "
"""Beginning of the reason of a help whose process failed. It would fail again."""
FINISHED = "nothing is left to compute"
"""Reason of a help that ended because all batches of the attempt are claimed."""
UNREADABLE = "it could not read the checkpoints of the run"
"""Reason of a help whose worker could not read the files of the run: newer ones may replace them,
or its machine does not see the store."""
LITTLE_USE = "it is of little use: "
"""Beginning of the reason of a help that ended because no worker would help the attempt much."""
NO_MEMORY = "its machine lacked memory"
"""Reason of helps that may have used the memory for lack of which the kernel killed a process.
Their experiments get no more helpers."""
ALIKE = ("core", "packages", "cpu", "cpu_capability", "threads", "gpu", "cuda", "precision")
"""Parts of the environment on which the bits of a result depend."""


@dataclass(frozen=True, slots=True)
class HelpClaim:
    """One worker's help for an attempt."""

    id: int
    experiment_id: str
    attempt: int
    spec: dict[str, Any]
    environment: Mapping[str, Any]
    """Environment of the attempt."""
    remaining_s: float | None
    """Expected remaining time of the attempt."""
    checkpoints: Sequence[Checkpoint] = ()
    inputs: dict[str, dict[str, str]] = field(default_factory=dict)


class HelpOver(Exception):
    """The help has ended for a reason: kill its runner, write nothing more."""


ACTIVE = Help.ended_at.is_(None)


_HELPED_QUEUES = select(Help.queue).where(ACTIVE).distinct()


def helped_queues(session: Session) -> list[Queue]:
    """Return the queues of which workers help, or are about to."""
    return [Queue(name) for name in session.scalars(_HELPED_QUEUES)]


def barred_by(reason: str) -> Barred | None:
    """Return what gets no further help after one that ended for a reason."""
    if reason.startswith((UNLIKE, FAILED)) or reason == UNREADABLE:
        return Barred.WORKER
    if reason == FINISHED or reason.startswith(LITTLE_USE):
        return Barred.ATTEMPT
    return Barred.EXPERIMENT if reason == NO_MEMORY else None


def begin(session: Session, help_id: int, worker: str, lease_s: float) -> HelpClaim | None:
    """Begin a help: take its lease and start its line of the ledger. None if it is no longer
    current, if the worker is known to be unlike the attempt's, or if its machine lacks the memory;
    then the help is removed, and another worker may get the next one."""
    limit_hanging(session)
    if _lacks_memory(session, help_id, worker):
        _refuse(session, help_id)
        return None
    earlier = aliased(Help)
    unlike = exists().where(
        earlier.experiment_id == Help.experiment_id,
        earlier.attempt == Help.attempt,
        earlier.worker == worker,
        earlier.barred == Barred.WORKER,
    )
    row = session.execute(
        update(Help)
        .where(
            Help.id == help_id,
            Help.started_at.is_(None),
            ACTIVE,
            Help.must_stop.is_(False),
            _attempt_runs(),
            ~unlike,
        )
        .values(worker=worker, started_at=now(), lease_expires_at=now() + lease_s)
        .returning(Help.experiment_id, Help.attempt)
        .execution_options(synchronize_session=False)
    ).one_or_none()
    if row is None:
        _refuse(session, help_id)
        return None
    attempt = session.get_one(
        Attempt, (row.experiment_id, row.attempt), options=[undefer(Attempt.environment)]
    )
    experiment = session.get_one(Experiment, row.experiment_id)
    remaining_s = session.scalar(select(REMAINING_S).where(Experiment.id == row.experiment_id))
    found = lease.checkpoints(session, row.experiment_id)
    return HelpClaim(
        help_id,
        row.experiment_id,
        row.attempt,
        experiment.spec,
        attempt.environment or {},
        remaining_s,
        found,
    )


def _refuse(session: Session, help_id: int) -> None:
    """Remove a help that did not begin."""
    session.execute(delete(Help).where(Help.id == help_id, Help.started_at.is_(None)))


REMAINING_S = Experiment.progress_eta_s - (now() - Experiment.progress_at)
"""Expected remaining time of a running experiment in seconds; null if unknown."""


def promised_bytes(but: int | None = None) -> ColumnElement[int]:
    """Return the memory of all runs on a worker's machine, and of all helps there but one. Helps
    that have not begun may begin there. What has begun counts twice: its memory is not free any
    more, and it may allocate more."""
    other, run, neighbour = aliased(Help), aliased(Experiment), aliased(Worker)
    is_here = exists().where(neighbour.id == other.worker, neighbour.host == Worker.host)
    of_helps = (
        select(func.coalesce(func.sum(run.memory_bytes), 0))
        .join(other, other.experiment_id == run.id)
        .where(other.ended_at.is_(None), other.id != (but or 0))
        .where(or_(other.worker.is_(None), is_here.correlate(other, Worker)))
    )
    of_runs = (
        select(func.coalesce(func.sum(run.memory_bytes), 0))
        .join(neighbour, neighbour.id == run.worker)
        .where(run.status == Status.RUNNING, neighbour.host == Worker.host)
    )
    helps_bytes: ScalarSelect[int] = of_helps.correlate(Worker).scalar_subquery()
    return helps_bytes + of_runs.correlate(Worker).scalar_subquery()


def _lacks_memory(session: Session, help_id: int, worker: str) -> bool:
    needed = (
        select(func.coalesce(Experiment.memory_bytes, 0))
        .join(Help, Help.experiment_id == Experiment.id)
        .where(Help.id == help_id)
        .scalar_subquery()
    )
    lacks = select(Worker.memory_free - promised_bytes(help_id) < needed)
    return bool(session.scalar(lacks.where(Worker.id == worker)))


def _attempt_runs() -> ColumnElement[bool]:
    runs = exists().where(
        Experiment.id == Help.experiment_id,
        Experiment.attempt == Help.attempt,
        Experiment.status == Status.RUNNING,
    )
    return runs.correlate(Help)


def beat(session: Session, claim: HelpClaim, lease_s: float) -> None:
    """Renew the lease of a help. It must be the first statement in every transaction of a helper.
    Raises HelpOver if its attempt has ended, if its worker is needed, or if the lease is lost. A
    helper that hangs in its transaction is disconnected soon: others wait for its locks."""
    limit_hanging(session)
    must_stop = session.execute(
        update(Help)
        .where(Help.id == claim.id, ACTIVE)
        .values(lease_expires_at=now() + lease_s)
        .returning(Help.must_stop)
        .execution_options(synchronize_session=False)
    ).scalar_one_or_none()
    if must_stop is None:
        raise HelpOver("its lease is lost")
    if must_stop:
        raise HelpOver("its worker is needed for an experiment")
    run = select(Experiment.id).where(Experiment.id == claim.experiment_id)
    # From here on an experiment ends only after this transaction (`holds.settle`). The status is
    # read after the lock, because the locking statement may return the row as it was before.
    session.execute(run.with_for_update(read=True, key_share=True))
    runs = (Experiment.attempt == claim.attempt, Experiment.status == Status.RUNNING)
    if session.scalar(run.where(*runs)) is None:
        raise HelpOver("the attempt has ended")


def end(session: Session, help_id: int, reason: str) -> None:
    """End a help and its line of the ledger."""
    session.execute(
        update(Help)
        .where(Help.id == help_id, ACTIVE)
        .values(ended_at=now(), reason=reason[:200], barred=barred_by(reason))
        .execution_options(synchronize_session=False)
    )


RECENT_S = 60.0
"""Time for which an ended help may be the cause of a lack of memory."""


def _may_use_memory_of(experiment_id: str, attempt: int) -> ColumnElement[bool]:
    """Return whether a help may use the memory that an attempt lacks: a help of this attempt, or
    one on the machine of its worker."""
    mine, machine = aliased(Worker), aliased(Worker)
    here = (
        select(machine.id)
        .join(mine, mine.host == machine.host)
        .join(Experiment, Experiment.worker == mine.id)
        .where(Experiment.id == experiment_id)
    )
    is_recent = or_(Help.ended_at.is_(None), Help.ended_at > now() - RECENT_S)
    of_attempt = and_(Help.experiment_id == experiment_id, Help.attempt == attempt)
    may = or_(of_attempt, and_(is_recent, Help.worker.in_(here)))
    return and_(Help.started_at.is_not(None), may)


def uses_memory_of(session: Session, experiment_id: str, attempt: int) -> bool:
    """Return whether a help may use the memory that an attempt lacks."""
    return bool(session.scalar(select(exists().where(_may_use_memory_of(experiment_id, attempt)))))


def end_for_memory(session: Session, experiment_id: str, attempt: int) -> None:
    """End the helps that may use the memory that an attempt lacked, whose process was killed. Their
    experiments get no more helpers."""
    session.execute(
        update(Help)
        .where(_may_use_memory_of(experiment_id, attempt))
        .values(
            ended_at=func.coalesce(Help.ended_at, now()),
            reason=NO_MEMORY,
            barred=Barred.EXPERIMENT,
        )
        .execution_options(synchronize_session=False)
    )


def withdraw(session: Session, help_ids: Sequence[int]) -> None:
    """Remove those of these helps that have not begun, unless another transaction, which may hang,
    has locked them."""
    mine = select(Help.id).where(Help.id.in_(help_ids), Help.started_at.is_(None), ACTIVE)
    session.execute(delete(Help).where(Help.id.in_(mine.with_for_update(skip_locked=True))))


def difference(helper: Mapping[str, Any], run: Mapping[str, Any]) -> str | None:
    """Return the first part in which the environment of a helper differs from that of the run so
    that scores may differ in bits. The helper may have read only inputs of the run so far."""
    part = next((name for name in ALIKE if helper.get(name) != run.get(name)), None)
    known = (run.get("inputs") or {}).items()
    is_known = (helper.get("inputs") or {}).items() <= known
    return part or (None if is_known else "inputs")


def has_helper(session: Session, experiment_id: str, attempt: int) -> bool:
    """Return whether an attempt has a helper."""
    query = select(Help.id).where(
        Help.experiment_id == experiment_id, Help.attempt == attempt, ACTIVE
    )
    return session.scalar(query.limit(1)) is not None


def of_experiment(session: Session, experiment_id: str) -> Sequence[Help]:
    """Return the last helps of an experiment that have begun, oldest first."""
    begun = Help.experiment_id == experiment_id, Help.started_at.is_not(None)
    last = session.scalars(select(Help).where(*begun).order_by(Help.id.desc()).limit(MAX_SHOWN))
    return last.all()[::-1]


def reap(session: Session, dispatch_timeout_s: float, as_of: float) -> int:
    """End the helps whose lease has expired, when it expired, and remove those that no worker
    began. Return their number."""
    lost = session.execute(
        update(Help)
        .where(
            Help.id.in_(
                select(Help.id)
                .where(ACTIVE, Help.lease_expires_at < as_of)
                .with_for_update(skip_locked=True)
            )
        )
        .values(ended_at=Help.lease_expires_at, reason="its worker was lost")
        .returning(Help.id)
        .execution_options(synchronize_session=False)
    ).all()
    unclaimed = session.execute(
        delete(Help)
        .where(
            Help.id.in_(
                select(Help.id)
                .where(
                    ACTIVE,
                    Help.started_at.is_(None),
                    or_(Help.dispatched_at < as_of - dispatch_timeout_s, ~_attempt_runs()),
                )
                .with_for_update(skip_locked=True)
            )
        )
        .returning(Help.id)
        .execution_options(synchronize_session=False)
    ).all()
    return len(lost) + len(unclaimed)


def end_all(session: Session) -> None:
    """End all helps after a restore: their workers belong to the time of the backup."""
    session.execute(delete(Help).where(Help.started_at.is_(None)))
    session.execute(
        update(Help)
        .where(ACTIVE)
        .values(ended_at=Help.lease_expires_at, reason="a backup was restored")
    )
    for table in (DividedRun, SentBatch):
        session.execute(delete(table))
