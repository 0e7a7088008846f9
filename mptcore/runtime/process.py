"""Settings of a process that must not outlive its parent, and its output."""

import ctypes
import errno
import io
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
RETRY_S = 1.0
"""Interval between looks for space on a full disk."""


def be_expendable(niceness: int = 5) -> None:
    """Ask Linux to kill this process when the thread that started it ends, to prefer it when memory
    runs out, and to give it low CPU priority. If the parent has already ended, the end of stdin
    ends this process."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
        os.nice(niceness)
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")


def keep_freed_memory() -> None:
    """Ask glibc to keep freed memory for the next temporary array. By default it returns large
    blocks to the kernel, which clears each new one: up to half of a training step's time. The kept
    memory is fragmented, so that a run may need half as much memory again."""
    libc = ctypes.CDLL(None)
    if sys.platform == "linux" and hasattr(libc, "mallopt"):
        m_trim_threshold, m_mmap_max, most = -1, -4, 2**31 - 1
        libc.mallopt(m_mmap_max, 0)  # a threshold would exclude blocks above 32 MiB
        libc.mallopt(m_trim_threshold, most)


class _WaitsForSpace(io.FileIO):
    """A file whose writes wait while its disk is full or read-only."""

    def write(self, data: Any, /) -> int:
        while True:
            try:
                return super().write(data)
            except OSError as error:
                if error.errno not in (*FULL_DISK, errno.EROFS):
                    raise
            time.sleep(RETRY_S)


def output_that_waits_for_space(fd: int) -> TextIO:
    """Return a text file of a descriptor. What is written to it while its disk is full waits, and
    is not lost."""
    return io.TextIOWrapper(io.BufferedWriter(_WaitsForSpace(fd, "wb", closefd=False)), "utf-8")
