"""Removal of unneeded files; failures of the store or the database end nothing."""

import os
import time

import pytest
from sqlalchemy.exc import OperationalError

from service.experiments.hub import UNUSED_S
from service.queue import lease, states
from service.settings import Settings
from service.tables.engine import Database
from service.tables.experiments import Checkpoint, DesiredState, Experiment, Status
from tests.support.hub import cached
from tests.worker.test_reaper import running
from worker import sweeper as sweepers
from worker.sweeper import Sweeper

__all__ = ["running"]  # a fixture


@pytest.mark.parametrize(
    "error", [OSError(5, "I/O error"), OperationalError("x", None, Exception())]
)
def test_a_failed_retention_run_is_retried(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(sweepers, "sweep_uploads", fail)
    Sweeper(database, settings).sweep()


def test_interrupted_uploads_are_removed(database: Database, settings: Settings) -> None:
    folder = settings.all_incoming / "a"
    folder.mkdir(parents=True)
    os.utime(folder, (0, 0))
    Sweeper(database, settings).sweep()
    assert not folder.exists()


def test_the_hubs_cache_is_trimmed(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = settings.store / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    model = cached(cache, "a", 1000, 2 * UNUSED_S)
    Sweeper(database, settings.model_copy(update={"hub_cache_bytes": 0})).sweep()
    assert not model.exists()


def test_checkpoints_of_experiments_that_ended_without_a_worker_are_removed(
    database: Database, running: str, settings: Settings
) -> None:
    """Paused with a checkpoint, then cancelled by the API: no worker is there to clean up. What is
    paused still keeps its own."""
    sweeper = Sweeper(database, settings.model_copy(update={"lease_s": 0.1}))
    folder = settings.checkpoints(running)
    folder.mkdir(parents=True)
    (folder / "000000000001-abc.safetensors").write_bytes(b"")
    with database.transaction() as session:
        row = {"experiment_id": running, "after_seq": 1, "attempt": 1, "file": "f", "sha256": "0"}
        session.add(Checkpoint(**row))
        session.get_one(Experiment, running).status = Status.PAUSED

    def swept() -> bool:
        time.sleep(0.3)
        sweeper.sweep()
        return not folder.exists()

    assert not swept()
    with database.transaction() as session:
        states.request(session, running, DesiredState.CANCEL)
    assert swept()
    with database.snapshot() as session:
        assert lease.checkpoints(session, running) == []
