"""The routes by which a browser signs in and out."""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Self

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field, model_validator

from service import audit, sign_ins
from service.bodies import StrictRoute
from service.database import Database
from service.dependencies import UserDep, WriterDep, unauthorized
from service.experiments.schemas import moment
from service.own_pages import check_own_page
from service.sign_ins import COOKIE, LASTS_S
from service.users import KeyRefused, caller_of_key

router = APIRouter(prefix="/v1", tags=["sign-in"], route_class=StrictRoute)
"""What asks for a key, or for a browser that is signed in."""
public = APIRouter(prefix="/v1", tags=["sign-in"], route_class=StrictRoute)
"""What a browser asks before it is signed in."""

SIGN_IN_PAGE = "/sign-in"


class SignInWith(BaseModel):
    """A key, or a code that was made for one: one of the two."""

    model_config = ConfigDict(extra="forbid", strict=True)

    key: Annotated[str, Field(max_length=200)] | None = None
    code: Annotated[str, Field(max_length=200)] | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.key is None) == (self.code is None):
            raise ValueError("give key or code, one of the two")
        return self


class SignInCodeOut(BaseModel):
    """Signs one browser in, once, within ten minutes: open `path` in it."""

    code: str
    path: str
    expires_at: datetime


@public.post("/sign-in", status_code=HTTPStatus.NO_CONTENT, dependencies=[Depends(check_own_page)])
def sign_in(body: SignInWith, database: WriterDep, request: Request, response: Response) -> None:
    """Sign this browser in: the answer sets a cookie, which may what the key may, until the key
    serves no longer, or for a week."""
    try:
        with database.transaction() as session:
            if body.code is not None:
                key_id = sign_ins.take_code(session, body.code)
            else:
                assert body.key is not None
                key_id = caller_of_key(session, body.key)[0].key_id
            sign_ins.end(session, request.cookies.get(COOKIE, ""))
            cookie = sign_ins.begin(session, key_id)
    except KeyRefused as refused:
        raise unauthorized(str(refused)) from None
    _set(response, request, cookie)


@public.post("/sign-out", status_code=HTTPStatus.NO_CONTENT, dependencies=[Depends(check_own_page)])
def sign_out(database: WriterDep, request: Request, response: Response) -> None:
    """Sign this browser out, if it is signed in."""
    cookie = request.cookies.get(COOKIE)
    if cookie is not None:
        with database.transaction() as session:
            sign_ins.end(session, cookie)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")


@router.post("/sign-in:renew", status_code=HTTPStatus.NO_CONTENT)
def renew(database: WriterDep, user: UserDep, request: Request, response: Response) -> None:
    """Another cookie for a browser whose cookie is older than an hour; the old one serves a minute
    longer."""
    cookie = request.cookies.get(COOKIE)
    renewed = _renewed(database, cookie) if cookie is not None else None
    if renewed is not None:
        _set(response, request, renewed)


@router.post("/sign-in-codes", status_code=HTTPStatus.CREATED)
def make_code(database: WriterDep, user: UserDep) -> SignInCodeOut:
    """A code that signs one browser in with the caller's key, once, within ten minutes."""
    with database.transaction() as session:
        made = sign_ins.new_code(session, user.key_id)
        audit.note(session, user, "sign_in_code.made", user.key_id)
    expires_at = moment(made.expires_at)
    assert expires_at is not None
    return SignInCodeOut(code=made.code, path=f"{SIGN_IN_PAGE}#{made.code}", expires_at=expires_at)


def _renewed(database: Database, cookie: str) -> str | None:
    with database.transaction() as session:
        return sign_ins.renew(session, cookie)


def _set(response: Response, request: Request, cookie: str) -> None:
    """`Secure` where the browser's own connection is, which its Origin says: a proxy may have ended
    TLS."""
    over_tls = request.headers.get("Origin", "").startswith("https:")
    response.set_cookie(
        COOKIE, cookie, max_age=int(LASTS_S), httponly=True, samesite="strict", secure=over_tls
    )
