"""Limits that control groups set for a process, in folders as on Linux."""

import os
from pathlib import Path

import psutil
import pytest

from mptcore.runtime import cgroups

V2 = {
    "proc/self/cgroup": "0::/lab.slice/worker.service\n",
    "sys/fs/cgroup/lab.slice/worker.service/memory.max": "max\n",
    "sys/fs/cgroup/lab.slice/worker.service/cpu.max": "max 100000\n",
    "sys/fs/cgroup/lab.slice/memory.max": "max\n",
    "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
}
V1 = {
    "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n0::/\n",
    "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "-1\n",
    "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000\n",
}


def tree(folder: Path, *parts: dict[str, str]) -> Path:
    for part in parts:
        for name, text in part.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return folder


@pytest.fixture
def four_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 5})


MEMORY: list[tuple[dict[str, str], dict[str, str], int | None]] = [
    ({}, {}, None),
    (V2, {}, None),
    (V1, {}, None),
    (V2, {"sys/fs/cgroup/lab.slice/worker.service/memory.max": "1000\n"}, 1000),
    (V2, {"sys/fs/cgroup/lab.slice/memory.max": "1000\n"}, 1000),  # of a parent
    (
        V2,
        {
            "sys/fs/cgroup/lab.slice/memory.max": "1000\n",
            "sys/fs/cgroup/lab.slice/worker.service/memory.max": "3000\n",
        },
        1000,
    ),
    (V2, {"sys/fs/cgroup/other.slice/memory.max": "1000\n"}, None),
    ({"proc/self/cgroup": "0::/\n"}, {"sys/fs/cgroup/memory.max": "1000\n"}, 1000),  # a container
    (V2, {"sys/fs/cgroup/unified/lab.slice/memory.max": "1000\n"}, 1000),
    (V1, {"sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": "1000\n"}, 1000),
    (V1, {"sys/fs/cgroup/memory/memory.limit_in_bytes": "1000\n"}, 1000),  # a container
    (V1, {"sys/fs/cgroup/memory.max": "1000\n"}, 1000),
]


@pytest.mark.parametrize(("version", "limits", "expected"), MEMORY)
def test_memory(
    tmp_path: Path, version: dict[str, str], limits: dict[str, str], expected: int | None
) -> None:
    groups = cgroups.memory_groups(tree(tmp_path, version, limits))
    assert min((group.limit for group in groups), default=None) == expected


V2_USED = {
    "sys/fs/cgroup/lab.slice/worker.service/memory.max": "1000\n",
    "sys/fs/cgroup/lab.slice/worker.service/memory.current": "700\n",
    "sys/fs/cgroup/lab.slice/worker.service/memory.stat": "anon 500\ninactive_file 100\nx 9\n",
}
V1_USED = {
    "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": "1000\n",
    "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes": "700\n",
    "sys/fs/cgroup/memory/docker/abc/memory.stat": "inactive_file 50\ntotal_inactive_file 100\n",
}
FREE: list[tuple[dict[str, str], dict[str, str], int | None]] = [
    (V2, {}, None),
    (V2, V2_USED, 400),
    (V1, V1_USED, 400),
    (V2, {"sys/fs/cgroup/lab.slice/memory.max": "1000\n"}, 1000),  # its use is unknown
    (
        V2,
        {
            **V2_USED,
            "sys/fs/cgroup/lab.slice/memory.max": "2000\n",
            "sys/fs/cgroup/lab.slice/memory.current": "1900\n",
        },
        100,
    ),
]


@pytest.mark.parametrize(("version", "files", "expected"), FREE)
def test_free_memory(
    tmp_path: Path, version: dict[str, str], files: dict[str, str], expected: int | None
) -> None:
    """Read files that the kernel may drop are free. The group with the least counts."""
    groups = cgroups.memory_groups(tree(tmp_path, version, files))
    assert min((group.free for group in groups), default=None) == expected


@pytest.mark.parametrize(
    ("version", "files", "expected"),
    [
        (V2, {}, None),
        (
            V2,
            {"sys/fs/cgroup/lab.slice/worker.service/memory.events": "oom 3\noom_kill 2\n"},
            2,
        ),
        (V2, {"sys/fs/cgroup/lab.slice/memory.events": "oom_kill 2\n"}, None),
        (
            V1,
            {"sys/fs/cgroup/memory/docker/abc/memory.oom_control": "under_oom 0\noom_kill 4\n"},
            4,
        ),
    ],
)
def test_kills_of_the_own_group(
    tmp_path: Path, version: dict[str, str], files: dict[str, str], expected: int | None
) -> None:
    assert cgroups.memory_kills(tree(tmp_path, version, files)) == expected


V1_CPU = "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us"
PROCESSORS: list[tuple[dict[str, str], dict[str, str], int]] = [
    ({}, {}, 4),
    (V2, {}, 4),
    (V1, {}, 4),
    (V2, {"sys/fs/cgroup/lab.slice/worker.service/cpu.max": "300000 100000\n"}, 3),
    (V2, {"sys/fs/cgroup/lab.slice/worker.service/cpu.max": "150000 100000\n"}, 2),
    (V2, {"sys/fs/cgroup/lab.slice/worker.service/cpu.max": "1000 100000\n"}, 1),
    (V2, {"sys/fs/cgroup/lab.slice/worker.service/cpu.max": "900000 100000\n"}, 4),
    (V2, {"sys/fs/cgroup/lab.slice/cpu.max": "100000 50000\n"}, 2),  # of a parent
    (V1, {V1_CPU: "250000\n"}, 3),
]


@pytest.mark.parametrize(("version", "limits", "expected"), PROCESSORS)
def test_processors(
    tmp_path: Path,
    four_processors: None,
    version: dict[str, str],
    limits: dict[str, str],
    expected: int,
) -> None:
    assert cgroups.processors(tree(tmp_path, version, limits)) == expected


def test_here() -> None:
    """Linux's own files are understood."""
    assert 1 <= cgroups.processors() <= len(os.sched_getaffinity(0))
    for group in cgroups.memory_groups():
        assert group.limit > psutil.Process().memory_info().rss
