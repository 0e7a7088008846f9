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
    default it gives large ones back to the kernel, which clears each anew: a quarter of a
    training step's time and more."""
    libc = ctypes.CDLL(None)
    if sys.platform == "linux" and hasattr(libc, "mallopt"):
        m_trim_threshold, m_mmap_threshold, most = -1, -3, 2**31 - 1
        libc.mallopt(m_mmap_threshold, 2**25)  # the most that it takes
        libc.mallopt(m_trim_threshold, most)
