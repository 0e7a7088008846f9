"""Routes for users, keys and the audit log."""

import time
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Query
from sqlalchemy.orm import Session

from mptcore.specs import Problem
from service.accounts import accounts, audit
from service.accounts.models import ApiKey, User
from service.accounts.oidc import FRESH_S, LEEWAY_S
from service.accounts.permissions import check_has_key
from service.accounts.schemas import (
    NAME,
    STANDING,
    AuditOut,
    AuditPage,
    KeyList,
    KeyOut,
    MadeKey,
    Me,
    NewKey,
    NewOwnKey,
    NewUser,
    UserChanges,
    UserList,
    UserOut,
)
from service.accounts.users import Caller
from service.refusals import ApiError, invalid
from service.vocabulary import ROLE_SCOPES, DisabledFor, Role, Scope
from service.web.dependencies import (
    Admin,
    Canceller,
    DatabaseDep,
    Reader,
    SettingsDep,
    UserDep,
)
from service.web.pagination import Cursor, Limit, page, read_number_cursor
from service.web.route import JsonBody, StrictRoute

router = APIRouter(prefix="/v1", tags=["users"], route_class=StrictRoute)

UserName = Annotated[str, Path(pattern=NAME, description="Name of the user.")]
KeyId = Annotated[
    str, Path(pattern="^[0-9A-Za-z]{1,16}$", description="Id of the key. It is not secret.")
]
DAY_S = 86_400.0


@router.get("/me")
async def get_me(user: UserDep) -> Me:
    """Return the owner and the permissions of the key. Keys with any scope may call it."""
    scopes = [scope for scope in Scope if scope in user.scopes]
    return Me(name=user.name, role=user.role, key_id=user.key_id, scopes=scopes)


@router.get("/users")
def list_users(database: DatabaseDep, user: Admin) -> UserList:
    """List all users, by name."""
    with database.snapshot() as session:
        return UserList(items=[_user_out(one) for one in accounts.listed(session)])


@router.post("/users", status_code=HTTPStatus.CREATED)
def add_user(new: JsonBody[NewUser], database: DatabaseDep, user: Admin) -> UserOut:
    """Add a user. The user has no key yet. A browser's sign-in cannot add users."""
    check_has_key(user)
    with database.transaction() as session:
        added = accounts.add(session, new.name, new.role)
        if added is None:
            detail = f"there is a user or a process {new.name} already: choose another name"
            raise ApiError(HTTPStatus.CONFLICT, "name_taken", detail)
        audit.note(session, user, "user.added", new.name, role=new.role)
        return _user_out(added)


@router.patch("/users/{name}")
def change_user(
    name: UserName,
    changes: JsonBody[UserChanges],
    database: DatabaseDep,
    settings: SettingsDep,
    user: Admin,
) -> UserOut:
    """Change a user's role, shares or limits, disable or enable the user, or link an account of the
    lab's provider. While a user is disabled, keys and browsers are refused and queued experiments
    do not start; running ones continue. A browser's sign-in cannot change users."""
    check_has_key(user)
    wanted = changes.model_dump(exclude_unset=True)
    standing = {name: wanted[name] for name in STANDING if name in wanted}
    with database.transaction() as session:
        found = _find(session, name)
        waited = found.disabled_for == DisabledFor.APPROVAL
        if "oidc_subject" in wanted:
            _link(session, found, settings.oidc_issuer, changes.oidc_subject)
        try:
            accounts.change(session, found, changes.role, changes.active, standing)
        except accounts.LastAdmin:
            detail = f"{name} is the last admin: make another user one first"
            raise ApiError(HTTPStatus.CONFLICT, "last_admin", detail) from None
        action = "user.approved" if waited and changes.active else "user.changed"
        audit.note(session, user, action, name, **wanted)
        return _user_out(found)


@router.get("/users/{name}/keys")
def list_keys(name: UserName, database: DatabaseDep, user: Reader) -> KeyList:
    """List a user's keys, including revoked ones: your own or, for an admin, anyone's."""
    with database.snapshot() as session:
        found = _find_self(session, user, name)
        return KeyList(items=[KeyOut.of(one) for one in accounts.keys(session, found)])


@router.post("/users/{name}/keys", status_code=HTTPStatus.CREATED)
def add_key(name: UserName, new: JsonBody[NewKey], database: DatabaseDep, user: Admin) -> MadeKey:
    """Create a key, which is shown only in this answer. Signed-in browsers cannot create keys."""
    check_has_key(user)
    with database.transaction() as session:
        owner = _find(session, name)
        lasts_s = None if new.lasts_days is None else new.lasts_days * DAY_S
        scopes = _scopes(Role(owner.role), new.scopes)
        made, key = accounts.add_key(session, owner, name=new.name, scopes=scopes, lasts_s=lasts_s)
        audit.note(session, user, "key.added", made.id, user=name, scopes=made.scopes)
        return MadeKey.of(made, key=key)


@router.post("/me/keys", status_code=HTTPStatus.CREATED)
def add_own_key(
    new: JsonBody[NewOwnKey], database: DatabaseDep, settings: SettingsDep, user: Reader
) -> MadeKey:
    """Create a key of your own, in a browser that has signed in by the lab's account within ten
    minutes, with the password. Else 403 `sign_in_again`: begin a sign-in with `fresh`. The key is
    shown only in this answer."""
    if settings.oidc_issuer is None:
        detail = "only labs with accounts of a provider have this: ask an admin for a key"
        raise ApiError(HTTPStatus.NOT_FOUND, "not_found", detail)
    scopes = _scopes(user.role, new.scopes)
    with database.transaction() as session:
        authenticated_at = session.get_one(ApiKey, user.key_id).authenticated_at or 0.0
        if not -LEEWAY_S <= time.time() - authenticated_at <= FRESH_S:
            detail = (
                "a new key needs a sign-in by the lab's account, with the password, within the "
                "last ten minutes: sign in again"
            )
            raise ApiError(HTTPStatus.FORBIDDEN, "sign_in_again", detail)
        owner, lasts_s = _find(session, user.name), new.lasts_days * DAY_S
        made, key = accounts.add_key(session, owner, name=new.name, scopes=scopes, lasts_s=lasts_s)
        audit.note(session, user, "key.added", made.id, user=user.name, scopes=made.scopes)
        return MadeKey.of(made, key=key)


@router.delete("/users/{name}/keys/{key_id}", status_code=HTTPStatus.NO_CONTENT)
def revoke_key(name: UserName, key_id: KeyId, database: DatabaseDep, user: Canceller) -> None:
    """Revoke a key: your own or, for an admin, anyone's. Later requests with it are refused."""
    with database.transaction() as session:
        revoked = accounts.revoke(session, _find_self(session, user, name), key_id)
        if revoked is None:
            detail = f"{name} has no key {key_id}: `mpt admin key list {name}` shows them"
            raise ApiError(HTTPStatus.NOT_FOUND, "not_found", detail)
        if revoked:
            audit.note(session, user, "key.revoked", key_id, user=name)


@router.get("/audit")
def list_audit(
    database: DatabaseDep,
    user: Admin,
    limit: Limit = 50,
    cursor: Cursor = None,
    actor: Annotated[
        str | None, Query(max_length=100, description="Name of the user or process that acted.")
    ] = None,
    object_id: Annotated[str | None, Query(max_length=100, description="Id of the object.")] = None,
) -> AuditPage:
    """List who did what to which object, newest first; optionally of one actor, or about one
    object."""
    before = read_number_cursor(cursor)
    with database.snapshot() as session:
        found = audit.newest(
            session, limit=limit + 1, before=before, actor=actor, object_id=object_id
        )
    kept, next_cursor = page(found, limit)
    return AuditPage(items=[AuditOut.of(one) for one in kept], next_cursor=next_cursor)


def _scopes(role: Role, wanted: list[Scope] | None) -> tuple[Scope, ...]:
    allowed = ROLE_SCOPES[role]
    too_much = [scope for scope in wanted or () if scope not in allowed]
    if too_much:
        detail = f"a {role} may have {', '.join(allowed)}; not {', '.join(too_much)}"
        raise invalid([Problem("/scopes", detail)])
    return allowed if wanted is None else tuple(wanted)


def _link(session: Session, user: User, issuer: str | None, subject: str | None) -> None:
    if issuer is None:
        detail = "this lab has no provider of accounts: MPT_OIDC_ISSUER is not set"
        raise invalid([Problem("/oidc_subject", detail)])
    if not accounts.link(session, user, issuer, subject):
        detail = f"the account {subject} signs another user in: unlink that one first"
        raise ApiError(HTTPStatus.CONFLICT, "account_taken", detail)


def _find(session: Session, name: str) -> User:
    found = accounts.find(session, name)
    if found is None:
        raise _no_user(name)
    return found


def _find_self(session: Session, user: Caller, name: str) -> User:
    """Return the named user. Callers other than admins find only themselves."""
    if name != user.name and not user.is_admin:
        raise _no_user(name)
    return _find(session, name)


def _no_user(name: str) -> ApiError:
    detail = f"there is no user {name} that you may see: `mpt admin user list` shows an admin all"
    return ApiError(HTTPStatus.NOT_FOUND, "not_found", detail)


def _user_out(user: User) -> UserOut:
    return UserOut.of(user, active=user.disabled_at is None)
