"""The dispatcher: chooses what runs next, marks it, commits, then rings. Any number may run."""

import logging
import threading

from celery import Celery
from kombu.exceptions import OperationalError as BrokerError

from service import workers
from service.database import AWAY, Database
from service.experiments import queue
from service.experiments.models import Queue
from service.experiments.queue import Dispatch
from service.settings import Settings
from service.start import begin
from worker.celery_app import make_celery, ring
from worker.lifetime import Lifetime

log = logging.getLogger(__name__)

BEATS = 3
"""A worker is alive while it has missed fewer heartbeats than this."""


class Dispatcher:
    """Dispatches as many experiments as there are idle workers, so that who is next is decided
    as late as can be."""

    def __init__(self, database: Database, settings: Settings, celery: Celery):
        self.database = database
        self.settings = settings
        self.celery = celery

    def run(self, stopping: threading.Event) -> None:
        while not stopping.wait(self.settings.poll_s):
            for dispatch in self.dispatch():
                self._ring(dispatch)

    def dispatch(self) -> list[Dispatch]:
        """Mark what runs next, in one transaction."""
        within_s = BEATS * self.settings.heartbeat_s + self.settings.kill_grace_s
        try:
            with self.database.transaction() as session:
                free = workers.free_slots(session, within_s)
                dispatched = []
                while queues := [name for name, count in free.items() if count > 0]:
                    chosen = queue.dispatch_next(session, queues, gpu=Queue.GPU in free)
                    if chosen is None:
                        break
                    free[chosen.queue] -= 1
                    dispatched.append(chosen)
                return dispatched
        except AWAY as error:
            log.warning("the database is away: %s", error)
            return []

    def _ring(self, dispatch: Dispatch) -> None:
        try:
            ring(self.celery, dispatch.queue, dispatch.experiment_id, dispatch.dispatch_no)
            rung = {"experiment_id": dispatch.experiment_id, "dispatch_no": dispatch.dispatch_no}
            log.info("dispatched to %s", dispatch.queue, extra=rung)
        except (BrokerError, OSError) as error:
            log.warning("the broker is away, the reaper will put it back: %s", error)


def main() -> None:
    settings = begin()
    lifetime = Lifetime()
    lifetime.stop_on_signals()
    Dispatcher(Database(settings.url), settings, make_celery(settings)).run(lifetime.stopping)


if __name__ == "__main__":
    main()
