"""Memories that workers share, and the room in them for one more run.

A run on a GPU needs room in the memory of that GPU. A run on a CPU needs room in each memory that
bounds its worker: that of the machine, and that of each control group with a limit, for example of
a container. The same rule holds for all of them.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Float, bindparam, case, func, or_, select, update
from sqlalchemy.orm import Session

from mptcore.specs.compute import GPU_SHARE
from service.db.engine import now
from service.experiments.models import Attempt, Experiment, Queue
from service.queue.runtime import recent_runtimes
from service.queue.workers import GPU_RUNTIME_BYTES, LOOKED_S
from service.vocabulary import Status
from service.workers.models import DRAINS, HAS_NOT_ENDED, Worker

BESIDE_S = 10.0
"""Time after its end in which a run still counts as beside another one. The kernel may kill several
runs at once, and their workers store the ends one after the other."""
UNKNOWN_RUN_S = 3600.0
"""Time that a run of a family is expected to take if few of its runs have ended."""


@dataclass(slots=True)
class SharedMemory:
    """A memory that one or several workers use, as they report it. Sizes are in bytes."""

    id: str
    queue: Queue
    total: int | None
    free: int | None
    """None if it is unknown: then every run has room."""
    gpu_number: int | None = None
    ours: int = 0
    """Memory that runs of this service use."""
    promised: int = 0
    """Memory that these runs are still expected to allocate."""
    of_gpu_runs: int = 0
    """Main memory that runs on GPUs use. Nothing estimates what they still expect."""
    taken: dict[str, int] = field(default_factory=dict)
    """Memory that the run of each worker uses or is expected to allocate, by worker."""

    @property
    def room(self) -> float:
        """Room for one more run."""
        return self.room_after(())

    def room_after(self, ended: Collection[str]) -> float:
        """Return the room for one more run after the runs of these workers have ended. Main memory
        without a CPU run has room for any run that fits into all of it but what runs on GPUs use:
        the system frees much of what it does not report as free, and the run would wait without an
        end for other programs."""
        if self.free is None:
            return math.inf
        if self.queue == Queue.CPU and not self.taken.keys() - set(ended):
            return self.room_without_ours
        freed = sum(size for worker, size in self.taken.items() if worker in ended)
        return self.free - self.promised + freed

    @property
    def room_without_ours(self) -> float:
        """Room for one more run after our own runs have ended; in main memory, those on CPUs."""
        if self.free is None:
            return math.inf
        if self.queue == Queue.CPU and self.total is not None:
            return self.total - self.of_gpu_runs
        return self.free + self.ours

    @property
    def foreign(self) -> int:
        """Memory used by other processes."""
        if self.free is None or self.total is None:
            return 0
        return max(0, self.total - self.free - self.ours)


@dataclass(frozen=True, slots=True)
class PlannedDrain:
    """A drain of a worker's machine that has not begun."""

    host: str
    starts_at: float
    """Its begin, in the database's time."""
    late: Mapping[str, float | None]
    """Families whose runs the worker does not start any more, because they are not expected to end
    before the drain, with the seconds that they take; None if that is not known."""


@dataclass(slots=True)
class Place:
    """A worker as a place for a run."""

    worker_id: str
    queue: Queue
    memories: Sequence[SharedMemory]
    """All memories in which a run needs room, the machine's first."""
    max_run: float
    """Main memory that the worker allows a CPU run."""
    is_idle: bool
    """True if it starts a run when there is one: it runs none, looked for one a moment ago, sees no
    full store, and is not drained."""
    drained_until: float | None = None
    """End of the drain of its machine, in the database's time; infinite if an admin has to end it.
    None: it is not drained."""
    families: frozenset[str] = frozenset()
    """Families whose runs it may start: those that it can run, and whose runs are expected to end
    before a planned drain."""
    store_full: bool = False
    """True if it starts no run, because the store's disk is full."""
    reserved_for: str | None = None
    """Experiment that it starts after its run."""
    planned_drain: PlannedDrain | None = None
    host: str = ""

    @property
    def memory_ids(self) -> list[str]:
        return [memory.id for memory in self.memories]

    @property
    def room(self) -> float:
        return self.room_after(())

    def room_after(self, ended: Collection[str]) -> float:
        """Return the room for one more run after the runs of these workers have ended."""
        rooms = (memory.room_after(ended) for memory in self.memories)
        return min(self.max_run, *rooms, math.inf)

    @property
    def room_without_ours(self) -> float:
        rooms = (memory.room_without_ours for memory in self.memories)
        return min(self.max_run, *rooms, math.inf)

    def can_run(self, family: str) -> bool:
        """Return whether it can run a family, also if it starts no such run any more before a
        planned drain."""
        planned = self.planned_drain
        return family in self.families or (planned is not None and family in planned.late)

    def short_memory(self, needed: float) -> SharedMemory | None:
        """Return the first memory that has no room for a run."""
        return next((memory for memory in self.memories if memory.room < needed), None)


# Tables, not classes: the ORM needs more time for a statement than the database does.
_WORKERS = Worker.metadata.tables[Worker.__tablename__]
EXPERIMENTS = Experiment.metadata.tables[Experiment.__tablename__]
_NEED = (
    EXPERIMENTS.c.memory_bytes,
    EXPERIMENTS.c.estimated_bytes,
    EXPERIMENTS.c.gpu_part_bytes,
)
_PLACES = (
    select(
        _WORKERS.c.id,
        _WORKERS.c.queue,
        case(
            (_WORKERS.c.heartbeat_at >= now() - bindparam("within_s", type_=Float), 1), else_=0
        ).label("is_alive"),
        case((_WORKERS.c.looked_at >= now() - LOOKED_S, 1), else_=0).label("looks"),
        _WORKERS.c.memory_pools,
        _WORKERS.c.memory_ours,
        _WORKERS.c.run_memory,
        _WORKERS.c.gpu_uuid,
        _WORKERS.c.gpu_number,
        _WORKERS.c.gpu_memory_total,
        _WORKERS.c.gpu_memory_free,
        _WORKERS.c.gpu_memory_ours,
        _WORKERS.c.store_full,
        _WORKERS.c.families,
        _WORKERS.c.reserved_for,
        _WORKERS.c.host,
        case((DRAINS.c.host.is_not(None), func.coalesce(DRAINS.c.until, math.inf))).label(
            "drained_until"
        ),
        DRAINS.c.starts_at,
        (DRAINS.c.starts_at - now()).label("starts_in_s"),
        EXPERIMENTS.c.id.label("run_id"),
        *_NEED,
    )
    .outerjoin(
        EXPERIMENTS,
        (EXPERIMENTS.c.worker == _WORKERS.c.id) & (EXPERIMENTS.c.status == Status.RUNNING),
    )
    .outerjoin(DRAINS, (DRAINS.c.host == _WORKERS.c.host) & HAS_NOT_ENDED)
    .order_by(_WORKERS.c.heartbeat_at)
)
"""Built once, because each claim executes it."""


def places(session: Session, within_s: float) -> list[Place]:
    """Return the workers with a heartbeat within `within_s` seconds, with the memories that they
    share. A run of a silent worker keeps its memory until its lease expires."""
    memories: dict[str, SharedMemory] = {}
    found: dict[str, Place] = {}
    runtimes: dict[str, Mapping[str, float]] = {}
    for row in session.execute(_PLACES, {"within_s": within_s}):
        if not row.is_alive and row.run_id is None:
            continue  # what it last reported as used is free by now
        shared = [_memory(memories, Queue.CPU, **pool) for pool in row.memory_pools or ()]
        ours = row.memory_ours or 0
        if row.queue == Queue.GPU:
            for memory in shared:
                memory.of_gpu_runs += ours
            size = {"total": row.gpu_memory_total, "free": row.gpu_memory_free}
            gpu = _memory(memories, Queue.GPU, row.gpu_uuid or row.id, **size)
            gpu.gpu_number, shared, ours = row.gpu_number, [gpu], row.gpu_memory_ours or 0
        for memory in shared:
            memory.ours += ours
            if row.run_id is not None:
                promised = _promised(row, memory, ours)
                memory.promised += promised
                memory.taken[row.id] = ours + promised
        if row.is_alive:
            limit = row.run_memory if row.queue == Queue.CPU else None
            max_run = math.inf if limit is None else limit
            planned, drained_until = None, row.drained_until
            if row.starts_in_s is not None and row.starts_in_s > 0:
                if row.queue not in runtimes:
                    runtimes[row.queue] = recent_runtimes(session, row.queue)
                planned, drained_until = _planned_drain(row, runtimes[row.queue]), None
            may_start = bool(row.looks) and not row.store_full and drained_until is None
            is_idle = row.run_id is None and may_start
            families = frozenset(row.families).difference(planned.late if planned else ())
            place = Place(
                row.id, Queue(row.queue), shared, max_run, is_idle, drained_until, families,
                bool(row.store_full), row.reserved_for, planned, row.host,
            )  # fmt: skip
            found.setdefault(row.id, place).is_idle &= is_idle
    return list(found.values())


def _planned_drain(worker: Any, runtimes: Mapping[str, float]) -> PlannedDrain:
    late = {
        family: runtimes.get(family)
        for family in worker.families
        if runtimes.get(family, UNKNOWN_RUN_S) > worker.starts_in_s
    }
    return PlannedDrain(worker.host, worker.starts_at, late)


def _memory(
    memories: dict[str, SharedMemory],
    queue: Queue,
    id: str,
    total: int | None,
    free: int | None,
) -> SharedMemory:
    """Return a memory with the sizes of the latest heartbeat that reports it."""
    memory = memories.setdefault(id, SharedMemory(id, queue, total, free))
    memory.total, memory.free = total, free
    return memory


def _promised(run: Any, memory: SharedMemory, ours: int) -> int:
    """Return the memory that a run is still expected to allocate: as expected from earlier runs. On
    a GPU it is at least the estimate with the parts that the run takes if they are free. If a run
    with large parts starts where less is free, it computes smaller parts."""
    expected = run.memory_bytes or 0
    if memory.queue == Queue.GPU:
        parts = min(run.gpu_part_bytes, int(GPU_SHARE * (memory.total or 0)))
        if parts:
            expected = max(expected, GPU_RUNTIME_BYTES + (run.estimated_bytes or 0) + parts)
    return max(0, expected - ours)


def expect_at_least(session: Session, experiment_id: str, size: int) -> None:
    """Raise the expected memory of a run to what it has used."""
    session.execute(
        update(EXPERIMENTS)
        .where(EXPERIMENTS.c.id == experiment_id)
        .where(func.coalesce(EXPERIMENTS.c.memory_bytes, 0) < size)
        .values(memory_bytes=size)
    )


def runs_beside(session: Session, experiment_id: str) -> int:
    """Return how many other experiments run, or ran a moment ago, in main memory that the worker of
    this experiment uses."""
    pools: Mapping[str, set[str]] = {
        id: {pool["id"] for pool in memory_pools or ()}
        for id, memory_pools in session.execute(select(Worker.id, Worker.memory_pools))
    }
    worker = select(EXPERIMENTS.c.worker).where(EXPERIMENTS.c.id == experiment_id)
    mine = pools.get(session.scalar(worker) or "", set())
    neighbours = [id for id, shared in pools.items() if shared & mine]
    beside = select(func.count(Attempt.experiment_id.distinct())).where(
        Attempt.worker.in_(neighbours),
        Attempt.experiment_id != experiment_id,
        or_(
            Attempt.folded.is_(False) & Attempt.ended_at.is_(None),
            Attempt.ended_at > now() - BESIDE_S,
        ),
    )
    return session.scalar(beside) or 0
