"""Help for running experiments in the store: its lease, its batches, its end."""

from contextlib import closing

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select, text, update

from service.experiments import deletion
from service.fair_share import FairShare
from service.queue import division, helping, lease, ledger, shares, workers
from service.queue.helping import UNLIKE, HelpOver
from service.settings import Settings
from service.tables.engine import Database, now
from service.tables.experiments import (
    Attempt,
    Experiment,
    Queue,
    Status,
    Usage,
)
from service.tables.helpers import DividedRun, Help, SentBatch
from tests.support.attempts import claim_next
from tests.support.helps import (
    BATCH,
    ENVIRONMENT,
    LEASE_S,
    PACKED,
    add_workers,
    beat,
    begun,
    ended,
    helps,
    long_run,
    offered,
)
from tests.support.invariants import check


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
        division.send_scores(session, run.experiment_id, run.attempt, claim.id, [PACKED])
    assert offered(database) is not None
    with database.transaction() as session:
        session.execute(update(Attempt).values(environment=None))  # that above is incomplete
    shown = api.get(f"/v1/experiments/{run.experiment_id}").json()["helps"]
    assert [(one["attempt"], one["worker"], one["batches"], one["reason"]) for one in shown] == [
        (run.attempt, "w2", 0, "its worker is unlike the run's: cpu"),
        (run.attempt, "w3", 1, None),
    ]
    assert [one["ended_at"] is None for one in shown] == [False, True]


def test_a_help_is_over_with_its_attempt(either: Database) -> None:
    """A helper of an earlier attempt renews nothing, and its batches do not reach the later one."""
    run = long_run(either)
    add_workers(either, "w", "w1", "w2")
    claim = begun(either)
    with either.transaction() as session:
        division.begin(session, run.experiment_id, run.attempt, 3)
        division.send_scores(session, run.experiment_id, run.attempt, claim.id, [PACKED])
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
        division.send_scores(session, run.experiment_id, run.attempt, 1, [PACKED])
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
        division.send_scores(session, *of, 1, [*map(division.packed, batches)])
        division.send_scores(session, *of, 2, [division.packed(batches[0])])
        assert division.take_scores(session, *of) == batches[:-1]
        assert division.take_scores(session, *of) == batches[-1:]


def test_at_most_so_many_bytes_are_read_at_once(
    either: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But at least one batch."""
    run = long_run(either)
    of = run.experiment_id, run.attempt
    batches = [{**BATCH, "number": number} for number in range(5)]
    one = len(division.packed(batches[0])["content"])
    with either.transaction() as session:
        division.send_scores(session, *of, 1, [*map(division.packed, batches)])
        monkeypatch.setattr(division, "MAX_BYTES_TAKEN", 2 * one)
        assert division.take_scores(session, *of) == batches[:2]
        monkeypatch.setattr(division, "MAX_BYTES_TAKEN", 1)
        assert division.take_scores(session, *of) == batches[2:3]


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


def test_a_run_killed_for_lack_of_memory_gets_no_more_helpers(either: Database) -> None:
    """Its next attempts do not either, and other runs do."""
    run = long_run(either)
    add_workers(either, "w", "w1", "w2")
    claim = begun(either)
    of = {"experiment_id": run.experiment_id, "attempt": run.attempt, "owner_id": 1}
    with either.transaction() as session:
        session.add(Help(**of, queue="cpu"))  # no worker has begun it
    with either.transaction() as session:
        helping.end_for_memory(session, run.experiment_id, run.attempt)
    assert [one.reason for one in helps(either)] == [helping.NO_MEMORY, None]
    with pytest.raises(HelpOver):
        beat(either, claim)
    with either.transaction() as session:
        session.execute(update(Help).values(ended_at=now() - 60, attempt=0))
    assert offered(either) is None
    long_run(either)
    assert offered(either) is not None


@pytest.mark.parametrize(
    ("reason", "barred"),
    [
        (f"{UNLIKE}cpu", "worker"),
        (f"{helping.FAILED}no such file", "worker"),
        (helping.UNREADABLE, "worker"),
        (helping.FINISHED, "attempt"),
        (f"{helping.LITTLE_USE}it mostly draws masks", "attempt"),
        (helping.NO_MEMORY, "experiment"),
        ("its worker is needed for an experiment", None),
    ],
)
def test_the_end_of_a_help_may_bar_others(reason: str, barred: str | None) -> None:
    assert helping.barred_by(reason) == barred


def test_a_worker_that_hangs_when_it_begins_a_help_is_disconnected(lab: Settings) -> None:
    """It may have locked the helps that others refuse."""
    with closing(Database(lab.url)) as database:
        long_run(database)
        add_workers(database, "w", "w1")
        help_id = offered(database)
        assert help_id is not None
        with database.transaction() as session:
            assert helping.begin(session, help_id, "w1", LEASE_S) is not None
            limit = text("SHOW idle_in_transaction_session_timeout")
            assert session.scalar(limit) == "3s"
