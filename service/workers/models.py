"""Tables of workers and of their samples."""

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    String,
    false,
)
from sqlalchemy.orm import Mapped, mapped_column

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
    started_at: Mapped[float] = mapped_column(default=now())
    heartbeat_at: Mapped[float] = mapped_column(default=now())
    looked_at: Mapped[float | None]
    """Time when it last looked for a run. Heartbeats come from another thread."""

    @property
    def memory_total(self) -> int | None:
        """The least of the main memories that bound the worker. None if it reports none."""
        return min((pool["total"] for pool in self.memory_pools or ()), default=None)


class WorkerSample(Base):
    """A worker in one minute, numbered from 1970. Memory is in bytes: the GPU's if the worker has
    one."""

    __tablename__ = "worker_samples"

    minute: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    worker_id: Mapped[str] = mapped_column(String(200), primary_key=True)
    busy: Mapped[bool]
    memory_free: Mapped[int | None] = mapped_column(BigInteger)
    memory_total: Mapped[int | None] = mapped_column(BigInteger)
