"""Find the rows that a caller may read or change, and refuse the rest."""

from collections.abc import Collection, Mapping, Sequence
from http import HTTPStatus
from typing import Any, TypeVar

from sqlalchemy import Select, bindparam, select
from sqlalchemy.orm import Session, joinedload
from sqlalchemy.orm.interfaces import ORMOption

from mptcore.specs import Problem
from service.accounts.users import Caller, callers_of_keys
from service.datasets.models import Dataset
from service.db.visibility import listed, readable, reader
from service.experiments.models import Experiment
from service.refusals import ApiError, invalid, unauthorized
from service.sweeps.models import Sweep
from service.vocabulary import SCOPES, Action, Whose


def check_whose(whose: Whose, user: Caller) -> None:
    """Raises ApiError if the caller may not request such a list."""
    if whose == Whose.ALL and not user.is_admin:
        raise invalid([Problem("/query/whose", "mine, project or lab: only an admin may list all")])


Row = TypeVar("Row", Dataset, Experiment, Sweep)


def find(session: Session, user: Caller, table: type[Row], id: str) -> Row:
    """Return a row that the caller may read, with its owner. Raises ApiError."""
    found = find_readable(session, user, table, id)
    if found is None:
        raise not_found(table.noun)
    return found


def find_own(session: Session, user: Caller, table: type[Row], id: str) -> Row:
    """Return a row that the caller may change. Raises ApiError: 404 if it does not exist or the
    caller may not read it, 403 if the caller may only read it."""
    found = find(session, user, table, id)
    if not _is_own(found, user):
        detail = f"you may only read this {table.noun}: its owner or an admin may change it"
        raise ApiError(HTTPStatus.FORBIDDEN, "not_yours", detail)
    return found


def _is_own(row: Row, user: Caller) -> bool:
    return row.owner_id == user.id or user.is_admin


def permitted(row: Row, user: Caller, actions: Collection[Action]) -> list[Action]:
    """Return those of these actions that the caller may take on a row."""
    if not _is_own(row, user):
        return []
    return [action for action in Action if action in actions and SCOPES[action] in user.scopes]


def find_readable(session: Session, user: Caller, table: type[Row], id: str) -> Row | None:
    """Return a row if the caller owns it, if it is shared with a project of the caller or the lab,
    or if the caller may read everything."""
    if not id.isalnum():
        return None
    found: Row | None = session.scalar(_BY_ID[table], {"id": id, **reader(user.id, user.is_admin)})
    return found


_BY_ID: Mapping[type[Any], Select[Any]] = {
    table: select(table)
    .where(table.id == bindparam("id"), readable(table))
    .options(joinedload(table.owner))
    .execution_options(populate_existing=True)
    for table in (Dataset, Experiment, Sweep)
}
"""Built once, because building a statement takes as long as executing it."""


def readable_ones(
    session: Session, user_id: int, table: type[Row], ids: Collection[str]
) -> dict[str, Row]:
    """Return those of these rows that a user may read, by id."""
    if not ids:
        return {}
    query = select(table).where(table.id.in_(ids), readable(table)).order_by(table.id)
    query = query.execution_options(populate_existing=True)
    return {one.id: one for one in session.scalars(query, reader(user_id))}


def newest(
    session: Session,
    user: Caller,
    table: type[Row],
    whose: Whose,
    limit: int,
    before: str | None,
    *options: ORMOption,
    ids: Sequence[str] = (),
) -> Sequence[Row]:
    """Return the caller's rows, those shared with the caller's projects or the lab, or all, newest
    first, older than `before`; of `ids` only, if there are any. Raises ApiError."""
    check_whose(whose, user)
    query = select(table).where(listed(table, user.id, whose))
    query = query.options(joinedload(table.owner), *options)
    if before is not None:
        query = query.where(table.id < before)
    if ids:
        query = query.where(table.id.in_(ids))
    return session.scalars(query.order_by(table.id.desc()).limit(limit)).all()


def check_still_valid(session: Session, user: Caller) -> None:
    """Raise ApiError (401) if the caller's key ended or allows less since the request began. A long
    request calls this in the transaction that stores its data."""
    current = callers_of_keys(session, [user.key_id]).get(user.key_id)
    if current is None or not user.scopes <= current.scopes:
        detail = "since the request began, this API key ended or lost a scope; nothing was changed"
        raise unauthorized(detail)


def check_has_key(user: Caller) -> None:
    """Raise ApiError (403) for a browser's cookie: the new object would outlive the sign-out."""
    if user.by_cookie:
        detail = (
            "a signed-in browser cannot add or change users, projects, keys or sign-in codes: use "
            "an API key"
        )
        raise ApiError(HTTPStatus.FORBIDDEN, "key_needed", detail)


def not_found(what: str) -> ApiError:
    return ApiError(HTTPStatus.NOT_FOUND, "not_found", f"you have no {what} of this id")
