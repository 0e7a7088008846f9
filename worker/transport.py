"""Parts of Celery that read messages, made robust against invalid data in Redis.

A message is only a notification: if it is lost, the reaper requeues its dispatch. So unreadable
messages are dropped with a log line, and nothing is kept for later. A key that does not have the
type that Celery needs is deleted."""

import logging
from functools import partial
from queue import Empty
from typing import Any

from celery.worker.consumer import Consumer as CeleryConsumer
from kombu.transport import redis, virtual
from redis import RedisError, ResponseError

log = logging.getLogger(__name__)

BROKER_ERRORS = (Empty, RedisError, OSError)
"""Errors of the connection, which Celery handles."""


MAX_MESSAGES = 1000
"""Maximum number of messages in a queue, more than a lab has idle workers. A node reads about a
hundred messages a second."""


class Message(virtual.Message):
    """A message that may be acknowledged twice. Celery also acknowledges some messages that were
    dropped."""

    def ack(self, multiple: bool = False) -> None:
        if not self.acknowledged:
            super().ack(multiple)  # type: ignore[no-untyped-call]


class QoS(redis.QoS):
    """Messages in use. They are not kept in Redis and never delivered again: the reaper requeues
    the dispatches of lost workers."""

    def append(self, message: Any, delivery_tag: Any) -> None:
        virtual.QoS.append(self, message, delivery_tag)  # type: ignore[no-untyped-call]

    def ack(self, delivery_tag: Any) -> None:
        virtual.QoS.ack(self, delivery_tag)  # type: ignore[no-untyped-call]

    def reject(self, delivery_tag: Any, requeue: bool = False) -> None:
        self.ack(delivery_tag)

    def restore_unacked(self, client: Any = None) -> None:
        """Restore nothing at the end of a node."""

    def restore_visible(self, *arguments: Any, **options: Any) -> None:
        """Restore nothing of lost workers."""


class Channel(redis.Channel):
    """A Redis channel that drops invalid messages."""

    QoS = QoS
    Message = Message

    def _new_queue(self, queue: str, *arguments: Any, **options: Any) -> None:
        self._delete_wrong_keys(queue)
        super()._new_queue(queue, *arguments, **options)  # type: ignore[no-untyped-call]

    def _put(self, queue: str, message: Any, **options: Any) -> None:
        """Add a message, and drop the oldest ones of a queue that is too long: the new one would
        wait behind them for longer than a dispatch lasts."""
        super()._put(queue, message, **options)  # type: ignore[no-untyped-call]
        key = self._q_for_pri(queue, 0)  # type: ignore[no-untyped-call]
        with self.conn_or_acquire() as client:
            client.ltrim(key, 0, MAX_MESSAGES - 1)

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[no-untyped-call]
        except ResponseError as error:
            if "WRONGTYPE" not in str(error):
                raise
            for queue in self.active_queues:
                self._delete_wrong_keys(queue)
            return True
        except BROKER_ERRORS:
            raise
        except Exception as error:
            log.error("dropped something in Redis that is not a message: %r", error)
            return True

    def _delete_wrong_keys(self, queue: str) -> None:
        """Delete each key of a queue whose type is not the one that this transport uses."""
        types = dict.fromkeys(map(partial(self._q_for_pri, queue), self.priority_steps), b"list")
        types[self.keyprefix_queue % queue] = b"set"
        types[self.keyprefix_binding_permanent % queue] = b"set"
        with self.conn_or_acquire() as client:
            for key, expected in types.items():
                found = client.type(key)
                if found not in (expected, b"none"):
                    client.delete(key)
                    log.error("deleted %r in Redis: its type was not %s", key, expected.decode())


class Transport(redis.Transport):
    """Kombu's Redis transport with that channel."""

    Channel = Channel


class Consumer(CeleryConsumer):  # type: ignore[misc]
    """A consumer that drops each message that is not a dispatch to run now."""

    def create_task_handler(self, *arguments: Any, **options: Any) -> Any:
        """Return the function that receives each message."""
        receive = super().create_task_handler(*arguments, **options)

        def receive_safely(message: Any) -> None:
            try:
                _refuse_delay(message)
                receive(message)
            except BROKER_ERRORS:
                raise
            except Exception as error:
                log.error("dropped a message that is not a dispatch: %r", error)
                if not message.acknowledged:
                    message.reject_log_error(log, self.connection_errors)

        return receive_safely


def _refuse_delay(message: Any) -> None:
    """Raise ValueError for a message with an ETA. Celery would hold it, and a node that holds
    many messages receives no other."""
    payload = message.payload
    for part in (message.headers, payload):
        if isinstance(part, dict) and part.get("eta") is not None:
            raise ValueError("it has an ETA")
