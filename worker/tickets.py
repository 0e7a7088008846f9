"""Celery, whose messages are tickets: a ticket wakes an idle worker, which then looks for a run.

A ticket names no experiment and proves nothing. It may be lost, doubled, late or forged: each
worker that is connected also looks by itself every few seconds. Early acknowledgement, no results,
JSON only: no state depends on the broker."""

from typing import Any

from celery import Celery, bootsteps
from celery.apps import worker as celery_worker
from celery.worker.consumer.tasks import Tasks

from service.experiments.models import Queue
from service.logs import write_line
from service.settings import Settings

WORK = "work"
"""Name of the Celery task."""
TIMEOUT_S = 3.0
"""Timeout after which the broker counts as unavailable."""
EXPIRES_S = 30.0
"""Age from which a ticket is dropped."""
LOOK_AGAIN_S = 5.0
"""Interval in which an idle worker looks for a run without a ticket."""


class LookAgain(bootsteps.StartStopStep):  # type: ignore[misc]
    """Looks for a run once connected, and then again and again, in the thread that runs tasks. So a
    consumer that receives no messages after a reconnection costs time, and no run."""

    requires = (Tasks,)

    def start(self, consumer: Any) -> None:
        work = consumer.app.tasks[WORK]
        self._looks = (
            consumer.timer.call_after(0, work),
            consumer.timer.call_repeatedly(LOOK_AGAIN_S, work),
        )

    def stop(self, consumer: Any) -> None:
        for look in self._looks:
            look.cancel()


def say_in_log(message: str, file: object = None) -> None:
    """Write messages of Celery's signal handlers as log lines."""
    write_line("celery.apps.worker", message.strip())


def make_celery(settings: Settings) -> Celery:
    """Return the Celery application on the broker of the settings."""
    if settings.broker_url is None:
        raise SystemExit("MPT_REDIS_URL is not set: in lab mode Redis notifies the workers")
    celery_worker.safe_say = say_in_log  # it would write plain text
    app = Celery("mptlab", broker=settings.broker_url)
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        task_ignore_result=True,
        task_acks_late=False,
        worker_prefetch_multiplier=1,
        worker_concurrency=1,
        worker_pool="solo",
        worker_hijack_root_logger=False,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "socket_timeout": TIMEOUT_S,
            "socket_connect_timeout": TIMEOUT_S,
            "retry_on_timeout": False,
            "max_retries": 1,
        },
    )
    app.steps["consumer"].add(LookAgain)
    return app


def fill(app: Celery, queue: Queue, number: int) -> None:
    """Send tickets until the queue holds this number. Raises kombu's errors if the broker is
    unavailable."""
    with app.connection_or_acquire() as connection:
        waiting = connection.default_channel.queue_declare(queue.value).message_count
    for _ in range(number - waiting):
        app.send_task(WORK, queue=queue.value, expires=EXPIRES_S, retry=False)
