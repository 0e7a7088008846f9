"""A Celery node of one slot: `python -m worker.node cpu` or `gpu` (pinned by CUDA_VISIBLE_DEVICES).

The solo pool runs the task in the main thread, which runners die with. SIGTERM hands the run back.
"""

import argparse
import logging
import os
import sys
from typing import Any

from celery.signals import worker_shutting_down

from service.database import Database
from service.experiments.models import Queue
from service.settings import Settings
from service.start import begin
from worker.celery_app import RUN, broker_answers, make_celery
from worker.fitness import UnfitWorker, hide_gpus, require_gpu
from worker.lifetime import Lifetime
from worker.presence import worker_name
from worker.slot import Slot

log = logging.getLogger(__name__)


class Node:
    """One slot that a doorbell wakes, and its presence."""

    def __init__(self, settings: Settings, queue: Queue):
        self.settings = settings
        self.queue = queue
        self.lifetime = Lifetime()
        self.stopping = self.lifetime.stopping
        self.database = Database(settings.url)
        self.slot = Slot(self.database, settings, worker_name(), queue)
        self.celery = make_celery(settings)

    def run(self) -> None:
        """Work until told to stop. To be called in the main thread."""
        self.celery.task(name=RUN)(self._run)
        worker_shutting_down.connect(self._shut_down)
        self.slot.be_ready(self.stopping.is_set)
        beats = self.lifetime.start(
            self.slot.presence.run,
            self.stopping,
            lambda: not self.slot.occupied.locked(),
            lambda: broker_answers(self.settings),
            self._restart,
        )
        arguments = ["--quiet", "worker", "--queues", self.queue.value, "--pool", "solo",
                     "--without-gossip", "--without-mingle", "--without-heartbeat",
                     "--loglevel", "INFO"]  # fmt: skip
        self.celery.worker_main(arguments)
        self.stopping.set()
        self.slot.close()
        beats.join()
        self.lifetime.end()

    def _run(self, experiment_id: str, dispatch_no: int) -> None:
        if not self.stopping.is_set():
            try:
                self.slot.run(experiment_id, dispatch_no, self.stopping.is_set)
            except UnfitWorker:
                log.exception("no run can begin here: this worker ends")
                return self.lifetime.fail()

    def _restart(self) -> None:
        """Begin anew as the same process, unless a run has come after all; open files and the
        spare runner end with the old one."""
        if self.slot.occupied.acquire(blocking=False):
            self.slot.close()
            os.execv(sys.executable, [sys.executable, "-m", "worker.node", *sys.argv[1:]])

    def _shut_down(self, **_: Any) -> None:
        self.stopping.set()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m worker.node", description=__doc__)
    parser.add_argument("queue", type=Queue, choices=list(Queue), help="what it works for")
    queue = parser.parse_args().queue
    settings = begin()
    if queue == Queue.GPU:
        require_gpu()
    else:
        hide_gpus()
    Node(settings, queue).run()


if __name__ == "__main__":
    main()
