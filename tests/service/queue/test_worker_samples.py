"""Stored samples of the workers: one a minute, for a day, on both databases."""

from collections.abc import Sequence

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from service.db.engine import Database
from service.experiments.models import Queue
from service.queue.worker_samples import KEPT_MINUTES, last_minute, past, take
from service.queue.workers import Vitals
from service.settings import Settings
from service.workers.models import WorkerSample
from tests.support.attempts import claimed
from worker.housekeeping import Housekeeping
from worker.presence import Presence

GIB = 2**30
CPU = Vitals("h", Queue.CPU, 8 * GIB)
GPU = Vitals("h", Queue.GPU, 8 * GIB, "H100", "570", 80 * GIB, 21 * GIB)


def keep(database: Database, worker_id: str, ages: Sequence[int], busy: bool, free: int) -> None:
    """Samples from the given numbers of minutes ago."""
    with database.transaction() as session:
        last = last_minute(session)
        columns = {"worker_id": worker_id, "busy": busy, "memory_free": free}
        session.add_all(WorkerSample(minute=last - age, **columns) for age in ages)


def kept(database: Database) -> list[WorkerSample]:
    with database.snapshot() as session:
        return [*session.scalars(select(WorkerSample).order_by(WorkerSample.worker_id))]


def test_one_sample_a_minute(either: Database) -> None:
    """A sample records whether the worker has a run, and the memory of its GPU if it has one."""
    claimed(either)  # by the worker w
    with either.transaction() as session:
        for _ in range(2):
            take(session, "w", CPU)
            take(session, "x", GPU)
    # A new minute may have begun in between.
    found = {one.worker_id: one for one in kept(either)}
    assert len(kept(either)) <= 3
    assert (found["w"].busy, found["w"].memory_free, found["w"].memory_total) == (
        True, 8 * GIB, None,
    )  # fmt: skip
    assert (found["x"].busy, found["x"].memory_free, found["x"].memory_total) == (
        False, 21 * GIB, 80 * GIB,
    )  # fmt: skip


def test_minutes_together(either: Database) -> None:
    with either.transaction() as session:
        columns = {"worker_id": "w", "memory_total": 9}
        for minute, busy, free in ((100, True, 5), (104, False, 3), (105, True, 4), (99, True, 1)):
            row = {"minute": minute, "busy": busy, "memory_free": free}
            session.add(WorkerSample(**row, **columns))
        assert past(session, 100, 5) == [("w", 20, 0.5, 3, 9), ("w", 21, 1.0, 4, 9)]


def test_the_last_hours(api: TestClient, database: Database) -> None:
    keep(database, "gone", [30, 31], busy=True, free=4)
    keep(database, "old", [90], busy=True, free=4)
    answer = api.get("/v1/workers/history", params={"hours": 1}).json()
    assert answer["stretch_s"] == 60
    (one,) = answer["items"]
    assert len(answer["at"]) == len(one["busy"]) == 60
    assert one["id"] == "gone"
    assert [value for value in one["busy"] if value is not None] == [1.0, 1.0]
    assert one["memory_free"].count(4) == 2
    for hours, stretch_s in ((6, 300), (7, 360), (24, 1200)):
        answer = api.get("/v1/workers/history", params={"hours": hours}).json()
        assert answer["stretch_s"] == stretch_s
        assert len(answer["at"]) * stretch_s == hours * 3600
        assert [one["id"] for one in answer["items"]] == ["gone", "old"]


@pytest.mark.parametrize("hours", ["0", "25", "a"])
def test_the_number_of_hours_is_bounded(api: TestClient, hours: str) -> None:
    assert api.get("/v1/workers/history", params={"hours": hours}).status_code == 422


def test_a_worker_with_heartbeats_leaves_samples(database: Database, settings: Settings) -> None:
    Presence(database, settings, "w", Queue.CPU)._beat()
    (sample,) = kept(database)
    assert (sample.worker_id, sample.busy) == ("w", False)
    assert sample.memory_free


def test_not_every_heartbeat_is_a_sample(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    taken: list[float] = []
    monkeypatch.setattr("worker.presence.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("service.queue.worker_samples.take", lambda *_: taken.append(clock[0]))
    beating = Presence(database, settings, "w", Queue.CPU)
    for clock[0] in (1000.0, 1001.0, 1029.9, 1030.0, 1059.9):
        beating._beat()
    assert taken == [1000.0, 1030.0]


def test_samples_are_deleted_after_a_day(database: Database, settings: Settings) -> None:
    keep(database, "w", [5, KEPT_MINUTES - 5, KEPT_MINUTES + 5], busy=False, free=1)
    Housekeeping(database, settings).clean()
    assert len(kept(database)) == 2
