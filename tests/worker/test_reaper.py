"""The reaper waits a whole lease after the database was away."""

import math
import os
import time
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from service.database import Database
from service.experiments import queue, store
from service.experiments.models import Checkpoint, DesiredState, Experiment, Status
from service.experiments.schemas import Submission
from service.hub import UNUSED_S
from service.settings import Settings
from tests.support.hub import cached
from tests.support.ppca_spec import ppca_spec
from worker.reaper import Reaper

LEASE_S = 0.6


@pytest.fixture
def running(database: Database) -> str:
    """A run whose lease is over: its worker could not renew it, or is gone."""
    with database.transaction() as session:
        made = store.submit(session, 1, Submission.model_validate({"spec": ppca_spec()}))
        dispatch = queue.dispatch_next(session)
        assert dispatch is not None
        queue.claim(session, dispatch.experiment_id, dispatch.dispatch_no, worker="w", lease_s=-1)
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


def test_grace_after_the_database_was_away(
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


def test_uploads_that_were_cut_off_are_removed(database: Database, settings: Settings) -> None:
    reaper = Reaper(database, settings.model_copy(update={"lease_s": 0.1}))
    folder = settings.all_incoming / "a"
    folder.mkdir(parents=True)
    os.utime(folder, (0, 0))
    for _ in range(2):
        reaper.tick()
        time.sleep(0.15)
    assert not folder.exists()


def test_the_hubs_cache_is_trimmed(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = settings.store / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    model = cached(cache, "a", 1000, 2 * UNUSED_S)
    reaper = Reaper(database, settings.model_copy(update={"lease_s": 0.1, "hub_cache_bytes": 0}))
    for _ in range(2):
        reaper.tick()
        time.sleep(0.15)
    assert not model.exists()


def test_checkpoints_of_what_ended_without_a_worker_are_removed(
    database: Database, running: str, settings: Settings
) -> None:
    """Paused with a checkpoint, then cancelled by the API: no worker is there to clean up. What is
    paused still keeps its own."""
    reaper = Reaper(database, settings.model_copy(update={"lease_s": 0.1}))
    folder = settings.checkpoints(running)
    folder.mkdir(parents=True)
    (folder / "000000000001-abc.safetensors").write_bytes(b"")
    with database.transaction() as session:
        row = {"experiment_id": running, "after_seq": 1, "attempt": 1, "file": "f", "sha256": "0"}
        session.add(Checkpoint(**row))
        session.get_one(Experiment, running).status = Status.PAUSED

    def swept() -> bool:
        for _ in range(2):
            reaper._swept_at = -math.inf
            reaper.tick()
            time.sleep(0.3)
        return not folder.exists()

    assert not swept()
    with database.transaction() as session:
        queue.request(session, running, DesiredState.CANCEL)
    assert swept()
    with database.snapshot() as session:
        assert queue.checkpoints(session, running) == []
