"""How a worker process ends: it is told to, or a part that it cannot do without has failed."""

import logging
import os
import signal
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


class Lifetime:
    """Of one process. Parts in threads of their own look at `stopping`."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self._failed = False

    def start(self, part: Callable[..., object], *arguments: object) -> threading.Thread:
        """Run a part in a thread of its own. Where it ends by an error, the process ends too: it
        must not go on without its heartbeats, unseen."""
        thread = threading.Thread(target=self._run, args=[part, *arguments], daemon=True)
        thread.start()
        return thread

    def stop_on_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stopping.set())

    def fail(self) -> None:
        """End the process as if it were told to stop, so that a run is handed back; its exit status
        has it started again."""
        self._failed = True
        self.stopping.set()
        os.kill(os.getpid(), signal.SIGTERM)

    def end(self) -> None:
        """The last call of a process. Exit status 1 after a failure."""
        if self._failed:
            raise SystemExit(1)

    def _run(self, part: Callable[..., object], *arguments: object) -> None:
        try:
            part(*arguments)
        except BaseException:
            log.exception("a part of this process failed: the process ends")
            self.fail()
