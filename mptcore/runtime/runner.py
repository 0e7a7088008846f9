"""Run an assignment: write records, save checkpoints, resume, and return the exit status."""

import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TextIO

import torch

from mptcore.protocol.exit_codes import COMPLETE, FAILED, STOPPED
from mptcore.protocol.orders import Assignment, Order
from mptcore.protocol.records import (
    Checkpoint,
    DeviceMemory,
    End,
    Failure,
    Progress,
    Record,
    Restart,
    RunError,
    Snapshot,
    encode,
)
from mptcore.runtime import artifacts, checkpoint, inputs
from mptcore.runtime.device import is_device_failure
from mptcore.runtime.environment import environment
from mptcore.runtime.out_of_memory import is_out_of_memory
from mptcore.runtime.state import RunState, TrainingState
from mptcore.specs import ExperimentSpec

MEMORY_S = 0.5
"""Minimum interval between reports of the GPU memory."""
MAX_SAVING = 0.1
"""Maximum share of a run's time for saving. A run with large checkpoints saves less often."""
FULL_DISK_S = 60.0
"""Time before a supervised run ends that met a full disk where it cannot wait for space, as in a
library. It is started again soon after that."""


class Resumable(Protocol):
    """Computes the records of a spec, from the start or from a checkpoint."""

    def __call__(
        self, spec: ExperimentSpec, state: RunState, resumed: TrainingState | None, /
    ) -> Iterator[Record | None]: ...


@dataclass
class SpecRunner:
    """Runs an assignment once."""

    resumable: Resumable
    assignment: Assignment
    out: TextIO
    supervised: bool = False
    """Leave the deletion of checkpoints to the supervisor, which knows which ones are needed."""
    stop_requested: bool = False
    _state: RunState = field(default_factory=RunState)
    _given: int = 0
    _scored: int = 0
    """Number of masks whose progress was reported before."""
    _environment_told: tuple[int, bool] | None = None
    """Number of inputs, and whether memory was short, at the last environment record."""
    _device_bytes: int = 0
    """GPU memory that was reported."""
    _memory_due: float = 0.0
    _saved_at: float = field(default_factory=time.monotonic)
    _saving_took_s: float = 0.0
    _writer: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    _being_written: Future[Checkpoint] | None = None
    _unacknowledged: str | None = None  # a checkpoint that the supervisor may not know yet

    def obey(self, order: Order) -> None:
        """Handle an order. May be called from any thread."""
        if order.checkpoint is not None and order.checkpoint == self._unacknowledged:
            self._unacknowledged = None
        if order.stop is not None:
            self.stop_requested = order.stop == "checkpoint"

    def run(self) -> int:
        """Run and return the exit status. Failures that a user can fix end with a failure
        record."""
        status = self._run()
        if self.supervised:
            self._emit_last_records(status)
        else:
            self._tell_saved(wait=True)
        return status

    def _emit_last_records(self, status: int) -> None:
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            self._emit_unnumbered(DeviceMemory(torch.cuda.max_memory_reserved()))
        if status == COMPLETE:
            self._emit_unnumbered(End(self._state.seq))

    def _run(self) -> int:
        try:
            for record in self._records():
                self._take(record)
                self._tell_environment()
                self._tell_memory()
                if self._must_stop():
                    self.out.flush()
                    return STOPPED
        except Exception as error:
            failure = _failure_of(error)
            if failure is None:
                raise
            if failure.cause == "disk_full" and self.supervised:
                time.sleep(FULL_DISK_S)
            return self._fail(failure)
        self.out.flush()
        return COMPLETE

    def _take(self, record: Record | None) -> None:
        """Number a record, and write it unless an earlier attempt has written it."""
        if isinstance(record, Progress):
            if record.done > self._scored or self._scored == 0:
                self._emit_unnumbered(record)
        elif record is not None:
            self._state.seq += 1
            self._write(record)

    def _tell_environment(self) -> None:
        """Write the environment record after the run has begun, and again if it has read more
        inputs or was short of memory."""
        told = len(inputs.used()), self._state.memory_was_short
        if self.supervised and told != self._environment_told:
            self._environment_told = told
            self._emit_unnumbered(environment(self.assignment.spec, self._state))

    def _tell_memory(self) -> None:
        """Report the peak GPU memory when it has grown. In a container NVML cannot tell it."""
        if not self.supervised or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return
        if time.monotonic() < self._memory_due:
            return
        self._memory_due = time.monotonic() + MEMORY_S
        if (found := torch.cuda.max_memory_reserved()) > self._device_bytes:
            self._device_bytes = found
            self._emit_unnumbered(DeviceMemory(found))

    def _records(self) -> Iterator[Record | None]:
        assignment, state = self.assignment, self._state
        state.work_dir = assignment.work_dir
        inputs.locate(assignment.inputs)
        artifacts.report_full_disks(self._emit_unnumbered if self.supervised else None)
        files: Sequence[Path] = ()
        if assignment.resume is not None:
            self._given = assignment.resume.after
            files = [*map(Path, assignment.resume.files)]  # of earlier attempts
        elif assignment.checkpoint_dir is not None:
            files = checkpoint.files(assignment.checkpoint_dir)
        found = checkpoint.first_whole(assignment.spec, files)
        if found is not None:
            state.scores, state.saved_on = found.scores, found.device
            state.was_short_before = found.memory_was_short
            self._given, self._scored = max(self._given, found.after), found.masks
        elif self._given:
            self._given = 0
            self._emit_unnumbered(Restart())
        return self.resumable(assignment.spec, state, found.training if found else None)

    def _must_stop(self) -> bool:
        """Save at a safe point if it is time or if a stop was requested. Return whether to stop."""
        self._tell_saved(wait=False)
        folder, state = self.assignment.checkpoint_dir, self._state
        if folder is None or not state.at_safe_point or state.seq < self._given:
            return False
        every_s = max(self.assignment.save_every_s, self._saving_took_s / MAX_SAVING)
        is_due = time.monotonic() - self._saved_at >= every_s
        stops = self.stop_requested  # read once: an order may come at any moment
        if stops:
            self._tell_saved(wait=True)
            self._save(folder)
            if not self._tell_saved(wait=True) and self.supervised:
                return False  # rather than lose what was computed: its supervisor may kill it
        elif is_due and self._being_written is None and self._unacknowledged is None:
            self._save(folder)
        return stops and self.stop_requested

    def _save(self, folder: Path) -> None:
        """Write a snapshot of the run in a thread, while the run continues."""
        self._saved_at = time.monotonic()
        self._emit_unnumbered(Snapshot(self._state.seq))
        snapshot = checkpoint.Snapshot.of(self._state, self.assignment.spec)
        self._being_written = self._writer.submit(self._saved, snapshot, folder)

    def _saved(self, snapshot: checkpoint.Snapshot, folder: Path) -> Checkpoint:
        try:
            saved = snapshot.save(folder)
            if not self.supervised:
                checkpoint.prune(folder)
            return saved
        finally:
            self._saving_took_s = time.monotonic() - self._saved_at

    def _tell_saved(self, *, wait: bool) -> bool:
        """Report a checkpoint that is completely written, and return whether there is one. If
        writing failed, the run is saved again later."""
        written = self._being_written
        if written is None or not (wait or written.done()):
            return False
        self._being_written = None
        try:
            saved = written.result()
        except OSError as error:
            print(f"no checkpoint could be saved: {error}", file=sys.stderr, flush=True)  # noqa: T201
            return False
        if self.supervised:
            self._unacknowledged = saved.file
        self._emit_unnumbered(saved)
        return True

    def _emit_unnumbered(self, record: Record) -> None:
        self.out.write(encode(None, record) + "\n")
        self.out.flush()

    def _write(self, record: Record) -> None:
        seq = self._state.seq
        if seq <= self._given:
            return
        self.out.write(encode(seq, record) + "\n")
        if seq == 1:
            self.out.flush()

    def _fail(self, failure: Failure) -> int:
        self._state.seq += 1
        self._write(failure)
        with suppress(BrokenPipeError):
            self.out.flush()
        return FAILED


def _failure_of(error: Exception) -> Failure | None:
    """Return the record of a failure that a user can understand, or None for a bug."""
    if artifacts.is_full_disk(error):
        return Failure("disk_full", f"a disk is full (the store, HF_HOME or TMPDIR): {error}")
    if isinstance(error, RunError):
        return Failure(error.cause, str(error))
    if isinstance(error, MemoryError | RuntimeError):
        if is_out_of_memory(error):
            advice = "lower data.n, compute.memory_mib or the size of the model"
            return Failure("oom", f"out of memory: {advice} ({error})")
        if is_device_failure(error):
            return Failure("device", f"the GPU failed: {error}")
    return None
