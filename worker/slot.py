"""A slot claims experiments and runs them."""

import logging
import shutil
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

import structlog

from mptcore.specs import known_families
from service.db.engine import Database
from service.db.errors import TRANSIENT_DB_ERRORS
from service.experiments.models import Experiment, Queue
from service.queue import claims, lease, states, workers
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
        self.queue = queue
        self.presence = Presence(
            database, settings, name, queue, lambda: self.run_pid, lambda: self.run_device_bytes
        )
        self.finds_a_backlog = False
        """True if something was queued at the last look for a run."""
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
            self._warm_parent = WarmParent(transformers=self.queue == Queue.GPU)

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
            return Runner(self._warm_parent.fork, self.settings.store)
        return Runner(Spawned, self.settings.store)

    def close(self) -> None:
        if self._warm_parent is not None:
            self._warm_parent.close()
        self._warm_parent = None

    def work(
        self, is_stopping: Callable[[], bool], is_retiring: Callable[[], bool] = lambda: False
    ) -> None:
        """Claim experiments and run them, until nothing is startable here, or the worker stops or
        starts no more runs. Raises UnfitWorker after a run that could not start was handed back."""
        while not (is_stopping() or is_retiring()):
            with self.occupied:
                self.be_ready(is_stopping)
                claim = self.claim()
                if claim is None:
                    return
                self.run(claim, is_stopping)

    def claim(self) -> Claim | None:
        """Claim the next experiment that may start here."""
        self.presence.look()
        with self.database.snapshot() as session:  # most of the time nothing is queued
            startable = claims.count_startable(session, self.queue, known_families())
            self.finds_a_backlog = startable > 0
        if not self.finds_a_backlog:
            return None
        vitals = self.presence.vitals()
        if vitals.store_full:
            return None
        with self.database.transaction() as session:
            # as it is now, also for other claims
            self.presence.must_hand_back = workers.beat(session, self.name, vitals)
            return claims.claim(
                session,
                self.name,
                self.queue,
                lease_s=self.settings.lease_s,
                fair_share=self.settings.share,
                within_s=self.settings.worker_silent_s,
            )

    def run(self, claim: Claim, is_stopping: Callable[[], bool]) -> None:
        """Run a claimed experiment to the end of its attempt. Raises UnfitWorker after it was
        handed back because no run can start here."""
        with structlog.contextvars.bound_contextvars(experiment_id=claim.experiment_id):
            try:
                runner = self.runner = self.new_runner()
            except OSError as error:
                with suppress(*TRANSIENT_DB_ERRORS), self.database.transaction() as session:
                    lease.release(session, claim)
                raise UnfitWorker(f"no run can be started: {error}") from error
            log.info("attempt %d begins", claim.attempt)
            self._supervision = Supervision(self.database, self.settings, claim, runner)
            try:
                outcome = self._supervision.run(
                    lambda: is_stopping() or self.presence.must_hand_back
                )
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
                experiment = session.get(Experiment, experiment_id)  # None: it was purged since
                ended = experiment is None or states.is_terminal(experiment.status)
                kept = {str(one.attempt) for one in results.artifacts(session, experiment_id)}
        except TRANSIENT_DB_ERRORS:
            return
        if ended:
            shutil.rmtree(settings.checkpoints(experiment_id), ignore_errors=True)
        for attempt in range(1, claim.attempt + 1) if ended else ():
            if str(attempt) not in kept:
                shutil.rmtree(settings.artifacts(experiment_id, attempt), ignore_errors=True)
