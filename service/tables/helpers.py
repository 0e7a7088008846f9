"""Tables of runs that several workers compute together."""

from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, LargeBinary, String, text
from sqlalchemy.orm import Mapped, mapped_column

from service.tables.engine import Base, LargeId, now
from service.tables.experiments import Experiment
from service.tables.users import User


class DividedRun(Base):
    """An attempt whose batches its worker and its helpers claim. It is deleted when the attempt
    ends."""

    __tablename__ = "divided_runs"

    experiment_id: Mapped[str] = mapped_column(ForeignKey(Experiment.id), primary_key=True)
    attempt: Mapped[int]
    next: Mapped[int]
    """Number of the first batch that nobody has claimed."""
    plans: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    """Plans that depend on scores, with their numbers."""


class SentBatch(Base):
    """Scores of a batch on their way from a helper to the attempt. They are deleted when they are
    read. `content` is a line with their shape, then the numbers (`division.packed`)."""

    __tablename__ = "sent_batches"

    experiment_id: Mapped[str] = mapped_column(ForeignKey(Experiment.id), primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    help_id: Mapped[int] = mapped_column(LargeId)
    content: Mapped[bytes] = mapped_column(LargeBinary)


class Barred(StrEnum):
    """Scope of a help that ended in which no further one may begin."""

    WORKER = "worker"
    """The attempt, from the same worker."""
    ATTEMPT = "attempt"
    """The attempt, from any worker."""
    EXPERIMENT = "experiment"
    """All attempts of the experiment."""


class Help(Base):
    """A worker's help for an attempt of another worker, with its lease. It also is a line of the
    ledger: `folded` rows are included in `usage`."""

    __tablename__ = "helps"
    __table_args__ = (
        Index("ix_helps_folded_owner_id", "folded", "owner_id"),
        Index("ix_helps_experiment_id_attempt", "experiment_id", "attempt"),
        Index(
            "ix_helps_active",
            "worker",
            sqlite_where=text("ended_at IS NULL"),
            postgresql_where=text("ended_at IS NULL"),
        ),
        Index(
            "ix_helps_barred",
            "experiment_id",
            "attempt",
            sqlite_where=text("barred IS NOT NULL"),
            postgresql_where=text("barred IS NOT NULL"),
        ),
        Index(
            "ix_helps_ended_at",
            "ended_at",
            sqlite_where=text("ended_at IS NOT NULL"),
            postgresql_where=text("ended_at IS NOT NULL"),
        ),
    )

    id: Mapped[int] = mapped_column(LargeId, primary_key=True)
    experiment_id: Mapped[str] = mapped_column(ForeignKey(Experiment.id))
    attempt: Mapped[int]
    owner_id: Mapped[int] = mapped_column(ForeignKey(User.id))
    """Owner of the experiment, who is charged."""
    queue: Mapped[str] = mapped_column(String(16))
    worker: Mapped[str | None] = mapped_column(String(200))
    """The helping worker; null before it begins."""
    dispatched_at: Mapped[float] = mapped_column(default=now())
    started_at: Mapped[float | None]
    lease_expires_at: Mapped[float | None]
    must_stop: Mapped[bool] = mapped_column(default=False)
    """True if the worker is needed for an experiment."""
    batches: Mapped[int] = mapped_column(default=0)
    """Number of batches whose scores it has sent."""
    ended_at: Mapped[float | None]
    reason: Mapped[str | None] = mapped_column(String(200))
    """Reason why it ended."""
    barred: Mapped[str | None] = mapped_column(String(16))
    """Scope in which no further help may begin after this one: a value of Barred. null: none."""
    folded: Mapped[bool] = mapped_column(default=False)
