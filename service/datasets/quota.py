"""Limit the bytes that a user uploads, and the uploads at once."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from sqlalchemy.orm import Session

from service.fair_share import FairShare
from service.queue import quota
from service.refusals import ApiError


@contextmanager
def one_of_few(under_way: Counter[int], owner_id: int, most: int) -> Iterator[None]:
    """Count an upload of a user while the block runs. Raises ApiError if there are too many."""
    if under_way[owner_id] >= most:
        detail = f"{most} uploads of yours are under way, which is the most: try again"
        headers = {"Retry-After": "5"}
        raise ApiError(HTTPStatus.TOO_MANY_REQUESTS, "too_many_uploads", detail, headers=headers)
    under_way[owner_id] += 1
    try:
        yield
    finally:
        under_way[owner_id] -= 1


def store_bytes(session: Session, fair_share: FairShare, owner_id: int, size: int) -> None:
    """Count the bytes of an upload. A user's uploads and submissions pass here one at a time, so
    that two at once do not both take the last room. Raises ApiError."""
    quota.lock(session, owner_id)
    quota.check_bytes(session, owner_id, fair_share, size)
    quota.note(session, owner_id, size)
