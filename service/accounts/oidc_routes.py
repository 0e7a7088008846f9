"""The routes by which a browser signs in with an account of the lab's provider. The provider sends
the browser to the sign-in page, whose script sends the code on: so the cookie can stay strict."""

import hmac
import time
from http import HTTPStatus
from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Request
from pydantic import Field

from service.accounts import audit, oidc_users
from service.accounts.oidc import (
    NOT_BEGUN,
    REFUSED,
    ROUND_LASTS_S,
    Account,
    Provider,
    Round,
    printable,
)
from service.accounts.sign_in import SignIn, caller_of_sign_in
from service.accounts.sign_in_routes import SIGN_IN_PAGE, end_sign_in, note_refusal
from service.accounts.users import KeyRefused
from service.db.engine import Database
from service.refusals import ApiError, unauthorized
from service.schemas import RequestModel, ResponseModel
from service.settings import Settings
from service.web.dependencies import DatabaseDep, SettingsDep, release_places
from service.web.gate import network
from service.web.route import JsonBody, PublicRoute
from service.web.sign_in_cookie import SIGN_IN, is_over_tls

public = APIRouter(prefix="/v1", tags=["sign-in"], route_class=PublicRoute)

ROUND = "round"
"""Name of the begun sign-in in the session."""


async def _provider(request: Request) -> Provider:
    provider: Provider | None = request.app.state.provider
    if provider is None:
        detail = "this lab has no sign-in by accounts of a provider: use an API key"
        raise ApiError(HTTPStatus.NOT_FOUND, "not_found", detail)
    return provider


ProviderDep = Annotated[Provider, Depends(_provider)]
"""The provider of the lab's accounts. Without one the answer is 404."""

Text = Annotated[str, Field(max_length=3000)]


class SignInRound(RequestModel):
    """A sign-in by an account."""

    fresh: bool = False
    """True: the provider asks for the password again, even if it did so lately. Creating a key
    needs this."""


class ProviderPage(ResponseModel):
    """The page at which the sign-in goes on."""

    url: str
    """Address of the provider's page. It sends the browser back to `/sign-in`."""


class Returned(RequestModel):
    """The parameters with which the provider sent the browser back."""

    state: Text
    """`state` of the address."""
    code: Text | None = None
    """`code` of the address."""
    iss: Text | None = None
    """`iss` of the address, which some providers add."""
    error: Text | None = None
    """`error` of the address, in place of a code."""


@public.post("/sign-in:begin")
async def begin(
    body: JsonBody[SignInRound], provider: ProviderDep, request: Request
) -> ProviderPage:
    """Begin a sign-in by an account of the lab's provider, within ten minutes. 404 without a
    provider; 503 if it does not answer."""
    release_places(request)  # the provider may take long
    scheme = "https" if is_over_tls(request.scope) else "http"
    redirect_uri = f"{scheme}://{request.headers.get('Host', '')}{SIGN_IN_PAGE}"
    url, begun = await provider.begin(redirect_uri, body.fresh, network(request))
    request.session[ROUND] = begun
    return ProviderPage(url=url)


@public.post("/sign-in:finish", status_code=HTTPStatus.NO_CONTENT)
async def finish(
    body: JsonBody[Returned],
    provider: ProviderDep,
    database: DatabaseDep,
    settings: SettingsDep,
    request: Request,
) -> None:
    """Sign this browser in, after the return from the provider. The cookie is valid for a day. The
    first sign-in of an account adds a user, who may have to wait for an admin's yes."""
    release_places(request)
    try:
        begun = _begun(request, body, provider)
        account = await provider.finish(begun, body.code or "", network(request))
        request.session[SIGN_IN] = await run_sync(_signed_in, database, account, settings, request)
    except KeyRefused as refused:
        await run_sync(note_refusal, database, request, str(refused))
        raise unauthorized(str(refused)) from None


def _begun(request: Request, body: Returned, provider: Provider) -> Round:
    """Return the round that this browser has begun, which ends now. Raises KeyRefused."""
    begun = Round(*request.session.get(ROUND, ("", "", "", "", 0.0)))
    is_known = bool(begun.state) and hmac.compare_digest(begun.state.encode(), body.state.encode())
    if not is_known:
        raise KeyRefused(NOT_BEGUN)
    del request.session[ROUND]
    if time.time() - begun.begun_at > ROUND_LASTS_S or body.iss not in (None, provider.issuer):
        raise KeyRefused(NOT_BEGUN)
    if body.code is None:
        raise KeyRefused(REFUSED.format(printable(body.error or "it sent no code")))
    return begun


def _signed_in(
    database: Database, account: Account, settings: Settings, request: Request
) -> SignIn:
    with database.transaction() as session:
        begun = oidc_users.sign_in(session, account, settings)
        if isinstance(begun, SignIn):
            end_sign_in(session, request)
            caller, _ = caller_of_sign_in(session, begun)
            audit.note(session, caller, "sign_in.begun", caller.key_id, given="account")
    if isinstance(begun, str):
        raise KeyRefused(begun)
    return begun
