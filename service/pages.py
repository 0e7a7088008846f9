"""Lists a page at a time, newest first, by the id that a page ended with."""

import base64
from collections.abc import Sequence
from typing import Annotated, Protocol, TypeVar

from fastapi import Query

from mptcore.specs import Problem
from service.errors import ApiError, invalid

Limit = Annotated[int, Query(ge=1, le=500, description="how many a page holds")]
Cursor = Annotated[str | None, Query(max_length=200, description="`next_cursor` of a page")]

LongCursor = Annotated[str | None, Query(max_length=2000, description="`next_cursor` of a page")]


class HasId(Protocol):
    @property
    def id(self) -> str | int: ...


Item = TypeVar("Item", bound=HasId)


def page(found: Sequence[Item], limit: int) -> tuple[Sequence[Item], str | None]:
    """Of `limit` + 1 that were asked for: those of this page, and the cursor of the next."""
    kept = found[:limit]
    return kept, _cursor(kept[-1].id) if len(found) > limit else None


def read_cursor(cursor: str | None) -> str | None:
    """The id before which the page begins."""
    if not cursor:
        return None
    try:
        before = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii")
    except ValueError:
        before = ""
    if not before.isalnum():
        raise _no_cursor()
    return before


def read_number_cursor(cursor: str | None) -> int | None:
    """The same where ids are numbers."""
    before = read_cursor(cursor)
    if before is None:
        return None
    if not before.isdecimal() or len(before) > MOST_DIGITS:
        raise _no_cursor()
    return int(before)


MOST_DIGITS = 18
"""Of an id that a database can hold."""


def _no_cursor() -> ApiError:
    return invalid([Problem("/query/cursor", "a cursor is the next_cursor of an earlier answer")])


def _cursor(last: str | int) -> str:
    return base64.urlsafe_b64encode(str(last).encode()).decode().rstrip("=")
