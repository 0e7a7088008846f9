"""A Celery node of one slot: `python -m worker.node cpu` or `gpu`, which has one GPU.

The solo pool runs the task in the main thread, because runners end with the thread that started
them. The node hands its run back at SIGTERM, at SIGUSR1, and at the end of its lifetime."""

import argparse
import logging
import os
import sys
import time
from contextlib import closing
from typing import Any

from celery.signals import worker_ready, worker_shutting_down

from service.db.engine import Database
from service.experiments.models import Queue
from service.logs import logged_process
from service.operations.start import begin
from service.queue import workers
from service.settings import Settings
from worker import gpus
from worker.celery_app import RUN, broker_answers, make_celery
from worker.fitness import UnfitWorker, hide_gpus, require_gpu
from worker.lifetime import Lifetime, duration
from worker.presence import vitals, worker_name
from worker.slot import Slot
from worker.supervisor import UNHEARD_S

log = logging.getLogger(__name__)


class Node:
    """One slot that is notified through the broker, and its presence."""

    def __init__(self, settings: Settings, queue: Queue, lifetime_s: float | None = None):
        self.settings = settings
        self.queue = queue
        self.ends_at = None if lifetime_s is None else time.monotonic() + lifetime_s
        self.lifetime = Lifetime()
        self.stopping = self.lifetime.stopping
        self.database = Database(settings.url)
        self.slot = Slot(self.database, settings, worker_name(), queue)
        self.celery = make_celery(settings)

    def run(self) -> None:
        """Work until told to stop. Call it in the main thread."""
        self.celery.task(name=RUN)(self._run)
        worker_shutting_down.connect(self._shut_down)
        worker_ready.connect(self._take_notice)
        if self.ends_at is not None:
            self.lifetime.start(self._end_in_time, self.ends_at - time.monotonic())
        self.slot.be_ready(self.stopping.is_set)
        beats = self.lifetime.start(
            self.slot.presence.run,
            self.stopping,
            self._is_idle,
            lambda: broker_answers(self.settings),
            self._restart,
        )
        arguments = ["--quiet", "worker", "--queues", self.queue.value, "--pool", "solo",
                     "--without-gossip", "--without-mingle", "--without-heartbeat",
                     "--loglevel", "INFO"]  # fmt: skip
        if not self.stopping.is_set():
            self.celery.worker_main(arguments)
            if not self.stopping.is_set():
                log.error("Celery has ended unexpectedly: this process fails")
                self.lifetime.failed = True
        self.stopping.set()
        self.slot.close()
        beats.join()
        self.lifetime.end()

    def _run(self, experiment_id: str, dispatch_no: int) -> None:
        if not (self.stopping.is_set() or self.lifetime.retiring.is_set()):
            try:
                self.slot.run(experiment_id, dispatch_no, self.stopping.is_set)
            except UnfitWorker:
                log.exception("no run can start here: this worker ends")
                return self.lifetime.fail()

    def _is_idle(self) -> bool:
        return not self.slot.occupied.locked()

    def _end_in_time(self, left_s: float) -> None:
        """Stop early enough to hand a run back. Start no run that could not save a checkpoint
        first."""
        stop_s = left_s - self.settings.kill_grace_s - UNHEARD_S
        retire_s = stop_s - self.settings.checkpoint_every_s
        self.lifetime.end_after(max(0.0, retire_s), max(0.0, stop_s), self._is_idle)

    def _restart(self) -> None:
        """Restart in the same process, unless a run has arrived in the meantime. Open files and the
        spare runner are closed."""
        if self.slot.occupied.acquire(blocking=False):
            self.slot.close()
            arguments = [self.queue.value]
            if self.ends_at is not None:  # the new process has the remaining time
                arguments += ["--lifetime", f"{max(1.0, self.ends_at - time.monotonic()):.0f}s"]
            os.execv(sys.executable, [sys.executable, "-m", "worker.node", *arguments])

    def _take_notice(self, **_: Any) -> None:
        self.lifetime.stop_on_notice()  # Celery has replaced the handler
        if self.stopping.is_set():  # a signal came before Celery handled signals
            self.lifetime.stop()

    def _shut_down(self, **_: Any) -> None:
        self.stopping.set()


def take_gpu(settings: Settings) -> None:
    """Give this process and its runners one GPU: of the visible ones, that with the fewest workers.
    GPUs are numbered by PCI bus, as in nvidia-smi. Ends the process if torch cannot use the GPU."""
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    seen = gpus.visible()
    with closing(Database(settings.url)) as database:
        if seen:
            with database.transaction() as session:  # one process at a time
                workers.lock_dispatching(session)
                within_s = settings.worker_silent_s
                os.environ[gpus.VISIBLE] = workers.least_taken(session, seen, within_s)
                workers.beat(session, worker_name(), vitals(Queue.GPU, settings.run_memory_bytes))
        try:
            require_gpu()
        except SystemExit:
            with database.transaction() as session:
                workers.leave(session, worker_name())
            raise


@logged_process
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m worker.node", description=__doc__)
    parser.add_argument("queue", type=Queue, choices=list(Queue), help="queue that it serves")
    lifetime_help = "end after this time (90s, 45m, 3h); a run is handed back before"
    parser.add_argument("--lifetime", type=duration, metavar="TIME", help=lifetime_help)
    arguments = parser.parse_args()
    queue = arguments.queue
    settings = begin()
    if queue == Queue.GPU:
        take_gpu(settings)
    else:
        hide_gpus()
    node = Node(settings, queue, arguments.lifetime)
    node.lifetime.stop_on_signals()
    node.lifetime.stop_on_notice()
    node.run()


if __name__ == "__main__":
    main()
