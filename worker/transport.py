"""The parts of Celery that read messages, made robust against garbage in Redis.

A message is only a doorbell: a dispatch whose message is lost is put back by the reaper. So what
cannot be read is dropped with a log line, and nothing is kept for later.
"""

import logging
from queue import Empty
from typing import Any

from celery.worker.consumer import Consumer as CeleryConsumer
from kombu.transport import redis
from redis import RedisError

log = logging.getLogger(__name__)

BROKER_ERRORS = (Empty, RedisError, OSError)
"""Errors of the connection, which Celery handles."""


class QoS(redis.QoS):
    """Messages in use, none of which is ever delivered again."""

    def restore_visible(self, *arguments: Any, **options: Any) -> None:
        """Leave messages of workers that are gone: the reaper puts their dispatches back."""


class Channel(redis.Channel):
    """A Redis channel that drops what is not a message."""

    QoS = QoS

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[no-untyped-call]
        except BROKER_ERRORS:
            raise
        except Exception as error:
            log.error("dropped something in Redis that is not a message: %r", error)
            return True


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
