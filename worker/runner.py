"""The runner: one fresh process of mptcore for one experiment, and its pipes."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MPTCORE = (sys.executable, "-m", "mptcore", "--supervised")
ENVIRONMENT = {"GOMP_SPINCOUNT": "10000"}
"""OpenMP's threads wait for each other by spinning. On cores that others use too, as in a lab, that
makes a run of two threads tens of times slower, unless they soon go to sleep."""

CHUNK_BYTES = 1 << 16
CHUNKS_WAITING = 256
"""Beyond this the pipe fills up and the runner waits."""


class Runner:
    """A process group of its own that has imported torch and waits for its spec.

    It finds uploads and kept weights in the store. It dies with the thread that made it (see
    mptcore.__main__): make it in the main thread.
    """

    def __init__(self, store: Path, command: Sequence[str] = MPTCORE) -> None:
        self.process = subprocess.Popen(
            command,
            env={**ENVIRONMENT, **os.environ, "MPT_STORE": str(store.absolute())},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._records: queue.Queue[list[dict[str, Any]] | None] = queue.Queue(CHUNKS_WAITING)
        self._ended = False
        self._stderr: deque[str] = deque(maxlen=50)
        self._threads = [
            threading.Thread(target=self._read_records, daemon=True),
            threading.Thread(target=self._read_stderr, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def stderr(self) -> str:
        """The last lines it wrote to stderr."""
        return "".join(self._stderr).strip()

    def start(self, order: dict[str, Any]) -> None:
        """Give it its spec, and where its files go."""
        self._send(order)

    def request_stop(self) -> None:
        """Ask it to save a checkpoint and to end."""
        self._send({"stop": "checkpoint"})

    def acknowledge(self, seq: int) -> None:
        """Say that the records up to this one are in the database."""
        self._send({"committed": seq})

    def read(self, timeout_s: float) -> list[dict[str, Any]] | None:
        """The records that came within the timeout, or None after the last."""
        if self._ended:
            return None
        try:
            chunk = self._records.get(timeout=timeout_s)
        except queue.Empty:
            return []
        self._ended = chunk is None
        return chunk

    def end(self, grace_s: float) -> int:
        """End the process group, by SIGTERM and after the grace by SIGKILL; the exit status."""
        self._signal(signal.SIGTERM)
        try:
            self.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            pass
        return self.kill()

    def kill(self) -> int:
        """End the process group at once, and wait for its end."""
        self._signal(signal.SIGKILL)
        status = self.process.wait()
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        return status

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass

    def _send(self, line: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(line).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, which its reader will see

    def _read_records(self) -> None:
        assert self.process.stdout is not None
        rest = b""
        while chunk := os.read(self.process.stdout.fileno(), CHUNK_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            if records := [record for line in lines if (record := self._parse(line))]:
                self._records.put(records)
        self._records.put(None)

    def _parse(self, line: bytes) -> dict[str, Any] | None:
        """A record; what else a library may print goes where its complaints go."""
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if isinstance(record, dict) and "record" in record:
            return record
        self._stderr.append(line.decode(errors="replace") + "\n")
        return None

    def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._stderr.append(line.decode(errors="replace"))
