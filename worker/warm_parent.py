"""`python -m worker.warm_parent FD [transformers]` imports torch, and transformers if requested,
and then forks runners.

Importing torch takes seconds, a fork some ten milliseconds. Each message on the socket FD carries
four file descriptors: stdin, stdout and stderr of a runner, and a control socket. The runner's pid,
and its exit status after it has ended, are sent over the control socket. When the other end of the
control socket is closed, the runner's process group is killed and forgotten. When FD is closed,
everything ends.

The process has one thread and no CUDA context, because neither survives a fork. Linux only."""

import os
import selectors
import signal
import socket
import struct
import sys
import traceback
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from typing import NoReturn

from mptcore.__main__ import supervised
from mptcore.protocol.code import core_digest
from mptcore.runtime.process import be_expendable
from mptcore.specs.outside import GROUP, outside_families

TRANSFORMERS = "transformers"
NUMBER = struct.Struct("i")
"""Format of a pid and of an exit status on the socket."""


class Forks:
    """Forks on request and watches the children."""

    def __init__(self, requests: socket.socket):
        self._requests = requests
        self._selector = selectors.DefaultSelector()
        self._selector.register(requests, selectors.EVENT_READ, self._fork)

    def run(self) -> NoReturn:
        while True:
            self.look()

    def look(self) -> None:
        """Wait for the next event and handle it."""
        for key, _ in self._selector.select():
            now = self._selector.get_map().get(key.fd)
            if now is not None and now.data is key.data:  # else it was forgotten in this loop
                key.data()

    def _fork(self) -> None:
        fds: list[int] = []
        with suppress(ConnectionResetError):
            _, fds, _, _ = socket.recv_fds(self._requests, 1, 4)
        if len(fds) < 4:
            os._exit(0)  # the worker has ended, and the runners end too
        pid = os.fork()
        if pid == 0:
            self._become_runner(fds)
        os.setpgid(pid, pid)  # here too, because the child may be killed before it does so
        for stdio in fds[:3]:
            os.close(stdio)
        control, ended = socket.socket(fileno=fds[3]), os.pidfd_open(pid)
        self._selector.register(ended, selectors.EVENT_READ, partial(self._tell, ended, control))
        self._selector.register(
            control, selectors.EVENT_READ, partial(self._forget, pid, ended, control)
        )
        _send(control, pid)

    def _tell(self, ended: int, control: socket.socket) -> None:
        """Send the exit status. The process stays a zombie, so that its pid is not reused."""
        self._selector.unregister(ended)
        status = exit_status(os.P_PIDFD, ended)
        assert status is not None
        _send(control, status)

    def _forget(self, pid: int, ended: int, control: socket.socket) -> None:
        with suppress(KeyError):
            self._selector.unregister(ended)
        self._selector.unregister(control)
        control.close()
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitid(os.P_PIDFD, ended, os.WEXITED)
        os.close(ended)

    def _become_runner(self, fds: list[int]) -> NoReturn:
        status = 1
        try:
            os.setpgid(0, 0)
            for number, stdio in enumerate(fds[:3]):
                os.dup2(stdio, number)
            for fd in map(int, os.listdir("/proc/self/fd")):
                if fd > 2:
                    with suppress(OSError):  # the descriptor of the listing is closed already
                        os.close(fd)
            be_expendable(niceness=0)  # it inherits its parent's niceness
            status = supervised()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)


def _send(control: socket.socket, number: int) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):
        control.send(NUMBER.pack(number))


def exit_status(kind: int, child: int) -> int | None:
    """Return the exit status of a child (negative: the signal that ended it), or None while it
    runs. The child stays a zombie. `kind` is the type of `child`: os.P_PID or os.P_PIDFD."""
    ended = os.waitid(kind, child, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def main() -> NoReturn:
    be_expendable()
    requests = socket.socket(fileno=int(sys.argv[1]))
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # otherwise its import starts threads
    import_module("mptcore.run").load_kernels()  # and torch
    if TRANSFORMERS in sys.argv[2:]:
        import_module("mptcore.families.masked_lm.run")
        import_module("mptcore.families.masked_lm.checkpoints").preload()
    core_digest()  # cached for every fork
    if not entry_points(group=GROUP):
        outside_families()  # else each fork imports its family, as the sources are then
    requests.send(b"r")
    Forks(requests).run()


if __name__ == "__main__":
    main()
