"""Help another worker's run: compute batches of scores that this worker has claimed.

No result depends on a helper. Its runner may be killed at any time, and is killed as soon as its
worker is needed; the run itself then computes what is missing."""

import logging
import signal
import time
from collections.abc import Callable
from typing import Any

from mptcore.protocol.exit_codes import COMPLETE, NOT_WORTHWHILE, STOPPED
from mptcore.specs.stored import stored_spec
from service.datasets.child_environment import hub_environment
from service.experiments.inputs import Inputs
from service.queue import division, helping
from service.queue.helping import (
    FAILED,
    FINISHED,
    LITTLE_USE,
    NO_MEMORY,
    UNLIKE,
    UNREADABLE,
    HelpClaim,
    HelpOver,
)
from service.settings import Settings
from service.tables.db_errors import TRANSIENT_DB_ERRORS
from service.tables.engine import Database
from worker.children import GONE
from worker.memory import Memory, kernel_kills
from worker.runner import Record, Runner

log = logging.getLogger(__name__)

READ_S = 0.1
CONTACT_S = 0.5
"""Maximum seconds between two transactions: a helper gives way at the next one. A thousand helpers
with twice as many would keep several processors of the database busy."""
IDLE_S = 60.0
"""Maximum seconds that a helper waits for work. Its time is charged to the run's owner."""
CATCH_UP_S = 60.0
"""Minimum seconds that a helper may work without sending scores."""
MAX_CATCH_UP = 0.5
"""Maximum part of the run's remaining time for which it may, if that is longer. It repeats draws
and fits of the run, which help nobody."""
NO_WORK = f"{LITTLE_USE}its run has not shared its work"
MAX_UNSENT = 256
"""Maximum number of batches that are kept while the database is unavailable."""


class HelpSupervision:
    """One help with its runner, from its beginning to its end."""

    def __init__(self, database: Database, settings: Settings, claim: HelpClaim, runner: Runner):
        self.database = database
        self.settings = settings
        self.claim = claim
        self.runner = runner
        self._count: int | None = None
        self._is_new = False
        """True if the claim of this count was not tried yet."""
        self._asked_at = 0.0
        self._has_helped = False
        """True if it has computed scores."""
        self._unsent: list[dict[str, Any]] = []
        self._known_plans = 0
        self._is_alike = False
        self._last_contact = 0.0
        self._useful_at = time.monotonic()
        """Time of the last scores, at first of its beginning. Waiting for work does not count."""
        self._catch_up_s = max(CATCH_UP_S, MAX_CATCH_UP * (claim.remaining_s or 0.0))
        self._memory = Memory(settings.run_memory_bytes)
        self._kernel_kills = kernel_kills()

    def run(self, is_stopping: Callable[[], bool]) -> str:
        """Help until the end, and return the reason of the end."""
        self.runner.start(self._order())
        try:
            while True:
                self._step()
                if is_stopping():
                    raise HelpOver("its worker stops")
                if self._memory.is_over(self.runner.child.pid):
                    raise HelpOver(f"{FAILED}out of memory: {self._memory}")
        except HelpOver as over:
            return str(over)
        finally:
            self.runner.kill()

    def _order(self) -> dict[str, Any]:
        """Return the runner's assignment. Of the checkpoints only the training state is used."""
        claim = self.claim
        folder = self.settings.checkpoints(claim.experiment_id)
        files = [str(folder / one.file) for one in claim.checkpoints]
        needs_hub = Inputs(self.settings).needs_hub(stored_spec(claim.spec))
        return {
            "spec": claim.spec,
            "resume": {"files": files, "after": 0} if files else None,
            "inputs": claim.inputs,
            "environment": hub_environment() if needs_hub else {},
            "helps": True,
        }

    def _step(self) -> None:
        """Read the runner's records, and exchange them with the database when it is time. Raises
        HelpOver at the end."""
        records = self.runner.read(READ_S)
        try:
            for line in records or ():
                self._take(line)
        except (KeyError, TypeError, ValueError) as error:
            raise HelpOver(f"{FAILED}a record is malformed: {error!r}") from error
        at = time.monotonic()
        if self._count is None and at > self._useful_at + self._catch_up_s:
            raise HelpOver(f"{LITTLE_USE}it repeats what the run did before for too long")
        if self._count is not None and at > self._asked_at + IDLE_S:
            raise HelpOver("there was no work for it" if self._has_helped else NO_WORK)
        is_urgent = self._is_new or len(self._unsent) >= MAX_UNSENT // 2
        if records is None or is_urgent or at >= self._last_contact + CONTACT_S:
            self._contact()
        if records is None:
            raise HelpOver(self._reason_of_exit(self.runner.kill()))

    def _take(self, line: Record) -> None:
        match line["record"]:
            case "environment":
                part = helping.difference(line, self.claim.environment)
                if part is not None:
                    raise HelpOver(f"{UNLIKE}{part}")
                self._is_alike = True
            case "claim":
                self._count, self._is_new = int(line["count"]), True
                self._asked_at = time.monotonic()
            case "scores" if self._is_alike and len(self._unsent) < MAX_UNSENT:
                scores = {key: line[key] for key in ("number", "shape", "data")}
                self._unsent.append(division.packed(scores))
                self._has_helped, self._useful_at = True, time.monotonic()
            case "failure":
                raise HelpOver(f"{FAILED}{line['message']}")

    def _contact(self) -> None:
        """Renew the lease, send scores, and answer the runner."""
        self._last_contact, self._is_new = time.monotonic(), False
        claim = self.claim
        run, first = (claim.experiment_id, claim.attempt), None
        try:
            with self.database.transaction() as session:
                helping.beat(session, claim, self.settings.lease_s)
                division.send_scores(session, *run, claim.id, self._unsent)
                plans = division.plans(session, *run)
                if plans is not None and self._count is not None:
                    first = division.claim_span(session, *run, self._count)
        except TRANSIENT_DB_ERRORS as error:
            log.warning("the database is unreachable, the help continues: %s", error)
            time.sleep(CONTACT_S)
            return
        self._unsent = []
        if first is not None:
            self.runner.order({"span": [first, self._count]})
            self._count = None
            self._useful_at += time.monotonic() - self._asked_at
        if plans is not None and len(plans) > self._known_plans:
            self.runner.order({"plans": plans[self._known_plans :]})
            self._known_plans = len(plans)

    def _reason_of_exit(self, status: int) -> str:
        if status == COMPLETE:
            return FINISHED
        if status == STOPPED:
            return UNREADABLE
        if status == NOT_WORTHWHILE:
            return f"{LITTLE_USE}it mostly draws masks"
        if status == -signal.SIGKILL and kernel_kills() > self._kernel_kills:
            return NO_MEMORY
        if status in (GONE, -signal.SIGKILL, -signal.SIGTERM):  # killed from outside
            return "its process was killed"
        return f"{FAILED}it ended with status {status}"
