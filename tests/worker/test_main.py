"""A worker process: its parts, its signals, its GPU, its end and its exit status."""

import sys
import threading
from inspect import unwrap
from itertools import pairwise
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy.exc import OperationalError

from service.experiments.models import Queue
from service.settings import Settings
from worker import main
from worker.fitness import UnfitWorker
from worker.lifetime import Lifetime
from worker.main import Worker
from worker.supervisor import UNHEARD_S
from worker.tickets import make_celery


@pytest.fixture
def rung(settings: Settings) -> Settings:
    """Settings with a broker that nothing here connects to."""
    broker = SecretStr("redis://127.0.0.1:1/0")
    return settings.model_copy(update={"redis_url": broker, "warm_parent": False})


@pytest.fixture
def done(rung: Settings, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list of what a process does at its start, in place of signals, GPUs and work."""
    done: list[Any] = []
    monkeypatch.setattr(main, "begin", lambda: rung)
    monkeypatch.setattr(main, "hide_gpus", lambda: done.append("hide_gpus"))
    monkeypatch.setattr(main, "take_gpu", lambda settings: done.append("take_gpu"))
    for name in ("stop_on_signals", "stop_on_notice"):
        monkeypatch.setattr(Lifetime, name, lambda self, name=name: done.append(name))
    monkeypatch.setattr(Worker, "run", lambda self, app: done.append((self.queue, self.ends_at)))
    monkeypatch.setattr(Worker, "run_locally", lambda self: done.append((self.queue, "locally")))
    return done


def start(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["worker", *arguments])
    unwrap(main.main)()  # without the settings of the log, which are the whole process's


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["cpu"], ["hide_gpus", "stop_on_signals", "stop_on_notice", (Queue.CPU, None)]),
        (["gpu", "--lifetime", "90s"],
         ["take_gpu", "stop_on_signals", "stop_on_notice", (Queue.GPU, 1090.0)]),
        (["cpu", "--local"], ["hide_gpus", "stop_on_signals", (Queue.CPU, "locally")]),
    ],
)  # fmt: skip
def test_a_worker_has_its_queue_its_lifetime_and_perhaps_a_gpu(
    done: list[Any], monkeypatch: pytest.MonkeyPatch, arguments: list[str], expected: list[Any]
) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    start(monkeypatch, *arguments)
    assert done == expected


@pytest.mark.parametrize(
    "arguments",
    [[], ["tpu"], ["cpu", "--lifetime", "soon"], ["cpu", "--local", "--lifetime", "3h"]],
)
def test_a_worker_that_is_called_wrongly_ends(
    done: list[Any], monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        start(monkeypatch, *arguments)
    assert ended.value.code == 2
    assert done == []


@pytest.mark.parametrize("is_local", [False, True])
def test_an_error_of_its_main_thread_ends_a_worker(
    rung: Settings, monkeypatch: pytest.MonkeyPatch, is_local: bool
) -> None:
    """No thread keeps the process alive: it is restarted."""

    def no_process(**_: object) -> None:
        raise OSError("out of processes")

    monkeypatch.setattr("worker.slot.WarmParent", no_process)
    worker = Worker(rung.model_copy(update={"warm_parent": True}), Queue.CPU)
    before = {*threading.enumerate()}  # other tests may have left a pool of threads
    with pytest.raises(OSError, match="out of processes"):
        worker.run_locally() if is_local else worker.run(make_celery(rung))
    assert [t for t in {*threading.enumerate()} - before if not t.daemon] == []


def test_only_a_worker_that_was_told_to_stop_may_end(
    rung: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, worker = make_celery(rung), Worker(rung, Queue.CPU)
    monkeypatch.setattr(app, "worker_main", lambda arguments: None)
    with pytest.raises(SystemExit) as ended:
        worker.run(app)
    assert ended.value.code == 1
    worker = Worker(rung, Queue.CPU)
    monkeypatch.setattr(app, "worker_main", lambda arguments: worker._shut_down())
    worker.run(app)
    assert not worker.lifetime.failed


def test_a_worker_that_cannot_start_runs_fails(
    rung: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unfit(*_: object) -> None:
        raise UnfitWorker

    worker, failed = Worker(rung, Queue.CPU), []
    monkeypatch.setattr(worker.slot, "work", unfit)
    monkeypatch.setattr(worker.lifetime, "fail", lambda: failed.append(True))
    worker._work()
    assert failed == [True]


def test_a_worker_waits_while_the_database_is_away(
    rung: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would fill its log otherwise."""

    def away(*_: object) -> None:
        raise OperationalError("away", None, Exception())

    worker, waited = Worker(rung, Queue.CPU), list[float | None]()
    monkeypatch.setattr(worker.slot, "work", away)
    monkeypatch.setattr(worker.stopping, "wait", waited.append)
    worker._work()
    assert waited == [rung.heartbeat_s]


@pytest.mark.parametrize("was_told", [False, True])
def test_a_signal_before_the_worker_listens_is_not_lost(
    rung: Settings, monkeypatch: pytest.MonkeyPatch, was_told: bool
) -> None:
    """Celery replaces the handlers of signals when it begins."""
    worker, handled = Worker(rung, Queue.CPU), list[str]()
    monkeypatch.setattr(worker.lifetime, "stop_on_notice", lambda: handled.append("notice"))
    monkeypatch.setattr(worker.lifetime, "stop", lambda: handled.append("stop"))
    if was_told:
        worker.stopping.set()
    worker._take_notice(sender=None)
    assert handled == ["notice", *(["stop"] if was_told else [])]


def test_a_worker_stops_early_enough_to_hand_back(
    rung: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run may need its grace, and its end is known some seconds later. No run begins that could
    not save a checkpoint."""
    times = {"kill_grace_s": 22.0, "checkpoint_every_s": 100.0}
    worker = Worker(rung.model_copy(update=times), Queue.CPU)
    calls: list[Any] = []
    monkeypatch.setattr(worker.lifetime, "end_after", lambda *given: calls.append(given))
    for remaining_s in (1000.0, 50.0, 10.0):
        worker._end_in_time(remaining_s)
    (retire_s, stop_s, is_idle), (soon_s, *_), (now_s, stop_now_s, _) = calls
    assert stop_s + 22.0 + UNHEARD_S <= 1000.0
    assert retire_s + 100.0 <= stop_s
    assert (soon_s, now_s, stop_now_s) == (0.0, 0.0, 0.0)
    assert is_idle()
    with worker.slot.occupied:
        assert not is_idle()


@pytest.mark.parametrize("queue", Queue)
def test_a_worker_of_a_lab_receives_the_tickets_of_its_queue(
    rung: Settings, monkeypatch: pytest.MonkeyPatch, queue: Queue
) -> None:
    """One at a time in the main thread: runners end with the thread that started them."""
    app, worker = make_celery(rung), Worker(rung, queue)
    options: dict[str, str] = {}

    def worker_main(arguments: list[str]) -> None:
        options.update(pairwise(arguments))
        worker._shut_down()

    monkeypatch.setattr(app, "worker_main", worker_main)
    worker.run(app)
    assert (options["--queues"], options["--pool"]) == (queue, "solo")
