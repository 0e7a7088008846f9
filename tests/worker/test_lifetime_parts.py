"""End of a worker process, tested on its threads; test_batch_job_lifetime.py has real processes."""

import os
import signal
import threading
from typing import Any

import pytest

from worker.lifetime import Lifetime


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The signals that the process sends to itself."""
    found: list[Any] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: found.append((pid, number)))
    return found


TERM = (os.getpid(), signal.SIGTERM)


class Stopping(threading.Event):
    """An event for which waiting takes no time; it is set after a number of waits, if at all."""

    def __init__(self, ends_after: int | None = None):
        super().__init__()
        self.waited: list[float] = []
        self.ends_after = ends_after

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout or 0.0)
        if len(self.waited) == self.ends_after:
            self.set()
        return self.is_set()


def ended(stopping: Stopping, idle_after: int = 10**6) -> Lifetime:
    """A lifetime of ten seconds, one of them reserved for the run."""
    lifetime, looks = Lifetime(), 0
    lifetime.stopping = stopping

    def is_idle() -> bool:
        nonlocal looks
        assert lifetime.retiring.is_set()
        looks += 1
        return looks > idle_after

    lifetime.end_after(9.0, 10.0, is_idle)
    return lifetime


def test_a_worker_that_is_idle_stops_when_it_begins_no_other_run(killed: list[Any]) -> None:
    stopping = Stopping()
    ended(stopping, idle_after=0)
    assert (stopping.waited, killed) == ([9.0], [TERM])


def test_a_worker_that_is_busy_stops_when_its_run_or_its_time_is_over(killed: list[Any]) -> None:
    for idle_after, earliest, latest in ((2, 9.1, 9.6), (10**6, 9.9, 10.1)):
        stopping = Stopping()
        ended(stopping, idle_after)
        assert earliest < sum(stopping.waited) < latest
    assert killed == [TERM, TERM]


@pytest.mark.parametrize(("ends_after", "retires"), [(1, False), (3, True)])
def test_a_stopping_worker_is_not_signalled_again(
    killed: list[Any], ends_after: int, retires: bool
) -> None:
    lifetime = ended(Stopping(ends_after))
    assert (lifetime.retiring.is_set(), killed) == (retires, [])


def test_a_part_that_fails_ends_the_process_with_1(killed: list[Any]) -> None:
    one = Lifetime()
    one.end()

    def part(*given: object) -> None:
        assert given == (1, 2)
        raise ZeroDivisionError

    thread = one.start(part, 1, 2)
    assert thread.daemon
    thread.join()
    assert (one.failed, one.stopping.is_set(), killed) == (True, True, [TERM])
    with pytest.raises(SystemExit) as end:
        one.end()
    assert end.value.code == 1


def test_a_part_that_ends_leaves_the_process_alone(killed: list[Any]) -> None:
    one = Lifetime()
    one.start(lambda: None).join()
    assert (one.failed, one.stopping.is_set(), killed) == (False, False, [])


def test_signals_stop_a_process_and_a_notice_does_as_sigterm(
    killed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers: dict[int, Any] = {}
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    for number in (signal.SIGTERM, signal.SIGINT):
        one = Lifetime()
        one.stop_on_signals()
        handlers[number](number, None)
        assert (one.stopping.is_set(), one.retiring.is_set()) == (True, False)
    one = Lifetime()
    one.stop_on_notice()
    handlers[signal.SIGUSR1](signal.SIGUSR1, None)
    assert (one.stopping.is_set(), one.retiring.is_set(), killed) == (False, True, [TERM])
    assert {*handlers} == {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1}
