"""Security headers of every answer, and the origins that may send requests."""

from fastapi import FastAPI
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.settings import Settings

SECURE = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""Security headers of answers that set none. TLS and its headers belong to the proxy."""
PAGE = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
"""Content security policy of pages: nothing from other hosts, no inline scripts or styles."""
PAGE_FILE = {"Cache-Control": "public, max-age=31536000, immutable"}
"""Headers of files that pages load. Their address changes with their content."""
CURVE_HEADERS = ("MPT-Partial", "MPT-Sampled", "MPT-Total-Points", "MPT-Last-Seq")
OTHER_HEADERS = ("MPT-More", "Preference-Applied")
ASKED_WITH = ("Authorization", "Content-Type", "Idempotency-Key", "If-None-Match", "Last-Event-ID",
              "Prefer")  # fmt: skip
LOOPBACK = ("127.0.0.1", "localhost")


class AnswerHeaders:
    """ASGI middleware that adds SECURE to the answer. If the body of the request was not read to
    its end, the answer closes the connection. Otherwise the server would read and drop the rest."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_unread = scope["type"] == "http" and _has_body(scope)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURE.items():
                    headers.setdefault(name, value)
                if is_unread:
                    headers["Connection"] = "close"
            await send(message)

        async def noting_the_end() -> Message:
            nonlocal is_unread
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body"):
                is_unread = False
            return message

        await self.app(scope, noting_the_end if is_unread else receive, with_headers)


def _has_body(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    return "Transfer-Encoding" in headers or headers.get("Content-Length", "0") != "0"


def guard_origins(app: FastAPI, settings: Settings) -> None:
    """Accept only the host names of the settings, and allow only their origins by CORS."""
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "HEAD", "POST", "PATCH", "DELETE"],
            allow_headers=ASKED_WITH,
            expose_headers=["ETag", "Location", "Retry-After", *CURVE_HEADERS, *OTHER_HEADERS],
        )
    if settings.trusted_hosts:
        allowed = [*settings.trusted_hosts, *LOOPBACK]
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=allowed, www_redirect=False)
