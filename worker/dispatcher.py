"""The dispatcher: chooses the next run, commits the choice, then notifies a worker. Any number of
dispatchers may run."""

import logging
import math
import threading
import time
from collections.abc import Iterator

from celery import Celery
from kombu.exceptions import OperationalError as BrokerError
from sqlalchemy.orm import Session

from service.db.engine import Database
from service.db.errors import TRANSIENT_DB_ERRORS
from service.experiments.models import Queue
from service.logs import logged_process
from service.operations.start import begin
from service.queue import dispatch, workers
from service.queue.dispatch import Dispatch
from service.settings import Settings
from worker.celery_app import make_celery, ring
from worker.lifetime import Lifetime

log = logging.getLogger(__name__)

EAGER_S = 1.0
EAGERNESS = 5
"""Factor by which it polls faster for EAGER_S after a choice, because short runs end soon."""
LOOK_S = 0.5
"""Interval between looks for unclaimed dispatches."""
UNCLAIMED_S = 2.0
"""Seconds after which a worker is notified again of an unclaimed dispatch."""
RING_AGAIN_S = 5.0
"""Seconds between further messages about the same dispatch."""


class Dispatcher:
    """Dispatches as many experiments as there are idle workers, so that the choice is made as late
    as possible."""

    def __init__(self, database: Database, settings: Settings, celery: Celery):
        self.database = database
        self.settings = settings
        self.celery = celery
        self._rung_again: dict[Dispatch, float] = {}
        """Unclaimed dispatches, with the time of the last message beyond the first."""

    def run(self, stopping: threading.Event) -> None:
        pause_s, eager_until = self.settings.poll_s, 0.0
        looked_at = -math.inf
        while not stopping.wait(pause_s):
            for chosen in self.dispatch():
                eager_until = time.monotonic() + EAGER_S
                if not self._ring(chosen):
                    break
            if time.monotonic() >= looked_at + LOOK_S:
                looked_at = time.monotonic()
                self._ring_again()
            is_eager = time.monotonic() < eager_until
            pause_s = self.settings.poll_s / (EAGERNESS if is_eager else 1)

    def dispatch(self) -> list[Dispatch]:
        """Mark the next experiments as dispatched, in one transaction."""
        try:
            with self.database.snapshot() as session:  # most of the time nobody is idle
                if not self._idle(session):
                    return []
            with self.database.transaction() as session:
                workers.lock_dispatching(session)
                return list(self._fill(session))
        except TRANSIENT_DB_ERRORS as error:
            log.warning("the database is unreachable: %s", error)
            return []

    def _fill(self, session: Session) -> Iterator[Dispatch]:
        """Yield dispatches, GPU workers first, because they also run experiments for any device."""
        idle = self._idle(session)
        rules = self.settings.share, self.settings.worker_silent_s
        for name in (Queue.GPU, Queue.CPU):
            for _ in range(idle.get(name, 0)):
                chosen = dispatch.dispatch_next(session, name, *rules)
                if chosen is None:
                    break
                yield chosen

    def _idle(self, session: Session) -> dict[Queue, int]:
        """Return the number of idle workers of each queue that has workers."""
        slots = workers.slots(session, self.settings.worker_silent_s)
        return {name: one.idle for name, one in slots.items() if one.idle}

    def _ring_again(self) -> None:
        """Notify workers again of dispatches that none has claimed: the message may be with a
        worker that hangs. At most one claim of a dispatch succeeds."""
        try:
            with self.database.snapshot() as session:
                late = dispatch.unclaimed(session, UNCLAIMED_S)
        except TRANSIENT_DB_ERRORS as error:
            log.warning("the database is unreachable: %s", error)
            return
        at = time.monotonic()
        self._rung_again = {one: self._rung_again.get(one, -math.inf) for one in late}
        for one, before in self._rung_again.items():
            if at >= before + RING_AGAIN_S:
                if not self._ring(one):
                    break  # each failure may take seconds
                self._rung_again[one] = at

    def _ring(self, chosen: Dispatch) -> bool:
        """Notify a worker, and return False if the broker is unreachable."""
        try:
            ring(self.celery, chosen.queue, chosen.experiment_id, chosen.dispatch_no)
            rung = {"experiment_id": chosen.experiment_id, "dispatch_no": chosen.dispatch_no}
            log.info("dispatched to %s", chosen.queue, extra=rung)
        except (BrokerError, OSError) as error:
            log.warning("the broker is unreachable, the reaper will requeue the run: %s", error)
            return False
        return True


@logged_process
def main() -> None:
    settings = begin()
    lifetime = Lifetime()
    lifetime.stop_on_signals()
    Dispatcher(Database(settings.url), settings, make_celery(settings)).run(lifetime.stopping)


if __name__ == "__main__":
    main()
