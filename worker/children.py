"""Processes that compute runs: started directly, or forked from a warm parent.

Each has its own process group. An ended process stays a zombie until `close`, so that its id, and
that of its group, are not reused before.
"""

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from select import select
from signal import SIGKILL, Signals
from typing import Protocol

from service.datasets.child_environment import run_environment
from worker.warm_parent import NUMBER, TRANSFORMERS, exit_status

log = logging.getLogger(__name__)


def environment() -> dict[str, str]:
    """Return the environment variables of runners, which hold no secret of the service.

    By default OpenMP's threads spin while they wait for each other. On cores that other processes
    use, that makes a run of two threads tens of times slower, so they spin for a short time only.
    """
    return {"GOMP_SPINCOUNT": "10000", **run_environment()}


MPTCORE = (sys.executable, "-m", "mptcore", "--supervised")
WARM_PARENT = (sys.executable, "-m", "worker.warm_parent")

Stdio = tuple[int, int, int]
"""The child's ends of its three pipes."""


GONE = -(2**15)
"""Returned instead of an exit status when the warm parent and its children are gone."""
CLOSE_S = 2.0
"""Time to wait for the warm parent to report an exit before it is killed too."""
LOOK_S = 0.1
"""Interval at which waiting for torch checks whether the worker is stopping."""


class Child(Protocol):
    """A process group of one run."""

    @property
    def pid(self) -> int | None:
        """The process id, or None until it is known."""
        ...

    def fileno(self) -> int | None:
        """File descriptor that becomes readable when the process ends, and possibly before. None if
        there is none."""
        ...

    def poll(self) -> int | None:
        """Return the exit status (negative: the signal that ended it), or None while the process
        runs."""
        ...

    def signal(self, number: Signals) -> None:
        """Send a signal to the process group."""
        ...

    def close(self) -> int:
        """Kill the process group and wait for it. Return the exit status, or GONE."""
        ...


class Spawned:
    """A new process. It is killed when the thread that started it ends (see mptcore.__main__)."""

    def __init__(self, stdio: Stdio, command: Sequence[str] = MPTCORE):
        stdin, stdout, stderr = stdio
        self._process = subprocess.Popen(
            command, env=environment(), stdin=stdin, stdout=stdout, stderr=stderr,
            start_new_session=True,
        )  # fmt: skip
        self.pid = self._process.pid
        self._end = os.pidfd_open(self.pid) if sys.platform == "linux" else None

    def fileno(self) -> int | None:
        return self._end

    def poll(self) -> int | None:
        if self._process.returncode is not None:
            return self._process.returncode
        return exit_status(os.P_PID, self.pid)

    def signal(self, number: Signals) -> None:
        if self._process.returncode is None:  # the process exists, perhaps as a zombie
            os.killpg(self.pid, number)

    def close(self) -> int:
        self.signal(SIGKILL)
        if self._end is not None:
            os.close(self._end)
        self._end = None
        return self._process.wait()


class Forked:
    """A process forked by a warm parent, with the socket that connects them."""

    def __init__(self, control: socket.socket, parent: subprocess.Popen[bytes]):
        self.pid: int | None = None
        self._parent = parent
        self._status: int | None = None
        self._control = control

    def fileno(self) -> int | None:
        return self._control.fileno()

    def poll(self) -> int | None:
        self._listen(0.0)
        return self._status

    def signal(self, number: Signals) -> None:
        self._listen(0.0)
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def close(self) -> int:
        """Kill the process group. A parent that does not respond is killed together with its
        children."""
        give_up_at = time.monotonic() + CLOSE_S
        while self._status is None and time.monotonic() < give_up_at:
            self.signal(SIGKILL)  # has no effect until the pid is known
            self._listen(0.05)
        if self._status is None:
            self._parent.kill()
            self._listen(None)
        self._control.close()
        self.pid = None  # from now on another process may have this id
        assert self._status is not None
        return self._status

    def _listen(self, timeout_s: float | None) -> None:
        """Read the pid and the exit status, as far as they have arrived."""
        while self._status is None and self._control.fileno() >= 0:
            self._control.settimeout(timeout_s)
            try:
                message = self._control.recv(NUMBER.size)
            except (BlockingIOError, TimeoutError):
                return
            except ConnectionResetError:
                message = b""
            if not message:  # the parent is ending; wait for it, so that no other run is forked
                self._parent.kill()
                self._parent.wait()
                self.pid, self._status = None, GONE
            elif self.pid is None:
                (self.pid,) = NUMBER.unpack(message)
            else:
                (self._status,) = NUMBER.unpack(message)


class WarmParent:
    """A process that imports torch and then forks runners (worker.warm_parent). Create it in the
    main thread: it ends with that thread."""

    def __init__(self, *, transformers: bool = False) -> None:
        """Start the process. With transformers imported too, a run of a language model starts
        seconds earlier."""
        self._requests, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [*WARM_PARENT, str(theirs.fileno()), *([TRANSFORMERS] if transformers else ())],
            env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, pass_fds=[theirs.fileno()], start_new_session=True,
        )  # fmt: skip
        theirs.close()
        threading.Thread(target=self._log_output, daemon=True).start()

    def _log_output(self) -> None:
        """Log each line that the process writes; its runners have pipes of their own."""
        assert self._process.stdout is not None
        with suppress(ValueError):  # it is closed
            for line in self._process.stdout:
                log.warning("%s", line.decode(errors="replace").rstrip())

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def ending(self) -> str | None:
        """Return a description of how the process ended; None while it runs."""
        status = self._process.poll()
        if status is None or status >= 0:
            return None if status is None else f"ended with exit status {status}"
        name = Signals(-status).name
        memory = ": perhaps memory ran out, see the kernel's log" if name == "SIGKILL" else ""
        return f"was killed by signal {-status} ({name}){memory}"

    def wait_until_ready(self, is_stopping: Callable[[], bool]) -> bool:
        """Wait until torch is imported or the worker stops. Return False if the process ends
        first."""
        while not select([self._requests], [], [], LOOK_S)[0]:
            if is_stopping():
                return True
        is_ready = bool(self._requests.recv(1, socket.MSG_PEEK))
        if not is_ready:
            self._process.wait()  # so that `ending` is known
        return is_ready

    def fork(self, stdio: Stdio) -> Forked:
        """Fork a runner, or queue the request until torch is imported."""
        ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with theirs, suppress(OSError):  # the parent is gone, and its children with it
            socket.send_fds(self._requests, [b"f"], [*stdio, theirs.fileno()])
        return Forked(ours, self._process)

    def close(self) -> None:
        self._requests.close()
        self._process.kill()
        self._process.wait()
