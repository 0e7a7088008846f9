"""The live workers, which report themselves by heartbeats on the database's clock."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from sqlalchemy import (
    Float,
    Table,
    bindparam,
    case,
    delete,
    exists,
    func,
    select,
    text,
    update,
)
from sqlalchemy.orm import Session

from mptcore.specs import known_families
from service.db.engine import insert_new, limit_hanging, now
from service.experiments.models import Experiment, Queue
from service.vocabulary import Status
from service.workers.models import DRAINS, IS_ACTIVE, Worker, is_drained

GPU_RUNTIME_BYTES = 700 * 2**20
"""GPU memory that a run uses before the first tensor: the context with its kernels."""

CLAIM_LOCK = 7_301_523
"""Key of PostgreSQL's advisory lock."""
LOOKED_S = 12.0
"""Time without a look for a run after which a worker does not count as idle. Idle workers look
every 5 s."""


@dataclass(frozen=True, slots=True)
class Slots:
    """The workers of a queue."""

    workers: int
    """Number of workers whose machine is not drained."""
    idle: int
    """Number of idle workers that start runs."""
    store_full: bool = False
    """True if none of them starts a run, because the store's disk is full."""


@dataclass(frozen=True, slots=True)
class Vitals:
    """A worker's report about itself. Sizes are in bytes."""

    host: str
    queue: Queue
    memory_free: int
    gpu: str | None = None
    gpu_driver: str | None = None
    gpu_memory_total: int | None = None
    gpu_memory_free: int | None = None
    gpu_number: int | None = None
    gpu_uuid: str | None = None
    gpu_memory_ours: int | None = None
    run_memory: int | None = None
    memory_pools: list[dict[str, Any]] | None = None
    """Main memories that bound the worker, the machine's first: each with `id`, `total`, `free`."""
    memory_ours: int | None = None
    store_full: bool = False
    looked_ago_s: float | None = 0.0
    """Seconds since it looked for a run; None before the first look."""
    families: Sequence[str] = field(default_factory=known_families)
    """Families that it can run: those that this process can use."""


_TABLE = cast(Table, Worker.__table__)
_BEAT = (
    update(_TABLE)
    .where(_TABLE.c.id == bindparam("worker_id"))
    .values(heartbeat_at=now(), looked_at=now() - bindparam("ago_s", type_=Float))
    .returning(
        exists().where(
            DRAINS.c.host == bindparam("machine"), IS_ACTIVE, DRAINS.c.hand_back_at <= now()
        )
    )
)
"""Built once; the other columns are those of its parameters."""


def beat(session: Session, worker_id: str, vitals: Vitals) -> bool:
    """Record a heartbeat. The first one registers the worker. Return whether the worker has to hand
    back its run, because its machine is drained."""
    columns = {name: getattr(vitals, name) for name in Vitals.__dataclass_fields__}
    heartbeat = {"worker_id": worker_id, "machine": vitals.host,
                 "ago_s": columns.pop("looked_ago_s"), **columns}  # fmt: skip
    must_hand_back = session.scalar(_BEAT, heartbeat)
    if must_hand_back is None:
        insert_new(session, Worker, [{"id": worker_id, **columns}])
        must_hand_back = session.scalar(_BEAT, heartbeat)
    return bool(must_hand_back)


def leave(session: Session, worker_id: str) -> None:
    """Remove a worker that stops."""
    session.execute(delete(Worker).where(Worker.id == worker_id))


def forget_silent(session: Session, after_s: float) -> None:
    """Delete workers that have been silent for `after_s`, except rows locked by other transactions,
    which may hang."""
    silent = select(Worker.id).where(Worker.heartbeat_at < now() - after_s)
    session.execute(delete(Worker).where(Worker.id.in_(silent.with_for_update(skip_locked=True))))


def alive(session: Session, within_s: float) -> Sequence[tuple[Worker, str | None, float]]:
    """Return the workers with a heartbeat within `within_s` seconds, the experiment that each
    runs, and the age of the heartbeat."""
    running = select(Experiment.id).where(
        Experiment.worker == Worker.id, Experiment.status == Status.RUNNING
    )
    age = now() - Worker.heartbeat_at
    query = select(Worker, running.limit(1).scalar_subquery(), age).where(age <= within_s)
    return [(row[0], row[1], row[2]) for row in session.execute(query.order_by(Worker.id))]


BUSY = exists().where(Experiment.worker == Worker.id, Experiment.status == Status.RUNNING)
"""True for a worker that runs an experiment."""
_IS_DRAINED = is_drained(Worker.host)
_LOOKS = func.coalesce(Worker.looked_at, 0.0) >= now() - LOOKED_S
_SLOTS = (
    select(
        Worker.queue,
        func.sum(case((_IS_DRAINED, 0), else_=1)),
        func.sum(case((BUSY | Worker.store_full | _IS_DRAINED | ~_LOOKS, 0), else_=1)),
        func.sum(case((Worker.store_full & ~_IS_DRAINED, 1), else_=0)),
    )
    .where(Worker.heartbeat_at >= now() - bindparam("within_s", type_=Float))
    .group_by(Worker.queue)
)


def hosts(session: Session, within_s: float) -> dict[Queue, set[str]]:
    """Return the machines of each queue's workers with a heartbeat within `within_s` seconds,
    except drained ones."""
    rows = session.execute(
        select(Worker.queue, Worker.host)
        .where(Worker.heartbeat_at >= now() - within_s, ~_IS_DRAINED)
        .distinct()
    )
    found: dict[Queue, set[str]] = {queue: set() for queue in Queue}
    for queue, host in rows:
        found[Queue(queue)].add(host)
    return found


def slots(session: Session, within_s: float) -> dict[Queue, Slots]:
    """Return the slots of each queue that has workers."""
    rows = session.execute(_SLOTS, {"within_s": within_s})
    return {
        Queue(queue): Slots(count, max(idle, 0), full == count > 0)
        for queue, count, idle, full in rows
    }


def least_taken(session: Session, uuids: Sequence[str], within_s: float) -> str:
    """Return the GPU with the fewest live workers among these; the first of several."""
    rows = session.execute(
        select(Worker.gpu_uuid, func.count())
        .where(Worker.gpu_uuid.in_(uuids), Worker.heartbeat_at >= now() - within_s)
        .group_by(Worker.gpu_uuid)
    )
    taken = {row[0]: row[1] for row in rows}
    return min(uuids, key=lambda uuid: taken.get(uuid, 0))


def largest(session: Session) -> dict[Queue, int | None]:
    """Return the memory of the largest worker of each queue, including recently silent ones: GPU
    memory, or the main memory that a run may use. None if a worker does not report it."""
    found: dict[Queue, int | None] = {}
    rows = session.execute(select(Worker.queue, Worker.gpu_memory_total, Worker.run_memory))
    for name, gpu_total, run_memory in rows:
        queue = Queue(name)
        size = gpu_total if queue == Queue.GPU else run_memory
        known = found.get(queue, 0)
        found[queue] = None if size is None or known is None else max(known, size)
    return found


def lock_claims(session: Session) -> None:
    """Wait until no other transaction claims or charges, and keep others from it until the end of
    this one. SQLite has only one writer anyway. A process that hangs while it holds the lock is
    disconnected."""
    if session.get_bind().dialect.name == "postgresql":
        limit_hanging(session)
        session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": CLAIM_LOCK})
