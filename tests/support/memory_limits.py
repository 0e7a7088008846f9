"""A limit of the main memory that some processes may use together, by a control group."""

import os
import time
from contextlib import suppress
from pathlib import Path

import psutil

CGROUPS = Path("/sys/fs/cgroup")
EMPTY_S = 10.0


class LimitUnavailable(Exception):
    """No control group can be made on this machine, and why."""


class MemoryLimit:
    """A control group with a limit of memory, of either version. Raises LimitUnavailable."""

    def __init__(self, limit_bytes: int):
        is_first_version = (CGROUPS / "memory").is_dir()
        parent = CGROUPS / "memory" if is_first_version else CGROUPS
        self.folder = parent / f"mptlab-test-{os.getpid()}"
        try:
            if not is_first_version:
                (parent / "cgroup.subtree_control").write_text("+memory")
            self.folder.mkdir()
            names = V1_LIMITS if is_first_version else V2_LIMITS
            for name in names:
                if (self.folder / name).exists():
                    (self.folder / name).write_text("0" if name == NO_SWAP else str(limit_bytes))
        except OSError as error:
            if self.folder.is_dir():
                self.folder.rmdir()
            raise LimitUnavailable(f"no control group can be made here: {error}") from error
        self._kills = self.folder / ("memory.oom_control" if is_first_version else "memory.events")

    def add(self, pid: int) -> None:
        """Put a process into the group; its later children follow it."""
        (self.folder / "cgroup.procs").write_text(str(pid))

    def user_of(self, amount: int) -> psutil.Process | None:
        """Return a process of the group that uses this many bytes or more."""
        for pid in (self.folder / "cgroup.procs").read_text().split():
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(int(pid))
                if process.memory_info().rss >= amount:
                    return process
        return None

    @property
    def kills(self) -> int:
        """Number of processes that the kernel has killed for this limit."""
        lines = (line.split() for line in self._kills.read_text().splitlines())
        return sum(int(number) for name, number in lines if name == "oom_kill")

    def remove(self) -> None:
        """Delete the group once its processes have ended."""
        deadline = time.monotonic() + EMPTY_S
        while (self.folder / "cgroup.procs").read_text() and time.monotonic() < deadline:
            time.sleep(0.1)
        self.folder.rmdir()


NO_SWAP = "memory.swap.max"
V1_LIMITS = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
V2_LIMITS = ("memory.max", NO_SWAP)
"""Files of a group that bound its memory, in the order in which they are written."""
