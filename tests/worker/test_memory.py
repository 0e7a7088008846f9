"""The memory of a run is bounded by its worker's container."""

import os
import socket
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from mptcore.runtime.cgroups import MemoryGroup
from service.experiments.models import Queue
from worker import memory, presence

GIB = 2**30


def machine(monkeypatch: pytest.MonkeyPatch, *groups: MemoryGroup) -> None:
    """A machine of 8 GiB, 7 of them free, and control groups with a limit."""
    sizes = SimpleNamespace(total=8 * GIB, available=7 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: sizes)
    monkeypatch.setattr(memory, "memory_groups", lambda: list(groups))


@pytest.mark.parametrize(
    ("setting", "container", "expected"),
    [
        (None, None, int(0.9 * 8 * GIB)),
        (None, 2 * GIB, int(0.9 * 2 * GIB)),
        (GIB, 2 * GIB, GIB),
        (3 * GIB, 2 * GIB, 2 * GIB),
        (9 * GIB, None, 8 * GIB),
    ],
)
def test_memory_that_a_run_may_use(
    monkeypatch: pytest.MonkeyPatch, setting: int | None, container: int | None, expected: int
) -> None:
    groups = [] if container is None else [MemoryGroup(7, container, container - GIB)]
    machine(monkeypatch, *groups)
    assert memory.Memory(setting).limit == expected
    found = presence.vitals(Queue.CPU, setting)
    assert found.run_memory == expected
    assert found.memory_free == min(7 * GIB, *(group.free for group in groups), 7 * GIB)


def test_memories_that_a_worker_shares(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Containers of one machine have host names of their own, but one kernel. A container that sees
    only its own group reports the same number of it as the machine does."""
    boot_id = tmp_path / "boot_id"
    boot_id.write_text("7d54\n")
    monkeypatch.setattr(memory, "BOOT_ID", boot_id)
    whole = {"id": "7d54", "total": 8 * GIB, "free": 7 * GIB}
    machine(monkeypatch)
    monkeypatch.setattr(socket, "gethostname", lambda: "a")
    assert presence.vitals(Queue.CPU).memory_pools == [whole]
    machine(monkeypatch, MemoryGroup(5, 4 * GIB, 3 * GIB), MemoryGroup(6, 2 * GIB, GIB))
    monkeypatch.setattr(socket, "gethostname", lambda: "b")
    assert presence.vitals(Queue.GPU).memory_pools == [
        whole,
        {"id": "7d54/5", "total": 4 * GIB, "free": 3 * GIB},
        {"id": "7d54/6", "total": 2 * GIB, "free": GIB},
    ]
    machine(monkeypatch, MemoryGroup(5, 9 * GIB, 9 * GIB))
    assert presence.vitals(Queue.CPU).memory_pools == [whole]


def test_a_machine_without_control_groups_is_known_by_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(memory, "BOOT_ID", tmp_path / "none")
    machine(monkeypatch)
    monkeypatch.setattr(socket, "gethostname", lambda: "laptop")
    assert [pool["id"] for pool in memory.memory_pools()] == ["laptop"]


def test_a_worker_reports_the_memory_of_its_run() -> None:
    assert presence.vitals(Queue.CPU).memory_ours == 0
    mine = presence.vitals(Queue.CPU, run_pid=os.getpid()).memory_ours
    assert mine == pytest.approx(psutil.Process().memory_info().rss, rel=0.5)
    assert presence.vitals(Queue.CPU, run_pid=2**30).memory_ours == 0, "it has just ended"


def test_a_process_is_over_its_limit_at_its_peak() -> None:
    """Once it has been over, it stays so; one that is gone, or not there yet, adds nothing."""
    measured = memory.Memory(2**20)
    assert not measured.is_over(None)
    assert not measured.is_over(2**30)  # there is no such process
    assert measured.is_over(os.getpid())
    assert measured.is_over(None)
    assert measured.peak == pytest.approx(psutil.Process().memory_info().rss, rel=0.5)
    assert "GiB of main memory, limit 0.00 GiB" in str(measured)


def test_each_process_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first may have ended, and another one taken its place."""
    found: dict[int, int] = {1: 5, 2: 9}

    class Measured:
        def __init__(self, pid: int):
            self.pid = pid

        def memory_info(self) -> SimpleNamespace:
            return SimpleNamespace(rss=found[self.pid])

    monkeypatch.setattr(psutil, "Process", Measured)
    measured = memory.Memory(7)
    assert not measured.is_over(1)
    found[1] = 6
    assert not measured.is_over(1)
    assert measured.peak == 6
    assert measured.is_over(2)


@pytest.mark.parametrize(
    ("group", "vmstat", "kills"),
    [
        (2, "oom_kill 7\n", 2),
        (0, "oom_kill 7\n", 0),
        (None, "pgfree 9\noom_kill 7\noom_kill_x 3\n", 7),
        (None, "pgfree 9\n", 0),
        (None, None, 0),
    ],
)
def test_the_kernel_counts_its_kills(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    group: int | None,
    vmstat: str | None,
    kills: int,
) -> None:
    """The kills in the worker's own control group count, if the group counts them."""
    monkeypatch.setattr(memory, "memory_kills", lambda: group)
    file = tmp_path / "vmstat"
    if vmstat is not None:
        file.write_text(vmstat)
    places = {"/proc/vmstat": file}
    monkeypatch.setattr(memory, "Path", places.__getitem__)
    assert memory.kernel_kills() == kills
