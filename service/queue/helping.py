"""Idle workers that help the running experiments of others: choice, lease, end.

Every function takes a session and commits nothing. Times are the database's own (`now()`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, exists, func, or_, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased, undefer

from service.fair_share import FairShare
from service.queue import holds, lease, shares, workers
from service.queue.shares import Standing
from service.settings import Settings
from service.tables.engine import now
from service.tables.experiments import (
    DEVICES,
    Attempt,
    Checkpoint,
    DesiredState,
    Experiment,
    Held,
    Queue,
    Status,
)
from service.tables.helpers import DividedRun, Help, SentBatch
from service.tables.workers import Worker

MAX_PAUSE_S = 5.0
"""Maximum seconds between the end of a help and the next help for the same attempt."""
MAX_SHOWN = 50
"""Maximum number of helps that are shown of an experiment."""
UNLIKE = "its worker is unlike the run's: "
"""Beginning of the reason of a help that ended because the results could differ in bits."""
FAILED = "its process failed: "
"""Beginning of the reason of a help whose process failed. It would fail again."""
FINISHED = "nothing is left to compute"
"""Reason of a help that ended because all batches of the attempt are claimed."""
HELPING = (Queue.CPU,)
"""Queues whose workers help. The memory of GPUs is not checked for a second process."""
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
    checkpoints: Sequence[Checkpoint] = ()
    inputs: dict[str, dict[str, str]] = field(default_factory=dict)


class HelpOver(Exception):
    """The help has ended for a reason: kill its runner, write nothing more."""


_ACTIVE = Help.ended_at.is_(None)


def active(session: Session, queue: Queue) -> int:
    """Return how many workers of a queue help, or are about to."""
    return session.scalar(select(func.count()).where(_ACTIVE, Help.queue == queue)) or 0


def is_due(standings: Sequence[Standing], queue: Queue, most: float) -> bool:
    """Return whether an experiment waits that could begin on another worker of this queue."""
    return any(_could_have(one, queue, most) for one in standings)


def _could_have(one: Standing, queue: Queue, most: float) -> bool:
    """Return whether a user has an experiment that could begin on another worker of this queue."""
    return one.waits_for(queue) and one.may_begin(queue) and one.under_way[queue] < most


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings of helping. A worker that is silent for longer than `within_s` seconds counts as
    gone."""

    fair_share: FairShare
    within_s: float
    max_workers: int
    after_s: float

    @classmethod
    def of(cls, settings: Settings) -> "Rules":
        return cls(
            settings.share,
            settings.worker_silent_s,
            settings.max_workers,
            settings.help_after_s,
        )


def offer(session: Session, queue: Queue, rules: Rules) -> int | None:
    """Choose a running experiment that an idle worker of this queue may help, and return the number
    of the help. The owner with the least usage for its shares is first, then the run with the
    fewest helpers. None if an experiment waits that could begin, or if no run may have another
    helper. Call only while holding the dispatch lock."""
    if queue not in HELPING:
        return None
    holds.release_sweeps(session)
    standings = shares.standings(session, rules.fair_share)
    alive = workers.alive_in(session, queue, rules.within_s)
    most = shares.max_slots(standings, rules.fair_share, alive)
    if is_due(standings, queue, most):
        return None
    helped = _helped_by_owner(session)
    eligible = {
        one.owner_id: one.level
        for one in standings
        if not one.is_disabled and _has_room(one, queue, most, helped[one.owner_id, queue], helped)
    }
    max_helpers = min(rules.max_workers, alive) - 1
    rows = session.execute(_candidates(queue, rules, max_helpers)).all()
    chosen = min(
        (row for row in rows if row.owner_id in eligible and row.helpers < max_helpers),
        key=lambda row: (eligible[row.owner_id], row.helpers, row.id),
        default=None,
    )
    if chosen is None or not _is_free(session, chosen.id):
        return None
    help_ = Help(
        experiment_id=chosen.id, attempt=chosen.attempt, owner_id=chosen.owner_id, queue=queue
    )
    session.add(help_)
    session.flush()
    return help_.id


def _is_free(session: Session, experiment_id: str) -> bool:
    """Lock an experiment as its helps do, and return False if another transaction, which may hang,
    has locked it: others must not wait for the dispatch lock meanwhile."""
    one = select(Experiment.id).where(Experiment.id == experiment_id)
    locked = one.with_for_update(read=True, key_share=True, skip_locked=True)
    return session.scalar(locked) is not None


def could_help(session: Session, queue: Queue, rules: Rules) -> bool:
    """Return whether a worker of a queue is idle and a run may have helpers, whatever else waits.
    It needs no lock: most of the time there is no such run."""
    return queue in HELPING and bool(session.scalar(select(exists(_candidates(queue, rules, 1)))))


def _helped_by_owner(session: Session) -> Counter[tuple[int, Queue]]:
    rows = session.execute(
        select(Help.owner_id, Help.queue, func.count())
        .where(_ACTIVE)
        .group_by(Help.owner_id, Help.queue)
    )
    return Counter({(owner_id, Queue(queue)): count for owner_id, queue, count in rows})


def _has_room(
    one: Standing,
    queue: Queue,
    most: float,
    here: int,
    helped: Counter[tuple[int, Queue]],
) -> bool:
    """Return whether a user may have another slot, helpers included."""
    everywhere = one.running + sum(helped[one.owner_id, name] for name in Queue)
    within_limit = one.max_running is None or everywhere < one.max_running
    has_hours = not (queue == Queue.GPU and one.has_spent_gpu_hours)
    return within_limit and has_hours and one.under_way[queue] + here < most


def _candidates(queue: Queue, rules: Rules, max_helpers: int) -> Any:
    """Select the attempts that may be helped, with the number of their helpers. A machine must have
    free memory for all the helpers that an attempt may have, because they may begin at once."""
    of_attempt = and_(Help.experiment_id == Experiment.id, Help.attempt == Experiment.attempt)
    helpers = select(func.count()).where(of_attempt, _ACTIVE).scalar_subquery()
    recent = exists().where(of_attempt, Help.ended_at > now() - min(rules.after_s, MAX_PAUSE_S))
    finished = exists().where(of_attempt, Help.reason == FINISHED)
    eta_s = Experiment.progress_eta_s - (now() - Experiment.progress_at)
    return (
        select(Experiment.id, Experiment.attempt, Experiment.owner_id, helpers.label("helpers"))
        .join(
            Attempt,
            and_(Attempt.experiment_id == Experiment.id, Attempt.attempt == Experiment.attempt),
        )
        .where(
            Experiment.status == Status.RUNNING,
            Experiment.queue == queue,
            Experiment.desired_state == DesiredState.RUN,
            Experiment.progress_stage.is_(None),
            Attempt.started_at < now() - rules.after_s,
            Attempt.environment.is_not(None),
            eta_s > rules.after_s,
            ~recent,
            ~finished,
            exists(_idle_and_alike(queue, rules.within_s, max_helpers)),
        )
    )


def _is_in_vain(reason: InstrumentedAttribute[str | None]) -> ColumnElement[bool]:
    """Return whether the worker of an ended help could not help the attempt if it tried again."""
    return or_(reason.startswith(UNLIKE), reason.startswith(FAILED))


def _idle_and_alike(queue: Queue, within_s: float, max_helpers: int) -> Any:
    """Select the idle workers that may help an attempt."""
    unlike = exists().where(
        Help.experiment_id == Experiment.id,
        Help.attempt == Experiment.attempt,
        Help.worker == Worker.id,
        _is_in_vain(Help.reason),
    )
    return (
        select(Worker.id)
        .where(
            Worker.queue == queue,
            Worker.heartbeat_at >= now() - within_s,
            Worker.memory_free >= max_helpers * func.coalesce(Experiment.memory_bytes, 0),
            ~workers.BUSY,
            ~unlike,
        )
        .correlate(Experiment)
    )


def give_way(session: Session, queue: Queue, rules: Rules) -> int:
    """Stop as many helpers of a queue as experiments wait for its workers, and return how many were
    stopped now. These are the experiments that could begin, and those that are dispatched while no
    worker is idle. Helpers that have not begun are first, then those of the owner with the most
    usage for its shares. Call only while holding the dispatch lock."""
    holds.release_sweeps(session)
    standings = shares.standings(session, rules.fair_share)
    slots = workers.slots(session, rules.within_s).get(queue, workers.Slots(0, 0))
    most = shares.max_slots(standings, rules.fair_share, slots.workers)
    due = _waiting(session, queue, [one for one in standings if _could_have(one, queue, most)])
    if not due and not slots.missing:
        return 0
    level = {one.owner_id: one.level for one in standings}
    rows = session.execute(
        select(Help.id, Help.owner_id, Help.must_stop, Help.started_at).where(
            _ACTIVE, Help.queue == queue
        )
    ).all()
    left = due + slots.missing - slots.idle - sum(row.must_stop for row in rows)
    going = sorted(
        (row for row in rows if not row.must_stop),
        key=lambda row: (row.started_at is not None, -level[row.owner_id]),
    )
    chosen = [row.id for row in going[: max(0, left)]]
    if chosen:
        session.execute(update(Help).where(Help.id.in_(chosen)).values(must_stop=True))
    return len(chosen)


def _waiting(session: Session, queue: Queue, owners: Sequence[Standing]) -> int:
    """Return how many queued experiments of these users may run on the workers of a queue."""
    if not owners:
        return 0
    queued = select(func.count()).where(
        Experiment.status == Status.QUEUED,
        Experiment.owner_id.in_([one.owner_id for one in owners]),
        Experiment.held == Held.NOT,
        Experiment.device.in_(DEVICES[queue]),
    )
    return session.scalar(queued) or 0


def begin(session: Session, help_id: int, worker: str, lease_s: float) -> HelpClaim | None:
    """Begin a help: take its lease and start its line of the ledger. None if it is no longer
    current, or if the worker is known to be unlike the attempt's; then it is removed."""
    earlier = aliased(Help)
    unlike = exists().where(
        earlier.experiment_id == Help.experiment_id,
        earlier.attempt == Help.attempt,
        earlier.worker == worker,
        _is_in_vain(earlier.reason),
    )
    row = session.execute(
        update(Help)
        .where(
            Help.id == help_id,
            Help.started_at.is_(None),
            _ACTIVE,
            Help.must_stop.is_(False),
            _attempt_runs(),
            ~unlike,
        )
        .values(worker=worker, started_at=now(), lease_expires_at=now() + lease_s)
        .returning(Help.experiment_id, Help.attempt)
        .execution_options(synchronize_session=False)
    ).one_or_none()
    if row is None:
        session.execute(delete(Help).where(Help.id == help_id, Help.started_at.is_(None)))
        return None
    attempt = session.get_one(
        Attempt, (row.experiment_id, row.attempt), options=[undefer(Attempt.environment)]
    )
    experiment = session.get_one(Experiment, row.experiment_id)
    found = lease.checkpoints(session, row.experiment_id)
    return HelpClaim(
        help_id,
        row.experiment_id,
        row.attempt,
        experiment.spec,
        attempt.environment or {},
        found,
    )


def _attempt_runs() -> ColumnElement[bool]:
    runs = exists().where(
        Experiment.id == Help.experiment_id,
        Experiment.attempt == Help.attempt,
        Experiment.status == Status.RUNNING,
    )
    return runs.correlate(Help)


def beat(session: Session, claim: HelpClaim, lease_s: float) -> None:
    """Renew the lease of a help. It must be the first statement in every transaction of a helper.
    Raises HelpOver if its attempt has ended, if its worker is needed, or if the lease is lost."""
    must_stop = session.execute(
        update(Help)
        .where(Help.id == claim.id, _ACTIVE)
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
        .where(Help.id == help_id, _ACTIVE)
        .values(ended_at=now(), reason=reason[:200])
        .execution_options(synchronize_session=False)
    )


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
        Help.experiment_id == experiment_id, Help.attempt == attempt, _ACTIVE
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
                .where(_ACTIVE, Help.lease_expires_at < as_of)
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
        .where(_ACTIVE)
        .values(ended_at=Help.lease_expires_at, reason="a backup was restored")
    )
    for table in (DividedRun, SentBatch):
        session.execute(delete(table))
