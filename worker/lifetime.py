"""The end of a worker process: on request, after its lifetime, or when an essential part has
failed."""

import argparse
import logging
import os
import re
import signal
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
LOOK_S = 0.2


def duration(text: str) -> float:
    """Parse a duration such as 90s, 45m, 2.5h or 1d into seconds, for argparse."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if found is None or float(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as 90s, 45m, 3h or 1d")
    return float(found[1]) * UNITS_S[found[2]]


class Lifetime:
    """Lifetime of one process. Threads watch `stopping`."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self.retiring = threading.Event()
        """Set before `stopping`: no new run starts from then on."""
        self.failed = False
        """The process exits with status 1, so that it is restarted."""

    def start(self, part: Callable[..., object], *arguments: object) -> threading.Thread:
        """Run a part in its own thread. If it raises an error the process ends too, so that it does
        not continue without heartbeats."""
        thread = threading.Thread(target=self._run, args=[part, *arguments], daemon=True)
        thread.start()
        return thread

    def stop_on_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stopping.set())

    def stop_on_notice(self) -> None:
        """Handle SIGUSR1 like SIGTERM. Slurm sends it some time before an allocation ends."""
        signal.signal(signal.SIGUSR1, lambda *_: self.stop())

    def stop(self) -> None:
        """End the process as if it were told to stop. A run is handed back."""
        self.retiring.set()
        os.kill(os.getpid(), signal.SIGTERM)

    def end_after(self, retire_s: float, stop_s: float, is_idle: Callable[[], bool]) -> None:
        """Start no run after `retire_s`. Then stop as soon as no run is left, at the latest after
        `stop_s`. Run it as a part."""
        if self.stopping.wait(retire_s):
            return
        self.retiring.set()
        log.info("its time is almost over: it starts no more runs")
        for _ in range(round((stop_s - retire_s) / LOOK_S)):
            if is_idle() or self.stopping.wait(LOOK_S):
                break
        if not self.stopping.is_set():
            log.info("its time is over: it stops")
            self.stop()

    def fail(self) -> None:
        """End the process as if it were told to stop, so that a run is handed back. The exit status
        makes the supervisor restart it."""
        self.failed = True
        self.stopping.set()
        os.kill(os.getpid(), signal.SIGTERM)

    def end(self) -> None:
        """Exit the process. The exit status is 1 after a failure."""
        if self.failed:
            raise SystemExit(1)

    def _run(self, part: Callable[..., object], *arguments: object) -> None:
        try:
            part(*arguments)
        except BaseException:
            log.exception("a part of this process failed: the process ends")
            self.fail()
