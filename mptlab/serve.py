"""The embedded service: an API process and worker processes, started and restarted together."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from mptlab.config import LOCK

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 15.0
MAX_WORKERS = 4
"""Maximum number of workers by default. Each takes 400 MB of memory before it computes."""


def require_server() -> None:
    """Raises RuntimeError if only the client is installed."""
    if importlib.util.find_spec("service") is None:
        raise RuntimeError("this command needs the server, but only the client is installed: "
                           "install mptlab-server")  # fmt: skip


def become(module: str, *arguments: str) -> NoReturn:
    """Replace this process by another program, which then receives signals directly; the client
    imports none of it."""
    require_server()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])


def usual_workers() -> int:
    """Return one worker for each two processors, because a run uses two by default, but at most
    MAX_WORKERS."""
    is_told = hasattr(os, "sched_getaffinity")
    processors = len(os.sched_getaffinity(0)) if is_told else os.cpu_count() or 1
    return max(1, min(MAX_WORKERS, processors // 2))


def has_gpu() -> bool:
    """Return whether this machine has a GPU that runs can use. If torch cannot use it, the reason
    is printed."""
    require_server()
    return subprocess.run([sys.executable, "-m", "worker.gpus"], check=False).returncode == 0


def free_port() -> int:
    """Return a free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def embedded(
    store: Path, port: int, log: Path | None = None, workers: int = 1, with_gpus: bool = False
) -> Iterator[Callable[[], None]]:
    """Run the service on a loopback port with all data in `store`, while the block runs. `workers`
    compute on the CPU; `with_gpus` adds one for each GPU. Output goes to the file `log` or to
    stderr. Yield a function that restarts processes that have died.
    Raises RuntimeError if the store is already served or the port is in use."""
    require_server()
    with _locked(store, f"http://127.0.0.1:{port}"):
        if _is_taken(port):
            raise RuntimeError(f"port {port} is in use: choose another port")
        with _started(store, port, log, workers, with_gpus) as revive:
            yield revive


@contextmanager
def _locked(store: Path, url: str) -> Iterator[None]:
    """Lock the store and write its URL. Raises RuntimeError if it is already served. The kernel
    releases the lock when this process ends for any reason; the file that stays behind has no
    effect."""
    import fcntl  # not on Windows, where the client also runs

    try:
        store.mkdir(mode=0o700, parents=True, exist_ok=True)
        opened = (store / LOCK).open("a+")
    except OSError as error:
        message = f"cannot write {store} ({error.strerror}): set MPT_STORE to a folder of yours"
        raise RuntimeError(message) from None
    with opened as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            at = file.read().strip() or "an unknown URL"
            message = f"this store is already served at {at}: {store}"
            raise RuntimeError(f"{message}; to serve another one, set MPT_STORE") from None
        file.truncate(0)
        file.write(f"{url} (process {os.getpid()})\n")
        file.flush()
        yield


@contextmanager
def _started(
    store: Path, port: int, log: Path | None, workers: int, with_gpus: bool
) -> Iterator[Callable[[], None]]:
    """Start the service's processes; see `embedded`."""
    environment = {
        **os.environ,
        "MPT_STORE": str(store.absolute()),
        "MPT_EMBEDDED": "gpu" if with_gpus else "cpu",
    }
    with open(log or os.devnull, "ab") as file:
        output = file if log else None

        def start(*command: str) -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [sys.executable, "-m", *command],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
            )

        if start("service.operations.prepare").wait() != 0:
            reason = f"see {log}: {_last_event(log)}" if log else "see above"
            raise RuntimeError(f"the store could not be prepared: {reason}")
        commands: list[tuple[str, ...]] = [("service", "--port", str(port))]
        commands += [("worker", "cpu", "--local")] * workers
        if with_gpus:
            commands.append(("worker.every_gpu", "--local"))
        processes = [start(*command) for command in commands]

        def revive() -> None:
            for i, process in enumerate(processes):
                if process.poll() is not None:
                    processes[i] = start(*commands[i])

        try:
            yield revive
        finally:
            _stop(processes)


def _last_event(log: Path) -> str:
    """Return the message of the last line of a log."""
    last = log.read_text(encoding="utf-8", errors="replace").rstrip().rpartition("\n")[2]
    try:
        return str(json.loads(last)["event"])
    except (ValueError, TypeError, KeyError):  # output of another program
        return last


def store_key(store: Path) -> str:
    """Return the key that the embedded service created for its first admin."""
    return (store / "api-key").read_text().strip()


def keep(revive: Callable[[], None]) -> None:
    """Keep the service running until interrupted."""
    while True:
        time.sleep(1)
        revive()


def wait_until(is_ready: Callable[[], bool]) -> None:
    """Wait for the service to answer. Raises TimeoutError."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not is_ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the service does not answer after {START_TIMEOUT_S:.0f} s")
        time.sleep(0.05)


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
        return False


def _stop(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
