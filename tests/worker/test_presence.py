"""Heartbeats of a worker, until its run has ended."""

import os
import threading

import pytest
from sqlalchemy import text

from service.db import engine
from service.db.engine import Database
from service.experiments.models import Queue
from service.queue import workers
from service.queue.workers import Vitals
from service.settings import Settings
from worker.presence import Presence


def test_a_worker_that_stops_is_present_until_its_run_has_ended(
    settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then, the memory of the run is not free, and a kill of it happens beside others."""
    stopping, ended = threading.Event(), threading.Event()
    monkeypatch.setattr("service.settings.HEARTBEAT_S", 0.02)
    run_pid = lambda: None if ended.is_set() else os.getpid()  # noqa: E731
    presence = Presence(database, settings, "w", Queue.CPU, run_pid)
    stopping.set()
    beats = threading.Thread(target=presence.run, args=[stopping])
    beats.start()
    try:
        beats.join(0.5)
        with database.snapshot() as session:
            [(worker, _, _)] = workers.alive(session, 60.0)
        assert worker.memory_ours
    finally:
        ended.set()
        beats.join()
    with database.snapshot() as session:
        assert not workers.alive(session, 60.0)


def test_a_heartbeat_waits_for_a_slow_gpu_without_holding_up_writes(
    settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's own heartbeat is one of them."""
    presence = Presence(database, settings, "w", Queue.CPU)
    looking, answer = threading.Event(), threading.Event()
    real = presence.vitals

    def vitals() -> Vitals:
        looking.set()
        answer.wait(60)
        return real()

    monkeypatch.setattr(presence, "vitals", vitals)
    monkeypatch.setattr(engine, "BUSY_S", 0.1)
    beat = threading.Thread(target=presence._beat)
    beat.start()
    try:
        assert looking.wait(60)
        with database.transaction() as session:
            session.execute(text("UPDATE alembic_version SET version_num = version_num"))
    finally:
        answer.set()
        beat.join()


def test_a_heartbeat_reports_when_the_worker_last_looked(
    settings: Settings, database: Database
) -> None:
    """A worker whose main thread hangs does not count as idle, although heartbeats come."""
    presence = Presence(database, settings, "w", Queue.CPU)
    assert presence.vitals().looked_ago_s is None
    presence.look()
    looked_ago_s = presence.vitals().looked_ago_s
    assert looked_ago_s is not None
    assert 0 <= looked_ago_s < 60
