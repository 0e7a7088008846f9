"""Table of requests that carried an idempotency key."""

from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from service.accounts.models import User
from service.db.engine import Base, now


class KeptRequest(Base):
    """A request that was carried out under an idempotency key, with its results."""

    __tablename__ = "requests"
    __table_args__ = (Index("ix_requests_owner_id_kept_bytes", "owner_id", "kept_bytes"),)

    owner_id: Mapped[int] = mapped_column(ForeignKey(User.id), primary_key=True)
    """The user who sent it."""
    idempotency_key: Mapped[str] = mapped_column(String(200), primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64))
    """Digest of method, path and body. Requests of version 0.1 have their method and path in its
    place."""
    made: Mapped[list[Any]] = mapped_column(JSON)
    """Ids and numbers that the answer is made of. Empty only within the transaction of the request.
    """
    kept_bytes: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    """Bytes of the row and its index entry."""
    created_at: Mapped[float] = mapped_column(default=now())
