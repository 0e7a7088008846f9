"""Logs as one JSON object a line, with the request or experiment that they are about."""

import logging
import sys
import time

import structlog
from asgi_correlation_id import correlation_id
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.typing import EventDict, WrappedLogger

log = logging.getLogger(__name__)

PROBES = ("/healthz", "/readyz")
"""Asked every few seconds, and of no interest while they are answered with success."""


def configure_logs(level: str = "INFO") -> None:
    """Have everything that logs, libraries too, write JSON to stderr."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.ExtraAdder(),
        _drop_colors,
        _add_request_id,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)


def _add_request_id(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    request_id = correlation_id.get()
    if request_id is not None:
        event["request_id"] = request_id
    return event


def _drop_colors(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    """uvicorn says some things twice, once for a terminal."""
    event.pop("color_message", None)
    return event


class AccessLog:
    """ASGI middleware: a line for each request. It stands inside of what sets the request id."""

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
    if scope["path"] in PROBES and status < 400:
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
