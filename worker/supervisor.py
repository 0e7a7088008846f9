"""Supervise one run: store its records, and enforce its owner's orders and limits."""

import logging
import math
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy.exc import DataError
from sqlalchemy.orm import Session

from mptcore.protocol.exit_codes import COMPLETE, INVALID, STOPPED
from mptcore.specs.stored import stored_spec
from service.datasets.child_environment import hub_environment
from service.db.engine import Database
from service.db.errors import TRANSIENT_DB_ERRORS
from service.experiments.inputs import Inputs
from service.experiments.models import Queue
from service.experiments.references import input_files
from service.queue import lease, rooms
from service.queue.lease import Claim, FailureCause, LeaseLost, Requested, heartbeat
from service.queue.states import is_terminal
from service.records.compaction import ALL, MANY_AT_END, compact
from service.records.recording import Batch, record
from service.settings import Settings
from service.vocabulary import DesiredState, Status
from worker.children import GONE
from worker.eta import EtaEstimate
from worker.fitness import DEVICE, DEVICE_FAILED, NO_GPU, UNFIT
from worker.memory import Memory, kernel_kills
from worker.runner import Record, Runner

log = logging.getLogger(__name__)

FLUSH_S = 0.2
"""Interval between commits of records."""
PROGRESS_S = 0.5
"""Interval between commits of progress alone."""
READ_S = FLUSH_S / 2
UNHEARD_S = 5.0
"""Seconds to wait for a killed process to exit."""
RECORD_BYTES = 1000
"""Bytes of output that a run may write for each of its records. A point takes 160."""
OTHER_RECORDS = 100_000
"""Maximum number of numbered records that a run may write beside its points: metrics, logs and
artifacts."""
FIRST_SPACE_CHECK_S, SPACE_CHECK_S = 5.0, 60.0
"""Seconds of a run's silence until it is checked whether the disk of its records is full, and until
it is checked again."""
DISK_FULL = "disk_full"
"""Cause in a runner's failure record, and reason for which an attempt is handed back."""
MAX_HANDED_BACK_FOR_SPACE = 3
"""Number of attempts that are handed back because of a full disk. The next one fails."""
LESS_MEMORY = "lower data.n, per_size or latent_dim"
MAX_HANDED_BACK_FOR_MEMORY = 1
"""Number of times that a run is handed back after an out-of-memory kill beside other runs."""
UNSTORABLE = (DataError, ArithmeticError, LookupError, TypeError, ValueError)
"""Errors that a malformed record raises. Retrying does not help."""


@dataclass(frozen=True)
class Outcome:
    """The end of an attempt, and the transaction that stores it."""

    name: str
    commit: Callable[[Session], object]


class Supervision:
    """One claimed experiment in one runner, from its first record to its outcome.

    Nothing here waits for long: whatever the runner does, the lease is renewed until its process
    has ended and its outcome is committed.
    """

    def __init__(self, database: Database, settings: Settings, claim: Claim, runner: Runner):
        self.database = database
        self.settings = settings
        self.claim = claim
        self.runner = runner
        self.failure: FailureCause | None = None
        self.requested = Requested(DesiredState.RUN, gives_way=False)
        self._gives_way = False
        """True while the runner is asked to stop at its next chance."""
        self._batch = Batch()
        self._stored_batches = 0
        self._merges_up_to = 0
        """Records up to this one may be in small blocks that are not merged yet."""
        self._last_contact = -math.inf  # with the database
        self._is_away = False
        """True while the database is unavailable. The batch may be committed and is kept as it is.
        """
        self._deadline = time.monotonic() + claim.spec["compute"]["max_runtime_s"]
        self._silent_s = 0.0
        self._space_check_s = FIRST_SPACE_CHECK_S
        """Silence at which it is checked whether the spool's disk is full."""
        self._full_disk: FailureCause | None = None
        """Set while the run waits for space on a full disk."""
        self._full_since = 0.0
        self._memory = Memory(settings.run_memory_bytes)
        self._kernel_kills = kernel_kills()
        self._decided: Outcome | None = None  # then the exit status does not count
        self._refused = False
        self._received = claim.after_seq
        """Numbered records of the whole run that have arrived."""
        self._announced: int | None = None
        """Numbered records of the whole run, by the runner's end record."""
        self._device_peak: int | None = None
        self._pace = EtaEstimate()
        self._kill_at: float | None = None
        self._checkpoint_dir = settings.checkpoints(claim.experiment_id) / str(claim.attempt)
        self._work_dir = settings.artifacts(claim.experiment_id, claim.attempt)

    def run(self, is_stopping: Callable[[], bool]) -> str:
        """Supervise until the end, and return how the attempt ended."""
        try:
            self.runner.start(self._order(is_stopping))
            while self._step():
                if self.runner.alive:  # else it is about to be stored how it has ended
                    self._end_early(is_stopping())
            outcome = self._settle()
        except LeaseLost as error:
            log.warning("%s: its runner is killed", error)
            return "lease lost"
        finally:
            self.runner.kill()
        return outcome.name

    def _order(self, is_stopping: Callable[[], bool]) -> dict[str, Any]:
        """Return the runner's assignment: the spec, its folders, and the checkpoint to resume
        from."""
        claim, settings = self.claim, self.settings
        folder = settings.checkpoints(claim.experiment_id)
        resume = None
        if claim.checkpoints:
            files = [str(folder / one.file) for one in claim.checkpoints]
            resume = {"files": files, "after": claim.after_seq}
        return {
            "spec": claim.spec,
            "checkpoint_dir": str(self._checkpoint_dir),
            "work_dir": str(self._work_dir),
            "resume": resume,
            "inputs": self._inputs(is_stopping),
            "save_every_s": settings.checkpoint_every_s,
            "environment": hub_environment() if self._needs_hub() else {},
        }

    def _inputs(self, is_stopping: Callable[[], bool]) -> dict[str, dict[str, str]]:
        """Return the files of the spec's uploads and weights, however long the database is
        unavailable. Raises LeaseLost if the worker stops before: nothing can be handed back."""
        while True:
            try:
                with self.database.snapshot() as session:
                    return input_files(session, self.settings, self.claim.spec)
            except TRANSIENT_DB_ERRORS as error:
                log.warning("the database is unreachable, the run waits to begin: %s", error)
                if is_stopping():
                    raise LeaseLost("the worker stops before the run has begun") from error
                time.sleep(self.settings.heartbeat_s)

    def _needs_hub(self) -> bool:
        try:
            return Inputs(self.settings).needs_hub(stored_spec(self.claim.spec))
        except ValueError:  # the runner will report the problems of the spec
            return False

    def _step(self) -> bool:
        """Read the runner's records into the batch, and commit it when it is time. Return False
        after the last record, when the process has ended."""
        has_ended = not self.runner.alive  # before the reading, because it may write until then
        has_time = self._is_away or not (has_ended or self.runner.has_unread)
        began = time.monotonic()
        self.runner.wait(READ_S if has_time else 0)
        if not self._is_away:
            self._silent_s += min(time.monotonic() - began, READ_S)
            self._fill_batch()
        if time.monotonic() >= self._last_contact + self._flush_after_s:
            self._flush()
        if self._merges_up_to and not self._is_away and not self._compact(self._merges_up_to):
            self._merges_up_to = 0
        return not has_ended or (self.runner.has_unread and not self._refused)

    def _fill_batch(self) -> None:
        while not self._batch.is_complete and (line := self.runner.next_record()) is not None:
            self._silent_s, self._space_check_s = 0.0, FIRST_SPACE_CHECK_S
            self._take(line)

    @property
    def _flush_after_s(self) -> float:
        if self._is_away or not self._batch.size:
            return self.settings.heartbeat_s
        if self._batch.is_complete:
            return 0.0
        return PROGRESS_S if self._batch.is_progress_alone else FLUSH_S

    @property
    def device_bytes(self) -> int:
        """Peak GPU memory that the run has reported."""
        return self._device_peak or 0

    def _take(self, line: Record) -> None:
        """Keep a record until it is committed; one that is malformed ends the run."""
        if self._refused:
            return
        if self._full_disk is not None:
            log.info("the file that found no space is written: the run continues")
            self._full_disk = None
            self._deadline += time.monotonic() - self._full_since  # the wait is not run time
        try:
            match line["record"]:
                case "disk_full":
                    self._full_disk = _no_space(line["file"], line["bytes"])
                    self._full_since = time.monotonic()
                    log.warning("%s: the run waits", self._full_disk.message)
                case "failure":
                    self.failure = FailureCause(line["cause"], line["message"])
                case "memory":
                    self._device_peak = line["device_bytes"]
                case "end":
                    self._announced = line["count"]
                case "restart":
                    self._pace, self._received = EtaEstimate(), 0
                case "progress":
                    now = time.monotonic()
                    self._batch.eta_s = self._pace.eta_s(line["done"], line["total"], now)
                case "artifact" | "checkpoint" as kind:
                    line = {**line, "bytes": self._size_of(kind, line["file"])}
            if self._batch.add(line):
                self._received += line["seq"] is not None
        except UNSTORABLE as error:
            self._refuse_records(error)
        if self._received > self.settings.limits.points + OTHER_RECORDS:
            self._stop_writing()

    def _size_of(self, kind: str, file: str) -> int | None:
        """Return the size of a file that the run left; None if it cannot be read."""
        folder = self._checkpoint_dir if kind == "checkpoint" else self._work_dir
        try:
            return (folder / file).stat().st_size
        except OSError:
            return None

    def _flush(self) -> None:
        """Commit the batch behind the fence. An empty one is a heartbeat. While the database is
        unavailable the same batch is sent again and again, because it may have been committed."""
        self._last_contact = time.monotonic()
        batch = self._batch
        try:
            with self.database.transaction() as session:
                self.requested = record(session, self.claim, batch, self.settings.lease_s)
        except TRANSIENT_DB_ERRORS as error:
            log.warning("the database is unreachable, the run continues: %s", error)
            self._is_away = True
            return
        except UNSTORABLE as error:
            self._refuse_records(error)
            return
        self._is_away = False
        self._batch = Batch()
        self._stored_batches += batch.size > 0
        if batch.checkpoint is not None:
            self._merges_up_to = batch.checkpoint["after"]
            self._forget_old_checkpoints(batch.checkpoint["file"])

    def _compact(self, up_to: int) -> bool:
        """Merge small blocks of points: in the course of the run behind the fence, then all. What
        cannot be merged now stays as it is. Return whether there may be more."""
        try:
            with self.database.transaction() as session:
                if up_to != ALL:
                    heartbeat(session, self.claim, self.settings.lease_s)
                return compact(session, self.claim.experiment_id, up_to)
        except (*TRANSIENT_DB_ERRORS, *UNSTORABLE) as error:
            log.warning("small blocks are not merged: %s", error)
            return False

    def _refuse_records(self, error: Exception) -> None:
        """End a run that gave a record which cannot be stored. The record and all that follow it
        are dropped."""
        log.error("a record cannot be stored: %s", error)
        message = f"a record of the run cannot be stored: {getattr(error, 'orig', error)!r}"
        self._drop_records(message)

    def _stop_writing(self) -> None:
        """End a run that writes more records than its spec can ask for."""
        most = self.settings.limits.points
        self._drop_records(f"the run writes more than {most} points (MPT_LIMITS__POINTS)")

    def _drop_records(self, message: str) -> None:
        """Fail the run, and drop its records that are not committed."""
        self._refused = True
        self._batch = Batch()
        self._decide(Status.FAILED, FailureCause("error", message[:1000]))
        self._kill_after(0)

    def _forget_old_checkpoints(self, latest: str) -> None:
        """Delete checkpoint files that the database does not list, and report to the runner that
        its latest checkpoint is stored. The runner saves no other one before that."""
        with suppress(*TRANSIENT_DB_ERRORS, OSError), self.database.snapshot() as session:
            known = {one.file for one in lease.checkpoints(session, self.claim.experiment_id)}
            folder = self.settings.checkpoints(self.claim.experiment_id)
            for path in folder.glob("*/*"):
                is_later = path.parent.name == str(self.claim.attempt) and path.name > latest
                if str(path.relative_to(folder)) not in known and not is_later:
                    path.unlink(missing_ok=True)
        self.runner.acknowledge_checkpoint(latest)

    def _end_early(self, stopping: bool) -> None:
        """End the run if its owner, its worker or a limit requires it: at once, or after the kill
        grace."""
        self._notice_full_disk()
        if self._decided is not None:
            pass  # it is ending already
        elif self.requested.desired == DesiredState.CANCEL:
            self._decide(Status.CANCELLED)
            self.runner.signal(signal.SIGTERM)
            self._kill_after(self.settings.kill_grace_s)
        elif self._full_disk is not None and self._silent_s > self.settings.stall_s:
            self._decided = self._hand_back(self._full_disk)
            self._kill_after(0)
        elif (failure := self._over_limit()) is not None:
            self._decide(Status.FAILED, failure)
            self._kill_after(0)
        elif stopping or self.requested.desired == DesiredState.PAUSE:
            if self._kill_at is None:
                self.runner.request_stop()
                self._kill_after(self.settings.kill_grace_s)
        elif self._kill_at is None and self.requested.gives_way != self._gives_way:
            self._gives_way = self.requested.gives_way
            if self._gives_way:  # without a deadline: nothing that is computed may be lost
                self.runner.request_stop()
            else:
                self.runner.withdraw_stop()
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self.runner.signal(signal.SIGKILL)
            if time.monotonic() >= self._kill_at + UNHEARD_S:
                self.runner.child.close()  # kills a warm parent that does not report the exit

    def _kill_after(self, grace_s: float) -> None:
        self._kill_at = time.monotonic() + grace_s

    @property
    def _is_past_grace(self) -> bool:
        return self._kill_at is not None and time.monotonic() >= self._kill_at

    def _notice_full_disk(self) -> None:
        """Notice that a silent run finds no space for its records, which it cannot report. The wait
        is then no run time."""
        is_late = time.monotonic() > self._deadline or self._silent_s > self.settings.stall_s
        is_due = self._silent_s >= self._space_check_s or (is_late and self._silent_s)
        if self._full_disk is not None or not is_due:
            return
        self._space_check_s += SPACE_CHECK_S
        try:
            self.runner.spool.check_space()
        except OSError as error:
            message = f"its records cannot be written to the store: {error}"
            self._full_disk = FailureCause(DISK_FULL, message)
            self._full_since = time.monotonic() - self._silent_s
            log.warning("%s: the run waits", message)

    def _over_limit(self) -> FailureCause | None:
        if self._full_disk is None and time.monotonic() > self._deadline:
            limit_s = self.claim.spec["compute"]["max_runtime_s"]
            message = f"over its time limit of {limit_s} s: raise compute.max_runtime_s"
            return FailureCause("timeout", message)
        if self._silent_s > self.settings.stall_s:
            message = f"it reported nothing for {self.settings.stall_s:.0f} s"
            return FailureCause("timeout", message)
        most_bytes = RECORD_BYTES * (self.settings.limits.points + OTHER_RECORDS)
        if self.runner.spool.size > most_bytes:
            message = f"it writes more than {most_bytes} bytes (MPT_LIMITS__POINTS)"
            return FailureCause("error", message)
        if self._memory.is_over(self.runner.child.pid):
            return self._out_of_memory(LESS_MEMORY)
        return None

    def _out_of_memory(self, *details: str) -> FailureCause:
        return FailureCause("oom", "; ".join([f"out of memory: {self._memory}", *details]))

    def _outcome_of_exit(self) -> Outcome:
        status = self.runner.kill()
        if status == COMPLETE:
            return self._outcome_of_complete_run()
        if status == STOPPED and self._gives_way and self._kill_at is None:
            return self._give_way()
        if status == STOPPED:
            return self._release()
        if self.failure is not None and self.failure.kind == NO_GPU:
            return Outcome(UNFIT, self._release().commit)
        if self.failure is not None and self.failure.kind == DISK_FULL:
            return self._hand_back(self.failure)
        if self.failure is not None and self.failure.kind == DEVICE:
            log.error("%s", self.failure.message)
            return self._lost(DEVICE_FAILED)
        if self.failure is not None:
            return self._finish(Status.FAILED, self._with_peak(self.failure))
        if not self.runner.ready and not self._is_past_grace:
            log.error("no run can start here: %s", self.runner.stderr[-4000:] or f"status {status}")
            return Outcome(UNFIT, self._release().commit)
        if self._is_past_grace:
            log.warning("the runner left no checkpoint in time")
            return self._release()
        if status == -signal.SIGKILL and kernel_kills() > self._kernel_kills:
            return self._killed_for_memory()
        if status in (GONE, -signal.SIGKILL, -signal.SIGTERM):  # killed from outside
            log.warning("%s", _killed(status))
            return self._lost("lost")
        kind = "invalid" if status == INVALID else "error"
        message = self.runner.stderr[-4000:] or f"the runner ended with status {status}"
        return self._finish(Status.FAILED, FailureCause(kind, message))

    def _lost(self, outcome: str) -> Outcome:
        """Queue the experiment again. After several losses it fails, because it may be the cause
        itself."""
        most = self.settings.max_lost
        return Outcome(
            outcome, lambda session: lease.mark_lost(session, self.claim, most, self._peak)
        )

    def _hand_back(self, full_disk: FailureCause) -> Outcome:
        """Queue the experiment again because of a full disk. After several times it fails, because
        its files may be too large."""
        log.warning("it is handed back: %s", full_disk.message)
        return Outcome(
            DISK_FULL,
            lambda session: lease.hand_back(
                session, self.claim, DISK_FULL, MAX_HANDED_BACK_FOR_SPACE, full_disk, self._peak
            ),
        )

    def _killed_for_memory(self) -> Outcome:
        """Hand the run back, once, if other runs shared the memory: they may be the cause. Else it
        fails."""

        def commit(session: Session) -> None:
            beside = rooms.runs_beside(session, self.claim.experiment_id)
            runs = {0: "no other run", 1: "1 other run"}.get(beside, f"{beside} other runs")
            killed = f"the kernel ended it while {runs} of this service used the same memory"
            if not beside:
                failure = self._out_of_memory(killed, LESS_MEMORY)
                log.warning("it fails: %s", failure.message)
                lease.finish(session, self.claim, Status.FAILED, failure, self._peak)
                return
            failure = self._out_of_memory(killed)
            log.warning("%s", failure.message)
            most = MAX_HANDED_BACK_FOR_MEMORY
            lease.hand_back(session, self.claim, "memory", most, failure, self._peak)
            rooms.expect_at_least(session, self.claim.experiment_id, self._peak or 0)

        return Outcome("killed for memory", commit)

    def _outcome_of_complete_run(self) -> Outcome:
        """Succeed only if every record has arrived."""
        if self._announced == self._received:
            return self._finish(Status.SUCCEEDED)
        if self._announced is None:
            message = f"it ended after {self._received} records without its final record"
        else:
            message = f"{self._received} of its {self._announced} records arrived"
        return self._finish(Status.FAILED, FailureCause("error", f"the runner crashed: {message}"))

    @property
    def _peak(self) -> int | None:
        """Peak memory of the run in bytes: main memory, or GPU memory as reported by the runner."""
        if self.claim.queue == Queue.GPU:
            return self._device_peak
        return self._memory.peak or None

    def _with_peak(self, failure: FailureCause) -> FailureCause:
        if failure.kind != "oom":
            return failure
        return FailureCause("oom", f"{failure.message}; {self._memory}")

    def _decide(self, status: Status, failure: FailureCause | None = None) -> None:
        self._decided = self._finish(status, failure)

    def _finish(self, status: Status, failure: FailureCause | None = None) -> Outcome:
        if failure is not None:
            log.warning("it fails: %s: %s", failure.kind, failure.message)

        return Outcome(
            status, lambda session: lease.finish(session, self.claim, status, failure, self._peak)
        )

    def _give_way(self) -> Outcome:
        return Outcome("gave way", lambda session: lease.give_way(session, self.claim, self._peak))

    def _release(self) -> Outcome:
        return Outcome("unfinished", lambda session: lease.release(session, self.claim, self._peak))

    def _settle(self) -> Outcome:
        """Commit the last records, then the outcome, however long the database is unavailable."""
        while self._batch.size:
            self._flush()
            if self._is_away:
                time.sleep(self.settings.heartbeat_s)
        outcome = self._decided or self._outcome_of_exit()
        while True:
            try:
                with self.database.transaction() as session:
                    outcome.commit(session)
                break
            except TRANSIENT_DB_ERRORS as error:
                log.warning("the database is unreachable, the outcome waits: %s", error)
                time.sleep(self.settings.heartbeat_s)
        if is_terminal(outcome.name) and self._stored_batches >= MANY_AT_END:
            while self._compact(ALL):
                pass
        return outcome


def _no_space(file: str, size: int) -> FailureCause:
    needs = f"the store's disk has no space for {file}, which needs {size} bytes"
    return FailureCause(DISK_FULL, f"{needs}: an administrator has to free space")


def _killed(status: int) -> str:
    if status == GONE:
        return "the runner was killed with its warm parent"
    return f"the runner was killed by signal {-status} ({signal.Signals(-status).name})"
