"""One run under supervision: its records into the database, orders and limits down to it."""

import logging
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from mptcore.protocol.exit_codes import STOPPED
from service.database import AWAY, Database
from service.experiments import queue
from service.experiments.models import DesiredState, Status
from service.experiments.queue import Claim, FailureCause, LeaseLost
from service.experiments.recording import Batch, record
from service.settings import Settings
from worker.memory import Memory, kernel_kills
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
        self._batches = deque([Batch()])  # the first is next to be committed, the last takes in
        self._last_contact = self._last_record = time.monotonic()
        self._memory = Memory(runner.process.pid, settings.run_memory_bytes)
        self._kernel_kills = kernel_kills()
        self._stop_by: float | None = None

    def run(self, is_stopping: Callable[[], bool]) -> str:
        """Supervise to the end, and say how it ended."""
        deadline = time.monotonic() + self.claim.spec["compute"]["max_runtime_s"]
        self.runner.start(self._order())
        outcome = None
        try:
            while outcome is None:
                if self._step():
                    outcome = self._early_end(is_stopping(), deadline)
                else:
                    outcome = self._outcome_of_exit()
            self._settle(outcome)
        except LeaseLost as error:
            log.warning("%s: its runner is killed", error)
            return "lease lost"
        finally:
            self.runner.kill()
        return outcome.name

    def _order(self) -> dict[str, Any]:
        """What the runner is told: the spec, where its files go, where it goes on from."""
        claim, folder = self.claim, self.settings.checkpoints(self.claim.experiment_id)
        resume = None
        if claim.resume is not None:
            file = str(folder / claim.resume.file)
            resume = {"file": file, "sha256": claim.resume.sha256, "after": claim.resume.after_seq}
        return {
            "spec": claim.spec,
            "checkpoint_dir": str(folder / str(claim.attempt)),
            "work_dir": str(self.settings.artifacts(claim.experiment_id)),
            "resume": resume,
            "save_every_s": self.settings.checkpoint_every_s,
        }

    def _step(self) -> bool:
        """Take in what the runner wrote, commit it when it is time; false after its last record."""
        more = True
        if sum(batch.size for batch in self._batches) < SPOOL_RECORDS:
            records = self.runner.read(FLUSH_S / 4)
            more = records is not None
            for line in records or ():
                self._take(line)
        else:
            time.sleep(FLUSH_S)
        since = time.monotonic() - self._last_contact
        if since >= (FLUSH_S if self._batches[0].size else self.settings.heartbeat_s):
            self._flush()
        return more

    def _take(self, line: dict[str, Any]) -> None:
        self._last_record = time.monotonic()
        if line["record"] == "failure":
            self.failure = FailureCause(line["cause"], line["message"])
            return
        self._batches[-1].add(line)
        if line["record"] == "checkpoint":
            self._batches.append(Batch())

    def _flush(self) -> bool:
        """Commit the first batch, behind the fence, even if it is empty: a heartbeat. False while
        the database is away; the same batch is then sent again, for it may have arrived."""
        self._last_contact = time.monotonic()
        batch = self._batches[0]
        if batch is self._batches[-1]:
            self._batches.append(Batch())
        try:
            with self.database.transaction() as session:
                self.desired = record(session, self.claim, batch, self.settings.lease_s)
        except AWAY as error:
            log.warning("the database is away, the run goes on: %s", error)
            return False
        self._batches.popleft()
        if batch.size:
            self.runner.acknowledge(batch.last_seq)
        return True

    def _early_end(self, stopping: bool, deadline: float) -> Outcome | None:
        """Why the run is to be ended from here, if it is."""
        if self.desired == DesiredState.CANCEL:
            self.runner.end(self.settings.kill_grace_s)
            return self._finish(Status.CANCELLED)
        if (failure := self._over_limit(deadline)) is not None:
            self.runner.kill()  # no grace, in which the lease would run out
            return self._finish(Status.FAILED, failure)
        if stopping or self.desired == DesiredState.PAUSE:
            return self._stop_with_checkpoint()
        return None

    def _over_limit(self, deadline: float) -> FailureCause | None:
        if time.monotonic() > deadline:
            limit_s = self.claim.spec["compute"]["max_runtime_s"]
            message = f"over its time limit of {limit_s} s: raise compute.max_runtime_s"
            return FailureCause("timeout", message)
        if time.monotonic() > self._last_record + self.settings.stall_s:
            message = f"it reported nothing for {self.settings.stall_s:.0f} s"
            return FailureCause("timeout", message)
        if self._memory.is_over():
            return self._out_of_memory()
        return None

    def _out_of_memory(self) -> FailureCause:
        advice = "lower data.n, per_size or latent_dim"
        return FailureCause("oom", f"out of memory: {self._memory}; {advice}")

    def _stop_with_checkpoint(self) -> Outcome | None:
        """Ask the runner to stop, and end it where it does not."""
        if self._stop_by is None:
            self._stop_by = time.monotonic() + self.settings.kill_grace_s
            self.runner.request_stop()
        if time.monotonic() < self._stop_by:
            return None
        log.warning("the runner left no checkpoint in time")
        self.runner.kill()
        return self._give_up_slot()

    def _give_up_slot(self) -> Outcome:
        return Outcome("unfinished", lambda session: queue.give_up_slot(session, self.claim))

    def _outcome_of_exit(self) -> Outcome:
        status = self.runner.process.wait()
        if status == 0:
            return self._finish(Status.SUCCEEDED)
        if status == STOPPED:
            return self._give_up_slot()
        if self.failure is not None:
            return self._finish(Status.FAILED, self._with_peak(self.failure))
        if status == -signal.SIGKILL and kernel_kills() > self._kernel_kills:
            return self._finish(Status.FAILED, self._out_of_memory())
        if -status in (signal.SIGKILL, signal.SIGTERM):  # not of its own doing
            log.warning("the runner was killed by signal %d", -status)
            lost = self.settings.max_lost
            return Outcome("lost", lambda session: queue.lose(session, self.claim, lost))
        kind = "invalid" if status == 2 else "error"
        message = self.runner.stderr[-4000:] or f"the runner ended with status {status}"
        return self._finish(Status.FAILED, FailureCause(kind, message))

    def _with_peak(self, failure: FailureCause) -> FailureCause:
        if failure.kind != "oom":
            return failure
        return FailureCause("oom", f"{failure.message}; {self._memory}")

    def _finish(self, status: Status, failure: FailureCause | None = None) -> Outcome:
        return Outcome(status, lambda session: queue.finish(session, self.claim, status, failure))

    def _settle(self, outcome: Outcome) -> None:
        """Commit the last records, then the outcome, however long the database is away."""
        while any(batch.size for batch in self._batches):
            if not self._flush():
                time.sleep(self.settings.heartbeat_s)
        while True:
            try:
                with self.database.transaction() as session:
                    outcome.commit(session)
                return
            except AWAY as error:
                log.warning("the database is away, the outcome waits: %s", error)
                time.sleep(self.settings.heartbeat_s)
