"""Requeue runs and dispatches that nobody will finish."""

import logging
import threading

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.engine import Database, now
from service.db.errors import TRANSIENT_DB_ERRORS
from service.logs import logged_process
from service.operations.start import begin
from service.queue import clock, lease, ledger, quota, workers
from service.records import statistics
from service.settings import Settings
from worker.lifetime import Lifetime
from worker.messenger import Messenger
from worker.sweeper import Sweeper

log = logging.getLogger(__name__)


FORGET_S = 3600.0
REAP_EVERY = 2
"""Number of heartbeats from one look for what is lost to the next."""


class Reaper:
    """Reaps only after the database has been up for a whole lease. Before that, healthy workers may
    have been unable to renew their leases."""

    def __init__(self, database: Database, settings: Settings):
        self.database = database
        self.settings = settings
        self._up_since = 0.0
        self._last_tick: float | None = None  # both by the database's clock

    def run(self, stopping: threading.Event) -> None:
        while not stopping.wait(REAP_EVERY * self.settings.heartbeat_s):
            self.tick()

    def tick(self) -> None:
        try:
            self._tidy_up()
        except TRANSIENT_DB_ERRORS as error:
            log.warning("the database is unreachable: %s", error)
            self._last_tick = None

    def _tidy_up(self) -> None:
        with self.database.transaction() as session:
            clock.repair(session, self.settings.lease_s)
            workers.forget_silent(session, FORGET_S)  # fails if the database takes no writes
            has_been_up = self._has_been_up(session)
        if has_been_up:
            self._reap()

    def _reap(self) -> None:
        with self.database.transaction() as session:
            limits = self.settings.dispatch_timeout_s, self.settings.max_lost
            reaped = lease.reap(session, *limits, as_of=self._last_tick)
        for experiment_id, status in reaped:
            log.warning("reaped: now %s", status, extra={"experiment_id": experiment_id})
        with self.database.transaction() as session:
            ledger.fold(session, self.settings.share)
            statistics.fold(session)
            quota.fold(session)

    def _has_been_up(self, session: Session) -> bool:
        """Return whether nothing has prevented heartbeats for a whole lease. A gap between two
        ticks means that the database hung, the machine slept or the clock was changed; it counts as
        an outage."""
        at: float = session.execute(select(now())).scalar_one()
        gap_s = max(self.settings.lease_s / 2, 2 * REAP_EVERY * self.settings.heartbeat_s)
        if self._last_tick is None or not 0 <= at - self._last_tick <= gap_s:
            self._up_since = at
        self._last_tick = at
        return at - self._up_since >= self.settings.lease_s


@logged_process
def main() -> None:
    settings = begin()
    lifetime = Lifetime()
    lifetime.stop_on_signals()
    database = Database(settings.url, connections=3)  # one for each thread
    lifetime.start(Sweeper(database, settings).run, lifetime.stopping)
    lifetime.start(Messenger(database, settings).run, lifetime.stopping)
    Reaper(database, settings).run(lifetime.stopping)
    lifetime.end()


if __name__ == "__main__":
    main()
