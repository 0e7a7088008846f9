"""`python -m worker.every_gpu`: workers for each GPU of this machine, pinned to it by its UUID.

A failed worker is restarted some time later, and the others continue.
"""

import argparse
import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from itertools import product

from service.logs import logged_process
from service.operations.start import begin
from worker import gpus
from worker.lifetime import Lifetime, duration

log = logging.getLogger(__name__)

WORKER = (sys.executable, "-m", "worker", "gpu")
RESTART_S = 10.0
LOOK_S = 0.2
PR_SET_PDEATHSIG = 1

PinnedSlot = tuple[str, int]
"""UUID of a GPU and number of one of its workers."""


class PinnedWorkers:
    """Worker processes, `slots` for each GPU. Use it in the main thread: the workers end with that
    thread."""

    def __init__(
        self,
        uuids: Sequence[str],
        command: Sequence[str] = WORKER,
        restart_s: float = RESTART_S,
        *,
        slots: int = 1,
        may_end: bool = True,
    ):
        """Without `may_end` a worker that ended with status 0 is started again too."""
        self._command, self._restart_s, self._may_end = command, restart_s, may_end
        self._processes: dict[PinnedSlot, subprocess.Popen[bytes]] = {}
        each = product(uuids, range(slots))
        self._due = dict.fromkeys(each, -float("inf"))  # when those are started that do not run

    def run(self, stopping: threading.Event) -> None:
        """Run until told to stop, or until every worker has reached the end of its lifetime."""
        while self._due or self._processes:
            self._look()
            if stopping.wait(LOOK_S):
                break
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.wait()

    def _look(self) -> None:
        now = time.monotonic()
        for slot, process in list(self._processes.items()):
            if (status := process.poll()) is None:
                continue
            del self._processes[slot]
            if status != 0 or not self._may_end:
                log.warning("a worker of %s ended with status %d", slot[0], status)
                self._due[slot] = now + self._restart_s
        for slot in [slot for slot, due in self._due.items() if due <= now]:
            del self._due[slot]
            self._processes[slot] = self._started(slot[0])

    def _started(self, uuid: str) -> subprocess.Popen[bytes]:
        """Start a worker in its own session, so that Ctrl-C reaches it only once, through this
        process."""
        environment = {**os.environ, gpus.VISIBLE: uuid}
        libc = ctypes.CDLL(None)

        def stop_with_parent() -> None:
            if sys.platform == "linux":
                libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

        return subprocess.Popen(
            self._command, env=environment, start_new_session=True, preexec_fn=stop_with_parent
        )


@logged_process
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m worker.every_gpu", description=__doc__)
    parser.add_argument("--lifetime", type=duration, metavar="TIME", help="of each worker")
    slots_help = "workers for each GPU, whose runs share its memory"
    parser.add_argument("--slots", type=int, default=1, metavar="N", help=slots_help)
    parser.add_argument("--local", action="store_true", help="of `mpt serve`: without a broker")
    arguments = parser.parse_args()
    if arguments.local and arguments.lifetime is not None:
        parser.error("--lifetime is for workers of a lab")
    if arguments.slots < 1:
        parser.error("--slots must be at least 1")
    begin()
    uuids = gpus.visible()
    if not uuids:
        raise SystemExit("NVML reports no GPU here: look at CUDA_VISIBLE_DEVICES and nvidia-smi")
    lifetime = Lifetime()
    lifetime.stop_on_signals()
    lifetime.stop_on_notice()
    options = [] if arguments.lifetime is None else ["--lifetime", f"{arguments.lifetime:.0f}s"]
    options += ["--local"] if arguments.local else []
    command, may_end = (*WORKER, *options), not arguments.local
    pinned = PinnedWorkers(uuids, command, slots=arguments.slots, may_end=may_end)
    pinned.run(lifetime.stopping)


if __name__ == "__main__":
    main()
