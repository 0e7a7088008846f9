"""A lab whose runs give way: a `SharedLab` with the looks of the controller, on the fake clock."""

import heapq
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from sqlalchemy import select, update

from service.db.engine import Database
from service.experiments.models import Experiment, Queue
from service.fair_share import FairShare
from service.queue import giving_way, lease, ledger
from service.queue.lease import Claim
from service.queue.rooms import places
from service.queue.shares import standings
from service.vocabulary import Status
from tests.support.shared_lab import WITHIN_S, SharedLab
from tests.support.starting import start_next

ROUNDING_S = 1e-3
SOON_S = 5.0
"""Time until the controller looks after a start, which may change its mind."""
SLICE_S = FairShare().slice_s
"""Slice by which labs without slices are judged."""


@dataclass
class Going:
    """A current run. Times are in seconds of the lab."""

    claim: Claim
    worker: str
    queue: Queue
    began: float
    computes_from: float
    """Until then it loads and repeats."""
    ends: float
    has_reported: bool = False
    """True once its worker has reported when it ends."""
    asked: float | None = None
    for_whom: str = ""


@dataclass
class Findings:
    """Times are in seconds."""

    longest_due_s: float = 0.0
    """Longest time that a user without a run waited although enough slots were held by users with
    more usage for their shares, and nobody with less usage took one unexpectedly."""
    longest_idle_s: float = 0.0
    """Longest time that a user with waiting experiments was without a run."""
    displaced: int = 0
    useless: list[str] = field(default_factory=list)
    """Runs that gave way although nobody was helped."""
    in_turns: list[str] = field(default_factory=list)
    """Runs that displaced each other within a slice."""
    repeated_s: float = 0.0
    """Slot time for the start of runs that had given way."""


class SlicedLab(SharedLab):
    """Runs save themselves some time after they were asked to give way."""

    def __init__(
        self,
        database: Database,
        fair_share: FairShare,
        cpus: int = 1,
        gpus: int = 0,
        *,
        look_s: float,
        start_s: float = 0.0,
        save_s: float = 0.0,
        seed: int = 0,
    ):
        super().__init__(database, fair_share, cpus, gpus)
        self.look_s, self.start_s, self.save_s = look_s, start_s, save_s
        self.pick = random.Random(seed)
        self.going: dict[str, Going] = {}
        self.done_s: dict[str, float] = defaultdict(float)
        """Computed part of each experiment."""
        self.held_s: dict[int, float] = defaultdict(float)
        """Slot time of ended attempts by user."""
        self.findings = Findings()
        self._ends: list[tuple[float, str, int]] = []
        self._due: dict[int, tuple[float, Counter[int]]] = {}
        """Since when users are due, and how many runs of others come before theirs."""
        self._idle_since: dict[int, float] = {}
        self._displaced: dict[tuple[str, str], float] = {}
        self._next_look = 0.0

    def run(self, for_s: float = float("inf")) -> None:
        """Until then, or until nothing runs and nothing may."""
        until = self.time + for_s
        while True:
            self._fill()
            next_end = self._ends[0][0] if self._ends else float("inf")
            if not self.going and for_s == float("inf"):
                break
            at = min(next_end, max(self._next_look, self.time))
            if at > until:
                break
            self.clock.now = self.began + max(at, self.time)
            if next_end <= at:
                self._end_next()
            else:
                self._next_look = self.time + self.look_s
                self._look()
        if for_s != float("inf"):
            self.clock.now = self.began + until

    def used_s(self) -> dict[int, float]:
        used = dict(self.held_s)
        for one, run in self.going.items():
            owner = self.owners[one]
            used[owner] = used.get(owner, 0.0) + self.time - run.began
        return used

    def _start(self, queue: Queue, worker: str) -> bool:
        with self.database.transaction() as session:
            claim = start_next(session, worker, queue, lease_s=1e9, fair_share=self.fair_share,
                               within_s=WITHIN_S)  # fmt: skip
        if claim is None:
            return False
        one = claim.experiment_id
        self.starts.append((self.time, self.owners[one], one))
        computes_from = self.time + self.start_s
        ends = computes_from + self.lengths[one] - self.done_s[one]
        self.going[one] = Going(claim, worker, queue, self.time, computes_from, ends)
        heapq.heappush(self._ends, (ends, one, claim.attempt))
        if any(run.asked is not None for run in self.going.values()):
            self._next_look = min(self._next_look, self.time + SOON_S)
        if claim.attempt > 1:
            self.findings.repeated_s += self.start_s
        self._note_start(self.owners[one])
        return True

    def _note_start(self, owner: int) -> None:
        """The owner is due no more. Those whom it has overtaken, with less usage, by one run more
        than was expected are due anew from now on."""
        if (due := self._due.pop(owner, None)) is not None:
            waited_s = self.time - due[0]
            self.findings.longest_due_s = max(self.findings.longest_due_s, waited_s)
        usage = self._usage() if self._due else {}
        for user, (_, before) in [*self._due.items()]:
            before[owner] -= 1
            if before[owner] < 0 and usage[owner] <= usage[user]:
                del self._due[user]

    def _usage(self) -> dict[int, float]:
        """Return the usage of all users for their shares."""
        with self.database.snapshot() as session:
            found = standings(session, self.fair_share)
        return {one.owner_id: one.charged_s / one.shares for one in found}

    def _end_next(self) -> None:
        _, one, attempt = heapq.heappop(self._ends)
        run = self.going.get(one)
        if run is None or run.claim.attempt != attempt:
            return
        has_ended = run.ends <= self.time + ROUNDING_S
        if run.asked is not None and not has_ended:
            self._give_way(one, run)
        elif has_ended:
            with self.database.transaction() as session:
                lease.finish(session, run.claim, Status.SUCCEEDED)
            self._leave(one, run)
            self.idle[run.queue].append(run.worker)

    def _leave(self, one: str, run: Going) -> None:
        del self.going[one]
        self.held_s[self.owners[one]] += self.time - run.began
        with self.database.transaction() as session:
            ledger.fold(session, self.fair_share)

    def _give_way(self, one: str, run: Going) -> None:
        """Save, return to the queue, and let the worker look at once."""
        self.done_s[one] += max(0.0, self.time - run.computes_from)
        with self.database.transaction() as session:
            lease.give_way(session, run.claim)
        self._leave(one, run)
        self.findings.displaced += 1
        if not self._start(run.queue, run.worker):
            self.findings.useless.append(f"{one}: nothing started in its place")
            self.idle[run.queue].append(run.worker)
            return
        owner, other = self.starts[-1][1:]
        if owner == self.owners[one]:
            self.findings.useless.append(f"{one}: its owner's {other} started in its place")
        before = self._displaced.get((other, one))
        if before is not None and self.time - before < self.fair_share.slice_s:
            self.findings.in_turns.append(f"{one} and {other}, at {before:.0f} and {self.time:.0f}")
        self._displaced[one, other] = self.time

    def _look(self) -> None:
        """Report progress, charge the users, and ask runs to give way, as the controller does."""
        with self.database.transaction() as session:
            for one, run in self.going.items():
                if self.time > run.computes_from and not run.has_reported:
                    eta = {"progress_at": self.clock.now, "progress_eta_s": run.ends - self.time}
                    of_run = update(Experiment).where(Experiment.id == one)
                    session.execute(of_run.values(**eta))
                    run.has_reported = True
            ledger.fold(session, self.fair_share)
        with self.database.transaction() as session:
            all_places = places(session, WITHIN_S)
            decision = giving_way.choose_all(session, self.fair_share, all_places)
            giving_way.ask(session, decision)
            chosen = decision.gives_way_to
        for one, run in self.going.items():
            if one not in chosen:
                run.asked = None
            elif run.asked is None:
                run.asked = self.time
                saved = self.time + self.pick.uniform(0, self.save_s)
                heapq.heappush(self._ends, (saved, one, run.claim.attempt))
        self._note_due()

    def _note_due(self) -> None:
        """Note since when each user without a run is due: the runs that come before its next one,
        with this, are no more than those of users with more usage for their shares. Each counts as
        a slice."""
        slice_s = self.fair_share.slice_s or SLICE_S
        with self.database.snapshot() as session:
            waiting = Counter(session.scalars(_QUEUED))
            users = {one.owner_id: one for one in standings(session, self.fair_share)}
        usage = {id: one.charged_s / one.shares for id, one in users.items()}
        running = [self.owners[one] for one in self.going]
        idle = waiting.keys() - {*running}
        self._idle_since = {user: self._idle_since.get(user, self.time) for user in idle}
        idle_s = max((self.time - since for since in self._idle_since.values()), default=0.0)
        self.findings.longest_idle_s = max(self.findings.longest_idle_s, idle_s)
        for user in idle:
            before = Counter[int]()
            for other, count in waiting.items():
                less_s = (usage[user] - usage[other]) * users[other].shares
                if other != user and less_s >= 0:
                    before[other] = min(count, int(less_s / slice_s) + 1)
            larger = sum(usage[other] > usage[user] for other in running)
            if before.total() < larger:
                self._due.setdefault(user, (self.time, before))
            else:
                self._due.pop(user, None)
        for since, _ in self._due.values():
            waited_s = self.time - since
            self.findings.longest_due_s = max(self.findings.longest_due_s, waited_s)


_QUEUED = select(Experiment.owner_id).where(Experiment.status == Status.QUEUED)
