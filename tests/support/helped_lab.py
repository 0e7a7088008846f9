"""A lab of made-up slots whose idle CPU workers help running experiments, by the real choices."""

from sqlalchemy import select, update

from service.fair_share import FairShare
from service.queue import helper_choice, helping, shares
from service.queue.helper_choice import Rules
from service.tables.engine import Database, now
from service.tables.experiments import Attempt, Experiment, Queue
from service.tables.helpers import Help
from service.tables.workers import Worker
from tests.support.shared_lab import WITHIN_S, SharedLab


class HelpedLab(SharedLab):
    """Idle workers help, and give way at once. A run with helpers takes as long as without."""

    def __init__(self, database: Database, fair_share: FairShare, cpus: int = 1, gpus: int = 0):
        super().__init__(database, fair_share, cpus, gpus)
        # Runs are helped from their first moment on.
        self.rules = Rules(fair_share, WITHIN_S, max_workers=cpus, after_s=-1.0, lease_s=1e9)
        self.cpus = cpus
        with database.transaction() as session:
            session.execute(update(Worker).values(memory_free=2**60))
        self.helps: dict[int, str] = {}
        """Workers of the current helps."""

    def _fill(self) -> None:
        super()._fill()
        while self._give_way():
            super()._fill()
        self._end_of_runs()
        while self.idle[Queue.CPU] and self._help(self.idle[Queue.CPU][-1]):
            self.idle[Queue.CPU].pop()
        assert not (self.helps and self._is_due())

    def _give_way(self) -> int:
        """End the helps that must stop, and those whose run has ended; return their number."""
        with self.database.transaction() as session:
            helper_choice.give_way(session, Queue.CPU, self.rules)
            stopped = session.scalars(
                select(Help.id).where(Help.must_stop, Help.ended_at.is_(None))
            ).all()
        return sum(self._end(one) for one in stopped)

    def _end_of_runs(self) -> None:
        with self.database.snapshot() as session:
            over = session.scalars(
                select(Help.id)
                .join(Experiment, Experiment.id == Help.experiment_id)
                .where(Help.ended_at.is_(None), Experiment.finished_at.is_not(None))
            ).all()
        for one in over:
            self._end(one)

    def _end(self, help_id: int) -> bool:
        with self.database.transaction() as session:
            helping.end(session, help_id, "its worker is needed")
        self.idle[Queue.CPU].append(self.helps.pop(help_id))
        return True

    def _help(self, worker: str) -> bool:
        with self.database.transaction() as session:
            session.execute(update(Experiment).values(progress_eta_s=1e6, progress_at=now()))
            session.execute(update(Attempt).values(environment={}))
            found = helper_choice.offer(session, Queue.CPU, self.rules)
            if found is None or helping.begin(session, found, worker, 1e9) is None:
                return False
        self.helps[found] = worker
        return True

    def _is_due(self) -> bool:
        with self.database.snapshot() as session:
            standings = shares.standings(session, self.fair_share)
            due = helper_choice.users_due(session, standings, Queue.CPU, self.cpus, self.rules)
            return next(due, None) is not None

    def charged_s(self) -> dict[int, float]:
        """Return what fair share charges each user."""
        with self.database.snapshot() as session:
            return {one.owner_id: one.usage_s for one in shares.standings(session, self.fair_share)}
