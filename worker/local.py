"""The embedded worker: one slot on this machine, with the reaper beside it."""

import logging
import os
import signal
import socket
import threading

from sqlalchemy.exc import OperationalError

from service.database import Database
from service.experiments import queue
from service.experiments.queue import Claim
from service.settings import Settings
from worker.reaper import Reaper
from worker.runner import Runner
from worker.supervisor import Supervision

log = logging.getLogger(__name__)


class LocalWorker:
    """Claims by the same functions as a lab's worker, from a dispatch of its own."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.database = Database(settings.url)
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self.stopping = threading.Event()

    def run(self) -> None:
        """Work until told to stop. To be called in the main thread, which runners die with."""
        reaper = Reaper(self.database, self.settings)
        threading.Thread(target=reaper.run, args=(self.stopping,), daemon=True).start()
        spare = Runner()
        while not self.stopping.is_set():
            claim = self._next()
            if claim is None:
                self.stopping.wait(self.settings.poll_s)
                continue
            runner, spare = (spare if spare.alive else Runner()), Runner()
            log.info("running %s, attempt %d", claim.experiment_id, claim.attempt)
            outcome = Supervision(self.database, self.settings, claim, runner).run(
                self.stopping.is_set
            )
            log.info("%s, attempt %d: %s", claim.experiment_id, claim.attempt, outcome)
        spare.kill()

    def _next(self) -> Claim | None:
        try:
            with self.database.transaction() as session:
                dispatch = queue.dispatch_next(session)
            if dispatch is None:
                return None
            with self.database.transaction() as session:
                return queue.claim(session, *dispatch, self.name, self.settings.lease_s)
        except OperationalError as error:
            log.warning("the database is away: %s", error)
            self.stopping.wait(self.settings.heartbeat_s)
            return None


def main() -> None:
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    worker = LocalWorker(Settings())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: worker.stopping.set())
    worker.run()


if __name__ == "__main__":
    main()
