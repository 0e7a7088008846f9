"""The embedded worker: `python -m worker.local [gpu]`. One slot on this machine that dispatches to
itself, with the reaper, the sweeper and the messenger."""

import argparse
import logging

from service import store_space
from service.db.engine import Database
from service.db.errors import TRANSIENT_DB_ERRORS
from service.experiments.models import Queue
from service.logs import logged_process
from service.operations.start import begin
from service.queue import dispatch
from service.queue.dispatch import Dispatch
from service.settings import Settings
from worker.fitness import hide_gpus, require_gpu
from worker.lifetime import Lifetime
from worker.messenger import Messenger
from worker.presence import worker_name
from worker.reaper import Reaper
from worker.slot import Slot
from worker.sweeper import Sweeper

log = logging.getLogger(__name__)


class LocalWorker:
    """Claims experiments with the same functions as a lab's worker."""

    def __init__(self, settings: Settings, queue: Queue = Queue.CPU):
        self.settings = settings
        self.queue = queue
        self.database = Database(settings.url, connections=5)  # one for each thread
        self.lifetime = Lifetime()
        self.stopping = self.lifetime.stopping

    def run(self) -> None:
        """Work until told to stop. Call it in the main thread."""
        slot = Slot(self.database, self.settings, worker_name(), self.queue)
        reaper = Reaper(self.database, self.settings)
        sweeper = Sweeper(self.database, self.settings)
        messenger = Messenger(self.database, self.settings)
        beside = [
            self.lifetime.start(part.run, self.stopping)
            for part in (reaper, sweeper, messenger, slot.presence)
        ]
        try:
            slot.be_ready(self.stopping.is_set)
            while not self.stopping.is_set():
                chosen = self._next()
                if chosen is not None:
                    taken = chosen.experiment_id, chosen.dispatch_no
                    if not slot.run(*taken, self.stopping.is_set):  # another GPU has the room
                        self.stopping.wait(self.settings.poll_s)
                else:
                    self.stopping.wait(self.settings.poll_s)
        finally:
            self.stopping.set()
            slot.close()
        for thread in beside:
            thread.join()

    def _next(self) -> Dispatch | None:
        if store_space.shortage(self.settings) is not None:
            return None
        try:
            with self.database.snapshot() as session:  # most of the time nothing is queued
                if not dispatch.is_something_queued(session):
                    return None
            silent_s = self.settings.worker_silent_s
            with self.database.transaction() as session:
                return dispatch.dispatch_next(session, self.queue, self.settings.share, silent_s)
        except TRANSIENT_DB_ERRORS as error:
            log.warning("the database is unreachable: %s", error)
            self.stopping.wait(self.settings.heartbeat_s)
            return None


@logged_process
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m worker.local", description=__doc__)
    queue_help = "queue that it serves; gpu needs one visible GPU"
    parser.add_argument(
        "queue", type=Queue, choices=list(Queue), nargs="?", default=Queue.CPU, help=queue_help
    )
    queue = parser.parse_args().queue
    settings = begin()
    if queue == Queue.GPU:
        require_gpu()
    else:
        hide_gpus()
    worker = LocalWorker(settings, queue)
    worker.lifetime.stop_on_signals()
    worker.run()
    worker.lifetime.end()


if __name__ == "__main__":
    main()
