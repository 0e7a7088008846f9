"""Removal of unneeded files; failures of the store or the database end nothing."""

import os
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from service.datasets.hub import UNUSED_S
from service.db.engine import Database
from service.experiments.models import Checkpoint, Experiment
from service.operations import retention
from service.queue import lease, states
from service.settings import Settings
from service.vocabulary import DesiredState, Status
from tests.service.db.test_space import MIB, empty, fill, size
from tests.support.hub import cached
from tests.worker.test_controller import running
from worker import housekeeping as module
from worker.housekeeping import Housekeeping

__all__ = ["running"]  # a fixture


@pytest.mark.parametrize(
    "error", [OSError(5, "I/O error"), OperationalError("x", None, Exception())]
)
def test_a_failed_retention_run_is_retried(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(module, "clean_uploads", fail)
    Housekeeping(database, settings).clean()


def test_interrupted_uploads_are_removed(database: Database, settings: Settings) -> None:
    folder = settings.all_incoming / "a"
    folder.mkdir(parents=True)
    os.utime(folder, (0, 0))
    Housekeeping(database, settings).clean()
    assert not folder.exists()


def test_the_space_of_deleted_rows_returns_to_the_disk(
    database: Database, settings: Settings
) -> None:
    fill(database, 1000)
    full = size(database)
    empty(database)
    Housekeeping(database, settings).clean()
    assert size(database) < full - 5 * MIB


def test_the_hubs_cache_is_trimmed(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = settings.store / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    model = cached(cache, "a", 1000, 2 * UNUSED_S)
    Housekeeping(database, settings.model_copy(update={"hub_cache_bytes": 0})).clean()
    assert not model.exists()


def test_checkpoints_of_experiments_that_ended_without_a_worker_are_removed(
    database: Database, running: str, settings: Settings
) -> None:
    """Paused with a checkpoint, then cancelled by the API: no worker is there to clean up. A paused
    experiment keeps its checkpoint."""
    housekeeping = Housekeeping(database, settings.model_copy(update={"lease_s": 0.1}))
    folder = settings.checkpoints(running)
    folder.mkdir(parents=True)
    (folder / "000000000001-abc.safetensors").write_bytes(b"")
    with database.transaction() as session:
        row = {"experiment_id": running, "after_seq": 1, "attempt": 1, "file": "f", "sha256": "0"}
        session.add(Checkpoint(**row))
        session.get_one(Experiment, running).status = Status.PAUSED

    def swept() -> bool:
        time.sleep(0.3)
        housekeeping.clean()
        return not folder.exists()

    assert not swept()
    with database.transaction() as session:
        states.request(session, running, DesiredState.CANCEL)
    assert swept()
    with database.snapshot() as session:
        assert lease.checkpoints(session, running) == []


def test_retention_is_applied_by_the_hour_and_purges_each_time(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A purge of one hour is bounded."""
    calls: list[tuple[str, Any]] = []

    def replace(name: str, returned: Any) -> None:
        def call(*arguments: Any) -> Any:
            calls.append((name, [*arguments[-1]] if name == "purge" else None))
            return returned

        monkeypatch.setattr(retention, name, call)

    purgeable = [f"{number:032x}" for number in range(1000)]
    replace("planned", ["old"])
    replace("delete", None)
    replace("measure_artifacts", None)
    replace("purgeable", purgeable)
    replace("purge", 0)
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    housekeeping = Housekeeping(database, settings)
    for _ in range(12):  # two hours
        housekeeping.clean()
        clock.now += 600
    names = [name for name, _ in calls]
    assert names.count("delete") == names.count("measure_artifacts") == 2
    assert names.count("purge") == 12
    for name, ids in calls:
        assert name != "purge" or 0 < len(ids) < len(purgeable)


def test_it_cleans_until_it_stops(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    housekeeping, stopping = Housekeeping(database, settings), threading.Event()
    cleanings: list[int] = []

    def clean() -> None:
        cleanings.append(1)
        if len(cleanings) == 3:
            stopping.set()

    monkeypatch.setattr(module, "CLEAN_S", 0.01)
    monkeypatch.setattr(housekeeping, "clean", clean)
    housekeeping.run(stopping)
    assert len(cleanings) == 3
