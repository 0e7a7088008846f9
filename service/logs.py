"""Logs as one JSON object per line, with the request or experiment they concern; on a terminal as
text."""

import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps

import structlog
from asgi_correlation_id import correlation_id
from structlog.typing import EventDict, Processor, WrappedLogger

log = logging.getLogger(__name__)


SHOWN = ("worker", "service.experiments")
"""Loggers whose messages below warnings are shown on a terminal: they report the progress of
runs."""


def configure_logs(level: str = "INFO") -> None:
    """Make all loggers, including those of libraries, write to stderr: as JSON, which contains
    everything, or on a terminal as text, which shows runs, warnings and errors."""
    is_terminal = is_read_by_a_person()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_terminal() if is_terminal else _json())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    threading.excepthook = _log_of_thread
    sys.unraisablehook = _log_unraisable
    logging.getLogger("httpx").setLevel("WARNING")  # its URLs contain tokens
    if is_terminal:
        logging.getLogger().setLevel("WARNING")
        for name in SHOWN:
            logging.getLogger(name).setLevel(level)


def logged_process(main: Callable[[], None]) -> Callable[[], None]:
    """Wrap the `main` of a process of the service: every cause of its end is logged."""

    @wraps(main)
    def logged() -> None:
        configure_logs()
        try:
            main()
        except SystemExit as end:
            if not isinstance(end.code, str):
                raise
            log.critical("%s", end.code)
            raise SystemExit(1) from None
        except Exception:
            log.critical("the process ends because of an unexpected error", exc_info=True)
            raise SystemExit(1) from None

    return logged


def is_read_by_a_person() -> bool:
    """Return whether stderr is a terminal."""
    return os.isatty(2)


def write_line(logger: str, message: str) -> None:
    """Write a line of the log at once. For signal handlers, which must not wait for a lock."""
    if not is_read_by_a_person():
        at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        line = {"event": message, "level": "info", "logger": logger, "timestamp": at}
        message = json.dumps(line)
    os.write(2, message.encode() + b"\n")


def _log_of_thread(ended: threading.ExceptHookArgs) -> None:
    if ended.exc_value is not None:
        log.critical("a thread ended because of an unexpected error", exc_info=ended.exc_value)


def _log_unraisable(ignored: "sys.UnraisableHookArgs") -> None:
    about = ignored.err_msg or "an exception was ignored"
    log.error("%s: %r", about, ignored.object, exc_info=ignored.exc_value)


def _json() -> logging.Formatter:
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.ExtraAdder(),
        _drop_colors,
        _add_request_id,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendering: list[Processor] = [
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(),
    ]
    return _formatter(shared, rendering)


def _terminal() -> logging.Formatter:
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.ExtraAdder(),
        _drop_colors,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
    ]
    console = structlog.dev.ConsoleRenderer(pad_event_to=0, pad_level=False)
    return _formatter(shared, [_printable, console])


def _printable(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    """Replace control characters, which could clear a terminal: users choose names."""
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = "".join(
                char if char.isprintable() or char in "\n\t" else "\ufffd" for char in value
            )
    return event


def _formatter(shared: list[Processor], rendering: list[Processor]) -> logging.Formatter:
    remove = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared, processors=[remove, *rendering]
    )


def _add_request_id(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    request_id = correlation_id.get()
    if request_id is not None:
        event["request_id"] = request_id
    return event


def _drop_colors(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    """Remove uvicorn's second version of a message, which is meant for terminals."""
    event.pop("color_message", None)
    return event
