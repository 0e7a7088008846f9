"""Time of a request spent waiting for a thread, a connection and the database.

The middleware sets a record for each request; each wait adds to it. The thread that serves a
request has the same context, and so the same record.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import anyio.to_thread

Stage = Literal["thread", "connection", "database"]


@dataclass(slots=True)
class Timings:
    """Seconds that one request has waited so far."""

    thread: float = 0.0
    connection: float = 0.0
    database: float = 0.0


current: ContextVar[Timings | None] = ContextVar("timings", default=None)


def add(stage: Stage, seconds: float) -> None:
    """Add to the record of the request that is being served, if any is."""
    timings = current.get()
    if timings is not None:
        setattr(timings, stage, getattr(timings, stage) + seconds)


@contextmanager
def timed(stage: Stage) -> Iterator[None]:
    """Add the time that the block takes."""
    began = time.perf_counter()
    try:
        yield
    finally:
        add(stage, time.perf_counter() - began)


def watch_threads() -> None:
    """Record the time spent waiting for threads of this event loop. Call it in the loop, any number
    of times."""
    limiter = anyio.to_thread.current_default_thread_limiter()
    if not getattr(limiter, "is_timed", False):
        kind: Any = type(limiter)
        limiter.__class__ = _timed_limiter(kind)  # anyio makes it, and has no hook


@cache
def _timed_limiter(kind: Any) -> Any:
    class TimedLimiter(kind):  # type: ignore[misc]
        __slots__ = ()
        is_timed = True

        async def acquire_on_behalf_of(self, borrower: object) -> None:
            with timed("thread"):
                await super().acquire_on_behalf_of(borrower)

    return TimedLimiter
