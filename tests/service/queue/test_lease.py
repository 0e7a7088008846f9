"""The exact writes of each step of an attempt; it writes nothing of other experiments."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from mptcore.protocol.code import core_digest
from service.db.engine import Database
from service.experiments.models import Attempt, Checkpoint, Experiment, Metric, Queue, Series
from service.queue import lease, workers
from service.queue.claims import MAX_BYTES
from service.queue.lease import Claim, FailureCause, LeaseLost
from service.queue.workers import Vitals
from service.records.curves import read_series
from service.records.recording import Batch, record
from service.vocabulary import DesiredState, Status
from tests.support.attempts import claim_next, claimed, submitted
from tests.support.ppca_spec import spec_on
from tests.support.records import RECORDS, point
from tests.support.starting import start_next
from tests.support.stored import change, row, status_events

SOON_S = 60.0
"""Within which a test is over, on the slowest machine."""


def is_now(at: float | None) -> bool:
    return at is not None and abs(at - time.time()) < SOON_S


def ends_in(lease_s: float, claim: Claim, database: Database) -> bool:
    expires = row(database, claim.experiment_id).lease_expires_at
    return expires is not None and is_now(expires - lease_s)


def slot(database: Database, claim: Claim) -> Attempt:
    """The ledger's line of the attempt."""
    with database.snapshot() as session:
        return session.get_one(Attempt, (claim.experiment_id, claim.attempt))


def save(database: Database, claim: Claim, after: int, file: str) -> None:
    """Records up to `after`, and a checkpoint there."""
    batch = Batch()
    batch.add(point(after))
    batch.add({"seq": None, "record": "checkpoint", "after": after, "file": file,
               "sha256": "0" * 64})  # fmt: skip
    with database.transaction() as session:
        record(session, claim, batch, 60)


def put_back(database: Database, claim: Claim) -> None:
    change(database, claim.experiment_id, lease_expires_at=0)
    with database.transaction() as session:
        assert lease.expire(session, max_lost=100) == [(claim.experiment_id, "queued")]


def saved(database: Database, experiment_id: str) -> list[str]:
    with database.snapshot() as session:
        return [one.file for one in lease.checkpoints(session, experiment_id)]


@pytest.fixture
def other(database: Database) -> Claim:
    """The run of another experiment, which nothing here may touch."""
    claim = claimed(database, lease_s=1000)
    save(database, claim, 3, "kept")
    metric = Batch()
    metric.add(RECORDS[-1])
    with database.transaction() as session:
        record(session, claim, metric, 60)
    return claim


@pytest.fixture(autouse=True)
def _other_is_left_alone(request: pytest.FixtureRequest, database: Database) -> Any:
    claim = request.getfixturevalue("other")
    yield
    assert row(database, claim.experiment_id).status == "running"
    assert ends_in(60, claim, database)
    assert saved(database, claim.experiment_id) == ["1/kept"]
    assert status_events(database, claim.experiment_id)[1:] == [
        {"status": "running", "attempt": 1, "worker": "w"}
    ]
    with database.snapshot() as session:
        assert [one.x for one in read_series(session, claim.experiment_id, max_points=9)] == [[3]]
        assert session.scalars(select(Metric.experiment_id)).all() == [claim.experiment_id]


PROGRESS = {
    "progress_done": 1, "progress_total": 2, "progress_unit": "masks", "progress_stage": {},
    "progress_at": 1.0, "progress_eta_s": 1.0,
}  # fmt: skip
"""Progress of an earlier attempt; it does not predict the speed of the next one."""


def test_a_claim(database: Database) -> None:
    experiment_id = submitted(database)
    change(database, experiment_id, **PROGRESS)
    claim = claim_next(database, lease_s=500)
    assert (claim.experiment_id, claim.attempt, claim.after_seq) == (experiment_id, 1, 0)
    found = row(database, experiment_id)
    assert claim.spec == found.spec
    assert (found.status, found.attempt, found.worker) == ("running", 1, "w")
    assert [getattr(found, name) for name in PROGRESS] == [None] * len(PROGRESS)
    assert ends_in(500, claim, database)
    assert is_now(found.started_at)
    assert status_events(database, experiment_id) == [
        {"status": "queued"},
        {"status": "running", "attempt": 1, "worker": "w"},
    ]


def test_a_claim_that_resumes(database: Database) -> None:
    first = claimed(database)
    change(database, first.experiment_id, started_at=5.0)
    save(database, first, 3, "a")
    save(database, first, 7, "b")
    put_back(database, first)
    second = claim_next(database)
    assert (second.attempt, second.after_seq) == (2, 7)
    assert [one.file for one in second.checkpoints] == ["1/b", "1/a"]
    found = row(database, first.experiment_id)
    assert (found.last_seq, found.started_at) == (7, 5.0)
    assert status_events(database, first.experiment_id)[-1] == {
        "status": "running", "attempt": 2, "worker": "w", "resumed_after": 7,
    }  # fmt: skip


def test_the_latest_checkpoint_of_one_record_is_the_latest_attempts(database: Database) -> None:
    claim = claimed(database)
    rows = [(3, 1, "1/z"), (3, 2, "2/a"), (3, 2, "2/b"), (2, 3, "3/z")]
    with database.transaction() as session:
        for after, attempt, file in rows:
            session.add(Checkpoint(experiment_id=claim.experiment_id, file=file, attempt=attempt,
                                   after_seq=after, sha256=""))  # fmt: skip
    assert saved(database, claim.experiment_id) == ["2/b", "2/a", "1/z", "3/z"]


@pytest.mark.parametrize(
    ("takes", "room", "may"),
    [
        (5, 5, True),
        (6, 5, False),
        (None, 0, True),
        (1, 0, False),
        (MAX_BYTES, None, True),
    ],
)
def test_a_run_that_needs_more_memory_than_the_worker_allows_is_not_claimed(
    database: Database, takes: int | None, room: int | None, may: bool
) -> None:
    """It stays in the queue, and counts no attempt."""
    experiment_id = submitted(database)
    change(database, experiment_id, memory_bytes=takes)
    with database.transaction() as session:
        workers.beat(session, "w", Vitals("host", Queue.CPU, 1, run_memory=room))
        claim = start_next(session)
    assert (claim is not None) == may
    found = row(database, experiment_id)
    assert (found.status, found.attempt) == (("running", 1) if may else ("queued", 0))


@pytest.mark.parametrize("queue", Queue)
def test_a_claim_uses_a_slot_of_its_queue(database: Database, queue: Queue) -> None:
    experiment_id = submitted(database, spec_on("auto"))
    change(database, experiment_id, estimated_bytes=7)
    with database.transaction() as session:
        claim = start_next(session, "w", queue)
    assert claim is not None
    assert claim.queue == queue
    line = slot(database, claim)
    assert (line.queue, line.worker, line.estimated_bytes) == (queue, "w", 7)
    assert line.ended_at is None
    assert is_now(line.started_at)


def test_a_claim_by_another_core_is_not_cached_for_others(database: Database) -> None:
    """The result no longer matches the cache key, so the key is deleted."""
    for key in (core_digest() + "rest", "other core"):
        experiment_id = submitted(database)
        change(database, experiment_id, cache_key=key)
        claim_next(database)
        kept = key if key.startswith(core_digest()) else None
        assert row(database, experiment_id).cache_key == kept


def test_a_cancelled_experiment_is_not_claimed(database: Database) -> None:
    change(database, submitted(database), status=Status.CANCELLED)
    with database.transaction() as session:
        assert start_next(session) is None


def test_a_restarted_run_deletes_records_and_checkpoints(database: Database) -> None:
    claim = claimed(database)
    save(database, claim, 1, "a")
    with database.transaction() as session:
        lease.forget_records(session, claim.experiment_id)
    assert saved(database, claim.experiment_id) == []
    with database.snapshot() as session:
        of_it = Series.experiment_id == claim.experiment_id
        assert session.scalars(select(Series).where(of_it)).all() == []


def test_a_heartbeat_renews_the_lease_and_returns_the_desired_state(database: Database) -> None:
    claim = claimed(database, lease_s=1)
    change(database, claim.experiment_id, desired_state=DesiredState.PAUSE)
    with database.transaction() as session:
        assert lease.heartbeat(session, claim, 700, last_seq=9).desired is DesiredState.PAUSE
    assert ends_in(700, claim, database)
    assert row(database, claim.experiment_id).last_seq == 9


FULL = FailureCause("disk_full", "the disk is full")
FENCED: list[Callable[[Session, Claim], object]] = [
    lambda session, claim: lease.heartbeat(session, claim, 60),
    lambda session, claim: lease.finish(session, claim, Status.SUCCEEDED),
    lambda session, claim: lease.mark_lost(session, claim, 3),
    lambda session, claim: lease.hand_back(session, claim, "memory", 3, FULL),
    lambda session, claim: lease.release(session, claim),
]


@pytest.mark.parametrize("write", FENCED)
@pytest.mark.parametrize("columns", [{"attempt": 2}, {"attempt": 0}, {"status": Status.QUEUED}])
def test_an_ended_attempt_writes_nothing(
    database: Database, write: Callable[[Session, Claim], object], columns: dict[str, Any]
) -> None:
    claim = claimed(database)
    save(database, claim, 3, "a")
    change(database, claim.experiment_id, **columns, lease_expires_at=5.0)
    told = f"^attempt 1 of {claim.experiment_id} lost its lease$"
    with database.transaction() as session, pytest.raises(LeaseLost, match=told):
        write(session, claim)
    found = row(database, claim.experiment_id)
    assert (found.lease_expires_at, found.finished_at, found.lost) == (5.0, None, 0)
    assert saved(database, claim.experiment_id) == ["1/a"]
    assert len(status_events(database, claim.experiment_id)) == 2


@pytest.mark.parametrize("failure", [None, FailureCause("oom", "no memory")])
def test_the_end_of_an_attempt(database: Database, failure: FailureCause | None) -> None:
    claim = claimed(database)
    save(database, claim, 3, "a")
    status = Status.FAILED if failure else Status.SUCCEEDED
    with database.transaction() as session:
        lease.finish(session, claim, status, failure, peak_bytes=5)
    assert is_now(slot(database, claim).ended_at)
    assert slot(database, claim).outcome == ("oom" if failure else "succeeded")
    assert slot(database, claim).peak_bytes == 5
    found = row(database, claim.experiment_id)
    assert (found.status, found.lease_expires_at) == (status, None)
    assert (found.failure_kind, found.failure_message) == (
        ("oom", "no memory") if failure else (None, None)
    )
    assert is_now(found.finished_at)
    assert saved(database, claim.experiment_id) == []
    assert status_events(database, claim.experiment_id)[-1] == {"status": status, "attempt": 1}


@pytest.mark.parametrize(
    ("desired", "becomes"), [("run", "queued"), ("pause", "paused"), ("cancel", "cancelled")]
)
def test_an_attempt_is_handed_back(database: Database, desired: str, becomes: str) -> None:
    claim = claimed(database)
    save(database, claim, 3, "a")
    change(database, claim.experiment_id, desired_state=DesiredState(desired))
    with database.transaction() as session:
        assert lease.release(session, claim, peak_bytes=5) == becomes
    assert is_now(slot(database, claim).ended_at)
    assert (slot(database, claim).outcome, slot(database, claim).peak_bytes) == (becomes, 5)
    found = row(database, claim.experiment_id)
    assert (found.status, found.lost, found.lease_expires_at) == (becomes, 0, None)
    assert is_now(found.finished_at) if becomes == "cancelled" else found.finished_at is None
    assert saved(database, claim.experiment_id) == ([] if becomes == "cancelled" else ["1/a"])
    assert status_events(database, claim.experiment_id)[-1] == {"status": becomes, "attempt": 1}


@pytest.mark.parametrize(
    ("desired", "becomes"), [("run", "queued"), ("pause", "paused"), ("cancel", "cancelled")]
)
def test_an_attempt_whose_machine_lacked_something_is_handed_back(
    database: Database, desired: str, becomes: str
) -> None:
    """It keeps its checkpoint, is not counted as lost, and says why."""
    claim = claimed(database)
    save(database, claim, 3, "a")
    change(database, claim.experiment_id, desired_state=DesiredState(desired))
    with database.transaction() as session:
        assert lease.hand_back(session, claim, "disk_full", 3, FULL, peak_bytes=5) == becomes
    assert is_now(slot(database, claim).ended_at)
    assert (slot(database, claim).outcome, slot(database, claim).peak_bytes) == ("disk_full", 5)
    experiment = row(database, claim.experiment_id)
    assert (experiment.status, experiment.lost, experiment.failure_kind) == (becomes, 0, None)
    assert (experiment.finished_at is not None) == (becomes == "cancelled")
    assert saved(database, claim.experiment_id) == ([] if becomes == "cancelled" else ["1/a"])
    assert status_events(database, claim.experiment_id)[-1] == {
        "status": becomes,
        "attempt": 1,
        "reason": "disk_full",
        "message": "the disk is full",
    }


def test_a_run_fails_after_the_maximum_of_attempts_for_one_reason(database: Database) -> None:
    """Attempts that were handed back for other reasons do not count."""
    experiment_id = submitted(database)
    for reason in ("disk_full", "memory", "disk_full", "disk_full"):
        claim = claim_next(database)
        with database.transaction() as session:
            assert lease.hand_back(session, claim, reason, 3, FULL) == "queued"
    claim = claim_next(database)
    with database.transaction() as session:
        assert lease.hand_back(session, claim, "disk_full", 3, FULL) == "failed"
    experiment = row(database, experiment_id)
    assert (experiment.failure_kind, experiment.failure_message) == ("disk_full", FULL.message)
    assert experiment.lost == 0
    assert is_now(experiment.finished_at)


@pytest.mark.parametrize(
    ("desired", "becomes"), [("run", "queued"), ("pause", "paused"), ("cancel", "cancelled")]
)
def test_a_runner_that_was_killed_from_outside(
    database: Database, desired: str, becomes: str
) -> None:
    claim = claimed(database)
    change(database, claim.experiment_id, desired_state=DesiredState(desired))
    with database.transaction() as session:
        assert lease.mark_lost(session, claim, max_lost=3, peak_bytes=5) == becomes
    assert is_now(slot(database, claim).ended_at)
    assert (slot(database, claim).outcome, slot(database, claim).peak_bytes) == ("lost", 5)
    found = row(database, claim.experiment_id)
    assert (found.status, found.lost, found.lease_expires_at) == (becomes, 1, None)
    assert is_now(found.finished_at) if becomes == "cancelled" else found.finished_at is None
    assert found.failure_kind is None
    assert status_events(database, claim.experiment_id)[-1] == {
        "status": becomes,
        "lost_attempt": 1,
    }


@pytest.mark.parametrize(("max_lost", "becomes"), [(3, "queued"), (2, "failed")])
def test_a_run_fails_after_the_maximum_of_losses(
    database: Database, max_lost: int, becomes: str
) -> None:
    claim = claimed(database)
    change(database, claim.experiment_id, lost=2)
    with database.transaction() as session:
        assert lease.mark_lost(session, claim, max_lost) == becomes
    found = row(database, claim.experiment_id)
    assert (found.status, found.lost) == (becomes, 3)
    if becomes == "failed":
        message = "its worker was lost 3 times; at most 2 losses are allowed"
        assert (found.failure_kind, found.failure_message) == ("lost", message)
        assert is_now(found.finished_at)
    else:
        assert (found.failure_kind, found.finished_at) == (None, None)


@pytest.mark.parametrize(("expires", "is_over"), [(99.0, True), (100.0, False), (101.0, False)])
def test_a_valid_lease_is_not_reaped(database: Database, expires: float, is_over: bool) -> None:
    claim = claimed(database)
    change(database, claim.experiment_id, lease_expires_at=expires)
    with database.transaction() as session:
        session.execute(update(Attempt).values(started_at=1.0))
    with database.transaction() as session:
        reaped = lease.expire(session, max_lost=3, as_of=100.0)
    assert reaped == ([(claim.experiment_id, "queued")] if is_over else [])
    found = row(database, claim.experiment_id)
    assert (found.status, found.lost) == (("queued", 1) if is_over else ("running", 0))
    assert found.lease_expires_at == (None if is_over else expires)
    assert slot(database, claim).ended_at == (expires if is_over else None)
    if is_over:
        assert status_events(database, claim.experiment_id)[-1] == {
            "status": "queued",
            "lost_attempt": 1,
        }


def test_only_running_leases_are_reaped(database: Database) -> None:
    """A waiting run has no lease."""
    claimed(database)
    ended = claimed(database)
    change(database, submitted(database), lease_expires_at=1.0)
    change(database, ended.experiment_id, status=Status.FAILED, lease_expires_at=1.0)
    with database.transaction() as session:
        assert lease.expire(session, max_lost=3) == []


def test_reaping_reads_the_clock_by_default(database: Database) -> None:
    over, good = claimed(database), claimed(database)
    change(database, over.experiment_id, lease_expires_at=time.time() - SOON_S)
    change(database, good.experiment_id, lease_expires_at=time.time() + SOON_S)
    with database.transaction() as session:
        reaped = lease.expire(session, max_lost=0)
    assert reaped == [(over.experiment_id, "failed")]


def test_usable_checkpoints_are_kept(database: Database) -> None:
    ids = []
    for status, finished_s in (("succeeded", 200), ("succeeded", 20), ("paused", 200)):
        claim = claimed(database)
        save(database, claim, 3, "a")
        ids.append(claim.experiment_id)
        at = time.time() - finished_s
        change(database, claim.experiment_id, status=Status(status), finished_at=at)
    unasked = claimed(database)
    save(database, unasked, 3, "a")
    change(database, unasked.experiment_id, status=Status.FAILED, finished_at=1.0)
    with database.transaction() as session:
        assert lease.forget_checkpoints(session, ids, after_s=100) == [ids[0]]
    left = [saved(database, one) for one in (*ids, unasked.experiment_id)]
    assert left == [[], ["1/a"], ["1/a"], ["1/a"]]
    with database.snapshot() as session:
        assert session.get(Experiment, ids[0]) is not None


def test_the_memory_of_a_run_that_fails_after_several_attempts(database: Database) -> None:
    claim = claimed(database)
    with database.transaction() as session:
        assert lease.hand_back(session, claim, "memory", 0, FULL, peak_bytes=5) == "failed"
    assert slot(database, claim).peak_bytes == 5
