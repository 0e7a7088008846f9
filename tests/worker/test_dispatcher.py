"""Times at which the dispatcher looks for idle workers, and the experiments it gives them."""

import threading
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from kombu.exceptions import OperationalError as BrokerError
from sqlalchemy import update
from sqlalchemy.exc import OperationalError

from service.db.engine import Database, now
from service.experiments.models import Queue, Status
from service.queue import dispatch as queued
from service.queue import workers
from service.queue.dispatch import Dispatch
from service.queue.workers import Vitals
from service.settings import Settings
from service.workers.models import Worker
from tests.support import stored
from tests.support.attempts import submitted
from tests.support.ppca_spec import spec_on
from worker import dispatcher
from worker.dispatcher import EAGER_S, EAGERNESS, RING_AGAIN_S, UNCLAIMED_S, Dispatcher


class Clock(threading.Event):
    """A stop that comes at the end of a day whose time passes only where someone waits for it."""

    now = 0.0
    ends_at = 3.0

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout or 0.0)
        self.now += timeout or 0.0
        return self.now >= self.ends_at


def test_the_dispatcher_polls_faster_after_a_choice(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = settings.model_copy(update={"poll_s": 0.125})
    day, rung = Clock(), []
    monkeypatch.setattr(dispatcher, "time", SimpleNamespace(monotonic=lambda: day.now))
    chosen = Dispatch("0123", 1, Queue.CPU)
    at_one = iter([chosen])

    class Scripted(Dispatcher):
        def dispatch(self) -> list[Dispatch]:
            return list(at_one) if day.now >= 1.0 else []

        def _ring(self, chosen: Dispatch) -> bool:
            rung.append((day.now, chosen))
            return True

    Scripted(Database(given.url), given, Celery()).run(day)
    assert rung == [(1.0, chosen)]
    assert [pause for pause, _ in groupby(day.waited)] == [0.125, 0.125 / EAGERNESS, 0.125]
    assert sum(pause for pause in day.waited if pause < 0.125) == pytest.approx(EAGER_S, abs=0.05)


@pytest.fixture
def doorbell(database: Database, settings: Settings) -> Dispatcher:
    return Dispatcher(database, settings, Celery())


def register(database: Database, **counts: int) -> None:
    with database.transaction() as session:
        for name, count in counts.items():
            for i in range(count):
                workers.beat(session, f"{name}{i}", Vitals("host", Queue(name), 1))


def test_unclaimed_dispatches_are_looked_for_twice_a_second(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = settings.model_copy(update={"poll_s": 0.125})
    day, looked = Clock(), []
    monkeypatch.setattr(dispatcher, "time", SimpleNamespace(monotonic=lambda: day.now))

    class Scripted(Dispatcher):
        def dispatch(self) -> list[Dispatch]:
            return []

        def _ring_again(self) -> None:
            looked.append(day.now)

    Scripted(Database(given.url), given, Celery()).run(day)
    assert looked == [0.125, 0.625, 1.125, 1.625, 2.125, 2.625]


def test_as_many_are_dispatched_as_workers_are_idle(
    database: Database, doorbell: Dispatcher
) -> None:
    assert doorbell.dispatch() == []
    ids = [submitted(database) for _ in range(3)]
    assert doorbell.dispatch() == []
    register(database, cpu=2)
    assert doorbell.dispatch() == [Dispatch(one, 1, Queue.CPU) for one in ids[:2]]
    assert doorbell.dispatch() == []
    register(database, cpu=4)
    assert [one.experiment_id for one in doorbell.dispatch()] == ids[2:]


@pytest.mark.parametrize("name", Queue)
def test_a_queue_without_idle_workers_gets_nothing(
    database: Database, doorbell: Dispatcher, name: Queue
) -> None:
    register(database, **{name.value: 1})
    first, _ = [submitted(database, spec_on("auto")) for _ in range(2)]
    assert doorbell.dispatch() == [Dispatch(first, 1, name)]


def test_shares_are_those_of_the_settings(database: Database, settings: Settings) -> None:
    share = settings.share.model_copy(update={"max_running": 1})
    limited = Dispatcher(database, settings.model_copy(update={"share": share}), Celery())
    register(database, cpu=2)
    for _ in range(2):
        submitted(database)
    assert len(limited.dispatch()) == 1


def test_gpu_workers_choose_first(database: Database, doorbell: Dispatcher) -> None:
    """A CPU worker gets the next experiment that needs no GPU; an experiment that waits for a GPU
    is skipped."""
    register(database, gpu=1, cpu=3)
    devices = ("auto", "cuda", "auto", "cpu")
    ids = [submitted(database, spec_on(device)) for device in devices]
    assert [(one.queue, ids.index(one.experiment_id)) for one in doorbell.dispatch()] == [
        (Queue.GPU, 0), (Queue.CPU, 2), (Queue.CPU, 3),
    ]  # fmt: skip


def test_silent_workers_get_nothing(database: Database, doorbell: Dispatcher) -> None:
    register(database, cpu=1)
    submitted(database)
    with database.transaction() as session:
        session.execute(update(Worker).values(heartbeat_at=1.0))
    assert doorbell.dispatch() == []
    register(database, cpu=1)
    assert len(doorbell.dispatch()) == 1


def test_a_dispatcher_survives_a_database_outage(
    database: Database, doorbell: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(database, cpu=1)
    submitted(database)

    def away(self: Database) -> None:
        raise OperationalError("away", None, Exception())

    with monkeypatch.context() as patched:
        patched.setattr(Database, "transaction", away)
        assert doorbell.dispatch() == []
    assert len(doorbell.dispatch()) == 1


@pytest.mark.parametrize("error", [None, BrokerError("away"), ConnectionError("away")])
def test_a_dispatch_is_notified_and_a_broker_outage_is_survived(
    doorbell: Dispatcher,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception | None,
) -> None:
    rung: list[Any] = []

    def ring(*given: Any) -> None:
        rung.append(given)
        if error is not None:
            raise error

    monkeypatch.setattr(dispatcher, "ring", ring)
    with caplog.at_level("INFO"):
        doorbell._ring(Dispatch("0123", 7, Queue.GPU))
    assert rung == [(doorbell.celery, Queue.GPU, "0123", 7)]
    (line,) = caplog.records
    if error is None:
        assert line.message == "dispatched to gpu"
        assert (vars(line)["experiment_id"], vars(line)["dispatch_no"]) == ("0123", 7)
    else:
        assert line.message == "the broker is unreachable, the reaper will requeue the run: away"


def test_a_programming_error_ends_the_dispatcher(
    doorbell: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ring(*_: object) -> None:
        raise KeyError("a defect")

    monkeypatch.setattr(dispatcher, "ring", ring)
    with pytest.raises(KeyError):
        doorbell._ring(Dispatch("0123", 7, Queue.GPU))


def test_an_unclaimed_dispatch_is_notified_again(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every few seconds, until a worker claims it: the first message may be with one that hangs."""
    rung: list[Dispatch] = []
    clock = SimpleNamespace(at=0.0)
    monkeypatch.setattr(dispatcher, "time", SimpleNamespace(monotonic=lambda: clock.at))
    doorbell = Dispatcher(database, settings, Celery())

    def ring(one: Dispatch) -> bool:
        rung.append(one)
        return True

    monkeypatch.setattr(doorbell, "_ring", ring)
    one = submitted(database)
    dispatched = {"status": Status.DISPATCHED, "queue": Queue.CPU, "dispatch_no": 3}
    stored.change(database, one, **dispatched, dispatched_at=now())
    doorbell._ring_again()
    assert rung == []
    stored.change(database, one, dispatched_at=now() - UNCLAIMED_S - 0.1)
    for clock.at in (0.0, RING_AGAIN_S - 0.1, RING_AGAIN_S, RING_AGAIN_S + 0.1):
        doorbell._ring_again()
    assert rung == [Dispatch(one, 3, Queue.CPU)] * 2
    stored.change(database, one, status=Status.RUNNING)
    clock.at = 3 * RING_AGAIN_S
    doorbell._ring_again()
    assert len(rung) == 2
    assert doorbell._rung_again == {}


def test_a_broker_that_is_away_is_tried_once_in_a_round(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each failure may take seconds, in which nothing is dispatched."""
    rung: list[object] = []

    def ring(*given: object) -> None:
        rung.append(given)
        raise BrokerError("away")

    monkeypatch.setattr(dispatcher, "ring", ring)
    doorbell = Dispatcher(database, settings, Celery())
    for _ in range(3):
        dispatched = {"status": Status.DISPATCHED, "queue": Queue.CPU}
        stored.change(database, submitted(database), **dispatched, dispatched_at=0.0)
    for count in (1, 2):
        doorbell._ring_again()
        assert len(rung) == count
    register(database, cpu=3)
    monkeypatch.setattr(Dispatcher, "dispatch", lambda _: [Dispatch("a", 1, Queue.CPU)] * 3)
    stopping = SimpleNamespace(wait=iter([False, True]).__next__)
    rung.clear()
    monkeypatch.setattr(Dispatcher, "_ring_again", lambda _: None)
    doorbell.run(SimpleNamespace(wait=lambda _: stopping.wait()))  # type: ignore[arg-type]
    assert len(rung) == 1


def test_the_oldest_unclaimed_dispatches_are_found_first(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queued, "MAX_UNCLAIMED", 2)
    times = {submitted(database): at for at in (3.0, 1.0, 2.0, 0.5)}
    for one, at in times.items():
        columns = {"status": Status.DISPATCHED, "queue": Queue.CPU, "dispatched_at": at}
        stored.change(database, one, **columns)
    with database.snapshot() as session:
        late = queued.unclaimed(session, 1.0)
    assert [times[one.experiment_id] for one in late] == [0.5, 1.0]
