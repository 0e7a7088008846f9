"""The service's commands as processes of their own, as a lab runs them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from mptlab import Client, serve
from service.settings import Settings
from tests.support.forks import Forked, fork

MPT = [sys.executable, "-c", "from mptlab.cli import main; main()"]

SHORT = {"MPT_LEASE_S": "2", "MPT_KILL_GRACE_S": "3",
         "MPT_CHECKPOINT_EVERY_S": "0.5", "MPT_MAX_LOST": "1000"}  # fmt: skip
"""A lease short enough for tests."""


def environment(
    settings: Settings, times: Mapping[str, str] = SHORT, /, **more: str
) -> dict[str, str]:
    """Environment variables that give a process these settings."""
    given = {**os.environ, **times, "MPT_STORE": str(settings.store), **more}
    if settings.database_url is not None:
        given["MPT_DATABASE_URL"] = settings.database_url
    if settings.redis_url is not None:
        given["MPT_REDIS_URL"] = settings.redis_url.get_secret_value()
    return given


def signal_each(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to each process that has not ended since it was listed."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


Process = Forked | psutil.Popen
Start = Callable[[Sequence[str], dict[str, str], Path], Process]
"""Start `mpt` with the words of a command, or `python` if they begin with -m, in an environment.
The output is appended to a file."""


def start_fresh(command: Sequence[str], environ: dict[str, str], log: Path) -> psutil.Popen:
    """Start a process as a user does."""
    program = MPT if command[0] != "-m" else [sys.executable]
    with open(log, "ab") as output:
        return psutil.Popen(
            [*program, *command], env=environ, stdout=output, stderr=subprocess.STDOUT
        )


class Lab:
    """The processes of a lab on one machine, by name; output goes to one log."""

    def __init__(
        self,
        settings: Settings,
        log: Path,
        start: Start = start_fresh,
        times: Mapping[str, str] = SHORT,
    ):
        self.settings = settings
        self.times = times
        self.log = log
        self.port = serve.free_port()
        self.processes: dict[str, Process] = {}
        self._start = start

    def start(self, name: str, *command: str, **more: str) -> Process:
        process = self._start(command, environment(self.settings, self.times, **more), self.log)
        self.processes[name] = process
        return process

    def start_all(self, workers: int = 1, **more: str) -> None:
        self.start("api", "api", "--port", str(self.port), **more)
        self.start("controller", "controller", **more)
        for i in range(workers):
            self.start(f"worker{i}", "worker", "cpu", **more)

    def client(self) -> Client:
        key = self.settings.key_file.read_text().strip()
        client = Client(f"http://127.0.0.1:{self.port}", key)
        serve.wait_until(client.is_ready)
        return client

    def family(self) -> list[psutil.Process]:
        """Every process that belongs to the lab."""
        alive: list[psutil.Process] = [
            process for process in self.processes.values() if process.is_running()
        ]
        return [*alive, *(child for p in alive for child in p.children(recursive=True))]

    def stop(self) -> None:
        family = self.family()
        for process in self.processes.values():
            if process.is_running():
                process.resume()
                process.terminate()
        _, alive = psutil.wait_procs(family, timeout=120)
        names = {process.pid: name for name, process in self.processes.items()}
        told = [f"{names.get(left.pid, 'a child')} {left}" for left in alive]
        for left in alive:
            left.kill()
        assert not alive, f"did not stop: {told}; its log ends: {self.log.read_text()[-4000:]}"


@contextmanager
def lab_processes(
    settings: Settings, workers: int = 1, start: Start = fork, **more: str
) -> Iterator[Lab]:
    """A whole lab while the block runs."""
    lab = Lab(settings, settings.store / "lab.log", start)
    lab.start_all(workers, **more)
    try:
        yield lab
    finally:
        lab.stop()


@contextmanager
def embedded_processes(
    settings: Settings, log: Path, port: int, workers: int, /, **more: str
) -> Iterator[Lab]:
    """The processes that `mpt serve` starts, but forked, while the block runs. They have the times
    of a user's service."""
    lab = Lab(settings, log, fork, times={})
    lab.port = port
    lab.start("api", "api", "--port", str(port), **more)
    for i in range(workers):
        lab.start(f"worker{i}", "-m", "worker", "cpu", "--local", **more)
    try:
        yield lab
    finally:
        lab.stop()


@contextmanager
def embedded_service(settings: Settings, log: Path, /, **more: str) -> Iterator[Lab]:
    """The embedded service with one worker while the block runs, forked."""
    port = serve.free_port()
    with (
        serve._locked(settings.store, f"http://127.0.0.1:{port}"),
        embedded_processes(settings, log, port, 1, **more) as lab,
    ):
        yield lab


def wait_until(holds: Callable[[], bool], timeout_s: float = 240.0, what: str = "it") -> None:
    """Look again and again, less often the longer it takes: a look is often a request to a service,
    which takes ten milliseconds of a processor."""
    began = time.monotonic()
    while not holds():
        waited = time.monotonic() - began
        if waited > timeout_s:
            raise TimeoutError(f"{what} did not come true in {timeout_s} s")
        time.sleep(min(0.05 + waited / 20, 0.25))
