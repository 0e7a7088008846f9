"""A runner that does what is written, and the clock that only it moves.

It stands in for a process where a test is about times: real ones are in test_endings.py.
"""

import signal
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from worker.runner import Record


class Clock:
    """In place of the module `time`."""

    def __init__(self) -> None:
        self.now = 1024.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


class ScriptedRunner:
    """Gives its records look by look, then ends with a status; without one it is silent until it
    is killed. What it is told, and when, is kept."""

    def __init__(self, clock: Clock, *looks: Sequence[Record], status: int | None = 0):
        self.clock = clock
        self.looks = [*looks]
        self.status = status
        self.ready = True
        self.stderr = ""
        self.child = SimpleNamespace(pid=None)
        self.heeds_sigkill = True
        self.orders: list[dict[str, Any]] = []
        self.told: list[tuple[float, object]] = []
        self.acknowledged: list[int] = []
        self.checkpoints: list[str] = []

    def start(self, order: dict[str, Any]) -> None:
        self.orders.append(order)

    def read(self, timeout_s: float) -> list[Record] | None:
        self.clock.now += timeout_s
        if self.looks:
            return [*self.looks.pop(0)]
        return [] if self.status is None else None

    def signal(self, number: signal.Signals) -> None:
        self.told.append((self.clock.now, number))
        if number == signal.SIGKILL and self.heeds_sigkill:
            self._end()

    def _end(self) -> None:
        self.status = -signal.SIGKILL if self.status is None else self.status

    def kill(self) -> int:
        self.told.append((self.clock.now, "kill"))
        self._end()
        assert self.status is not None
        return self.status

    def request_stop(self) -> None:
        self.told.append((self.clock.now, "stop"))

    def acknowledge(self, seq: int) -> None:
        self.acknowledged.append(seq)

    def acknowledge_checkpoint(self, file: str) -> None:
        self.checkpoints.append(file)
