"""One slot: it claims what was dispatched to it, runs it, and keeps a spare runner warm."""

import hashlib
import logging
import shutil
import threading
from collections.abc import Callable

import structlog

from service.database import AWAY, Database
from service.experiments import queue
from service.experiments.models import Checkpoint, Experiment
from service.experiments.queue import Claim
from service.settings import Settings
from worker.gpu import NO_GPU, UnusableGpu
from worker.runner import Runner
from worker.supervisor import Supervision

log = logging.getLogger(__name__)


class Slot:
    """What every kind of worker has one of. To be used in the main thread, which runners die
    with."""

    def __init__(self, database: Database, settings: Settings, name: str):
        self.database = database
        self.settings = settings
        self.name = name
        self.occupied = threading.Lock()
        """Held from before a claim to the end of its run."""
        self.runner: Runner | None = None
        """Of the run that is under way."""
        self._spare: Runner | None = None

    def warm_up(self) -> None:
        """Start a spare runner, if there is none."""
        if self.settings.warm_spare and not self._has_spare:
            self._spare = Runner(self.settings.store)

    @property
    def _has_spare(self) -> bool:
        return self._spare is not None and self._spare.alive

    def close(self) -> None:
        if self._spare is not None:
            self._spare.kill()

    def run(self, experiment_id: str, dispatch_no: int, is_stopping: Callable[[], bool]) -> bool:
        """Claim and run; false where the dispatch is not the current one, or the database is
        away (the reaper then puts the experiment back). Raises UnusableGpu, with the experiment
        handed back."""
        with self.occupied, structlog.contextvars.bound_contextvars(experiment_id=experiment_id):
            try:
                claim = self._claim(experiment_id, dispatch_no)
            except AWAY as error:
                log.warning("the database is away: %s", error)
                return False
            if claim is None:
                log.info("dispatch %d is stale", dispatch_no)
                return False
            self._supervise(claim, is_stopping)
            return True

    def _claim(self, experiment_id: str, dispatch_no: int) -> Claim | None:
        resume = self.newest_whole(experiment_id)
        with self.database.transaction() as session:
            return queue.claim(
                session,
                experiment_id,
                dispatch_no,
                worker=self.name,
                lease_s=self.settings.lease_s,
                resume=resume,
            )

    def newest_whole(self, experiment_id: str) -> Checkpoint | None:
        """The latest checkpoint whose file is what was recorded."""
        with self.database.snapshot() as session:
            known = queue.checkpoints(session, experiment_id)
        return next((one for one in known if self._is_whole(one)), None)

    def _is_whole(self, checkpoint: Checkpoint) -> bool:
        file = self.settings.checkpoints(checkpoint.experiment_id) / checkpoint.file
        try:
            with open(file, "rb") as content:
                found = hashlib.file_digest(content, "sha256").hexdigest()
        except OSError as error:
            log.warning("checkpoint %s cannot be read: %s", file, error)
            return False
        if found != checkpoint.sha256:
            log.warning("checkpoint %s is broken: the one before is used", file)
        return found == checkpoint.sha256

    def _supervise(self, claim: Claim, is_stopping: Callable[[], bool]) -> None:
        spare = self._spare if self._has_spare else None
        runner = self.runner = spare or Runner(self.settings.store)
        self._spare = None
        log.info("attempt %d begins", claim.attempt)
        supervision = Supervision(self.database, self.settings, claim, runner)
        self.warm_up()
        outcome = supervision.run(is_stopping)
        self.runner = None
        log.info("attempt %d: %s", claim.attempt, outcome)
        self._clean_up(claim.experiment_id)
        if outcome == NO_GPU:
            raise UnusableGpu

    def _clean_up(self, experiment_id: str) -> None:
        """Delete the checkpoints of what has ended."""
        try:
            with self.database.snapshot() as session:
                ended = queue.is_terminal(session.get_one(Experiment, experiment_id).status)
        except AWAY:
            return
        if ended:
            shutil.rmtree(self.settings.checkpoints(experiment_id), ignore_errors=True)
