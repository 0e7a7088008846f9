"""Choose which idle workers help which running experiments, and which helpers stop for others.

Every function takes a session and commits nothing. Times are the database's own (`now()`).
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, exists, func, select, update
from sqlalchemy.orm import Session

from service.fair_share import FairShare
from service.queue import dispatch, helping, holds, shares, workers
from service.queue.helping import ACTIVE, REMAINING_S
from service.queue.shares import Standing
from service.settings import Settings
from service.tables.engine import now
from service.tables.experiments import (
    DEVICES,
    Attempt,
    DesiredState,
    Experiment,
    Held,
    Queue,
    Status,
)
from service.tables.helpers import Barred, Help
from service.tables.workers import Worker

MAX_PAUSE_S = 5.0
"""Maximum seconds between the end of a help and the next help for the same attempt. A help that a
worker has refused is offered again at once: the message goes to any worker of the queue."""
OFFER_EVERY_S = 0.5
"""Interval at which idle workers are offered as helpers."""
PATIENCE_S = 2.0
"""Seconds after which an experiment no longer counts on an idle worker, which may hang."""
SETTLE_S = 5.0
"""Seconds that a stopped helper's worker has to take an experiment before another helper stops."""
HELPING = (Queue.CPU,)
"""Queues whose workers help. The memory of GPUs is not checked for a second process."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings of helping. A worker that is silent for longer than `within_s` seconds counts as
    gone."""

    fair_share: FairShare
    within_s: float
    max_workers: int
    after_s: float
    lease_s: float
    helper: str | None = None
    """The worker that is to help. None: any idle worker of the queue."""

    @classmethod
    def of(cls, settings: Settings, helper: str | None = None) -> "Rules":
        return cls(
            settings.share,
            settings.worker_silent_s,
            settings.run_workers,
            settings.help_after_s,
            settings.lease_s,
            helper,
        )


def users_due(
    session: Session, standings: Sequence[Standing], queue: Queue, most: float, rules: Rules
) -> Iterator[Standing]:
    """Yield the users with an experiment that could begin on another worker of this queue."""
    for one in standings:
        may_begin = one.waits_for(queue) and one.may_begin(queue) and one.under_way[queue] < most
        if may_begin and not (
            queue == Queue.CPU and dispatch.is_kept_for_a_gpu(session, one, rules.within_s)
        ):
            yield one


def offer(session: Session, queue: Queue, rules: Rules) -> int | None:
    """Choose a running experiment that an idle worker of this queue may help, and return the number
    of the help. The owner with the least usage for its shares is first, then the run with the
    fewest helpers. None if an experiment waits that could begin or that no worker takes, or if no
    run may have another helper. Call only while holding the dispatch lock."""
    if queue not in HELPING:
        return None
    holds.release_sweeps(session)
    standings = shares.standings(session, rules.fair_share)
    alive = workers.alive_in(session, queue, rules.within_s)
    most = shares.max_slots(standings, rules.fair_share, alive)
    if next(users_due(session, standings, queue, most, rules), None) is not None:
        return None
    if is_late(session, queue):
        return None
    helped = _helped_by_owner(session)
    eligible = {
        one.owner_id: one.level
        for one in standings
        if not one.is_disabled and _has_room(one, queue, most, helped[one.owner_id, queue], helped)
    }
    max_helpers = min(rules.max_workers, alive) - 1
    rows = session.execute(_candidates(queue, rules, _clock(session))).all()
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


def is_late(session: Session, queue: Queue) -> bool:
    """Return whether a queue has an experiment that no worker has taken for PATIENCE_S: workers
    that look idle hang."""
    return bool(dispatch.unclaimed(session, PATIENCE_S, queue))


def _is_free(session: Session, experiment_id: str) -> bool:
    """Lock an experiment as its helps do, and return False if another transaction, which may hang,
    has locked it: others must not wait for the dispatch lock meanwhile."""
    one = select(Experiment.id).where(Experiment.id == experiment_id)
    locked = one.with_for_update(read=True, key_share=True, skip_locked=True)
    return session.scalar(locked) is not None


def could_help(session: Session, queue: Queue, rules: Rules) -> bool:
    """Return whether a worker of a queue is idle and a run may have helpers, whatever else waits.
    It needs no lock: most of the time there is no such run."""
    if queue not in HELPING:
        return False
    return bool(session.scalar(select(exists(_candidates(queue, rules, _clock(session))))))


def _clock(session: Session) -> float:
    return float(session.execute(select(now())).scalar_one())


def _helped_by_owner(session: Session) -> Counter[tuple[int, Queue]]:
    rows = session.execute(
        select(Help.owner_id, Help.queue, func.count())
        .where(ACTIVE)
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


def _candidates(queue: Queue, rules: Rules, at: float) -> Any:
    """Select the attempts that may be helped at a time of the database's clock, with the number of
    their helpers. The time is a number, because PostgreSQL looks for no moving time in an index."""
    of_attempt = and_(Help.experiment_id == Experiment.id, Help.attempt == Experiment.attempt)
    helpers = select(func.count()).where(of_attempt, ACTIVE).scalar_subquery()
    pause_s = min(rules.after_s, MAX_PAUSE_S)
    recent = exists().where(
        of_attempt, Help.started_at.is_not(None), Help.ended_at.between(at - pause_s, at)
    )
    useless = exists().where(of_attempt, Help.barred == Barred.ATTEMPT)
    too_large = exists().where(
        Help.experiment_id == Experiment.id, Help.barred == Barred.EXPERIMENT
    )
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
            Attempt.started_at < at - rules.after_s,
            Attempt.environment.is_not(None),
            REMAINING_S > rules.after_s,
            ~recent,
            ~useless,
            ~too_large,
            exists(_idle_and_alike(queue, rules)),
        )
    )


def _idle_and_alike(queue: Queue, rules: Rules) -> Any:
    """Select the idle workers that may help an attempt, and whose machine has the memory."""
    unlike = exists().where(
        Help.experiment_id == Experiment.id,
        Help.attempt == Experiment.attempt,
        Help.worker == Worker.id,
        Help.barred == Barred.WORKER,
    )
    return (
        select(Worker.id)
        .where(
            Worker.queue == queue,
            Worker.heartbeat_at >= now() - rules.within_s,
            Worker.memory_free - helping.promised_bytes()
            >= func.coalesce(Experiment.memory_bytes, 0),
            *(() if rules.helper is None else (Worker.id == rules.helper,)),
            ~workers.BUSY,
            ~unlike.correlate(Experiment, Worker),
        )
        .correlate(Experiment)
    )


def give_way(session: Session, queue: Queue, rules: Rules) -> int:
    """Stop as many helpers of a queue as experiments wait for its workers, and return how many were
    stopped now. These are the experiments that could begin and those that are dispatched, less one
    for each idle worker; but all that have waited for PATIENCE_S. Helps that have not begun are
    first, and are removed; then those of the owner with the most usage for its shares. A helper
    that was stopped and has been silent for PATIENCE_S does not count: another one stops. Helpers
    of users who have more slots than their limit stop in any case. Call only while holding the
    dispatch lock."""
    holds.release_sweeps(session)
    standings = shares.standings(session, rules.fair_share)
    slots = workers.slots(session, rules.within_s).get(queue, workers.Slots(0, 0))
    most = shares.max_slots(standings, rules.fair_share, slots.workers)
    could = [*users_due(session, standings, queue, most, rules)]
    due = _waiting(session, queue, could, most)
    owners = {one.owner_id: one for one in standings}
    rows = session.execute(
        select(
            Help.id,
            Help.owner_id,
            Help.must_stop,
            Help.started_at,
            (Help.lease_expires_at > now() + rules.lease_s - PATIENCE_S).label("has_beaten"),
        ).where(ACTIVE, Help.queue == queue)
    ).all()
    left = due + slots.missing - slots.idle
    late = len(dispatch.unclaimed(session, PATIENCE_S, queue))
    overdue = _waiting(session, queue, could, most, PATIENCE_S) + late
    stopping = sum(bool(row.must_stop and row.has_beaten) for row in rows)
    going = sorted(
        (row for row in rows if not row.must_stop),
        key=lambda row: (row.started_at is not None, -owners[row.owner_id].level),
    )
    chosen = going[: max(0, left - stopping)]
    if overdue > max(0, left):  # idle workers hang: the withdrawal of a help frees none that works
        chosen = [row for row in going if row.started_at is None or row in chosen]
        freed = stopping + sum(row.started_at is not None for row in chosen)
        more = overdue - freed - _stopped_lately(session, queue)
        chosen += [row for row in going if row not in chosen][: max(0, more)]
    rest = [row for row in going if row not in chosen]
    chosen += _beyond_limits(owners, rest, queue, most)
    if not chosen:
        return 0
    ids = [row.id for row in chosen]
    helping.withdraw(session, ids)
    # A helper that hangs in a transaction must not hold up the dispatch lock: it stops later.
    begun = Help.id.in_(ids), Help.started_at.is_not(None)
    free = select(Help.id).where(*begun).with_for_update(skip_locked=True)
    stops = update(Help).where(Help.id.in_(free)).values(must_stop=True)
    session.execute(stops.execution_options(synchronize_session=False))
    return len(chosen)


def _beyond_limits(
    owners: Mapping[int, Standing], going: Sequence[Any], queue: Queue, most: float
) -> Iterator[Any]:
    """Yield the helps that must stop so that runs and helpers of a user are within the user's
    limit, and leave the spare slots free. A run may have begun beside them. Disabled users have no
    helpers."""
    slots = Counter(one.owner_id for one in going)
    for one in going:
        user = owners[one.owner_id]
        helpers = slots[one.owner_id]
        limit = math.inf if user.max_running is None else user.max_running
        is_beyond = user.running + helpers > limit or user.under_way[queue] + helpers > most
        if user.is_disabled or is_beyond:
            slots[one.owner_id] -= 1
            yield one


def _stopped_lately(session: Session, queue: Queue) -> int:
    """Return how many helpers of a queue that had to stop have ended within SETTLE_S."""
    at = _clock(session)
    return (
        session.scalar(
            select(func.count()).where(
                Help.queue == queue, Help.must_stop, Help.ended_at.between(at - SETTLE_S, at)
            )
        )
        or 0
    )


def _waiting(
    session: Session, queue: Queue, owners: Sequence[Standing], most: float, after_s: float = 0.0
) -> int:
    """Return how many queued experiments of these users could begin on workers of a queue, among
    those created at least `after_s` seconds ago."""
    if not owners:
        return 0
    queued = dict(
        session.execute(
            select(Experiment.owner_id, func.count())
            .where(
                Experiment.status == Status.QUEUED,
                Experiment.owner_id.in_([one.owner_id for one in owners]),
                Experiment.held == Held.NOT,
                Experiment.device.in_(DEVICES[queue]),
                Experiment.created_at <= now() - after_s,
            )
            .group_by(Experiment.owner_id)
        ).all()
    )
    return sum(int(min(queued.get(one.owner_id, 0), _room_of(one, queue, most))) for one in owners)


def _room_of(one: Standing, queue: Queue, most: float) -> float:
    """Return how many more experiments of a user may run on workers of a queue."""
    limit = math.inf if one.max_running is None else one.max_running
    return max(0, min(limit - one.running, most - one.under_way[queue]))
