"""A supervisor of a scripted runner, with a clock that only the runner moves. It replaces a process
in tests of times; real processes are in test_endings.py.
"""

import math
import signal
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

from service.db.engine import Database
from service.experiments.models import Experiment
from service.queue.lease import Claim
from service.settings import Settings
from service.vocabulary import DesiredState
from tests.support.records import point
from tests.support.stored import change, row
from worker.runner import Record, Runner
from worker.supervisor import Supervision

LOOK_S = 0.0625
"""Powers of two: sums of them are exact."""
HEARTBEAT_S = 1.0
GRACE_S = 8.0
STALL_S = 4.0
LIMIT_S = 16
BEGAN = 1024.0


class Clock:
    """In place of the module `time`."""

    def __init__(self) -> None:
        self.now = BEGAN

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


class ScriptedRunner:
    """Writes its records wait by wait, then ends with a status; without a status it is silent
    until it is killed. It stores all orders and signals with their times."""

    def __init__(
        self,
        clock: Clock,
        *looks: Sequence[Record],
        status: int | None = 0,
        is_complete: bool = True,
    ):
        """A complete run that exits with 0 also gives its end record."""
        self.clock = clock
        self.looks = [*looks]
        if status == 0 and is_complete:
            self.looks[-1:] = [[*(looks[-1] if looks else []), end(*looks)]]
        self.status = status
        self.unread: list[Record] = []
        self.spool = SimpleNamespace(size=0, check_space=lambda: None)
        self.ready = True
        self.stderr = ""
        self.child = SimpleNamespace(pid=None, close=self.kill)
        self.heeds_sigkill = True
        self.orders: list[dict[str, Any]] = []
        self.heard: list[tuple[float, object]] = []
        """Orders that it received, by seconds since its start."""
        self.checkpoints: list[str] = []

    def start(self, order: dict[str, Any]) -> None:
        self.orders.append(order)

    @property
    def alive(self) -> bool:
        return bool(self.looks) or self.status is None

    def wait(self, timeout_s: float) -> None:
        self.clock.now += timeout_s
        if timeout_s and self.looks:
            self.unread += self.looks.pop(0)

    @property
    def has_unread(self) -> bool:
        return bool(self.unread)

    def next_record(self) -> Record | None:
        return self.unread.pop(0) if self.unread else None

    def signal(self, number: signal.Signals) -> None:
        self._hear(number)
        if number == signal.SIGKILL and self.heeds_sigkill:
            self._end()

    def _hear(self, order: object) -> None:
        self.heard.append((self.clock.now - BEGAN, order))

    def _end(self) -> None:
        self.status = -signal.SIGKILL if self.status is None else self.status

    def kill(self) -> int:
        self._hear("kill")
        self._end()
        assert self.status is not None
        return self.status

    def request_stop(self) -> None:
        self._hear("stop")

    def withdraw_stop(self) -> None:
        self._hear("go on")

    def acknowledge_checkpoint(self, file: str) -> None:
        self.checkpoints.append(file)


class Watch:
    """A supervision of a scripted runner; each commit's time and size are kept."""

    def __init__(self, database: Database, settings: Settings, claim: Claim, clock: Clock):
        self.database, self.claim, self.clock = database, claim, clock
        times = {"kill_grace_s": GRACE_S, "stall_s": STALL_S}
        self.settings = settings.model_copy(update={**times, "lease_s": 30.0})
        self.commits: list[tuple[float, int]] = []

    def run(
        self, *looks: Any, is_stopping: Callable[[], bool] = lambda: False, **more: Any
    ) -> tuple[str, ScriptedRunner]:
        status = more.pop("status", 0)
        is_complete = more.pop("is_complete", True)
        runner = ScriptedRunner(self.clock, *looks, status=status, is_complete=is_complete)
        for name, value in more.items():
            setattr(runner, name, value)
        watched = Supervision(self.database, self.settings, self.claim, cast(Runner, runner))
        return watched.run(is_stopping), runner

    @property
    def found(self) -> Experiment:
        return row(self.database, self.claim.experiment_id)

    @property
    def failure(self) -> tuple[str | None, str | None]:
        return self.found.failure_kind, self.found.failure_message


def end(*looks: Sequence[Record]) -> Record:
    """The final record after these."""
    numbered = sum(line["seq"] is not None for look in looks for line in look)
    return {"seq": None, "record": "end", "count": numbered}


def points(*seqs: int) -> list[dict[str, Any]]:
    return [point(seq) for seq in seqs]


def checkpoint(after: int, file: str) -> dict[str, Any]:
    return {"seq": None, "record": "checkpoint", "after": after, "file": file, "sha256": "0" * 64}


def heard_s(runner: ScriptedRunner, order: object) -> float:
    """Return the seconds after which a runner first received an order; infinity if it did not."""
    return min((when for when, what in runner.heard if what == order), default=math.inf)


def desire(watch: Watch, desired: DesiredState) -> None:
    change(watch.database, watch.claim.experiment_id, desired_state=desired)
