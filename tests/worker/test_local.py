"""The local worker ends after an error that it cannot handle, so that it is restarted."""

import threading
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from service.db.engine import Database
from service.experiments.models import Queue
from service.fair_share import FairShare
from service.queue import workers
from service.queue.workers import Vitals
from service.settings import Settings
from tests.support.attempts import submitted
from tests.support.ppca_spec import ppca_spec
from worker import slot
from worker.local import LocalWorker
from worker.messenger import Messenger
from worker.presence import Presence, worker_name
from worker.reaper import Reaper
from worker.slot import Slot
from worker.sweeper import Sweeper


def test_an_error_ends_the_worker(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_process(**_: object) -> None:
        raise OSError("out of processes")

    monkeypatch.setattr(slot, "WarmParent", no_process)
    worker = LocalWorker(settings)
    before = {*threading.enumerate()}  # other tests may have left a pool of threads
    with pytest.raises(OSError, match="out of processes"):
        worker.run()
    assert worker.stopping.is_set()
    assert [t for t in {*threading.enumerate()} - before if not t.daemon] == []


def test_a_worker_waits_after_a_run_that_it_could_not_take(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a GPU with too little memory would dispatch the run again and again."""
    submitted(Database(settings.url))
    worker = LocalWorker(settings)
    for part in (Reaper, Sweeper, Messenger, Presence):
        monkeypatch.setattr(part, "run", lambda *_: None)
    monkeypatch.setattr(Slot, "be_ready", lambda *_: None)
    monkeypatch.setattr(Slot, "run", lambda *_: False)
    waited: list[float] = []

    def wait(timeout_s: float) -> bool:
        waited.append(timeout_s)
        worker.stopping.set()
        return True

    monkeypatch.setattr(worker.stopping, "wait", wait)
    worker.run()
    assert waited == [settings.poll_s]


def test_a_local_worker_of_a_gpu_takes_what_needs_one(settings: Settings) -> None:
    """Only a worker of the CPU takes what is for it."""
    database = Database(settings.url)
    on_cpu, on_gpu = (
        submitted(database, ppca_spec(compute__device=device)) for device in ("cpu", "cuda")
    )
    memory: dict[str, Any] = {
        "gpu_memory_total": 2**36,
        "gpu_memory_free": 2**36,
        "run_memory": 2**36,
    }
    with database.transaction() as session:
        workers.beat(session, "gpu", Vitals("host", Queue.GPU, 2**36, **memory))
    for queue, expected in ((Queue.GPU, on_gpu), (Queue.CPU, on_cpu)):
        worker = LocalWorker(settings, queue)
        chosen = worker._next()
        assert chosen is not None
        assert (chosen.experiment_id, chosen.queue) == (expected, queue)
        assert worker._next() is None


@pytest.mark.parametrize("queue", Queue)
def test_all_parts_of_a_local_worker_run_until_it_stops(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, queue: Queue
) -> None:
    worker = LocalWorker(settings, queue)
    ran: list[object] = []
    for part in (Reaper, Sweeper, Messenger):
        monkeypatch.setattr(part, "run", lambda self, stopping: ran.append((type(self), stopping)))

    def beat(self: Presence, stopping: threading.Event) -> None:
        ran.append((self.name, stopping))

    def be_ready(self: Slot, is_stopping: object) -> None:
        assert (self.name, self.presence.queue) == (worker_name(), queue)
        worker.stopping.set()

    monkeypatch.setattr(Presence, "run", beat)
    monkeypatch.setattr(Slot, "be_ready", be_ready)
    worker.run()
    parts = (Reaper, Sweeper, Messenger, worker_name())
    assert {*ran} == {(part, worker.stopping) for part in parts}
    assert not worker.lifetime.failed


def test_a_local_worker_claims_the_next_run_within_the_limits(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the time of a heartbeat if the database is unreachable."""
    one_at_a_time = settings.model_copy(update={"share": FairShare(max_running=1)})
    worker = LocalWorker(one_at_a_time)
    first, _ = submitted(worker.database), submitted(worker.database)
    chosen = worker._next()
    assert chosen is not None
    assert chosen.experiment_id == first
    assert worker._next() is None

    def away(self: Database) -> Any:
        raise OperationalError("away", None, Exception())

    waited: list[float] = []
    monkeypatch.setattr(Database, "transaction", away)
    monkeypatch.setattr(worker, "stopping", SimpleNamespace(wait=waited.append))
    assert worker._next() is None
    assert waited == [settings.heartbeat_s]


def test_it_runs_what_it_has_taken(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes nothing more once it stops, and waits between two looks that find nothing."""
    worker = LocalWorker(settings)
    ids = [submitted(worker.database) for _ in range(2)]
    ran: list[Any] = []
    waited: list[float | None] = []

    def run(self: Slot, experiment_id: str, dispatch_no: int, is_stopping: Any) -> bool:
        assert self.database is worker.database
        assert self.settings is self.presence.settings is settings
        assert not is_stopping()
        ran.append((experiment_id, dispatch_no))
        return True

    def wait(timeout: float | None = None) -> bool:
        waited.append(timeout)
        worker.stopping.set()
        return True

    for part in (Reaper, Sweeper, Messenger, Presence):
        monkeypatch.setattr(part, "run", lambda self, stopping: None)
    monkeypatch.setattr(Slot, "be_ready", lambda self, is_stopping: None)
    monkeypatch.setattr(Slot, "run", run)
    monkeypatch.setattr(worker.stopping, "wait", wait)
    worker.run()
    assert ran == [(one, 1) for one in ids]
    assert waited == [settings.poll_s]


def test_each_of_its_threads_has_a_connection(settings: Settings) -> None:
    """The main thread, the heartbeats, and three that run beside them. A connection that is not
    free raises an error after a while."""
    worker = LocalWorker(settings)
    with ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(worker.database.snapshot()).execute(select(1))


def test_it_takes_no_lock_while_nothing_is_queued(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks ten times a second."""
    worker = LocalWorker(settings)
    begun: list[object] = []
    transaction = Database.transaction

    def counted(self: Database) -> Any:
        begun.append(self)
        return transaction(self)

    monkeypatch.setattr(Database, "transaction", counted)
    assert worker._next() is None
    assert begun == []
    one = submitted(worker.database)
    begun.clear()
    chosen = worker._next()
    assert chosen is not None
    assert chosen.experiment_id == one
    assert len(begun) == 1
