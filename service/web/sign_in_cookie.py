"""The cookie of a signed-in browser."""

from fastapi import Request
from starlette.datastructures import Headers
from starlette.middleware.sessions import SessionMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from service.accounts.sign_in import LASTS_S, SignIn

COOKIE = "mpt_sign_in"
SIGN_IN = "sign_in"
"""Name of the sign-in in the session."""


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
        middleware = self._secure if _is_over_tls(scope) else self._plain
        await middleware(scope, receive, send)


def _is_over_tls(scope: Scope) -> bool:
    """Return whether the browser's connection uses TLS. A proxy that ends TLS sets the scheme if it
    is trusted; otherwise only the browser's Origin shows it."""
    origin = Headers(scope=scope).get("Origin", "") if scope["type"] == "http" else ""
    return scope.get("scheme") == "https" or origin.startswith("https:")


def sign_in_of(request: Request) -> SignIn | None:
    """Return the sign-in of a browser, or None without a cookie that is valid."""
    stored = request.session.get(SIGN_IN)
    return None if stored is None else SignIn(*stored)
