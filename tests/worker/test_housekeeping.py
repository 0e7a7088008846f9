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
from worker.housekeeping import CLEAN_S, RETENTION_S, TOGETHER, Housekeeping

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


def test_many_checkpoints_are_removed_in_parts(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part is looked up in its own transaction, two leases after the end."""
    monkeypatch.setattr(module, "TOGETHER", 2)
    names = {f"{number:032x}" for number in range(3)}
    for name in names:
        settings.checkpoints(name).mkdir(parents=True)
    asked: list[list[str]] = []

    def forget(session: object, ids: list[str], after_s: float) -> list[str]:
        assert after_s == 2 * settings.lease_s
        asked.append(ids)
        return ids

    monkeypatch.setattr(lease, "forget_checkpoints", forget)
    Housekeeping(database, settings).clean()
    assert [len(part) for part in asked] == [2, 1]
    assert {*asked[0], *asked[1]} == names
    assert [*settings.all_checkpoints.iterdir()] == []


def test_what_is_kept_is_measured_once_an_hour_and_purged_at_each_sweep(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep purges no more than a part of it."""
    now, done = 1000.0, list[Any]()
    many = [f"{number:032x}" for number in range(TOGETHER + 1)]

    def noted(name: str, returned: Any) -> None:
        def note(of: Database, *given: Any) -> Any:
            assert of is database
            if given[0] is settings:
                given = given[1:]
            done.append((name, *map(list, given)))
            return returned

        monkeypatch.setattr(retention, name, note)

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    for name, returned in {
        "planned": ["old"], "delete": None, "measure_artifacts": None, "purgeable": many, "purge": 0
    }.items():  # fmt: skip
        noted(name, returned)
    housekeeping = Housekeeping(database, settings)
    hourly = [("planned",), ("delete", ["old"]), ("measure_artifacts",)]
    each = [("purgeable",), ("purge", many[:TOGETHER])]
    for passed_s, expected in ((0, hourly + each), (RETENTION_S - 1, each), (1, hourly + each)):
        now += passed_s
        done.clear()
        housekeeping.clean()
        assert done == expected


def test_it_cleans_until_it_stops(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    housekeeping, stopping = Housekeeping(database, settings), threading.Event()
    done: list[Any] = []

    def wait(timeout: float) -> bool:
        done.append(timeout)
        return len(done) == 5

    monkeypatch.setattr(stopping, "wait", wait)
    monkeypatch.setattr(housekeeping, "clean", lambda: done.append("clean"))
    housekeeping.run(stopping)
    assert done == [CLEAN_S, "clean", CLEAN_S, "clean", CLEAN_S]
