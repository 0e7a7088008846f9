"""Settings that a run makes for its process."""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mptcore.runtime import process
from tests.support.forks import run_code

LARGE_TEMPORARIES = """
import resource
import torch
from mptcore.runtime.process import keep_freed_memory

keep_freed_memory()
torch.set_num_threads(1)

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

for _ in range(20):
    torch.ones(2**24)  # 64 MiB
before = faults()
for _ in range(10):
    torch.ones(2**24)
print(faults() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks glibc")
def test_memory_of_large_temporaries_is_reused(tmp_path: Path) -> None:
    """Measured after a few temporaries. A new page from the kernel is a fault: 4 KiB, or 2 MiB for
    large pages."""
    assert int(run_code(LARGE_TEMPORARIES, tmp_path, {}).stdout) < 100


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Record the calls to Linux for this process without executing them."""
    found: list[tuple[Any, ...]] = []
    libc = SimpleNamespace(
        prctl=lambda *given: found.append(("prctl", *given)),
        mallopt=lambda *given: found.append(("mallopt", *given)),
    )
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: libc if name is None else None)
    monkeypatch.setattr(os, "nice", lambda by: found.append(("nice", by)))
    monkeypatch.setattr(process, "Path", lambda place: tmp_path / Path(place).name)
    return found


def test_a_run_dies_with_its_parent_and_before_others(
    calls: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    process.be_expendable()
    assert calls == [("prctl", 1, signal.SIGKILL), ("nice", 5)]  # 1 is PR_SET_PDEATHSIG
    assert (tmp_path / "oom_score_adj").read_text() == "1000"
    process.be_expendable(niceness=11)
    assert calls[-1] == ("nice", 11)


def test_freed_memory_is_kept_up_to_any_size(
    calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    process.keep_freed_memory()  # M_MMAP_MAX is −4, M_TRIM_THRESHOLD −1
    assert calls == [("mallopt", -4, 0), ("mallopt", -1, 2**31 - 1)]
    calls.clear()
    monkeypatch.setattr(sys, "platform", "darwin")
    process.keep_freed_memory()
    process.be_expendable()
    assert calls == []


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
def test_output_waits_while_its_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that is always full; after the first failed write, a file is put in its place."""
    lines = [f"{number}\n" for number in range(10_000)]
    fd = os.open("/dev/full", os.O_WRONLY)
    waits: list[float] = []

    def make_space(seconds: float) -> None:
        waits.append(seconds)
        file = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
        os.dup2(file, fd)
        os.close(file)

    monkeypatch.setattr(time, "sleep", make_space)
    output = process.output_that_waits_for_space(fd)
    for line in lines:
        output.write(line)
    output.flush()
    os.close(fd)
    assert len(waits) == 1
    assert (tmp_path / "file").read_text() == "".join(lines)
