"""Signed-in browsers and the codes that sign one in.

A cookie represents one API key: it allows what the key allows, and is valid as long as the key is,
for a week at most. Only the SHA-256 of cookies and codes is stored. Codes are made with a key only,
never with a cookie, so that a stolen cookie cannot create anything that outlives the sign-out.
"""

import hmac
import secrets
from collections.abc import Collection
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import bindparam, delete, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from service.accounts.keys import digest
from service.accounts.models import ApiKey, SignIn, SignInCode
from service.accounts.users import KEYS, Caller, KeyRefused, caller_of, holder
from service.db.engine import now

COOKIE = "mpt_sign_in"
LASTS_S = 7 * 86_400.0
RENEWED_S = 3600.0
"""Minimum interval between renewals of a cookie."""
GRACE_S = 60.0
"""Time for which the previous cookie stays valid, for requests already sent with it."""
CODE_LASTS_S = 600.0
MAX_OF_KEY = 100
"""Signed-in browsers, and unused codes, of one key. A further one ends the oldest: each sign-in
searches these tables while it blocks other writers."""

SIGNED_OUT = "you are signed out, or have been for a week: sign in again"
CODE_USED = "this sign-in link was used before, or is older than ten minutes: ask for another"


class MadeCode(NamedTuple):
    code: str
    expires_at: float


def new_code(session: Session, key_id: str) -> MadeCode:
    """Store a code for the holder of a key."""
    _make_room(session, SignInCode.sha256, key_id)
    code = secrets.token_urlsafe(32)
    row = SignInCode(sha256=digest(code), key_id=key_id, expires_at=now() + CODE_LASTS_S)
    session.add(row)
    session.flush()
    session.refresh(row)
    return MadeCode(code, row.expires_at)


_CODE = KEYS.join(SignInCode, SignInCode.key_id == ApiKey.id).where(
    SignInCode.sha256 == bindparam("sha256"), SignInCode.expires_at > now()
)


def holder_of_code(session: Session, code: str) -> Caller:
    """Return the user whom a code would sign in, without using the code up. Raises KeyRefused."""
    found = session.execute(_CODE, {"sha256": digest(code)}).one_or_none()
    if found is None:
        raise KeyRefused(CODE_USED)
    return caller_of(found)


def take_code(session: Session, code: str) -> Caller:
    """Return the user whom a code signs in, and delete the code. If two requests use the same code,
    only the request that deletes it succeeds. Raises KeyRefused."""
    caller = holder_of_code(session, code)
    valid = delete(SignInCode).where(SignInCode.sha256 == digest(code))
    if session.scalar(valid.returning(SignInCode.key_id)) is None:
        raise KeyRefused(CODE_USED)
    return caller


def _make_room(session: Session, row_id: InstrumentedAttribute[Any], key_id: str) -> None:
    """Delete expired rows, and the key's oldest ones if it has too many for another."""
    _forget_expired(session)
    table = row_id.class_
    oldest = select(row_id).where(table.key_id == key_id).order_by(table.expires_at.desc())
    surplus = session.scalars(oldest.offset(MAX_OF_KEY - 1)).all()
    session.execute(delete(table).where(row_id.in_(surplus)))


def _forget_expired(session: Session) -> None:
    for table in (SignInCode, SignIn):
        session.execute(delete(table).where(table.expires_at <= now()))


def begin(session: Session, key_id: str) -> str:
    """Sign a browser in with a key, and return the browser's cookie."""
    _make_room(session, SignIn.id, key_id)
    sign_in_id, secret = secrets.token_hex(8), secrets.token_hex(32)
    session.add(
        SignIn(
            id=sign_in_id,
            key_id=key_id,
            secret_sha256=digest(secret),
            expires_at=now() + LASTS_S,
        )
    )
    session.flush()
    return _cookie(sign_in_id, secret)


_SIGNED_IN = (
    KEYS.add_columns(
        SignIn.secret_sha256.label("cookie_sha256"),
        SignIn.previous_sha256,
        (SignIn.renewed_at < now() - GRACE_S).label("settled"),
    )
    .join(SignIn, SignIn.key_id == ApiKey.id)
    .where(SignIn.id == bindparam("sign_in_id"), SignIn.expires_at > now())
)
"""Statement that every request executes, so that a sign-in ends at once with its key. It is built
once."""


def caller_of_cookie(session: Session, cookie: str) -> tuple[Caller, bool]:
    """Return the same as `caller_of_key`, for the key that signed the browser in. Raises
    KeyRefused."""
    sign_in_id, secret = _parts(cookie)
    found = session.execute(_SIGNED_IN, {"sign_in_id": sign_in_id}).one_or_none()
    if found is None:
        raise KeyRefused(SIGNED_OUT)
    known = [found.cookie_sha256]
    if found.previous_sha256 is not None and not found.settled:
        known.append(found.previous_sha256)
    if not any(hmac.compare_digest(one, digest(secret)) for one in known):
        raise KeyRefused(SIGNED_OUT)
    return replace(caller_of(found), sign_in_id=sign_in_id), bool(found.unnoted)


def in_force(session: Session, sign_in_ids: Collection[str]) -> set[str]:
    """Return the sign-ins among these that have neither ended nor expired."""
    mine = select(SignIn.id).where(SignIn.id.in_(sign_in_ids), SignIn.expires_at > now())
    return set(session.scalars(mine))


def renew(session: Session, cookie: str) -> str | None:
    """Return a new cookie for a valid one that is old enough; otherwise None."""
    sign_in_id, secret = _parts(cookie)
    fresh = secrets.token_hex(32)
    old = update(SignIn).where(
        SignIn.id == sign_in_id,
        SignIn.secret_sha256 == digest(secret),
        SignIn.renewed_at < now() - RENEWED_S,
    )
    changes = {"secret_sha256": digest(fresh), "previous_sha256": digest(secret)}
    renewed = session.execute(old.values(renewed_at=now(), **changes).returning(SignIn.id))
    return None if renewed.one_or_none() is None else _cookie(sign_in_id, fresh)


def end(session: Session, cookie: str) -> Caller | None:
    """Sign a browser out, and return the user who was signed in, or None.

    Only the id of the sign-in is compared. It is the same in all its cookies, so the owner can end
    it with an earlier cookie even after a thief has renewed a stolen one.
    """
    sign_in_id, _ = _parts(cookie)
    mine = delete(SignIn).where(SignIn.id == sign_in_id)
    key_id = session.scalar(mine.returning(SignIn.key_id))
    return None if key_id is None else holder(session, key_id)


def _cookie(sign_in_id: str, secret: str) -> str:
    return f"{sign_in_id}.{secret}"


def _parts(cookie: str) -> tuple[str, str]:
    sign_in_id, _, secret = cookie.partition(".")
    return sign_in_id, secret
