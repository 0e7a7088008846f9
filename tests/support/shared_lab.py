"""A lab of made-up slots and a fake clock, shared by users: every choice is the real one."""

import heapq
import sqlite3
from collections.abc import Iterable
from typing import Any

from sqlalchemy import event, select, update
from uuid6 import uuid7

from service.accounts.models import OWN, Project, ProjectMember, User
from service.db.engine import Database
from service.experiments.models import Experiment, Queue
from service.experiments.schemas import Submission
from service.fair_share import FairShare
from service.queue import lease, ledger, workers
from service.queue.lease import Claim
from service.queue.workers import Vitals
from service.vocabulary import Status
from service.workers.models import Worker
from tests.support.fake_clock import FakeClock
from tests.support.ppca_spec import spec_on
from tests.support.starting import start_next
from tests.support.stored import submit

LIKE = ("owner_id", "project_id", "tags", "priority", "spec", "device")
WITHIN_S = 1e12


class SharedLab:
    """`starts` are (time, owner, experiment); the clock is in seconds from 0."""

    def __init__(self, database: Database, fair_share: FairShare, cpus: int = 1, gpus: int = 0):
        self.database = database
        self.fair_share = fair_share
        event.listen(database.engine, "connect", not_for_ever)
        self.clock = FakeClock(database.engine)
        self.began = self.clock.now
        self.idle = {Queue.CPU: [f"cpu{i}" for i in range(cpus)],
                     Queue.GPU: [f"gpu{i}" for i in range(gpus)]}  # fmt: skip
        self.lengths: dict[str, float] = {}
        self.owners: dict[str, int] = {}
        self.projects: dict[str, int] = {}
        self.starts: list[tuple[float, int, str]] = []
        self._running: list[tuple[float, str, Queue, str, Claim]] = []
        for queue, names in self.idle.items():
            for name in names:
                with database.transaction() as session:
                    workers.beat(session, name, Vitals("host", queue, 1))
        with database.transaction() as session:  # the clock leaps, and no worker hangs
            session.execute(update(Worker).values(looked_at=WITHIN_S))

    @property
    def time(self) -> float:
        return self.clock.now - self.began

    def user(self, name: str, **columns: Any) -> int:
        """A new user's id."""
        with self.database.transaction() as session:
            made = User(name=name, **columns)
            session.add(made)
            session.flush()
            return made.id

    def project(self, name: str, members: Iterable[int], **columns: Any) -> int:
        """A new project's id."""
        with self.database.transaction() as session:
            made = Project(name=name, **columns)
            session.add(made)
            session.flush()
            session.add_all(ProjectMember(project_id=made.id, user_id=one) for one in members)
            return made.id

    def submit(
        self,
        owner: int,
        count: int,
        length_s: float,
        device: str = "cpu",
        priority: int = 0,
        project: int = OWN,
    ) -> list[str]:
        """Submit this number of experiments with this duration: the first through the API's
        functions, the others as copies."""
        value = {"spec": spec_on(device), "priority": priority}
        submission = Submission.model_validate(value)
        with self.database.transaction() as session:
            first = submit(session, owner, submission, fair_share=self.fair_share)
            first.project_id = project
            kept = {name: getattr(first, name) for name in LIKE}
            others = [Experiment(id=uuid7().hex, **kept) for _ in range(count - 1)]
            session.add_all(others)
        made = [first.id, *(one.id for one in others)]
        for one in made:
            self.lengths[one], self.owners[one], self.projects[one] = length_s, owner, project
        return made

    def run(self, for_s: float = float("inf")) -> None:
        """Until then, or until nothing runs and nothing may."""
        until = self.time + for_s
        while True:
            self._fill()
            if not self._running or self._running[0][0] > until:
                break
            self._end_first()
        if for_s != float("inf"):
            self.clock.now = self.began + until

    def used_s(self) -> dict[int, float]:
        """Return the slot time that each user has used so far."""
        used: dict[int, float] = {}
        for start, owner, experiment in self.starts:
            length_s = min(self.lengths[experiment], self.time - start)
            used[owner] = used.get(owner, 0.0) + length_s
        return used

    def waiting(self) -> Iterable[str]:
        with self.database.snapshot() as session:
            query = select(Experiment.id).where(Experiment.status == Status.QUEUED)
            return session.scalars(query).all()

    def _fill(self) -> None:
        for queue in (Queue.GPU, Queue.CPU):
            while self.idle[queue] and self._start(queue, self.idle[queue][-1]):
                self.idle[queue].pop()

    def _start(self, queue: Queue, worker: str) -> bool:
        with self.database.transaction() as session:
            claim = start_next(session, worker, queue, lease_s=1e9, fair_share=self.fair_share,
                               within_s=WITHIN_S)  # fmt: skip
        if claim is None:
            return False
        one = claim.experiment_id
        self.starts.append((self.time, self.owners[one], one))
        heapq.heappush(self._running, (self.time + self.lengths[one], worker, queue, one, claim))
        return True

    def _end_first(self) -> None:
        at, worker, queue, _, claim = heapq.heappop(self._running)
        self.clock.now = self.began + at
        with self.database.transaction() as session:
            lease.finish(session, claim, Status.SUCCEEDED)
            ledger.fold(session, self.fair_share)
        self.idle[queue].append(worker)


def not_for_ever(connection: Any, record: object) -> None:
    """No power cut is tested here: SQLite need not wait for the disk."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous=OFF")
