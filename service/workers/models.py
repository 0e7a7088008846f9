"""Tables of workers, of their samples, and of drained machines."""

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    ColumnElement,
    String,
    and_,
    exists,
    false,
    or_,
    text,
)
from sqlalchemy.orm import InstrumentedAttribute, Mapped, column_property, mapped_column

from service.db.engine import Base, now


class Worker(Base):
    """A worker process with one slot, as of its last heartbeat. Memory is in bytes."""

    __tablename__ = "workers"

    id: Mapped[str] = mapped_column(String(200), primary_key=True)
    host: Mapped[str] = mapped_column(String(200))
    queue: Mapped[str] = mapped_column(String(16))
    memory_free: Mapped[int] = mapped_column(BigInteger)
    gpu: Mapped[str | None] = mapped_column(String(200))
    gpu_driver: Mapped[str | None] = mapped_column(String(50))
    gpu_memory_total: Mapped[int | None] = mapped_column(BigInteger)
    gpu_memory_free: Mapped[int | None] = mapped_column(BigInteger)
    gpu_number: Mapped[int | None]
    """The machine's number of the GPU."""
    gpu_uuid: Mapped[str | None] = mapped_column(String(80))
    gpu_memory_ours: Mapped[int | None] = mapped_column(BigInteger)
    """The part of the used memory that belongs to this worker's own run."""
    run_memory: Mapped[int | None] = mapped_column(BigInteger)
    """Main memory that the worker allows a run."""
    memory_pools: Mapped[list[dict[str, Any]] | None] = mapped_column(JSON(none_as_null=True))
    """Main memories that bound the worker, the machine's first: each with `id`, `total` and `free`.
    Workers with an equal id share that memory."""
    memory_ours: Mapped[int | None] = mapped_column(BigInteger)
    """Resident main memory of this worker's own run."""
    store_full: Mapped[bool] = mapped_column(default=False, server_default=false())
    """True if the store's disk has less free than its reserve, as this worker sees it."""
    families: Mapped[list[str]] = mapped_column(JSON, default=list, server_default=text("'[]'"))
    """Families that the worker can run."""
    reserved_for: Mapped[str | None] = mapped_column(String(32))
    """Experiment that it starts after its run, if it may (`queue/giving_way.py`)."""
    started_at: Mapped[float] = mapped_column(default=now())
    heartbeat_at: Mapped[float] = mapped_column(default=now())
    looked_at: Mapped[float | None]
    """Time when it last looked for a run. Heartbeats come from another thread."""

    @property
    def looked_s(self) -> float | None:
        """Seconds from the last look for a run to the last heartbeat. None: it has not looked."""
        return None if self.looked_at is None else round(self.heartbeat_at - self.looked_at, 3)

    @property
    def memory_total(self) -> int | None:
        """The least of the main memories that bound the worker. None if it reports none."""
        return min((pool["total"] for pool in self.memory_pools or ()), default=None)


class Drain(Base):
    """A machine whose workers start no run, for example for its maintenance, or start none from
    some time on: then it is planned. It is stored by machine because the names of workers change
    when they restart."""

    __tablename__ = "drains"

    host: Mapped[str] = mapped_column(String(200), primary_key=True)
    since: Mapped[float] = mapped_column(default=now())
    """Time of the admin's command."""
    starts_at: Mapped[float] = mapped_column(default=0.0, server_default="0")
    """From this time on its workers start no run."""
    hand_back_at: Mapped[float]
    """From this time on its workers hand back their runs."""
    until: Mapped[float | None]
    """The time at which it ends by itself; None: an admin ends it."""
    drained_by: Mapped[str] = mapped_column(String(100))
    """Name of the admin."""
    has_begun: Mapped[bool] = column_property(starts_at <= now())


DRAINS = Drain.metadata.tables[Drain.__tablename__]
HAS_NOT_ENDED = or_(DRAINS.c.until.is_(None), DRAINS.c.until > now())
"""True for a drain that is planned or active."""
IS_ACTIVE = and_(DRAINS.c.starts_at <= now(), HAS_NOT_ENDED)
"""True for a drain that has begun and has not ended."""


def is_drained(host: ColumnElement[str] | InstrumentedAttribute[str]) -> ColumnElement[bool]:
    """Return the condition that a machine is drained."""
    return exists().where(DRAINS.c.host == host, IS_ACTIVE)


class WorkerSample(Base):
    """A worker in one minute, numbered from 1970. Memory is in bytes: the GPU's if the worker has
    one."""

    __tablename__ = "worker_samples"

    minute: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    worker_id: Mapped[str] = mapped_column(String(200), primary_key=True)
    busy: Mapped[bool]
    memory_free: Mapped[int | None] = mapped_column(BigInteger)
    memory_total: Mapped[int | None] = mapped_column(BigInteger)
