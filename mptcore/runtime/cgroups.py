"""Limits of memory and processors that control groups set, of a container or a service. No torch.

A limit of a group holds for all groups below it, so the least of a process's own group and its
parents counts. A container often sees its own group as the root, and its path does not exist there:
groups that do not exist are left out.
"""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

ROOT = Path("/")
UNLIMITED_BYTES = 2**60
"""Version 1 reports a number above this if there is no limit."""


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """A control group with a memory limit, in which this process and its neighbours are. Sizes are
    in bytes."""

    inode: int
    """Number of the group's folder. It is the same in every container that sees the group."""
    limit: int
    free: int
    """Files that were read but not lately count as free: the kernel drops them first."""


def memory_groups(root: Path = ROOT) -> list[MemoryGroup]:
    """Return the groups with a limit, the largest group first."""
    groups: list[MemoryGroup] = []
    for folder in reversed(_groups(root, "memory")):
        for names in _MEMORY_FILES:
            limit = _numbers(folder / names[0])
            if limit and limit[0] < UNLIMITED_BYTES:
                used = _numbers(folder / names[1])
                lines = (line.split() for line in _text(folder / "memory.stat").splitlines())
                dropped = sum(int(line[1]) for line in lines if line[0] == names[2])
                free = limit[0] - max(0, sum(used) - dropped)
                groups.append(MemoryGroup(folder.stat().st_ino, limit[0], free))
    return groups


_MEMORY_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def memory_kills(root: Path = ROOT) -> int | None:
    """Return how many processes of this group the kernel has killed for lack of memory. None if the
    group does not count them."""
    for folder in _groups(root, "memory")[:1]:
        for name in ("memory.events", "memory.oom_control"):
            for line in _text(folder / name).splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return None


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


def _groups(root: Path, controller: str) -> tuple[Path, ...]:
    """Return the folders of this process's group and its parents, of both versions."""
    return _existing(root, controller, _text(root / "proc/self/cgroup"))


@lru_cache(maxsize=8)
def _existing(root: Path, controller: str, groups: str) -> tuple[Path, ...]:
    """Return the same folders. They are kept, because workers ask for them every second."""
    folders = dict.fromkeys(_folders(root, controller, groups))
    return tuple(folder for folder in folders if folder.is_dir())


def _folders(root: Path, controller: str, groups: str) -> Iterator[Path]:
    mounts = root / "sys/fs/cgroup"
    for line in groups.splitlines():
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
