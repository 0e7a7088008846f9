"""Pagination of lists, newest first, by the last id of a page."""

import base64
from collections.abc import Sequence
from typing import Annotated, Protocol, TypeVar

from fastapi import Query

from mptcore.specs import Problem
from service.refusals import ApiError, invalid
from service.vocabulary import Whose

Limit = Annotated[int, Query(ge=1, le=500, description="Maximum number of items.")]
Cursor = Annotated[str | None, Query(max_length=200, description="`next_cursor` of a page.")]

LongCursor = Annotated[str | None, Query(max_length=2000, description="`next_cursor` of a page.")]

WhoseQuery = Annotated[
    Whose,
    Query(
        description="Rows: `mine`; `project` for those shared with your projects; `lab` for those "
        "shared with the lab; `all` for administrators."
    ),
]


class HasId(Protocol):
    @property
    def id(self) -> str | int: ...


Item = TypeVar("Item", bound=HasId)


def page(found: Sequence[Item], limit: int) -> tuple[Sequence[Item], str | None]:
    """Split `limit` + 1 results into the page and the cursor of the next one."""
    kept = found[:limit]
    return kept, _cursor(kept[-1].id) if len(found) > limit else None


def read_cursor(cursor: str | None) -> str | None:
    """Return the id before which the page begins."""
    if not cursor:
        return None
    try:
        before = base64.urlsafe_b64decode(cursor + "==").decode("ascii")
    except ValueError:
        before = ""
    if not before.isalnum():
        raise _no_cursor()
    return before


def read_number_cursor(cursor: str | None) -> int | None:
    """Return the number before which the page begins."""
    before = read_cursor(cursor)
    if before is None:
        return None
    if not before.isdecimal() or len(before) > MAX_DIGITS or int(before) > MAX_ID:
        raise _no_cursor()
    return int(before)


MAX_DIGITS = 10
MAX_ID = 2**31 - 1
"""Maximum number of a row, in a column of 32 bits."""


def _no_cursor() -> ApiError:
    return invalid([Problem("/query/cursor", "a cursor is the next_cursor of an earlier answer")])


def _cursor(last: str | int) -> str:
    return base64.urlsafe_b64encode(str(last).encode()).decode().rstrip("=")
