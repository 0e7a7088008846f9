"""The reaper waits a whole lease after the database was away."""

import threading
import time
from contextlib import closing, contextmanager
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from service.db.engine import Database
from service.experiments.models import Experiment, Queue
from service.experiments.schemas import Submission
from service.queue import lease, workers
from service.queue.workers import Vitals
from service.settings import Settings
from tests.support import stored
from tests.support.attempts import claimed, submitted
from tests.support.dispatches import dispatched
from tests.support.fake_clock import FakeClock
from tests.support.ppca_spec import ppca_spec
from tests.support.servers import PostgreSQL
from tests.support.starting import start_next
from worker.reaper import Reaper

LEASE_S = 0.6


@pytest.fixture
def running(database: Database) -> str:
    """A run whose lease is over: its worker could not renew it, or is gone."""
    with database.transaction() as session:
        made = stored.submit(session, 1, Submission.model_validate({"spec": ppca_spec()}))
        assert start_next(session, lease_s=-1) is not None
    assert made is not None
    return made.id


@pytest.fixture
def reaper(database: Database, settings: Settings) -> Reaper:
    return Reaper(database, settings.model_copy(update={"lease_s": LEASE_S}))


def status(database: Database, experiment_id: str) -> str:
    with database.snapshot() as session:
        return session.get_one(Experiment, experiment_id).status


def test_grace_at_the_start(database: Database, running: str, reaper: Reaper) -> None:
    reaper.tick()
    assert status(database, running) == "running"
    time.sleep(LEASE_S)
    reaper.tick()
    assert status(database, running) == "queued"


def test_grace_after_a_database_outage(
    database: Database, running: str, reaper: Reaper, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def away(self: Database) -> Any:
        raise OperationalError("away", None, Exception())
        yield

    reaper.tick()
    with monkeypatch.context() as patched:
        patched.setattr(Database, "transaction", away)
        time.sleep(LEASE_S)
        reaper.tick()
    reaper.tick()
    assert status(database, running) == "running"
    time.sleep(LEASE_S)
    reaper.tick()
    assert status(database, running) == "queued"


def test_grace_after_a_failover(lab: Settings, postgresql: PostgreSQL) -> None:
    """A standby that takes no writes yet can be read, but no worker can renew its lease there."""
    with closing(Database(lab.url)) as database:
        claim = claimed(database, lease_s=-1)
        reaper = Reaper(database, lab.model_copy(update={"lease_s": LEASE_S}))
        reaper.tick()
        postgresql.set_read_only(name := lab.url.rpartition("/")[2], True)
        for _ in range(2):  # the first finds its connection closed
            reaper.tick()
        time.sleep(LEASE_S)
        postgresql.set_read_only(name, False)
        for _ in range(2):
            reaper.tick()
        assert status(database, claim.experiment_id) == "running"
        time.sleep(LEASE_S)
        reaper.tick()
        assert status(database, claim.experiment_id) == "queued"


def test_grace_after_a_gap(
    database: Database, running: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that slept, or a database that hung: no error, but the clock has moved."""
    quick = {"lease_s": LEASE_S, "heartbeat_s": 0.05}
    reaper = Reaper(database, settings.model_copy(update=quick))
    for _ in range(4):
        reaper.tick()
        time.sleep(0.1)
    time.sleep(LEASE_S)
    reaper.tick()
    assert status(database, running) == "running"
    for _ in range(8):
        time.sleep(0.1)
        reaper.tick()
    assert status(database, running) == "queued"


def test_a_held_dispatch_lock_does_not_stop_the_reaper(lab: Settings) -> None:
    """Its holder may hang, and is disconnected soon."""
    with closing(Database(lab.url)) as database, closing(Database(lab.url)) as other:
        lost = claimed(database, lease_s=-1).experiment_id
        reaper = Reaper(database, lab.model_copy(update={"lease_s": 0.0}))
        with other.transaction() as dispatching:
            workers.lock_dispatching(dispatching)
            for _ in range(2):
                reaper.tick()
            limit = text("SHOW idle_in_transaction_session_timeout")
            assert dispatching.scalar(limit) == "3s"
        assert status(database, lost) == "queued"


def test_a_database_that_hangs_within_a_tick(
    database: Database, running: str, reaper: Reaper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between reading the clock and reaping, leases that were valid expire."""
    reaper.tick()
    time.sleep(LEASE_S)
    with database.transaction() as session:
        session.get_one(Experiment, running).lease_expires_at = time.time() + LEASE_S / 2
    reap = lease.reap

    def hang(*arguments: Any, **named: Any) -> Any:
        time.sleep(LEASE_S)
        return reap(*arguments, **named)

    monkeypatch.setattr(lease, "reap", hang)
    reaper.tick()
    assert status(database, running) == "running"


def test_the_reaper_ticks_until_it_stops(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    reaper = Reaper(database, settings.model_copy(update={"heartbeat_s": 0.01}))
    stopping, ticks = threading.Event(), list[float]()

    def tick() -> None:
        ticks.append(time.monotonic())
        if len(ticks) == 3:
            stopping.set()

    monkeypatch.setattr(reaper, "tick", tick)
    reaper.run(stopping)
    assert len(ticks) == 3


class ScriptedSession:
    """A session of a database whose clock is set by the test."""

    def __init__(self, *clock: float):
        self.clock = iter(clock)

    def execute(self, statement: Any) -> Any:
        return self

    def scalar_one(self) -> float:
        return next(self.clock)


@pytest.mark.parametrize(
    ("clock", "is_up"),
    [
        ([100, 105, 110], [False, False, True]),
        ([100, 105, 109.9], [False, False, False]),
        ([100, 105, 110, 111, 110.9, 115.9, 120.9], [False, False, True, True, False, False, True]),
        ([100, 105, 110, 115.1, 120, 125, 125.1], [False, False, True, False, False, False, True]),
        ([100, 105, 110, 110], [False, False, True, True]),
    ],
    ids=["a lease", "almost a lease", "a clock set back", "a gap", "a clock that stands still"],
)
def test_the_reaper_acts_after_a_whole_lease_without_a_gap(
    settings: Settings, database: Database, clock: list[float], is_up: list[bool]
) -> None:
    times = {"lease_s": 10.0, "heartbeat_s": 1.0}
    reaper = Reaper(database, settings.model_copy(update=times))
    session: Any = ScriptedSession(*clock)
    assert [reaper._has_been_up(session) for _ in clock] == is_up


def test_a_clock_set_back_delays_no_clean_up(either: Database, settings: Settings) -> None:
    """A run whose worker is gone, a dispatch that was lost and a worker that is gone, an hour ahead
    of the clock: all are put right within a lease, as if it had not been set."""
    hands = FakeClock(either.engine, 1e6 + 3600)
    gone = claimed(either, lease_s=LEASE_S).experiment_id
    submitted(either)
    lost, _ = dispatched(either)
    with either.transaction() as session:
        workers.beat(session, "w", Vitals("host", Queue.CPU, 1))
    limits = {"lease_s": LEASE_S, "dispatch_timeout_s": 2 * LEASE_S, "heartbeat_s": LEASE_S / 3}
    reaper = Reaper(either, settings.model_copy(update=limits))
    reaper.tick()
    for _ in range(12):
        hands.now = (1e6 if hands.now > 1e6 + 60 else hands.now) + LEASE_S / 3
        reaper.tick()
    assert (status(either, gone), status(either, lost)) == ("queued", "queued")
    with either.snapshot() as session:
        assert workers.alive(session, LEASE_S) == []
