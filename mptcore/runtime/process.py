"""A process that serves another one and is not to outlive it."""

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path


def be_expendable(niceness: int = 5) -> None:
    """Ask Linux for SIGKILL when the thread that started this process ends (where it has ended
    already, the end of stdin says so), to be the first to go when memory runs out, and to let a
    service on the same processors answer first."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
        os.nice(niceness)
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")


def keep_freed_memory() -> None:
    """Ask glibc, where that is the C library, to keep what it frees for the next temporary. By
    default it gives large ones back to the kernel, which clears each anew: up to half of a training
    step's time. What it keeps is in pieces, so that a run may take half as much memory again."""
    libc = ctypes.CDLL(None)
    if sys.platform == "linux" and hasattr(libc, "mallopt"):
        m_trim_threshold, m_mmap_max, most = -1, -4, 2**31 - 1
        libc.mallopt(m_mmap_max, 0)  # a threshold would leave out what is larger than 32 MiB
        libc.mallopt(m_trim_threshold, most)
