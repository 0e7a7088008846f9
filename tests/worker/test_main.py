"""A worker process: its parts, its signals, its GPU, its end and its exit status."""

import sys
import threading
from collections.abc import Callable
from inspect import unwrap
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
from worker.presence import Presence
from worker.slot import Slot
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
        (["gpu"], ["take_gpu", "stop_on_signals", "stop_on_notice", (Queue.GPU, None)]),
        (["cpu", "--lifetime", "90s"],
         ["hide_gpus", "stop_on_signals", "stop_on_notice", (Queue.CPU, 1090.0)]),
        (["cpu", "--local"], ["hide_gpus", "stop_on_signals", (Queue.CPU, "locally")]),
        (["gpu", "--local"], ["take_gpu", "stop_on_signals", (Queue.GPU, "locally")]),
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


def test_a_local_worker_works_until_it_stops_and_has_a_controller(
    rung: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, looks = Worker(rung, Queue.CPU), []
    began: list[object] = []
    controller = threading.Thread(target=worker.stopping.wait)
    controller.start()

    def start_controller(lifetime: Lifetime, settings: Settings, app: object) -> list[Any]:
        began.append((lifetime, settings, app))
        return [controller]

    def work(self: Slot, *_: Callable[[], bool]) -> None:
        looks.append(self)
        if len(looks) == 3:
            worker.stopping.set()

    monkeypatch.setattr(main, "start_controller", start_controller)
    monkeypatch.setattr(Presence, "run", lambda self, stopping: began.append(self))
    monkeypatch.setattr(Slot, "work", work)
    worker.run_locally()
    assert not controller.is_alive()
    assert worker.slot.presence in began
    assert (worker.lifetime, rung, None) in began


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


def test_a_worker_whose_consumer_ends_by_itself_fails(
    rung: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, worker = make_celery(rung), Worker(rung, Queue.CPU)
    monkeypatch.setattr(app, "worker_main", lambda arguments: None)
    with pytest.raises(SystemExit) as ended:
        worker.run(app)
    assert ended.value.code == 1


def test_a_worker_that_is_told_to_stop_does_not_fail(
    rung: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, worker = make_celery(rung), Worker(rung, Queue.CPU)
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


@pytest.mark.parametrize(
    ("left_s", "retire_s", "stop_s"), [(1000.0, 873.0, 973.0), (50.0, 0.0, 23.0), (10.0, 0.0, 0.0)]
)
def test_a_worker_stops_early_enough_to_hand_back(
    rung: Settings,
    monkeypatch: pytest.MonkeyPatch,
    left_s: float,
    retire_s: float,
    stop_s: float,
) -> None:
    """A run may need its grace, and its end is known some seconds later. No run begins that could
    not save a checkpoint."""
    times = {"kill_grace_s": 22.0, "checkpoint_every_s": 100.0}
    worker = Worker(rung.model_copy(update=times), Queue.CPU)
    given: list[Any] = []
    monkeypatch.setattr(worker.lifetime, "end_after", lambda *times: given.extend(times))
    worker._end_in_time(left_s)
    assert UNHEARD_S == 5.0
    assert given[:2] == [retire_s, stop_s]
    assert given[2]()
    with worker.slot.occupied:
        assert not given[2]()
