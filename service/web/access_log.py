"""A line in the log for each request that changed something, failed or took long; and the metrics
of all requests."""

import logging
import math
import time
from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import timings
from service.timings import Timings
from service.web.meters import Meters

log = logging.getLogger(__name__)

READS = ("GET", "HEAD")
SLOW_S = 1.0
"""Successful reads that are faster leave no log line. Clients that wait poll five times a second,
which would fill 140 MB a day each."""


MAX_SHOWN = 200
"""Maximum number of characters of a path in the log."""
LIMITED_EVERY_S = 1.0
"""Minimum interval between two lines for requests over a rate limit (429). Anyone may send
thousands a second."""


class AccessLog:
    """ASGI middleware. It runs inside the middleware that sets the request id."""

    def __init__(self, app: ASGIApp, meters: Meters):
        self.app = app
        self.meters = meters
        self._limited_at = -math.inf

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        began = time.perf_counter()
        status = 500  # the status of a response after an unhandled exception
        measured = True
        timings.watch_threads()
        waited = Timings()
        token = timings.current.set(waited)

        async def note_status(message: Message) -> None:
            nonlocal status, measured
            if message["type"] == "http.response.start":
                status = message["status"]
                measured = not any(_is_of_a_long_answer(*one) for one in message["headers"])
            await send(message)

        try:
            await self.app(scope, receive, note_status)
        finally:
            timings.current.reset(token)
            seconds = time.perf_counter() - began
            if status != HTTPStatus.TOO_MANY_REQUESTS or self._may_note_limited():
                _note_request(scope, status, seconds, waited)
            if measured:
                method = scope["method"] if scope["method"] in METHODS else "other"
                self.meters.observe(method, _route(scope), status, seconds, waited)

    def _may_note_limited(self) -> bool:
        at = time.perf_counter()
        if at < self._limited_at + LIMITED_EVERY_S:
            return False
        self._limited_at = at
        return True


METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def _is_of_a_long_answer(name: bytes, value: bytes) -> bool:
    """Return whether the response is an event stream, or has waited at the client's request."""
    name = name.lower()
    return name == b"preference-applied" or (
        name == b"content-type" and value.startswith(b"text/event-stream")
    )


def _route(scope: Scope) -> str:
    """Return the template of the route, as /v1/experiments/{experiment_id}; `none` without one."""
    return str(getattr(scope.get("route"), "path_format", "none"))


def _note_request(scope: Scope, status: int, seconds: float, waited: Timings) -> None:
    if scope["method"] in READS and status < 400 and seconds < SLOW_S:
        return
    line = {
        "method": scope["method"],
        "path": scope["path"][:MAX_SHOWN],
        "status": status,
        "duration_ms": round(1000 * seconds, 2),
    }
    if seconds >= SLOW_S:
        line["thread_ms"] = round(1000 * waited.thread, 2)
        line["connection_ms"] = round(1000 * waited.connection, 2)
        line["database_ms"] = round(1000 * waited.database, 2)
    if "experiment_id" in scope.get("path_params", {}):
        line["experiment_id"] = scope["path_params"]["experiment_id"][:MAX_SHOWN]
    log.info("request", extra=line)
