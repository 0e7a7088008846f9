"""Visibility: private, or shared with the lab. Only owners and admins change it."""

from typing import ClassVar

from sqlalchemy import Boolean, ColumnElement, String, bindparam, literal, or_, true
from sqlalchemy.orm import Mapped, mapped_column

from service.vocabulary import Visibility, Whose


class Owned:
    """Mixin of tables whose rows have an owner and may be shared with the lab."""

    noun: ClassVar[str]
    """Name of a row in messages."""
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    owner_id: Mapped[int]
    visibility: Mapped[str] = mapped_column(
        String(8), default=Visibility.PRIVATE, server_default="private"
    )


def present(table: type[Owned]) -> ColumnElement[bool]:
    """Return whether rows are not deleted. Data sets are deleted at once."""
    deleted_at = getattr(table, "deleted_at", None)
    return true() if deleted_at is None else deleted_at.is_(None)


def shared(table: type[Owned]) -> ColumnElement[bool]:
    """Return whether rows are shared with the lab. The condition is written out so that a partial
    index applies."""
    return table.visibility == literal(Visibility.LAB.value, literal_execute=True)


def listed(table: type[Owned], owner_id: int, whose: Whose) -> ColumnElement[bool]:
    """Return whether rows are the owner's, shared with the lab, or any, and not deleted."""
    match whose:
        case Whose.MINE:
            return present(table) & (table.owner_id == owner_id)
        case Whose.LAB:
            return present(table) & shared(table)
    return present(table)


def readable(table: type[Owned]) -> ColumnElement[bool]:
    """Return whether rows are not deleted, and readable by the reader in the parameters of
    `reader`."""
    own = table.owner_id == bindparam("reader_id")
    return present(table) & or_(own, shared(table), bindparam("reads_all", type_=Boolean()))


def reader(user_id: int, reads_all: bool = False) -> dict[str, object]:
    """Return the parameters of `readable`."""
    return {"reader_id": user_id, "reads_all": reads_all}
