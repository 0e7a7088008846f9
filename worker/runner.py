"""The runner of one experiment: mptcore in its own process, its pipes, and its spool."""

import json
import os
import selectors
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL, Signals
from typing import Any

from worker.children import Child, Stdio
from worker.spool import Spool

STDERR_BYTES = 16_000
"""Number of bytes kept from the end of stderr."""
PIPE_BYTES = 1 << 16
"""All that a pipe holds: one read after the end of a process gets its last words."""

Record = dict[str, Any]


class Runner:
    """A process that has imported torch and waits for its spec. It writes its records to a spool.
    Its pipes never block: only `wait` sends orders and reads stderr, so call it often."""

    def __init__(self, start: Callable[[Stdio], Child], folder: Path | None = None) -> None:
        """Start the process, with its spool in a folder. Raises OSError."""
        self.spool = Spool(folder)
        (stdin, self._stdin), (self._stderr, stderr) = os.pipe(), os.pipe()
        try:
            self.child = start((stdin, self.spool.fileno(), stderr))
        except BaseException:
            self._close()
            raise
        finally:
            for theirs in (stdin, stderr):
                os.close(theirs)
        self.ready = False
        """True after the process has reported that its imports are done."""
        self._has_ended = False
        self._is_closed = False
        self._unsent = b""
        self._complaints = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._stderr, selectors.EVENT_READ, self._take_complaints)
        self._end = self.child.fileno()
        if self._end is not None:
            self._selector.register(self._end, selectors.EVENT_READ, self.child.poll)
        for ours in (self._stdin, self._stderr):
            os.set_blocking(ours, False)

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

    def withdraw_stop(self) -> None:
        """Let a runner that was asked to stop go on, unless it has saved already."""
        self._send({"stop": "withdrawn"})

    def acknowledge_checkpoint(self, file: str) -> None:
        """Report that this checkpoint is in the database."""
        self._send({"checkpoint": file})

    @property
    def has_unread(self) -> bool:
        """True if there are records that `next_record` has not returned."""
        return not self._is_closed and self.spool.has_more

    def wait(self, timeout_s: float) -> None:
        """Send orders and read stderr until something happens to the process or the time is over.
        Then read on in the spool."""
        if self._is_closed:
            return
        if not self.alive:
            self._end_group()
            time.sleep(timeout_s)
            timeout_s = 0
        for key, _ in self._selector.select(timeout_s):
            key.data()
        self.spool.read()

    def _end_group(self) -> None:
        """Kill the processes that an ended process has started."""
        if not self._has_ended:
            self._has_ended = True
            self.signal(SIGKILL)
            self.spool.end()
            if self._end is not None:
                self._selector.unregister(self._end)

    def next_record(self) -> Record | None:
        """Return the next record, or None if no further one was read. Other lines, which some
        library has printed, are treated like stderr."""
        while not self._is_closed and (line := self.spool.take()) is not None:
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                record = None
            if not isinstance(record, dict) or "record" not in record:
                self._complain(line + b"\n")
            elif record["record"] == "ready":
                self.ready = True
            else:
                return record
        return None

    def signal(self, number: Signals) -> None:
        """Send a signal to the process group. It may take a while to end."""
        self.child.signal(number)

    def kill(self) -> int:
        """Kill the process group, and close its pipes and its spool. Return the exit status. Unread
        records are lost."""
        status = self.child.close()  # before its stdin ends, at which it would end by itself
        if not self._is_closed:
            self._is_closed = True
            self._selector.close()
            self._close()
            self._unsent = b""
        return status

    def _close(self) -> None:
        self.spool.close()
        for ours in (self._stdin, self._stderr):
            os.close(ours)

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
            self._unsent = b""  # it has ended, which `alive` tells
        if not self._unsent:
            self._selector.unregister(self._stdin)

    def _take_complaints(self) -> None:
        chunk = os.read(self._stderr, PIPE_BYTES)
        if not chunk:
            self._selector.unregister(self._stderr)
        self._complain(chunk)

    def _complain(self, text: bytes) -> None:
        self._complaints = (self._complaints + text)[-STDERR_BYTES:]
