"""A state machine over the store with a virtual clock: what may happen, in any order.

Three workers, two dispatchers, a reaper, users, and messages that are lost, doubled or late.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sqlalchemy import event, func, select, update
from sqlalchemy.orm import aliased

from service.accounts.users import Caller
from service.experiments.schemas import Submission
from service.fair_share import FairShare
from service.queue import lease, ledger, quota, states
from service.queue.dispatch import Dispatch, dispatch_next
from service.queue.lease import Claim, FailureCause, LeaseLost
from service.records.recording import Batch, record
from service.submission.preparation import Entry
from service.submission.submit import insert_all
from service.sweeps import store as sweeps
from service.sweeps.schemas import SweepSubmission
from service.tables.engine import Database
from service.tables.experiments import TERMINAL, DesiredState, Experiment, Held, Status, Wait
from service.tables.sweeps import Sweep
from service.tables.users import Role, User
from tests.support import stored
from tests.support.fake_clock import FakeClock
from tests.support.invariants import check
from tests.support.ppca_spec import ppca_spec
from tests.support.records import RECORDS
from tests.support.shared_lab import not_for_ever
from worker.supervisor import UNSTORABLE

LEASE_S, DISPATCH_TIMEOUT_S, MAX_LOST = 10.0, 30.0, 3
SHARING = FairShare(half_life_s=100, advance_s=1)
LIMITS = {2: 1, 3: 2}
"""Maximum number of concurrent runs of these users; user 1 has no limit."""

UNDER_WAY = Experiment.status.in_((Status.DISPATCHED, Status.RUNNING))
OWNERS_UNDER_WAY = select(Experiment.owner_id).where(UNDER_WAY)
SWEEPS_UNDER_WAY = (
    select(func.count(), Sweep.concurrency)
    .join(Experiment, Experiment.sweep_id == Sweep.id)
    .where(UNDER_WAY)
    .group_by(Sweep.id, Sweep.concurrency)
)
AFTER = aliased(Experiment)
WAITS_FOR_ENDED = (
    select(Wait).join(AFTER, AFTER.id == Wait.after_id).where(AFTER.status.in_(TERMINAL))
)
WAITS = select(Wait.experiment_id)
HELD = select(Experiment.id).where(
    Experiment.held == Held.AFTER, Experiment.status.not_in(TERMINAL)
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
        self.submitted: list[str] = []
        self.touched: set[str] = set()  # since the last check
        self.messages: list[Dispatch] = []
        self.runs: dict[int, Run] = {}
        self.disabled: set[int] = set()

    @property
    def clock(self) -> float:
        return self._clock.now

    @clock.setter
    def clock(self, now: float) -> None:
        self._clock.now = now

    # Users

    @rule(user=st.integers(1, 3), priority=st.integers(-1, 1))
    def submit(self, user: int, priority: int) -> None:
        submission = Submission.model_validate({"spec": ppca_spec(), "priority": priority})
        with self.database.transaction() as session:
            made = stored.submit(session, user, submission)
        assert made is not None
        self.submitted.append(made.id)

    @precondition(lambda self: self.submitted)
    @rule(data=st.data(), user=st.integers(1, 3))
    def submit_after(self, data: st.DataObject, user: int) -> None:
        """One that waits for up to two others, where these may still succeed."""
        among = st.lists(st.sampled_from(self.submitted), min_size=1, max_size=2, unique=True)
        after = data.draw(among)
        submission = Submission.model_validate({"spec": ppca_spec(), "after": after})
        if {self._load(one).status for one in after} & {Status.FAILED, Status.CANCELLED}:
            return
        unfinished = [one for one in after if self._load(one).status != Status.SUCCEEDED]
        with self.database.transaction() as session:
            made = stored.submit(session, user, submission, unfinished=unfinished)
        self.submitted.append(made.id)

    @rule(user=st.integers(1, 3), concurrency=st.integers(1, 2), points=st.integers(1, 4))
    def submit_sweep(self, user: int, concurrency: int, points: int) -> None:
        seeds = {"seeds": [[i] for i in range(points)]}
        body = {"spec": ppca_spec(), "grid": seeds, "concurrency": concurrency}
        submission = SweepSubmission.model_validate(body)
        point = stored.prepared(Entry(Submission.model_validate({"spec": ppca_spec()})))
        by = Caller(user, f"user {user}", Role.MEMBER, "key", frozenset())
        with self.database.transaction() as session:
            sweep = sweeps.add(session, sweeps.new(user, submission))
            insert_all(session, user, [point] * points, by=by, fair_share=SHARING, sweep=sweep)
            made = select(Experiment.id).where(Experiment.sweep_id == sweep.id)
            self.submitted += session.scalars(made).all()

    @precondition(lambda self: self.submitted)
    @rule(data=st.data(), desired=st.sampled_from(list(DesiredState)))
    def request(self, data: st.DataObject, desired: DesiredState) -> None:
        experiment_id = data.draw(st.sampled_from(self.submitted))
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

    # Dispatchers and the broker

    @rule(dispatcher=st.integers(1, 2), copies=st.integers(0, 2))
    def dispatch(self, dispatcher: int, copies: int) -> None:
        dispatched = self._dispatch_next()
        if dispatched is not None:
            self.messages += [dispatched] * copies

    def _dispatch_next(self) -> Dispatch | None:
        with self.database.transaction() as session:
            dispatched = dispatch_next(session, fair_share=SHARING)
        if dispatched is not None:
            assert self._load(dispatched.experiment_id).owner_id not in self.disabled
        return dispatched

    @precondition(lambda self: self.messages)
    @rule(data=st.data(), worker=st.integers(1, 3), keep=st.booleans())
    def deliver(self, data: st.DataObject, worker: int, keep: bool) -> None:
        """A worker receives a message, perhaps an old one. The message may remain and be received
        again."""
        message = data.draw(st.sampled_from(self.messages))
        if not keep:
            self.messages.remove(message)
        if worker not in self.runs:
            self._claim(worker, message)

    # Workers

    def _claim(self, worker: int, message: Dispatch) -> None:
        with self.database.transaction() as session:
            claim = lease.claim(
                session,
                message.experiment_id,
                message.dispatch_no,
                worker=f"worker {worker}",
                lease_s=LEASE_S,
            )
        self.touched.add(message.experiment_id)
        if claim is not None:
            self.runs[worker] = Run(claim, claim.after_seq)

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
        try:
            for _ in range(times):
                with self.database.transaction() as session:
                    desired = record(session, run.claim, batch, LEASE_S)
                    self.clock += commit_takes_s
        except LeaseLost:
            assert not self._owns(run)
            del self.runs[worker]
            return
        run.written = after
        if desired != DesiredState.RUN:
            self._end(worker, lambda session: lease.release(session, run.claim))

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
        how=st.sampled_from(["error", "timeout", "oom", "hand back", "cancelled", "killed"]),
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
        failed = partial(lease.finish, claim=claim, status=Status.FAILED, failure=cause)
        self._end(worker, commits.get(how, failed))

    # Time

    @rule(seconds=st.sampled_from([0.5, 5.0, 11.0, 31.0]))
    def advance(self, seconds: float) -> None:
        self.clock += seconds

    @rule()
    def reap(self) -> None:
        owned = {w: r for w, r in self.runs.items() if self._owns(r)}
        fresh = {
            w for w, r in owned.items()
            if (self._load(r.claim.experiment_id).lease_expires_at or 0) >= self.clock
        }  # fmt: skip
        with self.database.transaction() as session:
            lease.reap(session, DISPATCH_TIMEOUT_S, MAX_LOST)
        for worker in fresh:
            assert self._owns(self.runs[worker]), "a run within its lease was reaped"

    @rule()
    def fold(self) -> None:
        with self.database.transaction() as session:
            ledger.fold(session, SHARING)
            quota.fold(session, from_rows=2)

    # Invariants

    @invariant()
    def no_user_has_more_under_way_than_its_limit(self) -> None:
        with self.database.snapshot() as session:
            owners = session.scalars(OWNERS_UNDER_WAY).all()
        assert all(owners.count(user) <= limit for user, limit in LIMITS.items())

    @invariant()
    def no_sweep_has_more_under_way_than_its_limit(self) -> None:
        with self.database.snapshot() as session:
            rows = session.execute(SWEEPS_UNDER_WAY).all()
        assert all(limit is not None and count <= limit for count, limit in rows)

    @invariant()
    def what_is_held_waits_for_what_has_not_ended(self) -> None:
        """Check that exactly the experiments with unfinished predecessors are held."""
        with self.database.snapshot() as session:
            assert not session.scalars(WAITS_FOR_ENDED).all()
            assert set(session.scalars(WAITS)) == set(session.scalars(HELD))

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
        self.messages.clear()
        self.clock += DISPATCH_TIMEOUT_S + LEASE_S + 1
        for user in self.disabled:
            self._set_disabled(user, None)
        self.disabled.clear()
        with self.database.transaction() as session:
            lease.reap(session, DISPATCH_TIMEOUT_S, MAX_LOST)
        self._resume_what_is_waited_for()
        while (dispatched := self._dispatch_next()) is not None:
            self._claim(1, dispatched)
            self._write(1, len(RECORDS))
            if 1 in self.runs:
                claim = self.runs[1].claim
                self._end(1, partial(lease.finish, claim=claim, status=Status.SUCCEEDED))
        everything = dict.fromkeys(self.submitted, RECORDS)
        counts = check(self.database, everything, fair_share=SHARING)
        self.database.close()
        assert counts.clean, str(counts)

    def _resume_what_is_waited_for(self) -> None:
        with self.database.transaction() as session:
            for one in session.scalars(select(Wait.after_id).distinct()).all():
                states.request(session, one, DesiredState.RUN)
