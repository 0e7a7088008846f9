"""One run under supervision: its records into the database, orders and limits down to it."""

import logging
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from service.database import Database
from service.experiments import queue
from service.experiments.models import DesiredState, Status
from service.experiments.queue import Claim, FailureCause, LeaseLost
from service.experiments.recording import Batch, record
from service.settings import Settings
from worker.runner import Runner

log = logging.getLogger(__name__)

FLUSH_S = 0.2
"""Records are committed this often."""
SPOOL_RECORDS = 500_000
"""While the database is away, this many wait in memory; then the runner waits."""


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended, and the transaction that says so."""

    name: str
    commit: Callable[[Session], object]


class Supervision:
    """One claimed experiment in one runner, from its first record to its outcome."""

    def __init__(self, database: Database, settings: Settings, claim: Claim, runner: Runner):
        self.database = database
        self.settings = settings
        self.claim = claim
        self.runner = runner
        self.failure: FailureCause | None = None
        self.desired = DesiredState.RUN
        self._in_flight = Batch()  # being committed: never changed, so that it may be sent again
        self._gathered = Batch()
        self._last_contact = time.monotonic()

    def run(self, is_stopping: Callable[[], bool]) -> str:
        """Supervise to the end, and say how it ended."""
        limit_s = self.claim.spec["compute"]["max_runtime_s"]
        deadline = time.monotonic() + limit_s
        self.runner.start(self.claim.spec)
        try:
            while (outcome := self._early_end(is_stopping, deadline, limit_s)) is None:
                if not self._step():
                    outcome = self._outcome_of_exit()
                    break
            self._settle(outcome)
        except LeaseLost as error:
            log.warning("%s: its runner is killed", error)
            return "lease lost"
        finally:
            self.runner.kill()
        return outcome.name

    def _step(self) -> bool:
        """Take in what the runner wrote, commit it when it is time; false after its last record."""
        more = True
        if self._gathered.size < SPOOL_RECORDS:
            records = self.runner.read(FLUSH_S / 4)
            more = records is not None
            for line in records or ():
                self._take(line)
        else:
            time.sleep(FLUSH_S)
        since = time.monotonic() - self._last_contact
        if since >= (FLUSH_S if self._gathered.size else self.settings.heartbeat_s):
            self._flush()
        return more

    def _take(self, line: dict[str, object]) -> None:
        if line["record"] == "failure":
            self.failure = FailureCause(str(line["cause"]), str(line["message"]))
        else:
            self._gathered.add(line)

    def _flush(self) -> bool:
        """Commit what was gathered, behind the fence; false while the database is away."""
        self._last_contact = time.monotonic()
        if not self._in_flight.size:
            self._in_flight, self._gathered = self._gathered, Batch()
        batch = self._in_flight
        try:
            with self.database.transaction() as session:
                self.desired = record(session, self.claim, batch, self.settings.lease_s)
        except OperationalError as error:
            log.warning("the database is away, the run goes on: %s", error)
            return False
        if batch.size:
            self.runner.acknowledge(batch.last_seq)
        self._in_flight = Batch()
        return True

    def _early_end(
        self, is_stopping: Callable[[], bool], deadline: float, limit_s: int
    ) -> Outcome | None:
        """Why the run is to be ended from here, if it is."""
        if self.desired == DesiredState.CANCEL:
            self.runner.end(self.settings.kill_grace_s)
            return self._finish(Status.CANCELLED)
        if time.monotonic() > deadline:
            self.runner.end(self.settings.kill_grace_s)
            message = f"over its time limit of {limit_s} s: raise compute.max_runtime_s"
            return self._finish(Status.FAILED, FailureCause("timeout", message))
        if is_stopping():
            self.runner.end(self.settings.kill_grace_s)
            return Outcome("handed back", lambda session: queue.hand_back(session, self.claim))
        return None

    def _outcome_of_exit(self) -> Outcome:
        status = self.runner.process.wait()
        if status == 0:
            return self._finish(Status.SUCCEEDED)
        if self.failure is not None:
            return self._finish(Status.FAILED, self.failure)
        if -status in (signal.SIGKILL, signal.SIGTERM):  # not of its own doing
            log.warning("the runner was killed by signal %d", -status)
            lost = self.settings.max_lost
            return Outcome("lost", lambda session: queue.lose(session, self.claim, lost))
        kind = "invalid" if status == 2 else "error"
        message = self.runner.stderr[-4000:] or f"the runner ended with status {status}"
        return self._finish(Status.FAILED, FailureCause(kind, message))

    def _finish(self, status: Status, failure: FailureCause | None = None) -> Outcome:
        return Outcome(status, lambda session: queue.finish(session, self.claim, status, failure))

    def _settle(self, outcome: Outcome) -> None:
        """Commit the last records, then the outcome, however long the database is away."""
        while self._in_flight.size or self._gathered.size:
            if not self._flush():
                time.sleep(self.settings.heartbeat_s)
        while True:
            try:
                with self.database.transaction() as session:
                    outcome.commit(session)
                return
            except OperationalError as error:
                log.warning("the database is away, the outcome waits: %s", error)
                time.sleep(self.settings.heartbeat_s)
