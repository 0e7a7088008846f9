"""The processes of a service, forked from one that has imported what they need.

A fresh interpreter takes seconds of a processor to import torch, Celery and FastAPI, and a lab has
five. From its `main` on, a fork does what a fresh process does; a worker's warm parent is a fork of
the worker.
"""

import ctypes
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing.context import ForkProcess, ForkServerProcess
from pathlib import Path
from typing import NamedTuple, NoReturn

import psutil

from mptlab import cli, serve
from worker import slot, warm_parent
from worker.children import WarmParent
from worker.children import environment as runner_environment

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["__main__", "tests.support.preloaded"])


class Forked(psutil.Process):
    """A process whose exit status comes from the fork server, because it is not our child."""

    def __init__(self, process: ForkServerProcess):
        self._told = process
        super().__init__(process.pid)

    def poll(self) -> int | None:
        """Its exit status (negative: the signal that ended it), or None while it lives."""
        return self._told.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._told.join(timeout)
        status = self._told.exitcode
        if status is None:
            assert timeout is not None
            raise psutil.TimeoutExpired(timeout, self.pid)
        return status

    def kill(self) -> None:
        """Kill it, if it has not ended, as subprocess does."""
        with suppress(psutil.NoSuchProcess):
            super().kill()


def fork(command: Sequence[str], environment: dict[str, str], log: Path) -> Forked:
    """Fork a process like tests.support.processes.start_fresh, but seconds faster."""
    process = CONTEXT.Process(target=_run, args=(command, environment, log))
    process.start()
    return Forked(process)


class Output(NamedTuple):
    stdout: str
    stderr: str


def run_code(code: str, folder: Path, environment: Mapping[str, str]) -> Output:
    """Run code in a fork that has imported torch and numba, with a folder as the first place of its
    modules. It respects the modes of files, also as root."""
    with tempfile.TemporaryDirectory() as output:
        files = [Path(output, name) for name in Output._fields]
        process = CONTEXT.Process(target=_run_code, args=(code, folder, environment, files))
        process.start()
        process.join()
        texts = Output(*(file.read_text() for file in files))
        assert process.exitcode == 0, texts.stderr
    return texts


def _run_code(
    code: str, folder: Path, environment: Mapping[str, str], files: Sequence[Path]
) -> None:
    for number, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)
    os.environ.update(environment)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    if sys.platform == "linux":
        pr_capbset_drop, cap_dac_override = 24, 1
        ctypes.CDLL(None).prctl(pr_capbset_drop, cap_dac_override)
    exec(code, {"__name__": "__main__"})
    sys.stdout.flush()
    sys.stderr.flush()


def _run(command: Sequence[str], environment: dict[str, str], log: Path) -> None:
    os.environ.clear()
    os.environ.update(environment)
    _say_into(log)
    slot.WarmParent = ForkedWarmParent  # type: ignore[attr-defined]
    if (host := environment.get("PRETENDED_HOST")) is not None:
        socket.gethostname = lambda: host
    if command[0] == "-m":
        return _run_module(*command[1:])
    serve.become = _become
    sys.argv = ["mpt", *command]
    try:
        cli.main()
    except Becoming as becoming:
        _run_module(*becoming.args)


def _run_module(module: str, *arguments: str) -> None:
    sys.argv = [module, *arguments]
    found = import_module(module)
    (import_module(f"{module}.__main__") if hasattr(found, "__path__") else found).main()


class Becoming(BaseException):
    """Raised where a new process would replace itself by another program."""


def _become(module: str, *arguments: str) -> NoReturn:
    raise Becoming(module, *arguments)


def _say_into(log: Path) -> None:
    with open(os.devnull) as nothing, open(log, "ab") as output:
        for number, file in enumerate((nothing, output, output)):
            os.dup2(file.fileno(), number)


class ForkedWarmParent(WarmParent):
    """Warm parent forked from this process, which has imported torch."""

    def __init__(self, *, transformers: bool = False) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = [warm_parent.TRANSFORMERS] if transformers else []
        child = Child(target=_be_warm_parent, args=[theirs.fileno(), *words], daemon=True)
        child.start()
        self._process = child  # type: ignore[assignment]
        theirs.close()


class SharedWarmParent(WarmParent):
    """Warm parent of a test process, forked from the fork server. It ends with the test process."""

    def __init__(self, *, transformers: bool = False) -> None:
        self._requests, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        words = [warm_parent.TRANSFORMERS] if transformers else []
        process = CONTEXT.Process(
            target=_be_shared, args=(theirs, runner_environment(), words), daemon=True
        )
        process.start()
        theirs.close()
        self._process = Forked(process)  # type: ignore[assignment]

    def close(self) -> None:
        """Others use it still."""


def _be_shared(requests: socket.socket, environment: dict[str, str], words: list[str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    _be_warm_parent(requests.fileno(), *words)


class Child(ForkProcess):
    """Child process with the interface of subprocess."""

    def poll(self) -> int | None:
        return self.exitcode

    def wait(self) -> None:
        self.join()


def _be_warm_parent(requests: int, *words: str) -> None:
    """Set up the fork as subprocess would, and call the main function of the warm parent."""
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd != requests:
            with suppress(OSError):  # that of the listing itself
                os.close(fd)
    kept = runner_environment()
    os.environ.clear()
    os.environ.update(kept)
    # multiprocessing and Celery have put others in their place
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")
    sys.__stdout__ = sys.stdout  # type: ignore[misc]  # it stays open if it is replaced
    sys.argv = ["worker.warm_parent", str(requests), *words]
    warm_parent.main()
