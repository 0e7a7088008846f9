"""Visibility: private, or shared with a project or the lab. Only owners and admins change it."""

from typing import ClassVar

from sqlalchemy import (
    Boolean,
    ColumnElement,
    String,
    TableClause,
    bindparam,
    column,
    literal,
    or_,
    select,
    true,
)
from sqlalchemy.orm import Mapped, mapped_column

from service.vocabulary import Visibility, Whose

_MEMBERS = TableClause("project_members", *map(column, ("project_id", "user_id", "left_at")))


class Owned:
    """Mixin of tables whose rows have an owner and may be shared with their project or the lab."""

    noun: ClassVar[str]
    """Name of a row in messages."""
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    owner_id: Mapped[int]
    project_id: Mapped[int]
    visibility: Mapped[str] = mapped_column(
        String(8), default=Visibility.PRIVATE, server_default="private"
    )


def present(table: type[Owned]) -> ColumnElement[bool]:
    """Return whether rows are not deleted. Data sets are deleted at once."""
    deleted_at = getattr(table, "deleted_at", None)
    return true() if deleted_at is None else deleted_at.is_(None)


def shared(table: type[Owned]) -> ColumnElement[bool]:
    """Return whether rows are shared with the lab."""
    return _is_visible_to(table, Visibility.LAB)


def shared_with_projects(
    table: type[Owned], reader_id: int | ColumnElement[int]
) -> ColumnElement[bool]:
    """Return whether rows are shared with a project of which the reader is a present member, also
    a closed one."""
    of_reader = _MEMBERS.c.user_id == reader_id, _MEMBERS.c.left_at.is_(None)
    projects = select(_MEMBERS.c.project_id).where(*of_reader)
    return _is_visible_to(table, Visibility.PROJECT) & table.project_id.in_(projects)


def _is_visible_to(table: type[Owned], visibility: Visibility) -> ColumnElement[bool]:
    """Compare the visibility of rows. It is written out so that a partial index applies."""
    return table.visibility == literal(visibility.value, literal_execute=True)


def listed(table: type[Owned], owner_id: int, whose: Whose) -> ColumnElement[bool]:
    """Return whether rows are the owner's, shared with the owner's projects or the lab, or any,
    and not deleted."""
    match whose:
        case Whose.MINE:
            return present(table) & (table.owner_id == owner_id)
        case Whose.PROJECT:
            return present(table) & shared_with_projects(table, owner_id)
        case Whose.LAB:
            return present(table) & shared(table)
    return present(table)


def readable(table: type[Owned]) -> ColumnElement[bool]:
    """Return whether rows are not deleted, and readable by the reader in the parameters of
    `reader`."""
    reader_id: ColumnElement[int] = bindparam("reader_id")
    open_to_reader = shared(table), shared_with_projects(table, reader_id)
    reads_all = bindparam("reads_all", type_=Boolean())
    return present(table) & or_(table.owner_id == reader_id, *open_to_reader, reads_all)


def reader(user_id: int, reads_all: bool = False) -> dict[str, object]:
    """Return the parameters of `readable`."""
    return {"reader_id": user_id, "reads_all": reads_all}
