"""The controller: it looks at the state of the queue and moves it one step.

It requeues runs that nobody will finish, releases held experiments, charges users, and wakes idle
workers. All its state is in the database, so that a restart loses nothing. A row with an expiry
makes one of several controllers lead; the others wait."""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from celery import Celery
from kombu.exceptions import OperationalError as BrokerError
from redis import RedisError
from sqlalchemy import update
from sqlalchemy.orm import Session

from service.db.engine import Database, limit_hanging, now
from service.db.errors import TRANSIENT_DB_ERRORS
from service.db.notices import Notices
from service.experiments.models import Queue
from service.logs import logged_process
from service.operations.start import begin
from service.queue import claims, clock, giving_way, holds, lease, ledger, sizes
from service.queue.models import LEAD_S
from service.queue.models import Controller as ControllerRow
from service.queue.rooms import places
from service.settings import Settings
from worker import tickets
from worker.housekeeping import Housekeeping
from worker.lifetime import Lifetime
from worker.messenger import Messenger
from worker.presence import worker_name

log = logging.getLogger(__name__)

LOOK_S = 0.1
"""Minimum rest after a look for work. While tickets are under way, the next look follows it."""
REST = 10
"""Length of the rest after a look for work, as a multiple of the look's. A look at a large lab
takes time, and several things happen in each tenth of a second. If the broker does not answer, the
look waits for it, and must not delay each tick. The rest is at most FOLD_S."""
FOLD_S = 5.0
MAX_TICKETS = 50
"""Maximum number of workers of a queue that are woken together."""


class NotLeading(Exception):
    """Another controller leads."""


class Controller:
    """Expires leases only after the database has been up for a whole lease. Before that, healthy
    workers may have been unable to renew their leases."""

    def __init__(self, database: Database, settings: Settings, app: Celery | None):
        """Without `app` no tickets are sent: local workers look often enough."""
        self.database = database
        self.settings = settings
        self.app = app
        self.name = worker_name()
        self._leads = False
        self._notices = Notices(database)
        self._is_something_new = True  # since the last look for work
        self._sweeps_may_have_room = True
        self._tickets_under_way = False
        self._rest_until = -math.inf
        self._tick_due = self._fold_due = time.monotonic()
        self._step_began = self._up_since = 0.0
        self._last_tick: float | None = None  # all three by the database's clock

    def run(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            self.look()
            self.wait(stopping)
        self._notices.close()

    def look(self) -> None:
        """Take the steps that are due."""
        if time.monotonic() >= self._tick_due:
            self._tick_due = time.monotonic() + self.settings.heartbeat_s
            self.tick()
        if self._leads and time.monotonic() >= self._rest_until:
            self._take(self._look_for_work)

    def wait(self, stopping: threading.Event) -> None:
        """Wait until something may be due."""
        stopping.wait(min(self._rest_until, self._tick_due) - time.monotonic())
        looks_at_once = self._leads and self._tickets_under_way
        wait_s = 0.0 if looks_at_once else max(0.0, self._tick_due - time.monotonic())
        if self._notices.wait(wait_s):
            self._is_something_new = self._sweeps_may_have_room = True

    def tick(self) -> None:
        """Take the steps of each second, if this controller leads or can. If one fails, the others
        are taken nevertheless."""
        if not self._take(self._expire):
            self._last_tick = None
        if self._leads:
            if self._sweeps_may_have_room:
                self._take(self._fill_sweeps)
            if time.monotonic() >= self._fold_due:
                self._take(self._fold)
                self._take(self._measure)
                self._take(self._ask_to_give_way)
                # Memory was freed or a drain is over: no notice tells it. Or a row was locked.
                self._is_something_new = self._sweeps_may_have_room = True

    def _take(self, step: Callable[[], object]) -> bool:
        """Take a step. Return False if the database did not let it."""
        try:
            step()
        except NotLeading:
            self._leads = False
        except TRANSIENT_DB_ERRORS as error:
            log.warning("the database is unreachable: %s", error)
            return False
        return True

    def _look_for_work(self) -> None:
        """Release what waits, and wake workers, if something is new or tickets are under way."""
        began = time.monotonic()
        if self._is_something_new or self._tickets_under_way:
            self._is_something_new = False
            try:
                self._release_waits()
                self._send_tickets()
            finally:
                ended = time.monotonic()
                rest_s = min(FOLD_S, REST * (ended - began))
                self._rest_until = ended + max(LOOK_S, rest_s)

    def _expire(self) -> None:
        with self._step() as session:
            if self._has_been_up(self._step_began):
                expired = lease.expire(session, self.settings.max_lost, self._last_tick)
            else:
                expired = []
                clock.repair(session, self.settings.lease_s)
        for experiment_id, status in expired:
            details = {"experiment_id": experiment_id}
            log.warning("its lease has expired: now %s", status, extra=details)

    def _fill_sweeps(self) -> None:
        self._sweeps_may_have_room = False
        with self.database.snapshot() as session:  # most of the time none has room
            if not holds.sweeps_with_room(session):
                return
        with self._step() as session:
            holds.fill_sweeps(session)

    def _release_waits(self) -> None:
        with self.database.snapshot() as session:  # most of the time nothing is over
            if not holds.awaits_what_has_ended(session):
                return
        with self._step() as session:
            holds.release_waits(session)
        self._sweeps_may_have_room = True

    def _fold(self) -> None:
        with self._step() as session:
            clock.repair(session, self.settings.lease_s)
            number = ledger.fold(session, self.settings.share)
        rest_s = 0.0 if number >= ledger.FOLDED_AT_ONCE else FOLD_S  # more are waiting
        self._fold_due = time.monotonic() + rest_s

    def _measure(self) -> None:
        with self._step() as session:
            if sizes.measure(session):
                self._fold_due = time.monotonic()  # more are waiting

    def _ask_to_give_way(self) -> None:
        """Ask runs that have had their slice to give way to others, or ask them no more."""
        with self.database.snapshot() as session:
            all_places = places(session, self.settings.worker_silent_s)
            chosen = giving_way.choose_all(session, self.settings.share, all_places)
            if chosen == giving_way.asked(session):
                return
        with self._step() as session:
            giving_way.ask(session, chosen)

    @contextmanager
    def _step(self) -> Iterator[Session]:
        """Begin a transaction of the leader. Raises NotLeading while another controller leads. An
        end in the far future comes from a clock that was set back since."""
        with self.database.transaction() as session:
            limit_hanging(session)
            is_over = (ControllerRow.until < now()) | (ControllerRow.until > now() + LEAD_S)
            row = update(ControllerRow).where((ControllerRow.holder == self.name) | is_over)
            lead = row.values(holder=self.name, until=now() + LEAD_S).returning(ControllerRow.until)
            until = session.scalar(lead)
            if until is None:
                raise NotLeading
            self._leads, self._step_began = True, until - LEAD_S
            yield session

    def _send_tickets(self) -> None:
        """Wake idle workers for which there is a run."""
        if self.app is None:
            return
        self._tickets_under_way = False
        with self.database.snapshot() as session:
            wanted = {queue: self._wanted(session, queue) for queue in (Queue.GPU, Queue.CPU)}
        try:
            for queue, number in wanted.items():
                if number:
                    tickets.fill(self.app, queue, number)
                    self._tickets_under_way = True
        except (BrokerError, RedisError, OSError) as error:
            log.warning("the broker is unreachable, idle workers start nothing: %s", error)

    def _wanted(self, session: Session, queue: Queue) -> int:
        """Return how many workers should look for a run: 0 if none of the idle ones finds one."""
        all_places = places(session, self.settings.worker_silent_s)
        families = {
            family for place in all_places if place.queue == queue for family in place.families
        }
        startable = claims.count_startable(session, queue, families, MAX_TICKETS)
        if startable == 0:
            return 0
        idle = [place for place in all_places if place.queue == queue and place.is_idle]
        of_memories = {tuple(place.memory_ids): place.worker_id for place in idle}
        share = self.settings.share
        finds = (
            claims.choose(session, worker, queue, share, all_places)
            for worker in of_memories.values()
        )
        return min(len(idle), startable) if any(finds) else 0

    def _has_been_up(self, at: float) -> bool:
        """Return whether nothing has prevented heartbeats for a whole lease before this tick. A gap
        between two ticks means that the database hung, the machine slept or the clock was changed;
        it counts as an outage."""
        gap_s = max(self.settings.lease_s / 2, 4 * self.settings.heartbeat_s)
        if self._last_tick is None or not 0 <= at - self._last_tick <= gap_s:
            self._up_since = at
        self._last_tick = at
        return at - self._up_since >= self.settings.lease_s


def start_controller(
    lifetime: Lifetime, settings: Settings, app: Celery | None
) -> list[threading.Thread]:
    """Start a controller, its housekeeping and its messenger, each in a thread."""
    database = Database(settings.url, connections=3)  # one for each
    parts = (
        Controller(database, settings, app),
        Housekeeping(database, settings),
        Messenger(database, settings),
    )
    return [lifetime.start(part.run, lifetime.stopping) for part in parts]


@logged_process
def main() -> None:
    settings = begin()
    app = tickets.make_celery(settings)
    lifetime = Lifetime()
    lifetime.stop_on_signals()
    for thread in start_controller(lifetime, settings, app):
        thread.join()
    lifetime.end()


if __name__ == "__main__":
    main()
