"""A worker of one slot: `python -m worker cpu` or `gpu`, which has one GPU.

In a lab, tickets of Celery wake it. Its solo pool runs the task in the main thread, because runners
end with the thread that started them. With `--local`, for `mpt serve`, it looks for runs ten times
a second instead, and has a controller. It hands its run back at SIGTERM, at SIGUSR1, and at the end
of its lifetime."""

import argparse
import logging
import os
import time
from contextlib import closing
from typing import Any

from celery import Celery
from celery.signals import worker_ready, worker_shutting_down

from service.db.engine import Database
from service.db.errors import TRANSIENT_DB_ERRORS
from service.experiments.models import Queue
from service.logs import logged_process
from service.operations.start import begin
from service.queue import workers
from service.queue.workers import lock_claims
from service.settings import Settings
from worker import gpus
from worker.controller import start_controller
from worker.fitness import UnfitWorker, hide_gpus, require_gpu
from worker.lifetime import Lifetime, duration
from worker.presence import vitals, worker_name
from worker.slot import Slot
from worker.supervisor import UNHEARD_S
from worker.tickets import WORK, make_celery

log = logging.getLogger(__name__)

LOOK_S = 0.1
"""Interval in which a local worker looks for a run."""
BACKLOG_S = 1.0
"""The same while something waits that may not start here: then a look takes the write lock."""


class Worker:
    """One slot and its presence. Use it in the main thread."""

    def __init__(self, settings: Settings, queue: Queue, lifetime_s: float | None = None):
        self.settings = settings
        self.queue = queue
        self.ends_at = None if lifetime_s is None else time.monotonic() + lifetime_s
        self.lifetime = Lifetime()
        self.stopping = self.lifetime.stopping
        self.database = Database(settings.url)
        self.slot = Slot(self.database, settings, worker_name(), queue)

    def run_locally(self) -> None:
        """Work until told to stop, with a controller in this process."""
        threads = [
            self.lifetime.start(self.slot.presence.run, self.stopping),
            *start_controller(self.lifetime, self.settings, None),
        ]
        try:
            while not self.stopping.is_set():
                self._work()
                self.stopping.wait(BACKLOG_S if self.slot.finds_a_backlog else LOOK_S)
        finally:
            self.stopping.set()
            self.slot.close()
        for thread in threads:
            thread.join()
        self.lifetime.end()

    def run(self, app: Celery) -> None:
        """Work until told to stop, woken by tickets."""
        app.task(name=WORK)(self._work)
        worker_shutting_down.connect(self._shut_down)
        worker_ready.connect(self._take_notice)
        if self.ends_at is not None:
            self.lifetime.start(self._end_in_time, self.ends_at - time.monotonic())
        self.slot.be_ready(self.stopping.is_set)
        beats = self.lifetime.start(self.slot.presence.run, self.stopping)
        arguments = ["--quiet", "worker", "--queues", self.queue.value, "--pool", "solo",
                     "--without-gossip", "--without-mingle", "--without-heartbeat",
                     "--loglevel", "INFO"]  # fmt: skip
        if not self.stopping.is_set():
            app.worker_main(arguments)
            if not self.stopping.is_set():
                log.error("Celery has ended unexpectedly: this process fails")
                self.lifetime.failed = True
        self.stopping.set()
        self.slot.close()
        beats.join()
        self.lifetime.end()

    def _work(self) -> None:
        try:
            self.slot.work(self.stopping.is_set, self.lifetime.retiring.is_set)
        except UnfitWorker:
            log.exception("no run can start here: this worker ends")
            self.lifetime.fail()
        except TRANSIENT_DB_ERRORS as error:
            log.warning("the database is unreachable: %s", error)
            self.stopping.wait(self.settings.heartbeat_s)

    def _is_idle(self) -> bool:
        return not self.slot.occupied.locked()

    def _end_in_time(self, left_s: float) -> None:
        """Stop early enough to hand a run back. Start no run that could not save a checkpoint
        first."""
        stop_s = left_s - self.settings.kill_grace_s - UNHEARD_S
        retire_s = stop_s - self.settings.checkpoint_every_s
        self.lifetime.end_after(max(0.0, retire_s), max(0.0, stop_s), self._is_idle)

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
                lock_claims(session)
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
    parser = argparse.ArgumentParser(prog="python -m worker", description=__doc__)
    parser.add_argument("queue", choices=list(map(str, Queue)), help="queue that it serves")
    lifetime_help = "end after this time (90s, 45m, 3h); a run is handed back before"
    parser.add_argument("--lifetime", type=duration, metavar="TIME", help=lifetime_help)
    parser.add_argument("--local", action="store_true", help="of `mpt serve`: without a broker")
    arguments = parser.parse_args()
    if arguments.local and arguments.lifetime is not None:
        parser.error("--lifetime is for workers of a lab")
    settings = begin()
    app = None if arguments.local else make_celery(settings)
    queue = Queue(arguments.queue)
    if queue == Queue.GPU:
        take_gpu(settings)
    else:
        hide_gpus()
    worker = Worker(settings, queue, arguments.lifetime)
    worker.lifetime.stop_on_signals()
    if app is None:
        worker.run_locally()
    else:
        worker.lifetime.stop_on_notice()
        worker.run(app)
