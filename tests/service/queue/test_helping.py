"""Help for running experiments in the store: who gets it, its lease, its batches, its end."""

import json
import zlib
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest
from celery import Celery
from fastapi.testclient import TestClient
from sqlalchemy import func, select, text, update

from service.experiments import deletion
from service.fair_share import FairShare
from service.queue import division, helping, lease, ledger, shares, workers
from service.queue.helping import UNLIKE, HelpClaim, HelpOver, Rules
from service.queue.lease import Claim
from service.queue.workers import Vitals
from service.settings import Settings
from service.tables.engine import Database, now
from service.tables.experiments import (
    Attempt,
    DesiredState,
    Experiment,
    Held,
    Queue,
    Status,
    Usage,
)
from service.tables.helpers import DividedRun, Help, SentBatch
from service.tables.users import User
from tests.service.queue.test_holds import limited_sweeps
from tests.support import stored
from tests.support.attempts import claim_next, claimed, submitted
from tests.support.invariants import check
from worker.dispatcher import Dispatcher

LEASE_S = 60.0
RULES = Rules(FairShare(), within_s=60.0, max_workers=3, after_s=10.0)
ENVIRONMENT = {"core": "a", "cpu": "b", "threads": 1}
BATCH = {"number": 4, "shape": [1, 1, 1], "data": "AAAAAAAA8D8="}


def add_workers(database: Database, *names: str, queue: Queue = Queue.CPU) -> None:
    with database.transaction() as session:
        for name in names:
            workers.beat(session, name, Vitals("host", queue, 2**30))


def add_user(database: Database, name: str) -> int:
    with database.transaction() as session:
        user = User(name=name)
        session.add(user)
        session.flush()
        return user.id


def long_run(database: Database, owner_id: int = 1, **columns: Any) -> Claim:
    """An attempt that has run for a minute and is expected to run for another one."""
    claim = claimed(database)
    progress = {"progress_eta_s": 60.0, "progress_at": now(), "owner_id": owner_id}
    stored.change(database, claim.experiment_id, **{**progress, **columns})
    with database.transaction() as session:
        of_attempt = Attempt.experiment_id == claim.experiment_id
        session.execute(
            update(Attempt)
            .where(of_attempt)
            .values(started_at=now() - 60, environment=ENVIRONMENT, owner_id=owner_id)
        )
    return claim


def offered(database: Database, rules: Rules = RULES, queue: Queue = Queue.CPU) -> int | None:
    with database.transaction() as session:
        return helping.offer(session, queue, rules)


def begun(database: Database, worker: str = "w1") -> HelpClaim:
    help_id = offered(database)
    assert help_id is not None
    with database.transaction() as session:
        claim = helping.begin(session, help_id, worker, LEASE_S)
    assert claim is not None
    return claim


def ended(database: Database, help_id: int, reason: str = "over") -> None:
    with database.transaction() as session:
        helping.end(session, help_id, reason)


def beat(database: Database, claim: HelpClaim) -> None:
    with database.transaction() as session:
        helping.beat(session, claim, LEASE_S)


def could_help(database: Database, queue: Queue = Queue.CPU) -> bool:
    with database.snapshot() as session:
        return helping.could_help(session, queue, RULES)


def helps(database: Database) -> Sequence[Help]:
    with database.snapshot() as session:
        return session.scalars(select(Help).order_by(Help.id)).all()


def stopped(database: Database) -> list[int]:
    """Let helpers give way, and return those that must stop."""
    with database.transaction() as session:
        helping.give_way(session, Queue.CPU, RULES)
    return [one.id for one in helps(database) if one.must_stop]


def test_an_idle_worker_helps_a_long_run(either: Database) -> None:
    run = long_run(either)
    add_workers(either, "w", "w1", "w2")
    claim = begun(either)
    assert (claim.experiment_id, claim.attempt) == (run.experiment_id, run.attempt)
    assert claim.spec == run.spec
    assert claim.environment == ENVIRONMENT
    with either.snapshot() as session:
        assert helping.has_helper(session, run.experiment_id, run.attempt)
        assert not helping.has_helper(session, run.experiment_id, run.attempt + 1)
        assert workers.slots(session, 60)[Queue.CPU].idle == 1
        shown = {worker.id: one for worker, one, _ in workers.alive(session, 60)}
        assert shown == {"w": run.experiment_id, "w1": run.experiment_id, "w2": None}
    beat(either, claim)
    ended(either, claim.id)
    with either.snapshot() as session:
        assert not helping.has_helper(session, run.experiment_id, run.attempt)
        assert workers.slots(session, 60)[Queue.CPU].idle == 2
    with pytest.raises(HelpOver, match="lost"):
        beat(either, claim)


def test_an_experiment_shows_its_last_helps(
    api: TestClient, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oldest first, without those that have not begun."""
    monkeypatch.setattr(helping, "MAX_SHOWN", 2)
    run = long_run(database)
    add_workers(database, "w", "w1", "w2", "w3", "w4")
    for name in ("w1", "w2"):
        ended(database, begun(database, name).id, f"{UNLIKE}cpu")
        with database.transaction() as session:
            session.execute(update(Help).values(ended_at=now() - 9))
    claim = begun(database, "w3")
    with database.transaction() as session:
        division.send_scores(session, run.experiment_id, run.attempt, claim.id, [BATCH])
    assert offered(database) is not None
    with database.transaction() as session:
        session.execute(update(Attempt).values(environment=None))  # that above is incomplete
    shown = api.get(f"/v1/experiments/{run.experiment_id}").json()["helps"]
    assert [(one["attempt"], one["worker"], one["batches"], one["reason"]) for one in shown] == [
        (run.attempt, "w2", 0, "its worker is unlike the run's: cpu"),
        (run.attempt, "w3", 1, None),
    ]
    assert [one["ended_at"] is None for one in shown] == [False, True]


def test_a_gpu_worker_helps_nobody(database: Database) -> None:
    """It could take memory that the run needs."""
    long_run(database, queue=Queue.GPU)
    add_workers(database, "w", "w1", queue=Queue.GPU)
    assert offered(database, queue=Queue.GPU) is None
    assert not could_help(database, Queue.GPU)
    assert helps(database) == []


def test_a_help_on_its_way_takes_a_worker(either: Database) -> None:
    long_run(either)
    add_workers(either, "w", "w1", "w2")
    assert offered(either) is not None
    with either.snapshot() as session:
        assert workers.slots(session, 60)[Queue.CPU].idle == 1


@pytest.mark.parametrize(
    "columns",
    [
        {"progress_eta_s": 9.0},
        {"progress_eta_s": None},
        {"progress_eta_s": 60.0, "progress_at": now() - 51},
        {"progress_stage": {"name": "training", "done": 1, "total": 2, "unit": "epochs"}},
        {"desired_state": DesiredState.PAUSE},
        {"queue": Queue.GPU},
        {"status": Status.PAUSED},
    ],
)
def test_runs_that_are_not_helped(database: Database, columns: dict[str, Any]) -> None:
    """They end soon or are about to, train, run on other devices or not at all."""
    claim = long_run(database)
    add_workers(database, "w", "w1", "w2")
    assert could_help(database)
    stored.change(database, claim.experiment_id, **columns)
    assert offered(database) is None
    assert not could_help(database)


def test_a_young_run_or_one_without_its_environment_is_not_helped(database: Database) -> None:
    long_run(database)
    add_workers(database, "w", "w1", "w2")
    for columns in ({"started_at": now() - 9}, {"environment": None}):
        with database.transaction() as session:
            session.execute(update(Attempt).values(started_at=now() - 60, environment=ENVIRONMENT))
            session.execute(update(Attempt).values(**columns))
        assert offered(database) is None


def test_a_run_has_at_most_so_many_workers(either: Database) -> None:
    """Itself included, and then another run has its turn."""
    first = long_run(either)
    add_workers(either, *"abcdefg")
    second = long_run(either)
    chosen = [begun(either, name) for name in "abcd"]
    assert offered(either) is None
    runs = [first.experiment_id, second.experiment_id] * 2
    assert [one.experiment_id for one in chosen] == runs


def test_helpers_count_for_the_limit_of_their_user(either: Database) -> None:
    """They do not count against an experiment of the user that could begin."""
    long_run(either)
    add_workers(either, *"abcdefg")
    with either.transaction() as session:
        session.execute(update(User).values(max_running=2))
    assert offered(either) is not None
    assert offered(either) is None
    with either.snapshot() as session:
        (standing,) = shares.standings(session, FairShare())
    assert standing.running == 1
    assert standing.may_begin(Queue.CPU)


def test_helpers_leave_the_spare_slots_of_others(either: Database) -> None:
    long_run(either)
    add_workers(either, "a", "b", "c")
    add_user(either, "other")
    assert offered(either) is not None
    assert offered(either) is None


def test_nobody_helps_while_an_experiment_could_begin(either: Database) -> None:
    long_run(either)
    add_workers(either, *"abc")
    waiting = submitted(either)
    assert offered(either) is None
    stored.change(either, waiting, held="after")
    assert offered(either) is not None


def test_helpers_of_the_user_with_the_most_usage_give_way(either: Database) -> None:
    """One helper stops for each waiting experiment that may begin, and for no other."""
    other = add_user(either, "other")
    runs = [long_run(either), long_run(either, owner_id=other)]
    add_workers(either, *"abcd")
    chosen = [begun(either, name) for name in "abcd"]
    with either.transaction() as session:
        session.execute(update(Attempt).where(Attempt.owner_id == 1).values(started_at=0.0))

    helped = {one.id: one.experiment_id for one in chosen}

    assert stopped(either) == []
    waiting = submitted(either)
    stored.change(either, waiting, owner_id=other, held="after")
    assert stopped(either) == []
    stored.change(either, waiting, held="")
    for _ in range(2):
        assert [helped[one] for one in stopped(either)] == [runs[0].experiment_id]
    submitted(either)
    submitted(either)
    of_whom = sorted(helped[one] for one in stopped(either))
    assert of_whom == sorted([runs[0].experiment_id] * 2 + [runs[1].experiment_id])
    over = next(one for one in helps(either) if one.must_stop)
    claim = next(one for one in chosen if one.id == over.id)
    with pytest.raises(HelpOver, match="needed"):
        beat(either, claim)


def test_no_helper_gives_way_if_a_worker_is_idle(either: Database) -> None:
    """The idle worker takes the experiment."""
    long_run(either)
    add_workers(either, "w", "a", "b", "idle")
    for name in "ab":
        begun(either, name)
    submitted(either)
    assert stopped(either) == []
    submitted(either)
    assert len(stopped(either)) == 1


def test_no_helper_of_a_cpu_gives_way_to_gpu_runs(either: Database) -> None:
    long_run(either)
    add_workers(either, "w", "a", "b")
    for name in "ab":
        begun(either, name)
    for device in ("cuda", "cuda", "auto"):
        stored.change(either, submitted(either), device=device)
    assert len(stopped(either)) == 1


def test_a_helper_gives_way_to_a_dispatched_experiment_without_a_worker(either: Database) -> None:
    """Its worker went before the message arrived. A help that has not begun is withdrawn first."""
    long_run(either)
    add_workers(either, "a", "b", "c")
    begun(either, "a")
    coming = offered(either)
    dispatched = submitted(either)
    stored.change(either, dispatched, status=Status.DISPATCHED, queue=Queue.CPU)
    assert stopped(either) == []
    with either.transaction() as session:
        workers.leave(session, "b")
    assert stopped(either) == [coming]
    with either.transaction() as session:
        workers.leave(session, "c")
    assert len(stopped(either)) == 2


def test_a_machine_without_memory_for_the_helpers_of_a_run_helps_nobody(either: Database) -> None:
    """The run may have two helpers, and all may be on one machine."""
    long_run(either, memory_bytes=2**29 + 1)
    add_workers(either, "w", "w1", "w2", "w3")
    assert offered(either) is None
    long_run(either, memory_bytes=2**29)
    assert offered(either) is not None


def test_a_help_is_over_with_its_attempt(either: Database) -> None:
    """A helper of an earlier attempt renews nothing, and its batches do not reach the later one."""
    run = long_run(either)
    add_workers(either, "w", "w1", "w2")
    claim = begun(either)
    with either.transaction() as session:
        division.begin(session, run.experiment_id, run.attempt, 3)
        division.send_scores(session, run.experiment_id, run.attempt, claim.id, [BATCH])
        lease.release(session, run)
    with pytest.raises(HelpOver, match="ended"):
        beat(either, claim)
    later = claim_next(either)
    assert later.attempt == run.attempt + 1
    with pytest.raises(HelpOver, match="ended"):
        beat(either, claim)
    with either.snapshot() as session:
        for table in (DividedRun, SentBatch):
            assert session.scalar(select(func.count()).select_from(table)) == 0
        assert division.claim_span(session, run.experiment_id, run.attempt, 1) is None


def test_a_late_batch_of_an_earlier_attempt_is_never_read(either: Database) -> None:
    run = long_run(either)
    with either.transaction() as session:
        lease.release(session, run)
    later = claim_next(either)
    with either.transaction() as session:
        division.begin(session, later.experiment_id, later.attempt, 0)
        division.send_scores(session, run.experiment_id, run.attempt, 1, [BATCH])
        assert division.take_scores(session, later.experiment_id, later.attempt) == []
        assert division.take_scores(session, run.experiment_id, run.attempt) == [BATCH]
        assert division.take_scores(session, run.experiment_id, run.attempt) == []


def test_spans_are_claimed_once(either: Database) -> None:
    """From where the attempt began to share; to begin again changes nothing."""
    run = long_run(either)
    of = run.experiment_id, run.attempt
    with either.transaction() as session:
        assert division.plans(session, *of) is None
        assert division.claim_span(session, *of, 2) is None
        for first in (3, 99):
            division.begin(session, *of, first)
        assert [division.claim_span(session, *of, count) for count in (2, 1, 4)] == [3, 5, 6]
        assert division.claim_span(session, run.experiment_id, run.attempt + 1, 1) is None


def test_plans_are_published_once(either: Database) -> None:
    run = long_run(either)
    of = run.experiment_id, run.attempt
    first, second = {"number": 0, "values": [1, 2]}, {"number": 1, "values": [3]}
    with either.transaction() as session:
        division.begin(session, *of, 0)
        division.publish_plans(session, *of, [first])
    with either.transaction() as session:
        division.publish_plans(session, *of, [first, second])
        assert division.plans(session, *of) == [first, second]


def test_at_most_so_many_batches_are_read_at_once(either: Database) -> None:
    run = long_run(either)
    of = run.experiment_id, run.attempt
    batches = [{**BATCH, "number": number} for number in range(division.MAX_TAKEN + 1)]
    with either.transaction() as session:
        division.send_scores(session, *of, 1, batches)
        division.send_scores(session, *of, 2, batches[:1])
        assert division.take_scores(session, *of) == batches[:-1]
        assert division.take_scores(session, *of) == batches[-1:]


def test_at_most_so_many_bytes_are_read_at_once(
    either: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But at least one batch."""
    run = long_run(either)
    of = run.experiment_id, run.attempt
    batches = [{**BATCH, "number": number} for number in range(5)]
    one = len(zlib.compress(json.dumps(batches[0]).encode(), 1))
    with either.transaction() as session:
        division.send_scores(session, *of, 1, batches)
        monkeypatch.setattr(division, "MAX_BYTES_TAKEN", 2 * one)
        assert division.take_scores(session, *of) == batches[:2]
        monkeypatch.setattr(division, "MAX_BYTES_TAKEN", 1)
        assert division.take_scores(session, *of) == batches[2:3]


@pytest.mark.parametrize("reason", [f"{UNLIKE}cpu", f"{helping.FAILED}no such file"])
def test_a_worker_that_cannot_help_is_not_offered_again(either: Database, reason: str) -> None:
    """Its offers go to others, and where there are none, none is made."""
    long_run(either)
    add_workers(either, "w", "w1")
    claim = begun(either)
    ended(either, claim.id, reason)
    with either.transaction() as session:
        session.execute(update(Help).values(ended_at=now() - 60))
    assert offered(either) is None
    add_workers(either, "w2")
    help_id = offered(either)
    assert help_id is not None
    with either.transaction() as session:
        assert helping.begin(session, help_id, "w1", LEASE_S) is None
    assert len(helps(either)) == 1
    assert begun(either, "w2")


def test_an_attempt_with_nothing_left_to_compute_is_not_helped(either: Database) -> None:
    long_run(either)
    add_workers(either, "w", "w1", "w2")
    ended(either, begun(either).id, helping.FINISHED)
    with either.transaction() as session:
        session.execute(update(Help).values(ended_at=now() - 60))
    assert offered(either) is None


def test_a_run_waits_a_little_for_its_next_helper(database: Database) -> None:
    long_run(database)
    add_workers(database, "w", "w1", "w2")
    ended(database, begun(database).id)
    assert offered(database) is None
    with database.transaction() as session:
        session.execute(update(Help).values(ended_at=now() - helping.MAX_PAUSE_S))
    assert offered(database) is not None


def test_lost_and_unclaimed_helps_are_reaped(either: Database) -> None:
    """The slot is charged up to the end of the lease. A help that runs stays."""
    long_run(either)
    add_workers(either, *"abcd")
    lost, _ = begun(either, "a"), offered(either)
    with either.transaction() as session:
        clock: float = session.execute(select(now())).scalar_one()
        assert helping.reap(session, 30.0, clock) == 0
        session.execute(
            update(Help).where(Help.id == lost.id).values(lease_expires_at=Help.started_at + 1)
        )
        assert helping.reap(session, 30.0, clock + 20) == 1
        assert helping.reap(session, 30.0, clock + 31) == 1
    (one,) = helps(either)
    assert one.started_at is not None
    assert (one.ended_at, one.reason) == (one.started_at + 1, "its worker was lost")


def test_usage_includes_helps(either: Database) -> None:
    """While they last, after they end, and after they are folded. The whole is that of the lines,
    and an experiment is purged after that alone."""
    run = long_run(either)
    add_workers(either, "w", "w1", "w2")
    claim, fair_share = begun(either), FairShare(half_life_s=1e9)

    def usage_s() -> float:
        with either.snapshot() as session:
            (standing,) = shares.standings(session, fair_share)
        return standing.usage_s

    with either.transaction() as session:
        session.execute(update(Help).values(started_at=now() - 1000))
    assert usage_s() == pytest.approx(1060, abs=20)
    ended(either, claim.id)
    with either.transaction() as session:
        lease.finish(session, run, Status.SUCCEEDED)
    assert usage_s() == pytest.approx(1060, abs=20)
    with either.transaction() as session:
        session.execute(update(Experiment).values(deleted_at=now()))
        session.execute(update(Attempt).values(folded=True))
        assert not deletion.purge(session, run.experiment_id)
        session.execute(update(Attempt).values(folded=False))
        ledger.fold(session, fair_share)
    assert usage_s() == pytest.approx(1060, abs=20)
    assert check(either, {}, fair_share=fair_share).clean
    with either.transaction() as session:
        assert session.scalar(select(Usage.slot_s)) == pytest.approx(1060, abs=20)
        assert deletion.purge(session, run.experiment_id)
    assert helps(either) == []


def test_a_restore_ends_all_helps(database: Database) -> None:
    run = long_run(database)
    add_workers(database, *"abcd")
    claim, _ = begun(database, "a"), offered(database)
    with database.transaction() as session:
        division.begin(session, run.experiment_id, run.attempt, 0)
        helping.end_all(session)
    (one,) = helps(database)
    assert one.id == claim.id
    assert one.ended_at is not None
    with database.snapshot() as session:
        assert session.scalar(select(func.count()).select_from(DividedRun)) == 0


def a_look(dispatcher: Dispatcher) -> list[str]:
    """Do what a dispatcher does once, and return what it has dispatched."""
    dispatcher.share_idle_workers()
    return [one.experiment_id for one in dispatcher.dispatch()]


def dispatcher_of(database: Database, settings: Settings) -> Dispatcher:
    return Dispatcher(database, settings.model_copy(update={"max_workers": 3}), Celery())


@pytest.mark.parametrize("held", [Held.NOT, Held.SWEEP])
def test_helpers_give_way_to_a_sweep_with_a_limit(
    database: Database, settings: Settings, held: Held
) -> None:
    """Its points are held until a choice releases them."""
    long_run(database)
    add_workers(database, "w", "w1")
    claim = begun(database, "w1")
    limited_sweeps(database, 1, {"held": held})
    assert a_look(dispatcher_of(database, settings)) == []  # the helper has not ended yet
    with database.snapshot() as session:
        assert session.get_one(Help, claim.id).must_stop


@pytest.mark.parametrize("held", [Held.NOT, Held.SWEEP])
def test_an_idle_worker_runs_a_sweep_with_a_limit_before_it_helps(
    database: Database, settings: Settings, held: Held
) -> None:
    long_run(database)
    add_workers(database, "w", "w1", "w2")
    (one,) = limited_sweeps(database, 1, {"held": held})
    dispatcher = dispatcher_of(database, settings)
    assert a_look(dispatcher) + a_look(dispatcher) == [one]


def test_no_helper_gives_way_to_the_queue_of_a_user_at_a_limit(either: Database) -> None:
    busy = add_user(either, "busy")
    long_run(either)
    add_workers(either, "w", "a", "b", "spare")
    for name in "ab":
        begun(either, name)
    with either.transaction() as session:
        session.execute(update(User).where(User.id == busy).values(max_running=0))
    for _ in range(3):
        stored.change(either, submitted(either), owner_id=busy)
    assert stopped(either) == []
    for _ in range(2):
        submitted(either)
    assert len(stopped(either)) == 1


def test_nobody_waits_for_a_transaction_that_ends_a_run(lab: Settings) -> None:
    """It may hang, and the dispatch lock is held."""
    with closing(Database(lab.url)) as database, closing(Database(lab.url)) as other:
        run = long_run(database)
        add_workers(database, "w", "w1", "w2")
        with other.transaction() as hung:
            one = select(Experiment.id).where(Experiment.id == run.experiment_id)
            hung.execute(one.with_for_update())
            with database.transaction() as session:
                session.execute(text("SET LOCAL lock_timeout = '2s'"))
                assert helping.offer(session, Queue.CPU, RULES) is None
        assert offered(database) is not None
