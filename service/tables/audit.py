"""Table of the audit log."""

from typing import Any

from sqlalchemy import JSON, String
from sqlalchemy.orm import Mapped, mapped_column

from service.db.engine import Base, now


class AuditEntry(Base):
    """An entry of the log, written in the transaction of the action."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[float] = mapped_column(default=now())
    actor: Mapped[str] = mapped_column(String(100))
    """Name of a user or, without a key, of a process of the service."""
    key_id: Mapped[str | None] = mapped_column(String(16))
    action: Mapped[str] = mapped_column(String(40))
    """Kind of the object, a dot, and the verb: experiment.cancelled."""
    object_id: Mapped[str] = mapped_column(String(100), index=True)
    details: Mapped[dict[str, Any]] = mapped_column(JSON)
