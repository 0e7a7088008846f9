"""Putting back what no one will finish."""

import logging
import threading
import time

from sqlalchemy.exc import OperationalError

from service.database import Database
from service.experiments import queue
from service.settings import Settings

log = logging.getLogger(__name__)


class Reaper:
    """Reaps only once the database has been up for a whole lease: until then, healthy workers
    may not have been able to renew theirs."""

    def __init__(self, database: Database, settings: Settings):
        self.database = database
        self.settings = settings
        self._up_since: float | None = None

    def run(self, stopping: threading.Event) -> None:
        while not stopping.wait(self.settings.heartbeat_s):
            self.tick()

    def tick(self) -> None:
        try:
            self._tick()
        except OperationalError as error:
            log.warning("the database is away: %s", error)
            self._up_since = None

    def _tick(self) -> None:
        with self.database.transaction() as session:
            if self._up_since is None:
                self._up_since = time.monotonic()
            if time.monotonic() - self._up_since < self.settings.lease_s:
                return
            reaped = queue.reap(session, self.settings.dispatch_timeout_s, self.settings.max_lost)
        for experiment_id, status in reaped:
            log.warning("reaped %s: now %s", experiment_id, status)
