"""The routes by which a browser signs in and out. The audit has a line for each."""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Annotated, Self

from cachetools import TTLCache
from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field, model_validator
from sqlalchemy.orm import Session

from service.accounts import audit
from service.accounts.models import ApiKey
from service.accounts.permissions import check_has_key
from service.accounts.sign_in import LINK_LASTS_S, Links, SignIn, caller_of_sign_in
from service.accounts.users import PROCESS, Caller, KeyRefused, caller_of_key
from service.db.engine import Database
from service.refusals import unauthorized
from service.schemas import RequestModel, ResponseModel
from service.web.dependencies import DatabaseDep, UserDep
from service.web.route import JsonBody, PublicRoute, StrictRoute
from service.web.sign_in_cookie import COOKIE, SIGN_IN, is_over_tls, sign_in_of

router = APIRouter(prefix="/v1", tags=["sign-in"], route_class=StrictRoute)
"""Routes that require a key or a signed-in browser."""
public = APIRouter(prefix="/v1", tags=["sign-in"], route_class=PublicRoute)
"""Routes for browsers that are not signed in."""

SIGN_IN_PAGE = "/sign-in"


async def _links(request: Request) -> Links:
    links: Links = request.app.state.links
    return links


LinksDep = Annotated[Links, Depends(_links)]


class SignInWith(RequestModel):
    """A key or a code: exactly one of the two."""

    key: Annotated[str, Field(max_length=200)] | None = None
    """API key."""
    code: Annotated[str, Field(max_length=200)] | None = None
    """Code of POST /v1/sign-in-codes."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.key is None) == (self.code is None):
            raise ValueError("give key or code, one of the two")
        return self


class Code(RequestModel):
    """The code of a sign-in link."""

    code: Annotated[str, Field(max_length=200)]
    """Code of POST /v1/sign-in-codes."""


class SignInPreview(ResponseModel):
    """Preview of a sign-in by a code."""

    name: str
    """User that the code signs in."""
    signed_in_as: str | None
    """User that is signed in now, and would be signed out. null: nobody."""


class SignInCodeOut(ResponseModel):
    """A code that signs one browser in, once, within ten minutes."""

    code: str
    """The code."""
    path: str
    """Page to open in the browser. The code is after #, so that logs do not contain it."""
    expires_at: datetime
    """Time at which the code expires."""


@public.post("/sign-in", status_code=HTTPStatus.NO_CONTENT)
def sign_in(
    body: JsonBody[SignInWith], database: DatabaseDep, links: LinksDep, request: Request
) -> None:
    """Sign this browser in. The answer sets a cookie with the permissions of the key, valid as long
    as the key, and for a week at most."""
    try:
        with database.transaction() as session:
            if body.code is not None:
                begun = links.use(session, body.code)
                caller, _ = caller_of_sign_in(session, begun)
            else:
                assert body.key is not None
                caller, _ = caller_of_key(session, body.key)
                begun = SignIn.by(session, caller.key_id)
            end_sign_in(session, request)
            given = "key" if body.code is None else "code"
            audit.note(session, caller, "sign_in.begun", caller.key_id, given=given)
    except KeyRefused as refused:
        note_refusal(database, request, str(refused))
        raise unauthorized(str(refused)) from None
    request.session[SIGN_IN] = begun


@public.post("/sign-in:preview")
def preview(
    body: JsonBody[Code], database: DatabaseDep, links: LinksDep, request: Request
) -> SignInPreview:
    """Return the user whom a code would sign in, and leave the code valid. A page asks for
    confirmation before it signs in by a link, because anyone may have sent the link."""
    with database.snapshot() as session:
        try:
            sign_in, _ = links.read(body.code)
            named, _ = caller_of_sign_in(session, sign_in)
        except KeyRefused as refused:
            raise unauthorized(str(refused)) from None
        current = _signed_in(session, request)
    return SignInPreview(name=named.name, signed_in_as=None if current is None else current.name)


@public.post("/sign-out", status_code=HTTPStatus.NO_CONTENT)
def sign_out(database: DatabaseDep, request: Request, response: Response) -> None:
    """Sign this browser out, if it is signed in: the answer deletes its cookie. A sign-in by the
    lab's account ends, and with it each copy of the cookie."""
    if sign_in_of(request) is not None:
        with database.transaction() as session:
            if (caller := end_sign_in(session, request)) is not None:
                audit.note(session, caller, "sign_in.ended", caller.key_id)
    secure = is_over_tls(request.scope)
    response.delete_cookie(COOKIE, secure=secure, httponly=True, samesite="strict")


@router.post("/sign-in-codes", status_code=HTTPStatus.CREATED)
def make_code(database: DatabaseDep, links: LinksDep, user: UserDep) -> SignInCodeOut:
    """Make a code that signs one browser in with the caller's key, once, within ten minutes. Its
    use ends the earlier codes of the key. Signed-in browsers cannot make codes."""
    check_has_key(user)
    with database.transaction() as session:
        code = links.code(SignIn.by(session, user.key_id))
        audit.note(session, user, "sign_in_code.made", user.key_id)
    expires_at = datetime.now(UTC) + timedelta(seconds=LINK_LASTS_S)
    return SignInCodeOut(code=code, path=f"{SIGN_IN_PAGE}#{code}", expires_at=expires_at)


def _signed_in(session: Session, request: Request) -> Caller | None:
    """Return the user who is signed in in this browser."""
    sign_in = sign_in_of(request)
    if sign_in is None:
        return None
    try:
        return caller_of_sign_in(session, sign_in)[0]
    except KeyRefused:
        return None


def end_sign_in(session: Session, request: Request) -> Caller | None:
    """Return the user who is signed in in this browser, before it signs out or in again. A sign-in
    by the lab's account ends, and with it each copy of the cookie."""
    caller = _signed_in(session, request)
    if caller is not None:
        key = session.get_one(ApiKey, caller.key_id)
        if key.authenticated_at is not None:
            key.revoked_at = time.time()
    return caller


REFUSALS_AN_HOUR = 20
"""Maximum number of refused sign-ins that a process writes to the audit: anyone may cause them, and
audit lines are never deleted."""


class Refusals:
    """Counts refused sign-ins, and decides which of them the audit gets."""

    def __init__(self, timer: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._written = TTLCache[object, None](REFUSALS_AN_HOUR, ttl=3600.0, timer=timer)
        self._unwritten = 0

    def next(self) -> int | None:
        """Count a refused sign-in. Return how many were left out since the last line, or None to
        leave out this one too."""
        with self._lock:
            self._written.expire()
            if len(self._written) == self._written.maxsize:
                self._unwritten += 1
                return None
            self._written[object()] = None
            left_out, self._unwritten = self._unwritten, 0
            return left_out


def note_refusal(database: Database, request: Request, reason: str) -> None:
    """Write a refused sign-in to the audit, unless there were too many lately."""
    refusals: Refusals = request.app.state.refused_sign_ins
    left_out = refusals.next()
    if left_out is not None:
        address = request.client.host if request.client else ""
        with database.transaction() as session:
            details = {"reason": reason, "left_out_before": left_out}
            audit.note(session, PROCESS, "sign_in.refused", address[:100], **details)
