"""The main memory of a runner, and whether the kernel killed a process for lack of memory."""

from contextlib import suppress
from pathlib import Path

import psutil

from mptcore.runtime.cgroups import memory_free_bytes, memory_limit_bytes

GIB = 2**30


def memory_limit(limit: int | None) -> int:
    """Return the main memory that a run may use: the setting, or nine tenths of the memory of the
    worker's machine or container."""
    total = psutil.virtual_memory().total
    return limit or int(0.9 * min(total, memory_limit_bytes() or total))


def free_memory() -> int:
    """Return the main memory that is free on the worker's machine, or in its container if that is
    less."""
    machine, container = psutil.virtual_memory().available, memory_free_bytes()
    return machine if container is None else min(machine, container)


class Memory:
    """The resident memory of a process and its limit, in bytes."""

    def __init__(self, limit: int | None):
        self.limit = memory_limit(limit)
        self.peak = 0
        self._process: psutil.Process | None = None
        """The process measured last. It takes longer to make one than to measure it."""

    def is_over(self, pid: int | None) -> bool:
        """Measure the process if it exists, and return whether it exceeds the limit."""
        if pid is not None:
            with suppress(psutil.NoSuchProcess):
                if self._process is None or self._process.pid != pid:
                    self._process = psutil.Process(pid)
                self.peak = max(self.peak, self._process.memory_info().rss)
        return self.peak > self.limit

    def __str__(self) -> str:
        return f"peak {self.peak / GIB:.2f} GiB of main memory, limit {self.limit / GIB:.2f} GiB"


def kernel_kills() -> int:
    """Return how many processes of this machine the kernel has killed for lack of memory; 0 if
    unknown."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
