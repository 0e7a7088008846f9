"""Check what a caller may do with an object, and refuse the rest."""

from http import HTTPStatus
from typing import TypeVar

from mptcore.specs import Problem
from service.accounts.users import Caller
from service.refusals import ApiError, invalid
from service.tables.visibility import Owned, Whose


def check_whose(whose: Whose, user: Caller) -> None:
    """Raises ApiError if the caller may not request such a list."""
    if whose == Whose.ALL and not user.is_admin:
        raise invalid([Problem("/query/whose", "mine or lab: only an admin lists all")])


Row = TypeVar("Row", bound=Owned)


def writable(user: Caller, found: Row | None, what: str) -> Row:
    """Return an object that the caller may change. Raises ApiError: 404 if it does not exist or the
    caller may not know of it, 403 if it is only shared."""
    if found is None:
        raise not_found(what)
    if found.owner_id != user.id and not user.is_admin:
        detail = f"this {what} is shared with you to read: only its owner or an admin changes it"
        raise ApiError(HTTPStatus.FORBIDDEN, "not_yours", detail)
    return found


def check_has_key(user: Caller) -> None:
    """Raise ApiError (403) for a browser's cookie: what is made would outlive its sign-out."""
    if user.sign_in_id is not None:
        detail = (
            "a signed-in browser adds or changes no users, keys or sign-in codes: use an API key"
        )
        raise ApiError(HTTPStatus.FORBIDDEN, "key_needed", detail)


def not_found(what: str) -> ApiError:
    return ApiError(HTTPStatus.NOT_FOUND, "not_found", f"you have no {what} of this id")
