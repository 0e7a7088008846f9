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
