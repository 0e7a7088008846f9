"""Tables of experiments and of their records."""

from enum import StrEnum
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    ForeignKey,
    Index,
    LargeBinary,
    String,
    Text,
    TextClause,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.orm import Mapped, column_property, mapped_column, relationship

from service.accounts.models import OWN, User, name_of
from service.db.engine import Base, now, partial_index
from service.db.visibility import Owned
from service.sweeps.models import Sweep
from service.vocabulary import DesiredState, Status


class Queue(StrEnum):
    """Type of worker for an experiment."""

    CPU = "cpu"
    GPU = "gpu"


class Device(StrEnum):
    """Device that an experiment asks for. "auto" is a GPU, or a CPU if no GPU is idle."""

    CPU = "cpu"
    CUDA = "cuda"
    AUTO = "auto"


class Held(StrEnum):
    """Reason why a queued experiment must not start yet; "" if it may."""

    NOT = ""
    AFTER = "after"
    """Some of the experiments that it waits for have not succeeded."""
    SWEEP = "sweep"
    """Its sweep has reached its limit of concurrent runs."""


DEVICES = {Queue.CPU: (Device.CPU, Device.AUTO), Queue.GPU: (Device.CUDA, Device.AUTO)}
"""Devices that the workers of each queue accept."""
STARTABLE = {
    Queue.CPU: "status = 'queued' AND held = '' AND device <> 'cuda'",
    Queue.GPU: "status = 'queued' AND held = '' AND device <> 'cpu'",
}
"""Condition for experiments that workers of a queue may start. Queries repeat it word for word:
with a parameter in its place no database would use its index."""
STARTABLE_ORDER: list[str | TextClause] = [
    *("owner_id", "project_id", text("priority DESC")),
    *("id", "memory_bytes"),
]


def _device_of_spec(context: Any) -> str:
    device: str = context.get_current_parameters()["spec"]["compute"]["device"]
    return device


def _family_of_spec(context: Any) -> str:
    family: str = context.get_current_parameters()["spec"]["model"]["family"]
    return family


SMALL_SPEC = 2048
"""Maximum bytes of a spec whose values are in an index. Each update of an experiment enters all of
them again: for a spec with 10,000 values this takes ten milliseconds."""


NEVER_STARTED = "status = 'cancelled' AND attempt = 0 AND sweep_id IS NULL"
"""Experiments outside sweeps that were cancelled before their first attempt. Queries use this text,
because PostgreSQL's generic plans use a partial index only for literals."""


IN_PROJECT = f"project_id <> {OWN}"


def _inside(name: str, column: str, where: str | None = None) -> Index:
    """GIN index for PostgreSQL: elements of a list, and values of an object's fields."""
    inside = text(f"({column}::jsonb) jsonb_path_ops")
    which = None if where is None else text(where)
    made = Index(name, inside, postgresql_using="gin", postgresql_where=which)
    return made.ddl_if(dialect="postgresql")


class Experiment(Owned, Base):
    """One spec and its run. `attempt` is the fence: it increases with every claim, and a write of
    an older attempt matches no row. `last_seq` is the last committed record."""

    noun = "experiment"
    __tablename__ = "experiments"
    __table_args__ = (
        Index("ix_experiments_owner_id_id", "owner_id", "id"),
        Index("ix_experiments_created_at_id", "created_at", "id"),
        Index("ix_experiments_owner_id_created_at_id", "owner_id", "created_at", "id"),
        Index("ix_experiments_owner_id_finished_at_id", "owner_id", "finished_at", "id"),
        Index("ix_experiments_owner_id_name_id", "owner_id", "name", "id"),
        Index(
            "ix_experiments_owner_id_family_created_at_id", "owner_id", "family", "created_at", "id"
        ),
        Index("ix_experiments_status_owner_id", "status", "owner_id"),
        Index("ix_experiments_kept", "owner_id", "spec_bytes", "record_bytes"),
        partial_index("ix_experiments_unmeasured", ["id"], "record_bytes IS NULL"),
        partial_index("ix_experiments_startable_cpu", STARTABLE_ORDER, STARTABLE[Queue.CPU]),
        partial_index("ix_experiments_startable_gpu", STARTABLE_ORDER, STARTABLE[Queue.GPU]),
        partial_index("ix_experiments_running", ["owner_id", "queue"], "status = 'running'"),
        partial_index("ix_experiments_project", ["project_id", "status"], IN_PROJECT),
        partial_index("ix_experiments_queued", ["created_at"], "status = 'queued'"),
        partial_index(
            "ix_experiments_sweep", ["sweep_id", "status", "held", "id"], "sweep_id IS NOT NULL"
        ),
        partial_index(  # with both constant columns SQLite prefers it to `ix_experiments_queue`
            "ix_experiments_held",
            ["status", "held", "sweep_id", "id"],
            "status = 'queued' AND held = 'sweep'",
        ),
        partial_index("ix_experiments_shared", ["created_at", "id"], "visibility = 'lab'"),
        partial_index(
            "ix_experiments_shared_with_project",
            ["project_id", "created_at", "id"],
            "visibility = 'project'",
        ),
        partial_index("ix_experiments_deleted_at", ["deleted_at"], "deleted_at IS NOT NULL"),
        partial_index("ix_experiments_never_started", ["finished_at", "id"], NEVER_STARTED),
        partial_index("ix_experiments_retry_of", ["retry_of"], "retry_of IS NOT NULL"),
        _inside("ix_experiments_tags", "tags"),
        _inside("ix_experiments_spec", "spec", f"spec_bytes <= {SMALL_SPEC}"),
        partial_index(
            "ix_experiments_large_spec", ["owner_id", "id"], f"spec_bytes > {SMALL_SPEC}"
        ),
        partial_index(
            "ix_experiments_cache_key", ["cache_key", "status", "owner_id"], "cache_key IS NOT NULL"
        ),
    )

    """A UUID of version 7: ids increase with time."""
    owner_id: Mapped[int] = mapped_column(ForeignKey(User.id))
    owner: Mapped[User] = relationship(lazy="raise")
    project_id: Mapped[int] = mapped_column(default=OWN, server_default="0")
    """Project to which its runs are charged; 0: its owner's own."""
    project: Mapped[str | None] = column_property(name_of(project_id))
    pinned: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Protects the experiment against removal by age, by quotas, and by its owner."""
    deleted_at: Mapped[float | None]
    """Time of the deletion. The experiment is hidden from then on; rows and files are removed
    later."""
    name: Mapped[str | None] = mapped_column(String(200))
    tags: Mapped[list[str]] = mapped_column(JSON)
    note: Mapped[str | None] = mapped_column(Text)
    priority: Mapped[int]
    spec: Mapped[dict[str, Any]] = mapped_column(JSON)
    device: Mapped[str] = mapped_column(String(8), default=_device_of_spec)
    """Device of the spec, or what `auto` means for its family; indexed for the queue."""
    family: Mapped[str] = mapped_column(String(32), default=_family_of_spec)
    """Family of the spec's model, indexed in the same way."""
    memory_bytes: Mapped[int | None] = mapped_column(BigInteger)
    """Expected memory of a run on its device, as corrected by earlier runs; null if unknown."""
    estimated_bytes: Mapped[int | None] = mapped_column(BigInteger)
    """Memory estimated only from the spec."""
    gpu_part_bytes: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    """Memory that a run takes on a large GPU in addition, if it is free."""
    spec_bytes: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    """Length of the spec as it is stored."""
    expected_bytes: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    """Maximum number of bytes of the points that a run writes."""
    record_bytes: Mapped[int | None] = mapped_column(BigInteger, default=0, server_default="0")
    """Bytes of its records and artifacts. A claim sets it to null; the controller measures it after
    the end of the attempt."""
    retry_of: Mapped[str | None] = mapped_column(String(32))
    sweep_id: Mapped[str | None] = mapped_column(ForeignKey(Sweep.id))
    """The sweep for which it was created."""
    comes_after: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    """Experiments that had to succeed first."""
    held: Mapped[str] = mapped_column(String(8), default=Held.NOT, server_default="")
    cache_key: Mapped[str | None] = mapped_column(String(64))
    """Key of the result cache; null if unknown."""

    status: Mapped[str] = mapped_column(String(16), default=Status.QUEUED)
    desired_state: Mapped[str] = mapped_column(String(16), default=DesiredState.RUN)
    queue: Mapped[str | None] = mapped_column(String(16))
    attempt: Mapped[int] = mapped_column(default=0)
    lost: Mapped[int] = mapped_column(default=0)
    worker: Mapped[str | None] = mapped_column(String(200))
    lease_expires_at: Mapped[float | None]
    gives_way_to: Mapped[str | None] = mapped_column(String(32))
    """Experiment for which its run has to give way (`queue/giving_way.py`). A claim sets it to
    null."""

    created_at: Mapped[float] = mapped_column(default=now())
    started_at: Mapped[float | None]
    finished_at: Mapped[float | None]

    last_seq: Mapped[int] = mapped_column(default=0)
    progress_done: Mapped[int | None] = mapped_column(BigInteger)
    progress_total: Mapped[int | None] = mapped_column(BigInteger)
    progress_unit: Mapped[str | None] = mapped_column(String(32))
    progress_stage: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    progress_at: Mapped[float | None]
    progress_eta_s: Mapped[float | None]
    """Approximate seconds from `progress_at` to the end."""
    failure_kind: Mapped[str | None] = mapped_column(String(16))
    failure_message: Mapped[str | None] = mapped_column(Text)


class Wait(Base):
    """An experiment that waits for another one to succeed. The row is deleted by the look that
    finds that one ended (`holds.release_waits`)."""

    __tablename__ = "waits"

    experiment_id: Mapped[str] = mapped_column(ForeignKey("experiments.id"), primary_key=True)
    after_id: Mapped[str] = mapped_column(
        ForeignKey("experiments.id"), primary_key=True, index=True
    )


LOST = "lost"
"""Outcome of an attempt whose worker was lost, and kind of the failure after too many of these."""
GAVE_WAY = "gave_way"
"""Outcome of an attempt that gave way to another experiment."""
TELLING_BYTES = 64 * 2**20
"""Minimum estimate of memory that is compared with the measured peak. Below it torch itself
dominates the peak."""
_TELLING = f"peak_bytes IS NOT NULL AND estimated_bytes >= {TELLING_BYTES}"


class Attempt(Base):
    """The ledger: which attempt used which kind of slot, and when. A row is added by the claim and
    ended in the transaction that ends the attempt. `folded` rows are included in `usage` and
    `totals`."""

    __tablename__ = "attempts"
    __table_args__ = (
        Index("ix_attempts_folded_owner_id", "folded", "owner_id"),
        Index("ix_attempts_queue_ended_at", "queue", "ended_at"),
        Index("ix_attempts_family_queue_ended_at", "family", "queue", "ended_at"),
        partial_index("ix_attempts_telling", ["family", "queue", "ended_at"], _TELLING),
    )

    experiment_id: Mapped[str] = mapped_column(ForeignKey("experiments.id"), primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    owner_id: Mapped[int] = mapped_column(ForeignKey(User.id))
    project_id: Mapped[int] = mapped_column(default=OWN, server_default="0")
    queue: Mapped[str] = mapped_column(String(16))
    worker: Mapped[str] = mapped_column(String(200))
    started_at: Mapped[float]
    ended_at: Mapped[float | None]
    folded: Mapped[bool] = mapped_column(default=False)
    family: Mapped[str] = mapped_column(String(32))
    estimated_bytes: Mapped[int | None] = mapped_column(BigInteger)
    """Estimated only from the spec. The family learns from the ratio of peak and estimate."""
    peak_bytes: Mapped[int | None] = mapped_column(BigInteger)
    """Peak memory: main memory on a CPU, GPU memory on a GPU."""
    outcome: Mapped[str | None] = mapped_column(String(16))
    """Null while it lasts. Then the first of these that applies: the failure's kind, `lost`, what
    its machine lacked (`disk_full`, `memory`), `gave_way`, the next status of the experiment."""
    environment: Mapped[dict[str, Any] | None] = mapped_column(
        JSON(none_as_null=True), deferred=True
    )
    """Environment of the computation as reported by the runner; null before that."""


class Total(Base):
    """Sums over all folded attempts with one outcome, for Prometheus. They include purged
    experiments. Times are in seconds."""

    __tablename__ = "totals"

    outcome: Mapped[str] = mapped_column(String(16), primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger, default=0)
    failed: Mapped[int] = mapped_column(BigInteger, default=0)
    """Number of attempts with which their experiments failed."""
    waits: Mapped[int] = mapped_column(BigInteger, default=0)
    """Number of first attempts."""
    waits_s: Mapped[float] = mapped_column(default=0.0)
    """From the submission of their experiments to their start."""
    runs: Mapped[int] = mapped_column(BigInteger, default=0)
    """Number of attempts with which their experiments ended."""
    runs_s: Mapped[float] = mapped_column(default=0.0)
    """From the first start of these experiments to their end."""


class Usage(Base):
    """Usage of a user in a project, or of their own, at `as_of`: decayed slot-seconds of a CPU
    slot."""

    __tablename__ = "usage"

    owner_id: Mapped[int] = mapped_column(ForeignKey(User.id), primary_key=True)
    project_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False, default=OWN)
    settled_s: Mapped[float] = mapped_column(default=0.0)
    """Usage by folded attempts."""
    charged_s: Mapped[float] = mapped_column(default=0.0)
    """Usage that claims compare: settled, and that of attempts which are not folded. A current run
    is charged for `advance_s` at least."""
    as_of: Mapped[float] = mapped_column(default=0.0)


class Checkpoint(Base):
    """A point to resume a run from: a file below the experiment's checkpoint directory. Several may
    follow the same record."""

    __tablename__ = "checkpoints"

    experiment_id: Mapped[str] = mapped_column(ForeignKey("experiments.id"), primary_key=True)
    file: Mapped[str] = mapped_column(String(500), primary_key=True)
    """The attempt that saved it, a slash, and the name. Names increase within an attempt."""
    attempt: Mapped[int]
    after_seq: Mapped[int]
    sha256: Mapped[str] = mapped_column(String(64))
    bytes: Mapped[int | None] = mapped_column(BigInteger)
    """Size in bytes; null if it was saved before sizes were recorded."""
    created_at: Mapped[float] = mapped_column(default=now())


class Artifact(Base):
    """A file left by a run, in the directory of the attempt that recorded it."""

    __tablename__ = "artifacts"

    experiment_id: Mapped[str] = mapped_column(ForeignKey("experiments.id"), primary_key=True)
    file: Mapped[str] = mapped_column(String(200), primary_key=True)
    attempt: Mapped[int]
    seq: Mapped[int]
    media_type: Mapped[str] = mapped_column(String(100))
    sha256: Mapped[str] = mapped_column(String(64))
    bytes: Mapped[int | None] = mapped_column(BigInteger)
    """Size in bytes; null if it was recorded before sizes were, until housekeeping has measured
    it."""


class Event(Base):
    """An event: kind "status" with {status, …} or "log" with {level, message}. Ids are never
    reused, not even those of deleted rows, so that a reader can continue after the last id."""

    __tablename__ = "events"
    __table_args__ = (UniqueConstraint("experiment_id", "seq"), {"sqlite_autoincrement": True})

    id: Mapped[int] = mapped_column(primary_key=True)
    experiment_id: Mapped[str] = mapped_column(ForeignKey("experiments.id"))
    at: Mapped[float] = mapped_column(default=now())
    kind: Mapped[str] = mapped_column(String(16))
    data: Mapped[dict[str, Any]] = mapped_column(JSON)
    seq: Mapped[int | None]
    """The record that caused it, if any."""


class Series(Base):
    """A named series of points. `labels` is canonical JSON."""

    __tablename__ = "series"
    __table_args__ = (UniqueConstraint("experiment_id", "name", "labels"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    experiment_id: Mapped[str] = mapped_column(ForeignKey("experiments.id"))
    name: Mapped[str] = mapped_column(String(64))
    labels: Mapped[str] = mapped_column(String(1000))


class Block(Base):
    """Points of one series that were recorded together: columns of little-endian float64, NaN
    where a number is missing. `seq` is the record number of each point as little-endian int32; null
    in older blocks, whose points are assumed to be evenly spaced. `reason` has a byte for each
    point: 0, or 1 + the index in `reasons` of why a number is missing."""

    __tablename__ = "blocks"

    series_id: Mapped[int] = mapped_column(ForeignKey("series.id"), primary_key=True)
    first_seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    last_seq: Mapped[int]
    count: Mapped[int]
    seq: Mapped[bytes | None] = mapped_column(LargeBinary)
    x: Mapped[bytes] = mapped_column(LargeBinary)
    value: Mapped[bytes] = mapped_column(LargeBinary)
    std_err: Mapped[bytes] = mapped_column(LargeBinary)
    n: Mapped[bytes] = mapped_column(LargeBinary)
    reason: Mapped[bytes] = mapped_column(LargeBinary)
    reasons: Mapped[list[str]] = mapped_column(JSON)


class Metric(Base):
    """One number of a whole run. `labels` is canonical JSON."""

    __tablename__ = "metrics"
    __table_args__ = (
        Index("ix_metrics_name_value_experiment_id", "name", "value", "experiment_id"),
    )

    experiment_id: Mapped[str] = mapped_column(ForeignKey("experiments.id"), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    labels: Mapped[str] = mapped_column(String(1000), primary_key=True)
    seq: Mapped[int]
    value: Mapped[float | None]
    std_err: Mapped[float | None]
    reason: Mapped[str | None] = mapped_column(String(500))
