"""A line in the log for each request that changed something, failed or took long."""

import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger(__name__)

READS = ("GET", "HEAD")
SLOW_S = 1.0
"""Reads that succeed sooner leave no line: clients that wait look five times a second, which came
to 140 MB a day for each."""


class AccessLog:
    """ASGI middleware. It stands inside of what sets the request id."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        began = time.perf_counter()
        status = 500  # what an exception that passes through here becomes

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, note_status)
        finally:
            _note_request(scope, status, time.perf_counter() - began)


def _note_request(scope: Scope, status: int, seconds: float) -> None:
    if scope["method"] in READS and status < 400 and seconds < SLOW_S:
        return
    line = {
        "method": scope["method"],
        "path": scope["path"],
        "status": status,
        "duration_ms": round(1000 * seconds, 2),
    }
    if "experiment_id" in scope.get("path_params", {}):
        line["experiment_id"] = scope["path_params"]["experiment_id"]
    log.info("request", extra=line)
