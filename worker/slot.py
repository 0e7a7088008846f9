"""A slot claims the experiments dispatched to it and runs them."""

import logging
import shutil
import sys
import threading
from collections.abc import Callable
from dataclasses import replace

import structlog

from service.db.engine import Database
from service.db.errors import TRANSIENT_DB_ERRORS
from service.experiments.models import Experiment, Queue
from service.experiments.references import input_files
from service.queue import lease, rooms, states, workers
from service.queue.lease import Claim
from service.records import results
from service.settings import Settings
from worker.children import Spawned, WarmParent
from worker.fitness import DEVICE_FAILED, UNFIT, UnfitWorker, gpu_defect
from worker.presence import Presence
from worker.runner import Runner
from worker.supervisor import Supervision

log = logging.getLogger(__name__)


class Slot:
    """The slot of any worker. Use it in the main thread: runners end with that thread."""

    def __init__(self, database: Database, settings: Settings, name: str, queue: Queue = Queue.CPU):
        self.database = database
        self.settings = settings
        self.name = name
        self.presence = Presence(
            database, settings, name, queue, lambda: self.run_pid, lambda: self.run_device_bytes
        )
        self.occupied = threading.Lock()
        """Held from before a claim until the end of its run."""
        self.runner: Runner | None = None
        """The runner of the current run."""
        self._supervision: Supervision | None = None
        self._warm_parent: WarmParent | None = None

    @property
    def run_pid(self) -> int | None:
        """The process id of the current run."""
        runner = self.runner
        return None if runner is None else runner.child.pid

    @property
    def run_device_bytes(self) -> int:
        """GPU memory that the current run has reported, 0 if there is none."""
        supervision = self._supervision
        return 0 if supervision is None else supervision.device_bytes

    def warm_up(self) -> None:
        """Start the warm parent for later runs, if it is supported and not running yet."""
        if not self.settings.warm_parent or sys.platform != "linux":
            return
        if self._warm_parent is not None and (ending := self._warm_parent.ending):
            log.error("the warm parent %s; another one is started", ending)
            self.close()
        if self._warm_parent is None:
            self._warm_parent = WarmParent(transformers=self.presence.queue == Queue.GPU)

    def be_ready(self, is_stopping: Callable[[], bool]) -> None:
        """Wait until runs can start, or the worker is stopping. Raises UnfitWorker if they
        cannot."""
        self.warm_up()
        if self._warm_parent is not None and not self._warm_parent.wait_until_ready(is_stopping):
            ending = self._warm_parent.ending
            raise UnfitWorker(f"the warm parent {ending} before it had imported torch")

    def new_runner(self) -> Runner:
        """Return a runner that waits for its spec."""
        if self._warm_parent is not None:
            return Runner(self._warm_parent.fork)
        return Runner(Spawned)

    def close(self) -> None:
        if self._warm_parent is not None:
            self._warm_parent.close()
        self._warm_parent = None

    def run(self, experiment_id: str, dispatch_no: int, is_stopping: Callable[[], bool]) -> bool:
        """Claim and run an experiment. Return False if the dispatch is not the current one or the
        database is unavailable; the reaper then requeues the experiment. Raises UnfitWorker after
        the experiment was handed back."""
        with self.occupied, structlog.contextvars.bound_contextvars(experiment_id=experiment_id):
            try:
                with self.database.snapshot() as session:
                    is_current = lease.is_dispatched(session, experiment_id, dispatch_no)
                if not is_current:  # known at small cost: hundreds of old messages may have come
                    log.info("dispatch %d is stale", dispatch_no)
                    return False
                self.be_ready(is_stopping)
                claim = self._claim(experiment_id, dispatch_no)
            except TRANSIENT_DB_ERRORS as error:
                log.warning("the database is unreachable: %s", error)
                return False
            if claim is None:
                log.info("dispatch %d is stale, or has no room here", dispatch_no)
                return False
            self._supervise(claim, is_stopping)
            return True

    def _claim(self, experiment_id: str, dispatch_no: int) -> Claim | None:
        vitals = self.presence.vitals()
        with self.database.transaction() as session:
            workers.beat(session, self.name, vitals)  # as it is now, also for later choices
            if vitals.store_full:
                lease.put_back(session, experiment_id, dispatch_no, "the store's disk is full")
                return None
            # A request that hangs may have locked it: then only this worker waits, not dispatching.
            if not lease.is_dispatched(session, experiment_id, dispatch_no, lock=True):
                return None
            place = rooms.lock_place(
                session, self.name, vitals.queue, self.settings.worker_silent_s
            )
            claim = lease.claim(
                session,
                experiment_id,
                dispatch_no,
                worker=self.name,
                lease_s=self.settings.lease_s,
                room=place.room,
                memories=place.memory_ids,
            )
            if claim is None:
                return None
            return replace(claim, inputs=input_files(session, self.settings, claim.spec))

    def _supervise(self, claim: Claim, is_stopping: Callable[[], bool]) -> None:
        runner = self.runner = self.new_runner()
        log.info("attempt %d begins", claim.attempt)
        self._supervision = Supervision(self.database, self.settings, claim, runner)
        try:
            outcome = self._supervision.run(is_stopping)
        finally:
            self.runner = self._supervision = None
        log.info("attempt %d: %s", claim.attempt, outcome)
        self._clean_up(claim)
        if outcome == UNFIT:
            raise UnfitWorker
        if outcome == DEVICE_FAILED and (why := gpu_defect()) is not None:
            raise UnfitWorker(why)

    def _clean_up(self, claim: Claim) -> None:
        """Delete files that nobody will read: those of attempts without recorded artifacts, and
        checkpoints of ended experiments."""
        settings, experiment_id = self.settings, claim.experiment_id
        try:
            with self.database.snapshot() as session:
                ended = states.is_terminal(session.get_one(Experiment, experiment_id).status)
                kept = {str(one.attempt) for one in results.artifacts(session, experiment_id)}
        except TRANSIENT_DB_ERRORS:
            return
        if ended:
            shutil.rmtree(settings.checkpoints(experiment_id), ignore_errors=True)
        for attempt in range(1, claim.attempt + 1) if ended else ():
            if str(attempt) not in kept:
                shutil.rmtree(settings.artifacts(experiment_id, attempt), ignore_errors=True)
