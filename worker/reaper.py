"""Putting back what no one will finish."""

import logging
import signal
import threading
import time

from service import workers
from service.database import AWAY, Database
from service.experiments import queue
from service.logs import configure_logs
from service.settings import Settings

log = logging.getLogger(__name__)


FORGET_S = 3600.0


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
        except AWAY as error:
            log.warning("the database is away: %s", error)
            self._up_since = None

    def _tick(self) -> None:
        with self.database.transaction() as session:
            if self._up_since is None:
                self._up_since = time.monotonic()
            if time.monotonic() - self._up_since < self.settings.lease_s:
                return
            workers.forget_silent(session, FORGET_S)
            reaped = queue.reap(session, self.settings.dispatch_timeout_s, self.settings.max_lost)
        for experiment_id, status in reaped:
            log.warning("reaped: now %s", status, extra={"experiment_id": experiment_id})


def main() -> None:
    configure_logs()
    settings = Settings()
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    Reaper(Database(settings.url), settings).run(stopping)


if __name__ == "__main__":
    main()
