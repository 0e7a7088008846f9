"""A node that receives nothing: it is deaf, or its broker is unreachable."""

import os
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from service.db.engine import Database
from service.experiments.models import Queue
from service.queue import workers
from service.queue.dispatch import dispatch_next
from service.settings import Settings
from tests.service.queue.test_queue import submit
from tests.support.processes import wait_until
from tests.support.servers import Redis
from worker import celery_app
from worker.celery_app import broker_answers
from worker.presence import Presence

DEAF_S = 0.2


def test_a_node_without_a_broker_is_not_deaf(settings: Settings, tmp_path: Path) -> None:
    """A dispatch waits for this idle node all the while."""
    redis = Redis(tmp_path / "redis")
    redis.folder.mkdir()
    url = SecretStr(redis.new_url())
    quick = settings.model_copy(update={"redis_url": url, "heartbeat_s": 0.02, "deaf_s": DEAF_S})
    stopping, deaf = threading.Event(), threading.Event()
    with closing(Database(settings.url)) as database:
        submit(database)
        with database.transaction() as session:
            assert dispatch_next(session) is not None
        beats = threading.Thread(
            target=Presence(database, quick, "w", Queue.CPU).run,
            args=[stopping, lambda: True, lambda: broker_answers(quick), deaf.set],
        )
        beats.start()
        try:
            assert not deaf.wait(4 * DEAF_S)
            with database.snapshot() as session:
                assert workers.oldest_dispatch_age(session, Queue.CPU) > 3 * DEAF_S
            redis.start()
            try:
                wait_until(deaf.is_set)
            finally:
                redis.stop()
        finally:
            stopping.set()
            beats.join()


def test_a_worker_that_stops_is_present_until_its_run_has_ended(
    settings: Settings, database: Database
) -> None:
    """Until then, the memory of the run is not free, and a kill of it happens beside others."""
    stopping, ended = threading.Event(), threading.Event()
    quick = settings.model_copy(update={"heartbeat_s": 0.02})
    run_pid = lambda: None if ended.is_set() else os.getpid()  # noqa: E731
    presence = Presence(database, quick, "w", Queue.CPU, run_pid)
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


def test_a_broker_that_is_frozen_does_not_answer(
    redis: Redis, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(celery_app, "TIMEOUT_S", 0.1)
    on_redis = settings.model_copy(update={"redis_url": SecretStr(redis.new_url())})
    assert broker_answers(on_redis)
    redis.freeze()
    try:
        assert not broker_answers(on_redis)
    finally:
        redis.thaw()


class ScriptedBeats(Presence):
    """A presence for which a dispatch has waited so long at each beat."""

    waited: list[float]

    def _beat(self) -> float:
        return self.waited.pop(0)

    def _leave(self) -> None:
        pass


class Stopping:
    """An event that is set after a number of heartbeats."""

    def __init__(self, beats: int):
        self.left = beats

    def wait(self, timeout: float) -> bool:
        self.left -= 1
        return self.left == 0


LONG = 100.0


@pytest.mark.parametrize(
    ("waited", "idle", "answers", "deaf"),
    [
        ([LONG] * 4, [1, 1, 1, 1], [1, 1, 1, 1], [3, 4]),
        ([LONG] * 5, [1, 1, 0, 1, 1], [1] * 4, []),  # a busy heartbeat restarts the count
        ([LONG] * 6, [1, 1, 0, 1, 1, 1], [1] * 5, [6]),
        ([LONG] * 5, [1, 1, 1, 1, 1], [1, 1, 0, 1, 1], []),  # so does an unreachable broker
        ([0, 0, LONG], [1, 1, 1], [1], [3]),
        ([LONG, LONG, 2.0], [1, 1, 1], [1, 1, 1], []),  # it has waited no longer than allowed
    ],
)
def test_only_an_idle_node_can_be_deaf(
    database: Database,
    settings: Settings,
    waited: list[float],
    idle: list[int],
    answers: list[int],
    deaf: list[int],
) -> None:
    """The heartbeat is one second, and a node counts as deaf after two seconds."""
    times = {"heartbeat_s": 1.0, "deaf_s": 2.0}
    presence = ScriptedBeats(database, settings.model_copy(update=times), "w", Queue.CPU)
    presence.waited, beats, found = [*waited], iter(idle), []
    replies = iter(answers)
    count = len(waited)
    stopping: Any = Stopping(count)
    presence.run(
        stopping,
        lambda: bool(next(beats)),
        lambda: bool(next(replies)),
        lambda: found.append(count - len(presence.waited)),
    )
    assert found == deaf
