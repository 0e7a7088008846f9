"""The controller waits a whole lease after the database was away."""

import threading
import time
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest
from celery import Celery
from kombu.exceptions import OperationalError as BrokerError
from redis import RedisError
from sqlalchemy import select, text, update
from sqlalchemy.exc import OperationalError

from service.accounts.models import User
from service.db.engine import Database, now
from service.experiments.models import Experiment, Held, Queue, Wait
from service.queue import holds, lease, workers
from service.queue.models import LEAD_S
from service.queue.models import Controller as ControllerRow
from service.queue.workers import Vitals, lock_claims
from service.settings import Settings
from service.sweeps.models import Sweep
from service.vocabulary import Status
from tests.support import stored
from tests.support.attempts import claimed, submitted
from tests.support.fake_clock import FakeClock
from tests.support.servers import PostgreSQL
from worker import tickets
from worker.controller import Controller

LEASE_S = 0.6


@pytest.fixture
def running(database: Database) -> str:
    """A run whose lease is over: its worker could not renew it, or is gone."""
    return claimed(database, lease_s=-1).experiment_id


@pytest.fixture
def controller(database: Database, settings: Settings) -> Controller:
    return Controller(database, settings.model_copy(update={"lease_s": LEASE_S}), None)


def status(database: Database, experiment_id: str) -> str:
    return stored.row(database, experiment_id).status


def tick_until_queued(database: Database, controller: Controller, experiment_id: str) -> None:
    deadline = time.monotonic() + 60
    while status(database, experiment_id) != "queued":
        assert time.monotonic() < deadline
        controller.tick()
        time.sleep(LEASE_S / 20)


def test_a_look_releases_what_is_held(database: Database, controller: Controller) -> None:
    """Also within the grace after its start."""
    first, last = submitted(database), submitted(database)
    with database.transaction() as session:
        session.add(Wait(experiment_id=last, after_id=first))
    stored.change(database, last, held=Held.AFTER)
    stored.change(database, first, status=Status.SUCCEEDED)
    controller.look()
    assert stored.row(database, last).held == Held.NOT


def test_grace_at_the_start(database: Database, running: str, controller: Controller) -> None:
    controller.tick()
    assert status(database, running) == "running"
    tick_until_queued(database, controller, running)


def test_grace_after_a_database_outage(
    database: Database, running: str, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def away(self: Database) -> Any:
        raise OperationalError("away", None, Exception())
        yield

    controller.tick()
    with monkeypatch.context() as patched:
        patched.setattr(Database, "transaction", away)
        time.sleep(LEASE_S)
        controller.tick()
    controller.tick()
    assert status(database, running) == "running"
    tick_until_queued(database, controller, running)


def test_grace_after_a_failover(lab: Settings, postgresql: PostgreSQL) -> None:
    """A standby that takes no writes yet can be read, but no worker can renew its lease there."""
    with closing(Database(lab.url)) as database:
        claim = claimed(database, lease_s=-1)
        controller = Controller(database, lab.model_copy(update={"lease_s": LEASE_S}), None)
        controller.tick()
        postgresql.set_read_only(name := lab.url.rpartition("/")[2], True)
        for _ in range(2):  # the first finds its connection closed
            controller.tick()
        time.sleep(LEASE_S)
        postgresql.set_read_only(name, False)
        for _ in range(2):
            controller.tick()
        assert status(database, claim.experiment_id) == "running"
        tick_until_queued(database, controller, claim.experiment_id)


def test_grace_after_a_gap(
    database: Database, running: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that slept, or a database that hung: no error, but the clock has moved."""
    controller = Controller(database, settings.model_copy(update={"lease_s": LEASE_S}), None)
    for _ in range(4):
        controller.tick()
        time.sleep(0.1)
    time.sleep(LEASE_S)
    controller.tick()
    assert status(database, running) == "running"
    for _ in range(8):
        time.sleep(0.1)
        controller.tick()
    assert status(database, running) == "queued"


def test_a_claim_that_hangs_does_not_stop_the_controller(lab: Settings) -> None:
    """It is disconnected soon."""
    with closing(Database(lab.url)) as database, closing(Database(lab.url)) as other:
        lost = claimed(database, lease_s=-1).experiment_id
        controller = Controller(database, lab.model_copy(update={"lease_s": 0.0}), None)
        with suppress(OperationalError), other.transaction() as claiming:
            lock_claims(claiming)
            for _ in range(2):
                controller.tick()
            assert status(database, lost) == "queued"
            claiming.execute(text("SELECT 1"))
            pytest.fail("the claim still holds its lock")


def test_a_database_that_hangs_within_a_tick(
    database: Database, running: str, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between reading the clock and reaping, leases that were valid expire."""
    controller.tick()
    time.sleep(LEASE_S)
    with database.transaction() as session:
        session.get_one(Experiment, running).lease_expires_at = time.time() + LEASE_S / 2
    expire = lease.expire

    def hang(*arguments: Any, **named: Any) -> Any:
        time.sleep(LEASE_S)
        return expire(*arguments, **named)

    monkeypatch.setattr(lease, "expire", hang)
    controller.tick()
    assert status(database, running) == "running"


def test_a_clock_set_back_delays_no_clean_up(either: Database, settings: Settings) -> None:
    """A run whose worker is gone and a worker that is gone, an hour ahead of the clock: both are
    put right within a lease, as if it had not been set."""
    hands = FakeClock(either.engine, 1e6 + 3600)
    gone = claimed(either, lease_s=LEASE_S).experiment_id
    with either.transaction() as session:
        workers.beat(session, "w", Vitals("host", Queue.CPU, 1))
    controller = Controller(either, settings.model_copy(update={"lease_s": LEASE_S}), None)
    controller.tick()
    for _ in range(12):
        hands.now = (1e6 if hands.now > 1e6 + 60 else hands.now) + LEASE_S / 3
        controller.tick()
    assert status(either, gone) == "queued"
    with either.snapshot() as session:
        assert workers.alive(session, LEASE_S) == []


def test_one_controller_leads_until_it_is_silent(either: Database, settings: Settings) -> None:
    hands = FakeClock(either.engine)
    first, second = (Controller(either, settings, None) for _ in "ab")
    first.name, second.name = "first", "second"
    for pause_s in (LEAD_S - 1, LEAD_S + 1):
        first.tick()
        second.tick()
        assert holder(either) == "first"
        hands.now += pause_s
    second.tick()
    first.tick()
    assert holder(either) == "second"


def holder(database: Database) -> str | None:
    with database.snapshot() as session:
        return session.scalar(select(ControllerRow.holder))


def test_a_controller_that_lost_its_lead_writes_nothing(
    either: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was frozen between two transactions, and another one leads."""
    lost = claimed(either, lease_s=-1).experiment_id
    first = Controller(either, settings.model_copy(update={"lease_s": 0.0}), None)
    first.name = "first"

    first.tick()
    with either.transaction() as session:
        session.execute(update(Experiment).values(status="running", lease_expires_at=1.0))
    monkeypatch.setattr(first, "_has_been_up", lambda at: True)
    monkeypatch.setattr(lease, "expire", lambda *_: pytest.fail("it does not lead"))
    with either.transaction() as session:
        session.execute(update(ControllerRow).values(holder="second", until=now() + LEAD_S - 1))
    first.tick()
    assert status(either, lost) == "running"


class Tickets:
    """Replaces Celery: it records how many tickets each queue should hold."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.wanted: list[tuple[Queue, int]] = []
        monkeypatch.setattr(tickets, "fill", self.fill)

    def fill(self, _: object, queue: Queue, number: int) -> None:
        self.wanted.append((queue, number))


def test_idle_workers_are_woken_for_what_they_may_start(
    either: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = Tickets(monkeypatch)
    monkeypatch.setattr("worker.controller.REST", 0)
    controller = Controller(either, settings, Celery())
    submitted(either), submitted(either)
    for _ in range(2):
        controller.look()
        controller.wait(threading.Event())
    controller.look()
    assert sent.wanted == [], "no worker is there"
    with either.transaction() as session:
        for name in "abc":
            workers.beat(session, name, Vitals("host", Queue.CPU, 1))
        workers.beat(session, "asleep", Vitals("host", Queue.CPU, 1, looked_ago_s=60.0))
        workers.beat(session, "g", Vitals("host", Queue.GPU, 1))
    submitted(either)
    controller.wait(threading.Event())
    controller.look()
    assert sent.wanted == [(Queue.CPU, 3)]
    with either.transaction() as session:
        session.execute(update(User).values(max_running=0))
    sent.wanted.clear()
    for _ in range(2):
        controller.wait(threading.Event())
        controller.look()
    assert sent.wanted == [], "the user is at its limit"


@pytest.mark.parametrize("error", [BrokerError, RedisError, ConnectionError])
def test_a_broker_that_is_away_does_not_stop_the_controller(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch,
    error: type[Exception],
) -> None:  # fmt: skip
    def away(*_: object) -> None:
        raise error("away")

    with database.transaction() as session:
        workers.beat(session, "w", Vitals("host", Queue.CPU, 1))
    submitted(database)
    monkeypatch.setattr(tickets, "fill", away)
    controller = Controller(database, settings, Celery())
    controller.look()
    assert holder(database) == controller.name


def test_a_broker_that_does_not_answer_leaves_time_for_the_ticks(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the gaps between them would look like outages of the database, and no lease expired."""
    tries = list[Queue]()

    def hang(_: object, queue: Queue, number: int) -> None:
        tries.append(queue)
        time.sleep(0.5)
        raise BrokerError("timed out")

    with database.transaction() as session:
        workers.beat(session, "w", Vitals("host", Queue.CPU, 1))
    submitted(database)
    monkeypatch.setattr(tickets, "fill", hang)
    controller = Controller(database, settings, Celery())
    controller.look()
    until = time.monotonic() + 0.5  # as long as the broker has held it up
    while time.monotonic() < until:
        controller._is_something_new = True
        controller.look()
    assert len(tries) == 1


def test_a_clock_set_back_leaves_no_lab_without_a_controller(
    either: Database, settings: Settings
) -> None:
    """Another one led an hour ahead of the clock, and is gone."""
    with either.transaction() as session:
        session.execute(update(ControllerRow).values(holder="gone", until=now() + 3600))
    controller = Controller(either, settings, None)
    controller.tick()
    assert holder(either) == controller.name


def test_a_look_that_fails_late_delays_the_next_by_seconds_only(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a minute's outage would leave all that waits for others held for ten minutes."""
    monkeypatch.setattr("worker.controller.FOLD_S", 0.1)
    monkeypatch.setattr("service.settings.HEARTBEAT_S", 0.1)
    controller = Controller(database, settings, None)
    looks = list[float]()

    def hang(_: object) -> bool:
        looks.append(time.monotonic())
        time.sleep(0.3)
        raise OperationalError("", {}, Exception("it was away"))

    monkeypatch.setattr(holds, "awaits_what_has_ended", hang)
    began = time.monotonic()
    while len(looks) < 3 and time.monotonic() < began + 5:
        controller.look()
        controller.wait(threading.Event())
    assert len(looks) == 3


def waits_for(database: Database, last: str, first: str) -> None:
    with database.transaction() as session:
        session.add(Wait(experiment_id=last, after_id=first))
    stored.change(database, last, held=Held.AFTER)


def test_what_still_waits_makes_no_work(
    either: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On SQLite each commit wakes the controller, its own too."""
    waits_for(either, submitted(either), submitted(either))
    controller = Controller(either, settings, None)
    steps = list[object]()
    monkeypatch.setattr(holds, "release_waits", steps.append)
    controller.look()
    assert steps == []


def test_a_point_of_a_sweep_that_waited_for_a_run_starts_soon(
    either: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller releases it in two steps, and then wakes a worker."""
    sent = Tickets(monkeypatch)
    monkeypatch.setattr("service.settings.HEARTBEAT_S", 0.1)
    controller = Controller(either, settings, Celery())
    with either.transaction() as session:
        workers.beat(session, "w", Vitals("host", Queue.CPU, 1))
        beside = {"concurrency": 1, "fields": ["seeds"], "comes_after": [], "spec": {}}
        session.add(Sweep(id="s", owner_id=1, tags=[], priority=0, **beside))
    claim, last = claimed(either), submitted(either)
    stored.change(either, last, sweep_id="s")
    waits_for(either, last, claim.experiment_id)
    for _ in range(5):
        controller.look()
        controller.wait(threading.Event())
    with either.transaction() as session:
        lease.finish(session, claim, Status.SUCCEEDED)
        workers.beat(session, "w", Vitals("host", Queue.CPU, 1))
    ended = time.monotonic()
    while not sent.wanted and time.monotonic() < ended + 3:
        controller.wait(threading.Event())
        controller.look()
    assert sent.wanted, "a worker looks by itself only every five seconds"
