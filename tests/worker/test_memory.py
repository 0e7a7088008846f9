"""The memory of a run is bounded by its worker's container."""

import psutil
import pytest

from service.experiments.models import Queue
from worker import memory, presence

GIB = 2**30


@pytest.mark.parametrize(
    ("setting", "container", "expected"),
    [
        (None, None, int(0.9 * 8 * GIB)),
        (None, 2 * GIB, int(0.9 * 2 * GIB)),
        (None, 16 * GIB, int(0.9 * 8 * GIB)),
        (3 * GIB, 2 * GIB, 3 * GIB),
    ],
)
def test_what_a_run_may_use(
    monkeypatch: pytest.MonkeyPatch, setting: int | None, container: int | None, expected: int
) -> None:
    machine = type("Machine", (), {"total": 8 * GIB, "available": 7 * GIB})
    monkeypatch.setattr(psutil, "virtual_memory", lambda: machine)
    monkeypatch.setattr(memory, "memory_limit_bytes", lambda: container)
    assert memory.Memory(setting).limit == expected
    found = presence.vitals(Queue.CPU, setting)
    assert found.run_memory == expected
    assert found.memory_free == min(7 * GIB, container or 7 * GIB)
