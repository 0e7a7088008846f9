"""The runner of one experiment: mptcore in its own process, and its pipes."""

import fcntl
import json
import os
import selectors
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from signal import SIGKILL, Signals
from typing import Any

from worker.children import Child, Stdio

PIPE_BYTES = 1 << 20
"""Maximum bytes of records that the runner may be ahead of its reader. Beyond that the runner
waits."""
LINE_BYTES = 1 << 22
"""Maximum length of a line. A longer line is not a record."""
DRAIN_S = 5.0
STDERR_BYTES = 16_000
"""Number of bytes kept from the end of stderr."""

Record = dict[str, Any]


class Runner:
    """A process that has imported torch and waits for its spec. Its pipes never block: only `read`
    sends orders and receives records, so call it often."""

    def __init__(self, start: Callable[[Stdio], Child]) -> None:
        (stdin, self._stdin), (self._stdout, stdout), (self._stderr, stderr) = (
            os.pipe() for _ in range(3)
        )
        try:
            self.child = start((stdin, stdout, stderr))
        except BaseException:
            for ours in self._pipes:
                os.close(ours)
            raise
        finally:
            for theirs in (stdin, stdout, stderr):
                os.close(theirs)
        self.ready = False
        """True after the process has reported that its imports are done."""
        self._is_closed = False
        self._drain_until: float | None = None
        self._unsent = b""
        self._part = b""  # the beginning of a line whose end has not come
        self._records: list[Record] = []
        self._complaints = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._stdout, selectors.EVENT_READ, self._take_records)
        self._selector.register(self._stderr, selectors.EVENT_READ, self._take_complaints)
        self._end = self.child.fileno()
        if self._end is not None:
            self._selector.register(self._end, selectors.EVENT_READ, self.child.poll)
        for ours in self._pipes:
            os.set_blocking(ours, False)
        if sys.platform == "linux":
            with suppress(OSError):  # the number of large pipes of a user is limited
                fcntl.fcntl(self._stdout, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    @property
    def _pipes(self) -> Stdio:
        return self._stdin, self._stdout, self._stderr

    @property
    def alive(self) -> bool:
        """True while the process is running."""
        return self.child.poll() is None

    @property
    def stderr(self) -> str:
        """The end of stderr, and of output on stdout that was not a record."""
        return self._complaints.decode(errors="replace").strip()

    def start(self, order: dict[str, Any]) -> None:
        """Send the spec and the folders for its files."""
        self._send(order)

    def request_stop(self) -> None:
        """Ask the runner to save a checkpoint and to end."""
        self._send({"stop": "checkpoint"})

    def acknowledge(self, seq: int) -> None:
        """Report that the records up to this one are in the database."""
        self._send({"committed": seq})

    def acknowledge_checkpoint(self, file: str) -> None:
        """Report that this checkpoint is in the database."""
        self._send({"checkpoint": file})

    def read(self, timeout_s: float) -> list[Record] | None:
        """Return the records that arrived within the timeout, or None after the last one, when the
        process has ended and its output was read."""
        if self._is_closed:
            return None
        ended = not self.alive  # before the check, because it may write until then
        if ended:
            self.signal(SIGKILL)  # to the processes that it has started
            self._stop_watching()
        ready = self._selector.select(0 if ended else timeout_s)
        if ended and (not ready or self._is_drained):
            return None
        for key, _ in ready:
            key.data()
        records, self._records = self._records, []
        return records

    @property
    def _is_drained(self) -> bool:
        """Return whether all output of the process was read. Later output comes from processes that
        outlive it."""
        if self._drain_until is None:
            self._drain_until = time.monotonic() + DRAIN_S
        return time.monotonic() > self._drain_until

    def _stop_watching(self) -> None:
        """Stop watching for the end of the process, which is known by now."""
        if self._end is not None:
            self._selector.unregister(self._end)
            self._end = None

    def signal(self, number: Signals) -> None:
        """Send a signal to the process group. `read` reports when it has ended."""
        self.child.signal(number)

    def kill(self) -> int:
        """Kill the process group and close its pipes. Return the exit status. Unread output is
        lost."""
        status = self.child.close()  # before its stdin ends, at which it would end by itself
        if not self._is_closed:
            self._is_closed = True
            self._selector.close()
            for ours in self._pipes:
                os.close(ours)
            self._unsent, self._part, self._records = b"", b"", []
        return status

    def _send(self, line: dict[str, Any]) -> None:
        """Queue a line for the runner. A process that has ended receives nothing."""
        if self._is_closed:
            return
        if not self._unsent:
            self._selector.register(self._stdin, selectors.EVENT_WRITE, self._write)
        self._unsent += json.dumps(line).encode() + b"\n"
        self._write()

    def _write(self) -> None:
        try:
            self._unsent = self._unsent[os.write(self._stdin, self._unsent) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._unsent = b""  # it has ended, which `read` reports
        if not self._unsent:
            self._selector.unregister(self._stdin)

    def _take_records(self) -> None:
        chunk = os.read(self._stdout, PIPE_BYTES)
        if not chunk:
            self._selector.unregister(self._stdout)
        *lines, self._part = (self._part + chunk).split(b"\n")
        self._records += [record for line in lines if (record := self._parse(line))]
        if len(self._part) > LINE_BYTES:
            self._complain(self._part)
            self._part = b""

    def _parse(self, line: bytes) -> Record | None:
        """Parse a line as a record. Treat anything else that a library prints like stderr."""
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict) and "record" in record:
            if record["record"] == "ready":
                self.ready = True
                return None
            return record
        self._complain(line + b"\n")
        return None

    def _take_complaints(self) -> None:
        chunk = os.read(self._stderr, STDERR_BYTES)
        if not chunk:
            self._selector.unregister(self._stderr)
        self._complain(chunk)

    def _complain(self, text: bytes) -> None:
        self._complaints = (self._complaints + text)[-STDERR_BYTES:]
