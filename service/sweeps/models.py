"""Tables of sweeps."""

from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, column_property, mapped_column, relationship

from service.accounts.models import OWN, User, name_of
from service.db.engine import Base, now
from service.db.visibility import Owned


class Sweep(Owned, Base):
    """A spec, its swept fields, and settings for all of its points."""

    noun = "sweep"
    __tablename__ = "sweeps"
    __table_args__ = (Index("ix_sweeps_owner_id_id", "owner_id", "id"),)

    owner_id: Mapped[int] = mapped_column(ForeignKey(User.id))
    owner: Mapped[User] = relationship(lazy="raise")
    project_id: Mapped[int] = mapped_column(default=OWN, server_default="0")
    """Project of its points; 0: their owner's own."""
    project: Mapped[str | None] = column_property(name_of(project_id))
    deleted_at: Mapped[float | None]
    name: Mapped[str | None] = mapped_column(String(200))
    tags: Mapped[list[str]] = mapped_column(JSON)
    note: Mapped[str | None] = mapped_column(Text)
    priority: Mapped[int]
    spec: Mapped[dict[str, Any]] = mapped_column(JSON)
    """The base spec as it was sent. It may be incomplete without the fields of a point."""
    fields: Mapped[list[str]] = mapped_column(JSON)
    """Dotted paths of the swept fields."""
    comes_after: Mapped[list[str]] = mapped_column(JSON)
    concurrency: Mapped[int | None]
    """Maximum number of concurrent runs; null: only the owner's limit."""
    kept_bytes: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    """Bytes of the sweep without its points."""
    created_at: Mapped[float] = mapped_column(default=now())


class SweepPoint(Base):
    """The experiment that computes a point of a sweep: the one created for the point, its last
    retry, or an earlier experiment with the same spec."""

    __tablename__ = "sweep_points"

    sweep_id: Mapped[str] = mapped_column(ForeignKey(Sweep.id), primary_key=True)
    point: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    experiment_id: Mapped[str] = mapped_column(ForeignKey("experiments.id"), index=True)
