"""Users, the permissions of roles and keys, and the owner of a key."""

import hmac
import logging
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from sqlalchemy import (
    Row,
    bindparam,
    false,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Session

from service.accounts.keys import MalformedKey, MistypedKey, digest, new_key, parse
from service.accounts.models import ApiKey, User
from service.db.engine import now
from service.vocabulary import ROLE_SCOPES, Role, Scope

log = logging.getLogger(__name__)

LOCAL_USER = "local"
"""The first admin: the user who runs `mpt serve`, or `mpt migrate` in a lab."""

PROCESS = "api"
"""The audit's actor where no user is known."""
HOUSEKEEPING = "housekeeping"
"""The audit's actor for deletions after a time."""

USE_NOTED_S = 60.0
"""Minimum interval between updates of a key's last use."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The user whose key a request carries, and the permissions of the key."""

    id: int
    name: str
    role: Role
    key_id: str
    scopes: frozenset[Scope]
    by_cookie: bool = False
    """True for a signed-in browser; False if the request carries the key itself."""

    @property
    def is_admin(self) -> bool:
        """True if this caller may access everyone's objects."""
        return Scope.ADMIN in self.scopes


class KeyRefused(Exception):
    """The key is refused. The message is for its holder."""


MALFORMED = (
    "this is no API key: one has the form mpt_<id>_<secret>_<checksum>; copy the whole of it"
)
MISTYPED = "this API key is mistyped or cut off, for its checksum is wrong: copy it again"
UNKNOWN = "this service has no such API key: ask its admin for one"
REVOKED = "this API key was revoked: ask an admin for another"
EXPIRED = "this API key has expired: ask an admin for another"
DISABLED = "the user of this API key was disabled: ask an admin"

_UNNOTED = or_(ApiKey.last_used_at.is_(None), ApiKey.last_used_at < now() - USE_NOTED_S)
_EXPIRED = func.coalesce(ApiKey.expires_at <= now(), false())
KEYS = select(
    *(User.id, User.name, User.role, User.disabled_at),
    *(ApiKey.secret_sha256, ApiKey.scopes, ApiKey.revoked_at),
    ApiKey.id.label("key_id"),
    _EXPIRED.label("expired"),
    _UNNOTED.label("unnoted"),
).join(ApiKey, ApiKey.user_id == User.id)
KEY = KEYS.where(ApiKey.id == bindparam("key_id"))
"""Statement that every request executes, so that a key is revoked at once in every process. It is
built once."""


def caller_of_key(session: Session, key: str) -> tuple[Caller, bool]:
    """Return the owner of a key, and whether its use should be recorded again. Raises
    KeyRefused."""
    key_id, secret = parsed(key)
    found = session.execute(KEY, {"key_id": key_id}).one_or_none()
    if found is None or not hmac.compare_digest(found.secret_sha256, digest(secret)):
        raise KeyRefused(UNKNOWN)
    return caller_of(found), bool(found.unnoted)


def caller_of(key: Row[*tuple[Any, ...]], by_cookie: bool = False) -> Caller:
    """Return the owner of a key in a row of KEYS, if it is valid. Raises KeyRefused."""
    if (why := _over(key)) is not None:
        raise KeyRefused(why)
    return _caller(key, by_cookie)


def callers_of_keys(session: Session, key_ids: Collection[str]) -> dict[str, Caller]:
    """Return the callers of the valid keys among these, by key id."""
    found = session.execute(KEYS.where(ApiKey.id.in_(key_ids)))
    return {row.key_id: _caller(row) for row in found if _over(row) is None}


def _over(key: Row[*tuple[Any, ...]]) -> str | None:
    """Return why a key is not valid any more."""
    for over, why in (
        (key.revoked_at is not None, REVOKED),
        (key.expired, EXPIRED),
        (key.disabled_at is not None, DISABLED),
    ):
        if over:
            return why
    return None


def _caller(key: Row[*tuple[Any, ...]], by_cookie: bool = False) -> Caller:
    role = Role(key.role)
    scopes = frozenset(ROLE_SCOPES[role]) & frozenset(map(Scope, key.scopes))
    return Caller(key.id, key.name, role, key.key_id, scopes, by_cookie)


def parsed(key: str) -> tuple[str, str]:
    """Return a key's id and secret without reading the database. Raises KeyRefused."""
    try:
        return parse(key)
    except MistypedKey:
        raise KeyRefused(MISTYPED) from None
    except MalformedKey:
        raise KeyRefused(MALFORMED) from None


def note_use(session: Session, key_id: str) -> None:
    """Record the use of a key, unless it was recorded lately."""
    unnoted = update(ApiKey).where(ApiKey.id == key_id, _UNNOTED)
    session.execute(unnoted.values(last_used_at=now()))


def store_key(
    session: Session,
    user: User,
    key: str,
    scopes: Collection[Scope],
    *,
    name: str | None = None,
    lasts_s: float | None = None,
) -> ApiKey:
    """Store a new key of a user. Raises KeyRefused."""
    key_id, secret = parsed(key)
    row = ApiKey(
        id=key_id,
        user_id=user.id,
        name=name,
        secret_sha256=digest(secret),
        scopes=[scope.value for scope in Scope if scope in scopes],
        expires_at=None if lasts_s is None else now() + lasts_s,
    )
    session.add(row)
    session.flush()
    session.refresh(row)
    return row


def ensure_key(
    session: Session, name: str, key_file: Path, role: Role = Role.MEMBER
) -> tuple[User, ApiKey | None]:
    """Create the user and the key in `key_file` (mode 0600), or find them. An invalid key is
    replaced. Return the user, and the key if it is new."""
    user = session.scalar(select(User).where(User.name == name))
    if user is None:
        user = User(name=name, role=role)
        session.add(user)
        session.flush()
    key = _read(key_file) or _write(key_file)
    if (known := session.get(ApiKey, parse(key)[0])) is not None:
        if _serves(session, known):
            return user, None
        log.warning("the key in %s was revoked or has expired: it is replaced", key_file)
        key = _write(key_file)
    return user, store_key(session, user, key, ROLE_SCOPES[Role(user.role)], name="of the store")


def _serves(session: Session, key: ApiKey) -> bool:
    over = or_(ApiKey.revoked_at.is_not(None), ApiKey.expires_at <= now())
    return session.scalar(select(ApiKey.id).where(ApiKey.id == key.id, over)) is None


def _write(key_file: Path) -> str:
    """Write a new key atomically: it is on disk before it has the file's name."""
    key = new_key()
    with NamedTemporaryFile("w", dir=key_file.parent, prefix=".key-", delete=False) as file:
        file.write(key + "\n")  # mode 0600
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, key_file)
    folder = os.open(key_file.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    return key


def _read(key_file: Path) -> str | None:
    """Return the key if the file contains a complete one."""
    try:
        key = key_file.read_text().strip()
        parse(key)
    except FileNotFoundError:
        return None
    except ValueError:
        log.warning("%s holds no key: it is replaced", key_file)
        return None
    return key
