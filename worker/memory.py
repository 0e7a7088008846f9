"""The main memory of a runner, and whether the kernel killed a process for lack of memory."""

import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from mptcore.runtime.cgroups import memory_groups, memory_kills

GIB = 2**30


BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def memory_pools() -> list[dict[str, Any]]:
    """Return the main memories that bound this process: that of the machine, and that of each
    control group with a smaller limit. Each has an `id`, which is equal for all processes that
    share it, its `total` and its `free` bytes. The boot id of the kernel names the machine, because
    each container has its own host name. A machine without one has no containers."""
    try:
        machine = BOOT_ID.read_text().strip()
    except OSError:
        machine = socket.gethostname()
    memory = psutil.virtual_memory()
    pools = [{"id": machine, "total": memory.total, "free": memory.available}]
    for group in memory_groups():
        if group.limit < memory.total:
            id = f"{machine}/{group.inode}"
            pools.append({"id": id, "total": group.limit, "free": group.free})
    return pools


def memory_limit(limit: int | None, pools: Sequence[dict[str, Any]]) -> int:
    """Return the main memory that a run may use: the setting, or nine tenths of the smallest of the
    memories that bound the worker. It is never more than that memory."""
    total: int = min(pool["total"] for pool in pools)
    return min(limit or int(0.9 * total), total)


def resident_memory(pid: int | None) -> int:
    """Return the main memory that a process uses, 0 if there is none."""
    try:
        return 0 if pid is None else int(psutil.Process(pid).memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


class Memory:
    """The resident memory of a process and its limit, in bytes."""

    def __init__(self, limit: int | None):
        self.limit = memory_limit(limit, memory_pools())
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
    """Return how many processes of the worker's control group the kernel has killed for lack of
    memory, or of the whole machine if the group does not count them; 0 if unknown."""
    if (kills := memory_kills()) is not None:
        return kills
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
