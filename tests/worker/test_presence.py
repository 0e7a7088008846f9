"""A node that hears nothing: it is deaf, or its broker is away."""

import threading
from contextlib import closing
from pathlib import Path

import pytest
from pydantic import SecretStr

from service import workers
from service.database import Database
from service.experiments.dispatch import dispatch_next
from service.experiments.models import Queue
from service.settings import Settings
from tests.service.experiments.test_queue import submit
from tests.support.processes import wait_until
from tests.support.servers import Redis
from worker import celery_app
from worker.celery_app import broker_answers
from worker.presence import Presence

DEAF_S = 0.2


def test_a_node_whose_broker_is_away_is_not_deaf(settings: Settings, tmp_path: Path) -> None:
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
                wait_until(deaf.is_set, 10)
            finally:
                redis.stop()
        finally:
            stopping.set()
            beats.join()


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
