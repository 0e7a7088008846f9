"""Celery only wakes workers, and keeps nothing."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from kombu.exceptions import OperationalError
from pydantic import SecretStr
from redis import Redis as Client

from service.experiments.models import Queue
from service.settings import Settings
from tests.support.forks import fork
from tests.support.processes import Lab, wait_until
from tests.support.servers import Redis
from worker import tickets
from worker.tickets import WORK, LookAgain, make_celery, say_in_log


@pytest.fixture
def app(settings: Settings, redis: Redis) -> Celery:
    on_redis = settings.model_copy(update={"redis_url": SecretStr(redis.new_url())})
    return make_celery(on_redis)


def test_without_a_broker_there_is_no_celery(settings: Settings) -> None:
    with pytest.raises(SystemExit, match="MPT_REDIS_URL is not set"):
        make_celery(settings)


def test_nothing_is_kept_of_a_ticket(app: Celery) -> None:
    assert (app.conf.accept_content, app.conf.task_serializer) == (["json"], "json")
    assert (app.conf.task_ignore_result, app.conf.task_acks_late) == (True, False)
    assert not app.conf.worker_enable_remote_control
    assert app.conf.broker_connection_max_retries is None, "a worker connects again without an end"


def test_celery_messages_in_a_signal_handler_are_logged(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MPT_LOG", "json")
    say_in_log("  warm shutdown\n")
    line = json.loads(capfd.readouterr().err)
    assert (line["event"], line["logger"]) == ("warm shutdown", "celery.apps.worker")


def test_a_queue_is_filled_to_a_number_of_tickets(app: Celery) -> None:
    """However often: workers that are asleep or dead leave their tickets there."""
    for number in (2, 2, 3, 1):
        tickets.fill(app, Queue.GPU, number)
    with app.connection_for_read() as connection, connection.SimpleQueue("gpu") as queue:
        assert queue.qsize() == 3
        message = queue.get(timeout=30)
        message.ack()
    assert message.headers["task"] == WORK
    assert message.headers["expires"]
    assert message.payload[:2] == [[], {}]


def test_a_broker_that_is_away_is_an_error_soon(app: Celery, redis: Redis) -> None:
    redis.freeze()
    began = time.monotonic()
    try:
        with pytest.raises((OperationalError, OSError)):
            tickets.fill(app, Queue.CPU, 1)
    finally:
        redis.thaw()
    assert time.monotonic() - began < 30


class Timer:
    """Counts the entries of Celery's timer that are not cancelled."""

    def __init__(self) -> None:
        self.active = 0

    def call_repeatedly(self, _: float, function: object) -> Any:
        self.active += 1
        return self

    call_after = call_repeatedly

    def cancel(self) -> None:
        self.active -= 1


def test_a_worker_that_connects_again_has_the_same_timers(app: Celery) -> None:
    def work() -> None:
        pass

    app.task(name=WORK)(work)
    timer = Timer()
    consumer: Any = type("Consumer", (), {"timer": timer, "app": app})()
    step = LookAgain(consumer)
    for _ in range(3):
        step.start(consumer)
        assert timer.active == 2
        step.stop(consumer)
    assert timer.active == 0


@pytest.fixture
def worker(lab: Settings) -> Iterator[Lab]:
    """An idle worker in a lab without a controller."""
    made = Lab(lab, lab.store / "lab.log", fork)
    made.start("worker0", "worker", "cpu", MPT_WARM_PARENT="false")
    yield made
    made.stop()


def test_a_foreign_message_does_not_end_a_worker(worker: Lab, lab: Settings) -> None:
    """Celery drops what it does not know, and a ticket that has expired."""
    app = make_celery(lab)
    for name in ("another", WORK):
        app.send_task(name, args=["x"], queue="cpu", expires=0.001, retry=False)
    assert lab.broker_url is not None
    broker = Client.from_url(lab.broker_url)
    wait_until(lambda: not broker.llen("cpu"), what="an empty queue")
    time.sleep(1)
    assert worker.processes["worker0"].is_running()
