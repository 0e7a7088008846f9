"""The cookie of a signed-in browser, and protection of requests that carry it from other sites."""

import re
from collections.abc import Iterable, Iterator
from http import HTTPStatus

from fastapi import Request
from starlette.datastructures import Headers
from starlette.middleware.sessions import SessionMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from service.accounts.sign_in import LASTS_S, SignIn
from service.refusals import ApiError

COOKIE = "mpt_sign_in"
SIGN_IN = "sign_in"
"""Name of the sign-in in the session."""
_OWN_COOKIE = re.compile(rb"(?:^|;) *(" + COOKIE.encode() + rb"=[\w+/=.-]+)")
READS = ("GET", "HEAD", "OPTIONS")


class SignInCookie:
    """ASGI middleware that reads the signed cookie into `request.session`, and sets it in answers
    that change the session. The cookie is `Secure` if the browser's connection uses TLS."""

    def __init__(self, app: ASGIApp, session_key: str):
        self._plain, self._secure = (
            SessionMiddleware(
                app, session_key, COOKIE, LASTS_S, same_site="strict", https_only=https_only
            )
            for https_only in (False, True)
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["headers"] = [*_with_own_cookie(scope["headers"])]
        middleware = self._secure if is_over_tls(scope) else self._plain
        await middleware(scope, receive, send)


def _with_own_cookie(headers: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Yield headers without other cookies: `http.cookies` needs seconds for a long quoted one
    before Python 3.11.10 and 3.12.6 (CVE-2024-7592), and nothing has counted the request yet."""
    for name, value in headers:
        yield name, b"; ".join(_OWN_COOKIE.findall(value)) if name == b"cookie" else value


def is_over_tls(scope: Scope) -> bool:
    """Return whether the browser's connection uses TLS. A proxy that ends TLS sets the scheme if it
    is trusted; otherwise only the browser's Origin shows it."""
    origin = Headers(scope=scope).get("Origin", "") if scope["type"] == "http" else ""
    return scope.get("scheme") == "https" or origin.startswith("https:")


def sign_in_of(request: Request) -> SignIn | None:
    """Return the sign-in of a browser, or None without a cookie that is valid."""
    stored = request.session.get(SIGN_IN)
    return None if stored is None else SignIn(*stored)


def check_own_page(request: Request) -> None:
    """Raises ApiError (403) if a request that may change something comes from another site."""
    if request.method not in READS and not _is_own(request.headers):
        detail = "a browser's cookie is only valid on this service's own pages: use a key elsewhere"
        raise ApiError(HTTPStatus.FORBIDDEN, "cross_origin", detail)


def _is_own(headers: Headers) -> bool:
    """Return whether a request comes from our own pages: by Sec-Fetch-Site, which browsers send on
    trusted connections; else by Origin with either scheme, because a proxy may terminate TLS."""
    site = headers.get("Sec-Fetch-Site")
    if site is not None:
        return site == "same-origin"
    host = headers.get("Host")
    return headers.get("Origin") in (f"http://{host}", f"https://{host}")
