"""Configuration of Celery: it only wakes nodes, and keeps nothing."""

import json

import pytest
from pydantic import SecretStr

from service.experiments.models import Queue
from service.settings import Settings
from tests.support.servers import Redis
from worker.celery_app import RUN, make_celery, ring, say_in_log


def test_without_a_broker_there_is_no_celery(settings: Settings) -> None:
    told = "MPT_REDIS_URL is not set: in lab mode Redis notifies the workers"
    with pytest.raises(SystemExit, match=told):
        make_celery(settings)


def test_nothing_is_kept_of_a_message(settings: Settings) -> None:
    url = "redis://127.0.0.1:1/0"
    celery = make_celery(settings.model_copy(update={"redis_url": SecretStr(url)}))
    assert celery.main == "mptlab"
    found = celery.conf
    assert found.broker_url == url
    assert found.broker_transport == "worker.transport:Transport"
    assert found.worker_consumer == "worker.transport:Consumer"
    assert (found.accept_content, found.task_serializer) == (["json"], "json")
    assert (found.task_ignore_result, found.task_acks_late) == (True, False)
    assert (found.worker_prefetch_multiplier, found.worker_concurrency) == (1, 1)
    assert found.worker_pool == "solo"
    assert not found.worker_hijack_root_logger
    assert not found.worker_enable_remote_control
    assert not found.worker_send_task_events
    assert found.broker_connection_retry_on_startup
    assert found.broker_connection_max_retries is None
    assert found.broker_transport_options == {
        "socket_timeout": 3.0,
        "socket_connect_timeout": 3.0,
        "retry_on_timeout": False,
        "max_retries": 1,
    }


def test_celery_messages_in_a_signal_handler_are_logged(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MPT_LOG", "json")
    say_in_log("  warm shutdown\n")
    line = json.loads(capfd.readouterr().err)
    assert (line["event"], line["logger"]) == ("warm shutdown", "celery.apps.worker")


def test_a_dispatch_is_one_message_in_its_queue(settings: Settings, redis: Redis) -> None:
    on_redis = settings.model_copy(update={"redis_url": SecretStr(redis.new_url())})
    celery = make_celery(on_redis)
    ring(celery, Queue.GPU, "0123", 7)
    with celery.connection_for_read() as connection, connection.SimpleQueue("gpu") as queue:
        message = queue.get(timeout=30)
        message.ack()
        assert message.headers["task"] == RUN == "run"
        assert message.payload[0] == ["0123", 7]
        with pytest.raises(queue.Empty):
            queue.get(block=False)
