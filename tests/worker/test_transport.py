"""Garbage and delayed messages are dropped; errors of the connection go to Celery. test_node.py has
a real broker."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from celery.worker.consumer import Consumer as CeleryConsumer
from kombu.transport import redis
from pydantic import SecretStr
from redis import ConnectionError as RedisConnectionError
from redis import Redis as Client
from redis import ResponseError

from service.settings import Settings
from tests.support.servers import Redis
from worker.celery_app import make_celery
from worker.transport import BROKER_ERRORS, MAX_MESSAGES, Channel, Consumer, QoS, Transport


class Message:
    """A message as Celery gives it."""

    def __init__(self, headers: Any = None, payload: Any = None, acknowledged: bool = False):
        self.headers, self._payload, self.acknowledged = headers, payload, acknowledged
        self.rejected: list[Any] = []

    @property
    def payload(self) -> Any:
        if isinstance(self._payload, Exception):
            raise self._payload
        return self._payload

    def reject_log_error(self, logger: logging.Logger, errors: Any) -> None:
        assert isinstance(logger, logging.Logger)
        self.rejected.append(errors)


ERRORS = (ZeroDivisionError,)


def received(
    monkeypatch: pytest.MonkeyPatch, message: Message, error: Exception | None = None
) -> list[Message]:
    """The messages that reach Celery's own handler."""
    found: list[Message] = []

    def receive(one: Message) -> None:
        found.append(one)
        if error is not None:
            raise error

    def create(self: object, *arguments: object, **options: object) -> Any:
        assert (arguments, options) == ((1,), {"two": 2})
        return receive

    monkeypatch.setattr(CeleryConsumer, "create_task_handler", create)
    consumer = Consumer.__new__(Consumer)
    monkeypatch.setattr(Consumer, "connection_errors", ERRORS, raising=False)
    consumer.create_task_handler(1, two=2)(message)
    return found


@pytest.mark.parametrize(
    ("headers", "payload"), [(None, {}), ({"eta": None}, {}), ({}, {"eta": None}), (7, 7)]
)
def test_a_message_for_now_is_received(
    monkeypatch: pytest.MonkeyPatch, headers: Any, payload: Any
) -> None:
    message = Message(headers, payload)
    assert received(monkeypatch, message) == [message]
    assert message.rejected == []


@pytest.mark.parametrize(("headers", "payload"), [({"eta": "later"}, {}), ({}, {"eta": "later"})])
def test_a_message_for_later_is_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, headers: Any, payload: Any
) -> None:
    message = Message(headers, payload)
    assert received(monkeypatch, message) == []
    assert message.rejected == [ERRORS]
    assert "it has an ETA" in caplog.text


@pytest.mark.parametrize("error", [KeyError("task"), RecursionError(), AssertionError()])
def test_a_message_that_is_not_a_dispatch_is_dropped(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    message = Message({}, {})
    assert received(monkeypatch, message, error) == [message]
    assert message.rejected == [ERRORS]
    cannot_be_read = Message({}, error)
    assert received(monkeypatch, cannot_be_read) == []
    assert cannot_be_read.rejected == [ERRORS]


def test_a_message_that_was_acknowledged_is_not_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    message = Message({}, {}, acknowledged=True)
    received(monkeypatch, message, KeyError("task"))
    assert message.rejected == []


@pytest.mark.parametrize(
    "error", [RedisConnectionError(), OSError(), *(e() for e in BROKER_ERRORS)]
)
def test_errors_of_the_connection_are_for_celery(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    message = Message({}, {})
    with pytest.raises(type(error)):
        received(monkeypatch, message, error)
    assert message.rejected == []
    monkeypatch.setattr(redis.Channel, "_brpop_read", raising(error))
    with pytest.raises(type(error)):
        Channel.__new__(Channel)._brpop_read()


def raising(error: Exception) -> Any:
    def read(self: object, **options: object) -> None:
        raise error

    return read


def test_invalid_messages_count_as_read(monkeypatch: pytest.MonkeyPatch) -> None:
    channel = Channel.__new__(Channel)
    monkeypatch.setattr(redis.Channel, "_brpop_read", raising(ValueError("no JSON")))
    assert channel._brpop_read() is True
    monkeypatch.setattr(redis.Channel, "_brpop_read", lambda self, **options: options)
    assert channel._brpop_read(timeout=3) == {"timeout": 3}


def test_no_message_is_delivered_again() -> None:
    """The reaper puts back the dispatches of workers that are gone."""
    assert (Transport.Channel, Channel.QoS) == (Channel, QoS)
    held = QoS.__new__(QoS)  # they ask Redis for nothing
    held.restore_visible(1, num=2)
    held.restore_unacked()


DELIVERY = {"exchange": "", "routing_key": "cpu"}


def test_a_message_in_use_rests_on_no_key_in_redis(channel: Channel) -> None:
    """A key of another type ended the node that acknowledged its message."""
    channel.client.set("unacked", "x")
    channel.client.set("unacked_index", "x")
    body = {"body": "{}", "properties": {"delivery_tag": "tag", "delivery_info": DELIVERY}}
    channel.qos.prefetch_count = 1
    for end in ("ack", "reject"):
        message = channel.message_to_python(body)  # type: ignore[no-untyped-call]
        channel.qos.append(message, "tag")
        assert not channel.qos.can_consume()
        getattr(message, end)()
        message.ack()  # as Celery does with a message that was dropped
        assert channel.qos.can_consume()


KEYS = {
    **dict.fromkeys((b"cpu", b"cpu\x06\x163", b"cpu\x06\x166", b"cpu\x06\x169"), "list"),
    b"_kombu.binding.cpu": "set",
    b"_kombu.binding_permanent.cpu": "set",
}
"""The keys of a queue in Redis, each with its type."""


@pytest.fixture
def channel(settings: Settings, redis: Redis) -> Iterator[Channel]:
    url = SecretStr(redis.new_url())
    celery = make_celery(settings.model_copy(update={"redis_url": url}))
    with celery.connection_for_read() as connection:
        channel = connection.default_channel
        assert isinstance(channel, Channel)
        yield channel


def fill(broker: Client, kind: str) -> None:
    """Give each key of the queue a value of a type."""
    for key in KEYS:
        broker.delete(key)
        match kind:
            case "list":
                broker.lpush(key, "x")
            case "set":
                broker.sadd(key, "x")
            case "hash":
                broker.hset(key, "x", "y")
            case "zset":
                broker.zadd(key, {"x": 1})


@pytest.mark.parametrize("kind", ["list", "set", "hash", "zset"])
def test_only_keys_of_a_wrong_type_are_deleted(
    channel: Channel, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    fill(channel.client, kind)
    channel._delete_wrong_keys("cpu")
    wrong = {key: right for key, right in KEYS.items() if right != kind}
    assert {*channel.client.keys()} == KEYS.keys() - wrong.keys()
    deleted = {line.message for line in caplog.records if "deleted" in line.message}
    assert all(f"its type was not {right}" in "".join(deleted) for right in wrong.values())
    assert len(deleted) == len(wrong)


def test_a_queue_of_a_wrong_type_is_deleted_when_read(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Channel, "active_queues", {"cpu"})
    fill(channel.client, "hash")
    monkeypatch.setattr(redis.Channel, "_brpop_read", raising(ResponseError("WRONGTYPE it is")))
    assert channel._brpop_read() is True
    assert channel.client.keys() == []
    monkeypatch.setattr(redis.Channel, "_brpop_read", raising(ResponseError("LOADING")))
    with pytest.raises(ResponseError, match="LOADING"):
        channel._brpop_read()


def test_a_new_message_waits_behind_few_others(channel: Channel) -> None:
    """Behind 200,000 forged ones no run began for forty minutes."""
    channel.client.lpush("cpu", *["x"] * (MAX_MESSAGES + 5))
    channel._put("cpu", {"properties": {}})
    assert channel.client.llen("cpu") == MAX_MESSAGES
    assert b"properties" in channel.client.lindex("cpu", 0)
