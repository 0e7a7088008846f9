"""Celery as a notifier: messages contain (experiment_id, dispatch_no) and may be lost or
duplicated.

Early acknowledgement, no results, JSON only: no state depends on the broker."""

from celery import Celery
from celery.apps import worker as celery_worker
from redis import Redis, RedisError
from redis.backoff import NoBackoff
from redis.retry import Retry

from service.experiments.models import Queue
from service.logs import write_line
from service.settings import Settings

RUN = "run"
"""Name of the Celery task."""

TIMEOUT_S = 3.0
"""Timeout after which the broker counts as unavailable."""


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
        broker_transport="worker.transport:Transport",
        worker_consumer="worker.transport:Consumer",
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
    return app


def broker_answers(settings: Settings) -> bool:
    """Return whether the broker accepts a new connection within the timeout."""
    assert settings.broker_url is not None
    broker = Redis.from_url(
        settings.broker_url,
        socket_timeout=TIMEOUT_S,
        socket_connect_timeout=TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
    )
    try:
        with broker:
            return bool(broker.ping())
    except RedisError:
        return False


def ring(app: Celery, queue: Queue, experiment_id: str, dispatch_no: int) -> None:
    """Notify one worker of a queue. Raises kombu's errors if the broker is unavailable."""
    app.send_task(RUN, args=[experiment_id, dispatch_no], queue=queue.value, retry=False)
