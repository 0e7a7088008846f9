"""Errors that a long-lived loop survives, and errors that end its process."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from sqlalchemy import select, text

from service.db.engine import Database
from service.experiments.models import Queue
from service.experiments.schemas import Submission
from service.queue import workers
from service.queue.workers import Vitals
from service.settings import Settings
from service.workers.models import Worker
from tests.service.db.test_engine import read_only
from tests.support import stored
from tests.support.forks import fork
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import environment, wait_until
from worker.controller import Controller
from worker.main import Worker as WorkerProcess
from worker.presence import Presence
from worker.tickets import make_celery


@pytest.fixture
def database(lab: Settings) -> Iterator[Database]:
    with closing(Database(lab.url)) as made:
        yield made


@pytest.mark.parametrize("loop", ["controller", "worker"])
def test_a_step_survives_a_failover(lab: Settings, database: Database, loop: str) -> None:
    quick = lab.model_copy(update={"lease_s": 1e-9, "warm_parent": False})
    step: dict[str, Callable[[], object]] = {
        "controller": Controller(database, quick, make_celery(lab)).look,
        "worker": WorkerProcess(quick, Queue.CPU)._work,
    }
    with database.transaction() as session:  # something to start
        workers.beat(session, "w", Vitals("host", Queue.CPU, 1))
        stored.submit(session, 1, Submission.model_validate({"spec": ppca_spec()}))
    database.engine.dispose()
    with read_only(lab):
        for _ in range(3):
            step[loop]()


def test_presence_survives_a_failover(
    lab: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopping = threading.Event()
    monkeypatch.setattr("service.settings.HEARTBEAT_S", 0.02)
    presence = Presence(database, lab, "w", Queue.CPU)
    beats = threading.Thread(target=presence.run, args=[stopping])

    def is_known() -> bool:
        with database.snapshot() as session:
            return session.scalar(select(Worker.id)) == "w"

    with read_only(lab):
        beats.start()
        beats.join(0.3)
        assert beats.is_alive()
        assert not is_known()
    database.engine.dispose()
    wait_until(is_known)
    stopping.set()
    beats.join()
    assert not is_known()


def test_a_part_that_fails_ends_its_process(settings: Settings) -> None:
    """Run a real worker whose messenger, a thread beside the main loop, finds no deliveries."""
    log = settings.store / "log"
    worker = fork(["-m", "worker", "cpu", "--local"], environment(settings), log)
    with closing(Database(settings.url)) as database:

        def is_known() -> bool:
            with database.snapshot() as session:
                return session.scalar(select(Worker.id)) is not None

        wait_until(is_known)
        with database.transaction() as session:
            session.execute(text("DROP TABLE deliveries"))  # the main loop does not use it
    assert worker.wait(240) == 1
    said = log.read_text()
    assert "a part of this process failed" in said
    assert "NotMigrated" in said
