"""Limits of memory and processors that control groups set, of a container or a service. No torch.

A limit of a group holds for all groups below it, so the least of a process's own group and its
parents counts. A container often sees its own group as the root, and its path does not exist there:
groups that do not exist are left out.
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
UNLIMITED_BYTES = 2**60
"""Version 1 reports a number above this if there is no limit."""


def memory_limit_bytes(root: Path = ROOT) -> int | None:
    """Return the memory that this process and its neighbours in its group may use together."""
    found = []
    for folder in _groups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = _numbers(folder / name)
            if limit and limit[0] < UNLIMITED_BYTES:
                found.append(limit[0])
    return min(found, default=None)


def processors(root: Path = ROOT) -> int:
    """Return the number of processors that this process may use at once."""
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count() or 1
    return max(1, min([allowed, *map(math.ceil, _cpu_quotas(root))]))


def _cpu_quotas(root: Path) -> Iterator[float]:
    for folder in _groups(root, "cpu"):
        pair = _numbers(folder / "cpu.max")
        if len(pair) != 2:
            pair = _numbers(folder / "cpu.cfs_quota_us") + _numbers(folder / "cpu.cfs_period_us")
        if len(pair) == 2 and min(pair) > 0:
            yield pair[0] / pair[1]


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's group and its parents, of both versions."""
    mounts = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            tops = [mounts, mounts / "unified"]
        elif controller in controllers.split(","):
            tops = [mounts / controllers, mounts / controller]
        else:
            continue
        group = Path(path.lstrip("/"))
        for top in tops:
            yield from (top / part for part in (group, *group.parents))


def _numbers(file: Path) -> list[int]:
    """Return the numbers in a file; none if it says "max" or does not exist."""
    try:
        return [int(word) for word in _text(file).split()]
    except ValueError:
        return []


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
