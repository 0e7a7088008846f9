"""Who may read what: it is private, or shared with the lab. Only its owner and admins change it."""

from enum import StrEnum
from http import HTTPStatus
from typing import TypeVar

from sqlalchemy import Boolean, ColumnElement, String, bindparam, literal, or_
from sqlalchemy.orm import Mapped, mapped_column

from mptcore.specs import Problem
from service.errors import ApiError, invalid
from service.users import Caller


class Visibility(StrEnum):
    """Who may read it and start from it: its owner, or everyone in the lab."""

    PRIVATE = "private"
    LAB = "lab"


class Whose(StrEnum):
    """Of a list: the caller's own, what is shared with the lab, or for admins all."""

    MINE = "mine"
    LAB = "lab"
    ALL = "all"


class Owned:
    """What a table is whose rows have an owner, and may be shared with the lab."""

    owner_id: Mapped[int]
    visibility: Mapped[str] = mapped_column(
        String(8), default=Visibility.PRIVATE, server_default="private"
    )


def check_whose(whose: Whose, user: Caller) -> None:
    """Raises ApiError where the caller may not have such a list."""
    if whose == Whose.ALL and not user.is_admin:
        raise invalid([Problem("/query/whose", "mine or lab: only an admin lists all")])


Row = TypeVar("Row", bound=Owned)


def shared(table: type[Owned]) -> ColumnElement[bool]:
    """Shared with the lab; written out, so that a partial index serves."""
    return table.visibility == literal(Visibility.LAB.value, literal_execute=True)


def readable(table: type[Owned]) -> ColumnElement[bool]:
    """Open to the reader whom `reader` names in the parameters."""
    own = table.owner_id == bindparam("reader_id")
    return or_(own, shared(table), bindparam("reads_all", type_=Boolean()))


def reader(user_id: int, reads_all: bool = False) -> dict[str, object]:
    """The parameters of `readable`."""
    return {"reader_id": user_id, "reads_all": reads_all}


def writable(user: Caller, found: Row | None, what: str) -> Row:
    """What the caller may read, if the caller may also change it. Raises ApiError: 404 for what is
    not there or not to be known of, 403 for what is only shared."""
    if found is None:
        raise not_found(what)
    if found.owner_id != user.id and not user.is_admin:
        detail = f"this {what} is shared with you to read: only its owner or an admin changes it"
        raise ApiError(HTTPStatus.FORBIDDEN, "not_yours", detail)
    return found


def not_found(what: str) -> ApiError:
    return ApiError(HTTPStatus.NOT_FOUND, "not_found", f"you have no {what} of this id")
