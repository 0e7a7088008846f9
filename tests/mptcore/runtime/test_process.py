"""What a run asks of its process."""

import subprocess
import sys

import pytest

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
def test_large_temporaries_are_not_cleared_anew() -> None:
    """Once some were made. A page that comes anew from the kernel is a fault: of 4 KiB, or of 2 MiB
    where pages are large."""
    command = [sys.executable, "-c", LARGE_TEMPORARIES]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100
