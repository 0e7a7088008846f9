"""Fair share with helpers, in a lab of made-up slots and a fake clock."""

from sqlalchemy import select, update

from service.fair_share import FairShare
from service.queue import helper_choice, helping, shares
from service.queue.helper_choice import Rules
from service.tables.engine import Database, now
from service.tables.experiments import Attempt, Experiment, Queue
from service.tables.helpers import Help
from service.tables.workers import Worker
from tests.support.shared_lab import WITHIN_S, SharedLab

CPUS = 4
SHARE = FairShare(spare_slots=0, half_life_s=1e9, advance_s=10.0)
RULES = Rules(SHARE, WITHIN_S, max_workers=CPUS, after_s=-1.0, lease_s=1e9)
"""Runs are helped from their first moment on."""
LONG_S, SHORT_S = 2000.0, 10.0


class HelpedLab(SharedLab):
    """Idle workers help, and give way at once. A run with helpers takes as long as without."""

    def __init__(self, database: Database):
        super().__init__(database, SHARE, cpus=CPUS)
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
            helper_choice.give_way(session, Queue.CPU, RULES)
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
            found = helper_choice.offer(session, Queue.CPU, RULES)
            if found is None or helping.begin(session, found, worker, 1e9) is None:
                return False
        self.helps[found] = worker
        return True

    def _is_due(self) -> bool:
        with self.database.snapshot() as session:
            standings = shares.standings(session, SHARE)
            due = helper_choice.users_due(session, standings, Queue.CPU, CPUS, RULES)
            return next(due, None) is not None

    def charged_s(self) -> dict[int, float]:
        """Return what fair share charges each user."""
        with self.database.snapshot() as session:
            return {one.owner_id: one.usage_s for one in shares.standings(session, SHARE)}


def test_a_newcomer_takes_the_place_of_a_helper_at_once(either: Database) -> None:
    """All other helpers go on."""
    lab = HelpedLab(either)
    ann, bob = lab.user("ann"), lab.user("bob")
    lab.submit(ann, 1, LONG_S)
    lab.run(for_s=100.0)
    assert len(lab.helps) == CPUS - 1
    lab.submit(bob, 1, SHORT_S)
    lab.run(for_s=0.0)
    assert lab.starts[-1][:2] == (100.0, bob)
    assert len(lab.helps) == CPUS - 2
    lab.run(for_s=SHORT_S)
    assert len(lab.helps) == CPUS - 1


def test_the_owner_of_a_helped_run_is_charged_for_the_helpers(either: Database) -> None:
    """Afterwards the others are first until they have had as much."""
    lab = HelpedLab(either)
    ann, bob = lab.user("ann"), lab.user("bob")
    lab.submit(ann, 1, 500.0)
    lab.run(for_s=501.0)
    assert lab.helps == {}
    helped_s = 500.0 * CPUS
    assert abs(lab.charged_s()[ann] - helped_s) < 1.0
    for owner in (ann, bob):
        lab.submit(owner, 60, 50.0)
    lab.run(for_s=helped_s / CPUS - 100.0)
    assert {owner for at, owner, _ in lab.starts if at > 500.0} == {bob}
    lab.run(for_s=400.0)
    used = lab.charged_s()
    assert abs(used[ann] - used[bob]) <= CPUS * 50.0
    assert used[ann] > helped_s + 400.0


def test_nobody_waits_while_helpers_work(either: Database) -> None:
    """With long runs of two users and many short ones of a third, whose arrival is staggered. The
    lab checks it at each choice."""
    lab = HelpedLab(either)
    ann, bob, cleo = (lab.user(name) for name in ("ann", "bob", "cleo"))
    lab.submit(ann, 2, 300.0)
    lab.run(for_s=20.0)
    lab.submit(bob, 1, 300.0)
    for count in (1, 3, 2, 5):
        lab.run(for_s=15.0)
        lab.submit(cleo, count, SHORT_S)
    lab.run()
    assert not [*lab.waiting()]
    assert len(lab.starts) == 14
    begun = [at for at, owner, _ in lab.starts if owner == cleo]
    assert max(begun) == 50.0 + 9 * SHORT_S  # on the one slot that no run of the others has
