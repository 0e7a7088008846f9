"""Choose the next experiments to run.

Every function takes a session and commits nothing. Times are the database's own (`now()`).
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVarTuple

from sqlalchemy import (
    BigInteger,
    ScalarSelect,
    Select,
    String,
    Subquery,
    bindparam,
    exists,
    func,
    select,
    union_all,
    update,
)
from sqlalchemy.orm import Session
from sqlalchemy.sql.dml import ReturningUpdate

from service.db.engine import now
from service.experiments.models import DEVICES, Device, Experiment, Held, Queue, Status
from service.fair_share import FairShare
from service.queue import holds, rooms, shares, workers
from service.queue.lease import MAX_BYTES
from service.queue.shares import EXPERIMENTS, Standing
from service.queue.states import note_status

Ts = TypeVarTuple("Ts")

HEARD_OF_S = 60.0
MAX_UNCLAIMED = 100
"""Maximum number of unclaimed dispatches that are looked at together."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """An experiment chosen to run next: the content of the message to a worker."""

    experiment_id: str
    dispatch_no: int
    queue: Queue


_QUEUED = select(exists().where(EXPERIMENTS.c.status == Status.QUEUED))


def is_something_queued(session: Session) -> bool:
    """Return whether any experiment is queued, held or not. It needs no lock."""
    return bool(session.scalar(_QUEUED))


def dispatch_next(
    session: Session,
    for_queue: Queue = Queue.CPU,
    fair_share: FairShare | None = None,
    within_s: float = HEARD_OF_S,
) -> Dispatch | None:
    """Choose the next queued experiment that a worker of this queue may run, and mark it dispatched
    under a new number that only one claim can use. It is an experiment of the user with the least
    usage for its shares: the highest priority, then the oldest. Skipped are users at a limit, users
    whose runs use all workers except the spare ones, experiments for which no idle worker has the
    memory, and held experiments. Return None if nothing may run. Only one choice is made at a time,
    so that limits hold. Workers that have not sent a heartbeat for `within_s` seconds do not
    count."""
    workers.lock_dispatching(session)
    holds.release_sweeps(session)
    fair_share = fair_share or FairShare()
    standings = shares.standings(session, fair_share)
    most = shares.max_slots(standings, fair_share, workers.alive_in(session, for_queue, within_s))
    may_run = [
        one for one in standings if one.may_begin(for_queue) and one.under_way[for_queue] < most
    ]
    room: _Room | None = None
    for user in shares.in_turn(session, may_run, for_queue):
        if for_queue == Queue.CPU and is_kept_for_a_gpu(session, user, within_s):
            continue
        if room is None:
            room = _room(session, user, for_queue, within_s)
        chosen = {"owner": user.owner_id, "room": room.bytes, "kept": room.kept_memory}
        row = session.execute(_dispatch(for_queue), chosen).one_or_none()
        if row is not None:
            note_status(session, row.id, Status.DISPATCHED, dispatch_no=row.dispatch_no)
            return Dispatch(row.id, row.dispatch_no, for_queue)
    return None


def unclaimed(session: Session, for_s: float) -> list[Dispatch]:
    """Return dispatches that no worker has claimed for `for_s` seconds: the oldest ones,
    at most MAX_UNCLAIMED."""
    late = (
        select(Experiment.id, Experiment.dispatch_no, Experiment.queue)
        .where(Experiment.status == Status.DISPATCHED, Experiment.dispatched_at < now() - for_s)
        .order_by(Experiment.dispatched_at)
        .limit(MAX_UNCLAIMED)
    )
    return [Dispatch(row.id, row.dispatch_no, Queue(row.queue)) for row in session.execute(late)]


def is_kept_for_a_gpu(session: Session, user: Standing, within_s: float) -> bool:
    """Return whether a CPU run would use the last slot under the user's limit although a GPU run
    comes before it and a worker could run that."""
    if not user.has_one_place or not workers.alive_in(session, Queue.GPU, within_s):
        return False
    return shares.gpu_run_is_first(shares.firsts(session, [user])[user.owner_id])


@dataclass(frozen=True, slots=True)
class _Room:
    """Room for the next run."""

    bytes: int
    kept_memory: str | None = None
    """Memory that is kept for a larger run, whose workers do not count."""


def _room(session: Session, next_in_turn: Standing, for_queue: Queue, within_s: float) -> _Room:
    """Return the room of the idle worker with the most. If the next user's run only waits for our
    own runs to end, the memory where it lacks the least is kept for it: otherwise smaller runs
    would take its place forever. Without an idle worker elsewhere, the room is -1."""
    places = rooms.places_after_dispatches(session, for_queue, within_s)
    idle = [place for place in places if place.is_idle]
    if not idle:
        return _Room(MAX_BYTES)
    room, kept = max(place.room for place in idle), None
    if room < max(place.room_without_ours for place in idle):
        first = {"owner": next_in_turn.owner_id, "room": MAX_BYTES}
        needed = session.scalar(_memory(for_queue), first) or 0
        later = [place for place in idle if room < needed <= place.room_without_ours]
        if later:
            kept = max(later, key=lambda place: place.room).short_memory(needed)
    if kept is None:
        return _Room(int(min(room, MAX_BYTES)))
    others = (place.room for place in idle if kept.id not in place.memory_ids)
    return _Room(int(min(max(others, default=-1), MAX_BYTES)), kept.id)


@cache
def _memory(for_queue: Queue) -> Select[int]:
    """Return the statement for the expected memory of a user's first experiment."""
    return select(EXPERIMENTS.c.memory_bytes).where(EXPERIMENTS.c.id == _next(for_queue))


def _next(for_queue: Queue) -> ScalarSelect[str]:
    """Return the first experiment of a user: the best of the first of each device, each found by
    one index look-up."""
    looks = (select(_first(device, for_queue)) for device in DEVICES[for_queue])
    firsts = union_all(*looks).subquery()
    first = select(firsts.c.id).order_by(firsts.c.priority.desc(), firsts.c.id).limit(1)
    return first.scalar_subquery()


def _first(device: Device, for_queue: Queue) -> Subquery:
    """Return the oldest experiment of the highest priority with two index look-ups. No index of
    plain columns has both orders, and with an index only by id PostgreSQL would scan all
    experiments."""
    waits = (
        (EXPERIMENTS.c.status == Status.QUEUED)
        & (EXPERIMENTS.c.owner_id == bindparam("owner"))
        & (EXPERIMENTS.c.held == Held.NOT)
        & (EXPERIMENTS.c.device == device)
    )
    waits &= func.coalesce(EXPERIMENTS.c.memory_bytes, 0) <= bindparam("room", type_=BigInteger)
    highest = select(EXPERIMENTS.c.priority).where(waits).order_by(EXPERIMENTS.c.priority.desc())
    oldest = (
        select(EXPERIMENTS.c.id, EXPERIMENTS.c.priority)
        .where(waits, EXPERIMENTS.c.priority >= _one_free(highest).scalar_subquery())
        .order_by(EXPERIMENTS.c.priority, EXPERIMENTS.c.id)
    )
    return _one_free(oldest).subquery()


def _one_free(query: Select[*Ts]) -> Select[*Ts]:
    """Return the first row that no other transaction has locked. Locked rows are skipped, because
    their transaction may hang."""
    return query.limit(1).with_for_update(skip_locked=True)


@cache
def _dispatch(for_queue: Queue) -> ReturningUpdate[Any, Any]:
    """Return the statement that dispatches the next experiment. It is built once, because idle
    workers poll ten times a second."""
    return (
        update(EXPERIMENTS)
        .where(EXPERIMENTS.c.id == _next(for_queue), EXPERIMENTS.c.status == Status.QUEUED)
        .values(
            status=Status.DISPATCHED,
            queue=for_queue,
            dispatch_no=EXPERIMENTS.c.dispatch_no + 1,
            dispatched_at=now(),
            kept_memory=bindparam("kept", type_=String),
        )
        .returning(EXPERIMENTS.c.id, EXPERIMENTS.c.dispatch_no)
    )
