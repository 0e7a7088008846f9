"""Requests that were sent with an Idempotency-Key: each is carried out once."""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from service.db.engine import insert_new, now
from service.refusals import ApiError
from service.submission.models import KeptRequest

KEPT_S = 30 * 86_400.0
"""Lifetime of an idempotency key."""
REQUEST_BYTES = 256
"""Bytes of a stored request and its index entry, beside its key and its results."""


@dataclass(frozen=True)
class IdempotentRequest:
    """A request with an idempotency key: its method and path, and its body as it was sent."""

    key: str
    target: str
    body: bytes

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(b"%s\n%s" % (self.target.encode(), self.body)).hexdigest()

    def check_same(self, kept: KeptRequest) -> None:
        """Raises ApiError if the kept request is another one."""
        if kept.sha256 not in (self.sha256, self.target):
            detail = "another request was sent under this Idempotency-Key"
            raise ApiError(HTTPStatus.CONFLICT, "idempotency_key_reused", detail)


def find(session: Session, owner_id: int, request: IdempotentRequest) -> KeptRequest | None:
    """Return the request that was carried out under this key."""
    return session.get(KeptRequest, (owner_id, request.key))


def claim(session: Session, owner_id: int, request: IdempotentRequest) -> KeptRequest:
    """Return the row of the key, locked until the transaction ends. A concurrent request with the
    same key waits here. `made` is empty if the key is new."""
    which = {"owner_id": owner_id, "idempotency_key": request.key}
    row = select(KeptRequest).filter_by(**which).with_for_update()
    while True:  # the row that was there before may be deleted before it is locked
        insert_new(session, KeptRequest, [{**which, "sha256": request.sha256, "made": []}])
        if (kept := session.scalars(row).one_or_none()) is not None:
            return kept


def keep(session: Session, kept: KeptRequest, request: IdempotentRequest, made: list[Any]) -> None:
    """Store the results of a request under its claimed key. The key of a request without results
    stays free."""
    if not made:
        session.delete(kept)
        return
    if kept.made:  # all of that is deleted
        kept.created_at = session.execute(select(now())).scalar_one()
    kept.sha256, kept.made, kept.kept_bytes = request.sha256, made, size_of(request.key, made)


def size_of(key: str, made: list[Any]) -> int:
    """Return the bytes of a stored request."""
    return REQUEST_BYTES + len(key) + len(json.dumps(made))


def purge(session: Session) -> None:
    """Delete old keys."""
    session.execute(delete(KeptRequest).where(KeptRequest.created_at < now() - KEPT_S))
