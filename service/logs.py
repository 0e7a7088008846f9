"""Logs as one JSON object a line, with the request or experiment that they are about."""

import logging
import sys

import structlog
from asgi_correlation_id import correlation_id
from structlog.typing import EventDict, WrappedLogger


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
