"""Settings that a run makes for its process."""

import os
import signal
import sys
import time
from pathlib import Path

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


EXPENDABLE = """
import ctypes, os
from mptcore.runtime.process import be_expendable

be_expendable(niceness=7)
parent_death_signal = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(parent_death_signal))
print(os.nice(0), open("/proc/self/oom_score_adj").read().strip(), parent_death_signal.value)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
def test_a_run_dies_with_its_parent_and_before_others(tmp_path: Path) -> None:
    niceness, badness, number = map(int, run_code(EXPENDABLE, tmp_path, {}).stdout.split())
    assert niceness >= 7
    assert badness == 1000
    assert number == signal.SIGKILL


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
