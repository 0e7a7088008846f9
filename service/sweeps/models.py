"""The tables of sweeps, and of requests that made several things at once."""

from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from service.database import Base, now
from service.sharing import Owned
from service.users import User


class Sweep(Owned, Base):
    """A spec, the fields of it that its points differ in, and what holds for all of them."""

    __tablename__ = "sweeps"
    __table_args__ = (Index("ix_sweeps_owner_id_id", "owner_id", "id"),)

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    owner_id: Mapped[int] = mapped_column(ForeignKey(User.id))
    owner: Mapped[User] = relationship(lazy="raise")
    deleted_at: Mapped[float | None]
    name: Mapped[str | None] = mapped_column(String(200))
    tags: Mapped[list[str]] = mapped_column(JSON)
    note: Mapped[str | None] = mapped_column(Text)
    priority: Mapped[int]
    spec: Mapped[dict[str, Any]] = mapped_column(JSON)
    """As it came: it need not be whole without the fields of a point."""
    fields: Mapped[list[str]] = mapped_column(JSON)
    """The dotted paths of what differs."""
    comes_after: Mapped[list[str]] = mapped_column(JSON)
    concurrency: Mapped[int | None]
    """How many of its runs may be under way at once; null: as many as its owner's."""
    created_at: Mapped[float] = mapped_column(default=now())


class SweepPoint(Base):
    """Which experiment computes a point: one that was made for it, the last of its retries, or one
    of before that had the same spec."""

    __tablename__ = "sweep_points"

    sweep_id: Mapped[str] = mapped_column(ForeignKey(Sweep.id), primary_key=True)
    point: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    experiment_id: Mapped[str] = mapped_column(ForeignKey("experiments.id"), index=True)


class Turn(Base):
    """A note for the dispatcher: a run of this sweep has ended, or may be let go, or its limit has
    changed. Rows are inserted and deleted, never updated: no transaction waits for another here."""

    __tablename__ = "turns"

    id: Mapped[int] = mapped_column(primary_key=True)
    sweep_id: Mapped[str] = mapped_column(String(32))


class KeptRequest(Base):
    """What a request made that made several things, under its idempotency key."""

    __tablename__ = "requests"

    owner_id: Mapped[int] = mapped_column(ForeignKey(User.id), primary_key=True)
    idempotency_key: Mapped[str] = mapped_column(String(200), primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64))
    made: Mapped[list[Any]] = mapped_column(JSON)
    """What the answer rests on: of a batch all of it."""
    created_at: Mapped[float] = mapped_column(default=now())
