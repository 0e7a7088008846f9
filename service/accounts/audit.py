"""The audit log: who did what to which object. Triggers in the database prevent changes and
deletions."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.accounts.models import AuditEntry
from service.accounts.users import Caller


def note(session: Session, by: Caller | str, action: str, object_id: str, **details: Any) -> None:
    """Write an entry. `by` is a caller or the name of a process."""
    session.add(AuditEntry(**line(by, action, object_id, **details)))


def line(by: Caller | str, action: str, object_id: str, **details: Any) -> dict[str, Any]:
    """Return the columns of an entry."""
    actor, key_id = (by, None) if isinstance(by, str) else (by.name, by.key_id)
    return {
        "actor": actor,
        "key_id": key_id,
        "action": action,
        "object_id": object_id,
        "details": details,
    }


def newest(
    session: Session,
    *,
    limit: int,
    before: int | None = None,
    actor: str | None = None,
    object_id: str | None = None,
) -> Sequence[AuditEntry]:
    """Return entries older than `before`, newest first; optionally of one actor, or about one
    object."""
    query = select(AuditEntry)
    if before is not None:
        query = query.where(AuditEntry.id < before)
    if actor is not None:
        query = query.where(AuditEntry.actor == actor)
    if object_id is not None:
        query = query.where(AuditEntry.object_id == object_id)
    return session.scalars(query.order_by(AuditEntry.id.desc()).limit(limit)).all()
