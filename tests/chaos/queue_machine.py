"""A state machine over the store with a virtual clock: what may happen, in any order.

Five workers, users, and a controller whose steps come in any order. A worker looks for a
run at any time: its ticket may be late or doubled.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from sqlalchemy import event, func, select, update
from sqlalchemy.orm import aliased

from service.accounts.models import OWN, Project, ProjectMember, User
from service.accounts.users import Caller
from service.db.engine import Database
from service.experiments.models import Attempt, Experiment, Held, Wait
from service.experiments.schemas import Submission
from service.fair_share import FairShare
from service.queue import giving_way, lease, states
from service.queue.lease import Claim, FailureCause, LeaseLost
from service.queue.ledger import Member, Use, decayed_usage
from service.queue.quota import UNLIMITED
from service.queue.shares import standings
from service.queue.statistics import statistics
from service.records.recording import Batch, record
from service.submission.preparation import Entry, Prepared
from service.submission.submit import insert_all
from service.sweeps import store as sweeps
from service.sweeps.models import Sweep
from service.sweeps.schemas import SweepSubmission
from service.vocabulary import TERMINAL, DesiredState, Role, Status
from tests.support import stored
from tests.support.fake_clock import FakeClock
from tests.support.invariants import check
from tests.support.ppca_spec import ppca_spec
from tests.support.records import RECORDS
from tests.support.shared_lab import not_for_ever
from tests.support.starting import (
    controller_steps,
    fold,
    start_next,
)
from worker.supervisor import UNSTORABLE

LEASE_S, MAX_LOST = 10.0, 3
HANDED_BACK = {"disk_full": 3, "memory": 1}
"""Maximum number of attempts that are handed back for each reason."""
SHARING = FairShare(half_life_s=100, advance_s=1)
STEPS = controller_steps(LEASE_S, MAX_LOST, SHARING)
WORKERS = (1, 2, 3, 4, 5)
LIMITS = {2: 1, 3: 2}
"""Maximum number of concurrent runs of these users; user 1 has no limit."""
PROJECT, IN_PROJECT = 1, 2
"""A project of all users, and its maximum number of concurrent runs."""

RUNNING = Experiment.status == Status.RUNNING
OWNERS_AND_WORKERS = select(Experiment.owner_id, Experiment.project_id, Experiment.worker).where(
    RUNNING
)
AFTER = aliased(Experiment)
WAITS_FOR_ENDED = (
    select(Wait).join(AFTER, AFTER.id == Wait.after_id).where(AFTER.status.in_(TERMINAL))
)
WAITS = select(Wait.experiment_id)
WAITING = select(Experiment.id).where(Experiment.held == Held.AFTER)
POINT = Experiment.status.in_((Status.QUEUED, Status.RUNNING))
POINTS_OF_SWEEPS = (
    select(
        Sweep.concurrency,
        func.count().filter(POINT, Experiment.held == Held.NOT).label("under_way"),
        func.count().filter(POINT, Experiment.held == Held.SWEEP).label("held"),
    )
    .join(Experiment, Experiment.sweep_id == Sweep.id)
    .group_by(Sweep.id, Sweep.concurrency)
)
"""Query of the invariants after each step; building it takes longer than executing it."""


@dataclass
class Run:
    """A worker's own view of the run it believes to own."""

    claim: Claim
    written: int  # records it has committed

    @property
    def complete(self) -> bool:
        return self.written == len(RECORDS)


class QueueMachine(RuleBasedStateMachine):
    """Subclasses give `new_database`."""

    new_database: Callable[[], Database]

    def __init__(self) -> None:
        super().__init__()
        self.database = type(self).new_database()
        self._clock = FakeClock(self.database.engine)
        event.listen(self.database.engine, "connect", not_for_ever)
        with self.database.transaction() as session:
            for user, limit in LIMITS.items():
                session.add(User(id=user, name=f"user {user}", max_running=limit))
            session.add(Project(id=PROJECT, name="vision", max_running=IN_PROJECT))
            session.flush()
            session.add_all(ProjectMember(project_id=PROJECT, user_id=user) for user in (1, 2, 3))
        self.submitted: dict[str, int] = {}  # the owner of each experiment
        self.touched: set[str] = set()  # since the last check
        self.runs: dict[int, Run] = {}
        self.crashes = 0
        self.disabled: set[int] = set()

    @property
    def clock(self) -> float:
        return self._clock.now

    @clock.setter
    def clock(self, now: float) -> None:
        self._clock.now = now

    # Users

    @initialize(count=st.integers(1, 2))
    def begin(self, count: int) -> None:
        """Most steps need experiments: each user has some, and workers begin."""
        for user in (1, 2, 3) * count:
            for project_id in (OWN, PROJECT):
                self.submit(user, 0, project_id)
        self.start([*WORKERS], len(WORKERS))

    @rule(
        user=st.integers(1, 3),
        priority=st.integers(-1, 1),
        project_id=st.sampled_from([OWN, PROJECT]),
    )
    def submit(self, user: int, priority: int, project_id: int) -> None:
        submission = Submission.model_validate({"spec": ppca_spec(), "priority": priority})
        with self.database.transaction() as session:
            made = stored.submit(session, user, submission)
            made.project_id = project_id
        assert made is not None
        self.submitted[made.id] = user

    @precondition(lambda self: self.submitted)
    @rule(data=st.data(), user=st.integers(1, 3))
    def submit_after(self, data: st.DataObject, user: int) -> None:
        """One that waits for up to two others, where these may still succeed."""
        after = self._some(data, 2, user)
        submission = Submission.model_validate({"spec": ppca_spec(), "after": after})
        if not self._may_succeed(after):
            return
        unfinished = self._unfinished(after)
        with self.database.transaction() as session:
            made = stored.submit(session, user, submission, unfinished=unfinished)
        self.submitted[made.id] = user

    def _some(self, data: st.DataObject, most: int, of: int | None = None) -> list[str]:
        """Some experiments of a user, who has had some from the beginning, or of all users."""
        ids = [one for one, owner in self.submitted.items() if of in (None, owner)]
        return data.draw(st.lists(st.sampled_from(ids), min_size=1, max_size=most, unique=True))

    def _may_succeed(self, ids: list[str]) -> bool:
        return not {self._load(one).status for one in ids} & {Status.FAILED, Status.CANCELLED}

    def _unfinished(self, ids: list[str]) -> list[str]:
        return [one for one in ids if self._load(one).status != Status.SUCCEEDED]

    @precondition(lambda self: self.submitted)
    @rule(
        data=st.data(),
        user=st.integers(1, 3),
        concurrency=st.integers(1, 2),
        points=st.integers(1, 4),
        waits=st.booleans(),
    )
    def submit_sweep(
        self, data: st.DataObject, user: int, concurrency: int, points: int, waits: bool
    ) -> None:
        """Its points may wait for another experiment."""
        after = self._some(data, 1, user) if waits else []
        if not self._may_succeed(after):
            return
        seeds = {"seeds": [[i] for i in range(points)]}
        body = {"spec": ppca_spec(), "grid": seeds, "concurrency": concurrency}
        submission = SweepSubmission.model_validate(body)
        entry = Entry(Submission.model_validate({"spec": ppca_spec(), "after": after}))
        point = stored.prepared(entry, unfinished=self._unfinished(after))
        by = Caller(user, f"user {user}", Role.MEMBER, "key", frozenset())
        with self.database.transaction() as session:
            sweep = sweeps.add(session, sweeps.new(user, submission))
            request = Prepared(user, [point] * points, UNLIMITED, predecessors=point.unfinished)
            insert_all(session, request, by=by, fair_share=SHARING, sweep=sweep)
            made = select(Experiment.id).where(Experiment.sweep_id == sweep.id)
            self.submitted |= dict.fromkeys(session.scalars(made), user)

    @precondition(lambda self: self.submitted)
    @rule(data=st.data())
    def cancel_some(self, data: st.DataObject) -> None:
        """A request that cancels several at once leaves their places to the next look."""
        with self.database.transaction() as session:
            states.cancel_all(session, Experiment.id.in_(self._some(data, 3)))

    @precondition(lambda self: self.submitted)
    @rule(data=st.data(), desired=st.sampled_from(list(DesiredState)))
    def request(self, data: st.DataObject, desired: DesiredState) -> None:
        experiment_id = data.draw(st.sampled_from([*self.submitted]))
        before = self._load(experiment_id)
        with self.database.transaction() as session:
            states.request(session, experiment_id, desired)
        after = self._load(experiment_id)
        if states.is_terminal(before.status):
            assert after.status == before.status

    @rule(user=st.integers(1, 3))
    def disable_or_enable(self, user: int) -> None:
        self.disabled ^= {user}
        self._set_disabled(user, 1.0 if user in self.disabled else None)

    def _set_disabled(self, user: int, at: float | None) -> None:
        with self.database.transaction() as session:
            session.execute(update(User).where(User.id == user).values(disabled_at=at))

    # Workers

    @rule(workers=st.permutations(WORKERS), count=st.integers(1, len(WORKERS)))
    def start(self, workers: list[int], count: int) -> None:
        """Idle workers have tickets, or look by themselves. A busy one reads no tickets."""
        for worker in workers[:count]:
            if worker not in self.runs:
                self._start(worker)

    def _start(self, worker: int) -> bool:
        """Start a run. After a crash the worker is another process, with another name."""
        name = f"worker {worker} {self.crashes}"
        with self.database.transaction() as session:
            claim = start_next(session, name, lease_s=LEASE_S, fair_share=SHARING)
        if claim is None:
            return False
        assert self._load(claim.experiment_id).owner_id not in self.disabled
        self.runs[worker] = Run(claim, claim.after_seq)
        return True

    def _write(
        self,
        worker: int,
        count: int,
        checkpoint: bool = False,
        times: int = 1,
        commit_takes_s: float = 0.0,
    ) -> None:
        run = self.runs[worker]
        self.touched.add(run.claim.experiment_id)
        batch = Batch()
        for r in RECORDS[run.written : run.written + count]:
            batch.add(dict(r))
        after = min(run.written + count, len(RECORDS))
        if checkpoint and after:
            line = {
                "record": "checkpoint",
                "seq": None,
                "file": f"{after}",
                "sha256": "",
                "after": after,
            }
            batch.add(line)
        owned = self._owns(run)
        try:
            for _ in range(times):
                with self.database.transaction() as session:
                    requested = record(session, run.claim, batch, LEASE_S)
                    self.clock += commit_takes_s
        except LeaseLost:
            assert not owned
            del self.runs[worker]
            return
        assert owned, "an attempt wrote that did not own its experiment"
        run.written = after
        if requested.desired != DesiredState.RUN:
            self._end(worker, lambda session: lease.release(session, run.claim))
        elif requested.gives_way:
            self._end(worker, lambda session: lease.give_way(session, run.claim))

    def _end(self, worker: int, commit: Callable[[Any], object]) -> None:
        run = self.runs.pop(worker)
        owned = self._owns(run)
        try:
            with self.database.transaction() as session:
                commit(session)
        except LeaseLost:
            assert not owned
        else:
            assert owned

    @precondition(lambda self: self.runs)
    @rule(
        data=st.data(), count=st.integers(0, 6), checkpoint=st.booleans(), times=st.integers(1, 2)
    )
    def write(self, data: st.DataObject, count: int, checkpoint: bool, times: int) -> None:
        """Commit records, perhaps twice: the first answer may not have arrived."""
        self._write(data.draw(st.sampled_from(sorted(self.runs))), count, checkpoint, times)

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), count=st.integers(1, 6))
    def write_to_a_slow_disk(self, data: st.DataObject, count: int) -> None:
        """A commit that takes longer than the lease that it renews."""
        worker = data.draw(st.sampled_from(sorted(self.runs)))
        self._write(worker, count, commit_takes_s=LEASE_S + 1)

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def unstorable(self, data: st.DataObject) -> None:
        """A record that the database refuses leaves nothing of its batch, and ends the run."""
        worker = data.draw(st.sampled_from(sorted(self.runs)))
        run = self.runs[worker]
        batch = Batch()
        for r in RECORDS[run.written : run.written + 2]:
            batch.add(dict(r))
        batch.add({"seq": None, "record": "progress", "done": 1, "total": 2**70, "unit": "x"})
        try:
            with self.database.transaction() as session:
                record(session, run.claim, batch, LEASE_S)
        except (*UNSTORABLE, LeaseLost):
            pass
        else:
            raise AssertionError("it was stored")
        cause = FailureCause("error", "it cannot be stored")
        self._end(worker, lambda s: lease.finish(s, run.claim, Status.FAILED, cause))

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def database_error(self, data: st.DataObject) -> None:
        """A transaction that fails at its end leaves nothing; the worker keeps its batch."""
        run = self.runs[data.draw(st.sampled_from(sorted(self.runs)))]
        batch = Batch()
        for r in RECORDS[run.written : run.written + 3]:
            batch.add(dict(r))
        try:
            with self.database.transaction() as session:
                record(session, run.claim, batch, LEASE_S)
                raise ConnectionError
        except (ConnectionError, LeaseLost):
            pass

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        del self.runs[data.draw(st.sampled_from(sorted(self.runs)))]
        self.crashes += 1

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.runs)))
        self._write(worker, len(RECORDS))
        if worker in self.runs:
            claim = self.runs[worker].claim
            self._end(worker, lambda s: lease.finish(s, claim, Status.SUCCEEDED))

    @precondition(lambda self: self.runs)
    @rule(
        data=st.data(),
        how=st.sampled_from(
            ["error", "timeout", "oom", "hand back", "cancelled", "killed", *HANDED_BACK]
        ),
        pending=st.integers(0, 6),
    )
    def end_early(self, data: st.DataObject, how: str, pending: int) -> None:
        """End the run through its own failure, a limit, its owner or its worker. Waiting records
        are written first."""
        worker = data.draw(st.sampled_from(sorted(self.runs)))
        claim = self.runs[worker].claim
        self._write(worker, pending)
        if worker not in self.runs:
            return
        commits: dict[str, Callable[[Any], object]] = {
            "hand back": lambda s: lease.release(s, claim),
            "cancelled": lambda s: lease.finish(s, claim, Status.CANCELLED),
            "killed": lambda s: lease.mark_lost(s, claim, MAX_LOST),
        }
        cause = FailureCause(how, "x")
        if (most := HANDED_BACK.get(how)) is not None:
            commits[how] = lambda s: lease.hand_back(s, claim, how, most, cause)
        failed = partial(lease.finish, claim=claim, status=Status.FAILED, failure=cause)
        self._end(worker, commits.get(how, failed))

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def ask_to_give_way(self, data: st.DataObject) -> None:
        """Ask one run and no others, to give way to an experiment that may have ended."""
        run = self.runs[data.draw(st.sampled_from(sorted(self.runs)))]
        (other,) = self._some(data, 1)
        with self.database.transaction() as session:
            decision = giving_way.Decision({run.claim.experiment_id: other}, {})
            giving_way.ask(session, decision)

    # Time

    @rule(seconds=st.sampled_from([0.5, 5.0, 11.0, 31.0]))
    def advance(self, seconds: float) -> None:
        self.clock += seconds

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), heartbeats=st.booleans())
    def freeze(self, data: st.DataObject, heartbeats: bool) -> None:
        """A worker is frozen for longer than its lease, perhaps all are. Its run is queued again,
        and idle workers look for one. When it wakes, it goes on as if nothing had happened."""
        frozen = data.draw(st.sampled_from(sorted(self.runs)))
        self.clock += LEASE_S / 2
        for worker in sorted(self.runs):
            if heartbeats and worker != frozen:
                self._write(worker, 0)
        self.clock += LEASE_S / 2 + 1
        self._step("expire")
        self.start([*WORKERS], len(WORKERS))

    # Background processes

    @rule(names=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=2 * len(STEPS)))
    def controller(self, names: list[str]) -> None:
        """Steps in any order, some of them twice, as if two controllers took turns."""
        for name in names:
            self._step(name)

    @rule(order=st.permutations(sorted(STEPS)))
    def look(self, order: list[str]) -> None:
        """Look at everything once. Then nothing waits for what has ended, and no point for a place
        that is free."""
        for name in (*order, "release waits", "fill sweeps"):
            self._step(name)
        with self.database.snapshot() as session:
            assert not session.scalars(WAITS_FOR_ENDED).all()
            unfinished = WAITING.where(Experiment.status.not_in(TERMINAL))
            assert {*session.scalars(unfinished)} <= {*session.scalars(WAITS)}
            sweeps = session.execute(POINTS_OF_SWEEPS).all()
        assert all(row.under_way == row.concurrency for row in sweeps if row.held)

    def _step(self, name: str) -> None:
        within_lease = [
            worker for worker, run in self.runs.items()
            if self._owns(run)
            and (self._load(run.claim.experiment_id).lease_expires_at or 0) >= self.clock
        ]  # fmt: skip
        with self.database.transaction() as session:
            STEPS[name](session)
        for worker in within_lease:
            assert self._owns(self.runs[worker]), f"{name} ended a run within its lease"

    @rule()
    def fold(self) -> None:
        """The usage that fair share charges is the sum over all attempts, and no counter of
        monitoring changes."""
        with self.database.transaction() as session:
            before = statistics(session)
            fold(session, SHARING)
            after = statistics(session)
        assert math.isclose(after.waits_s, before.waits_s, abs_tol=1e-6)
        assert math.isclose(after.runs_s, before.runs_s, abs_tol=1e-6)
        assert replace(after, waits_s=before.waits_s, runs_s=before.runs_s) == before
        with self.database.snapshot() as session:
            members = standings(session, SHARING)
            lines = session.scalars(select(Attempt)).all()
        assert all(line.folded for line in lines if line.ended_at is not None)
        for one in members:
            expected = decayed_usage(SHARING, self._charged(one.member, lines), self.clock)
            assert math.isclose(one.charged_s, expected, rel_tol=1e-6, abs_tol=1e-6)

    def _charged(self, member: Member, lines: Sequence[Attempt]) -> Iterator[Use]:
        """Yield the uses of slots of a user in one account. A current run is charged in advance."""
        for line in lines:
            began_at = line.started_at
            if line.ended_at is None:
                began_at = min(began_at, self.clock - SHARING.advance_s)
            if (line.owner_id, line.project_id) == member:
                yield Use(line.owner_id, line.queue, began_at, line.ended_at, line.project_id)

    # Invariants

    @invariant()
    def no_user_or_project_has_more_runs_than_its_limit_and_no_worker_two(self) -> None:
        with self.database.snapshot() as session:
            rows = session.execute(OWNERS_AND_WORKERS).all()
        owners, names = [row.owner_id for row in rows], {row.worker for row in rows}
        assert all(owners.count(user) <= limit for user, limit in LIMITS.items())
        assert sum(row.project_id == PROJECT for row in rows) <= IN_PROJECT
        assert len(rows) <= len(names)

    @invariant()
    def no_sweep_has_more_points_under_way_than_its_limit(self) -> None:
        with self.database.snapshot() as session:
            sweeps = session.execute(POINTS_OF_SWEEPS).all()
        assert all(row.under_way <= row.concurrency for row in sweeps)

    @invariant()
    def an_experiment_that_waits_is_held(self) -> None:
        with self.database.snapshot() as session:
            assert {*session.scalars(WAITS)} <= {*session.scalars(WAITING)}

    @invariant()
    def records_are_those_of_an_undisturbed_run(self) -> None:
        counts = check(self.database, dict.fromkeys(self.touched, RECORDS), settled=False)
        self.touched.clear()
        assert counts.clean, str(counts)

    @invariant()
    def one_attempt_at_a_time_may_write(self) -> None:
        owners = [r.claim.experiment_id for r in self.runs.values() if self._owns(r)]
        assert len(owners) == len(set(owners))

    def _owns(self, run: Run) -> bool:
        experiment = self._load(run.claim.experiment_id)
        return (experiment.status, experiment.attempt) == (Status.RUNNING, run.claim.attempt)

    def _load(self, experiment_id: str) -> Experiment:
        self.touched.add(experiment_id)
        with self.database.snapshot() as session:
            return session.get_one(Experiment, experiment_id)

    def teardown(self) -> None:
        """Let everything come to its end: nothing may be stuck."""
        self.runs.clear()
        self.crashes += 1
        self.clock += LEASE_S + 1
        for user in self.disabled:
            self._set_disabled(user, None)
        self.disabled.clear()
        self.look(sorted(STEPS))
        self._resume_what_is_waited_for()
        while self._start(1):
            self._write(1, len(RECORDS))
            if 1 in self.runs:
                claim = self.runs[1].claim
                self._end(1, partial(lease.finish, claim=claim, status=Status.SUCCEEDED))
            self.look(sorted(STEPS))
        everything = dict.fromkeys(self.submitted, RECORDS)
        counts = check(self.database, everything, fair_share=SHARING)
        self.database.close()
        assert counts.clean, str(counts)

    def _resume_what_is_waited_for(self) -> None:
        with self.database.transaction() as session:
            for one in session.scalars(select(Wait.after_id).distinct()).all():
                states.request(session, one, DesiredState.RUN)
