"""The lease and its fence, in the store itself."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from sqlalchemy import func, select, text, update

from service.db.engine import Database, now
from service.experiments.models import Event, Experiment, Queue
from service.experiments.schemas import Submission
from service.queue import lease, states, workers
from service.queue.lease import Claim, LeaseLost
from service.queue.workers import Vitals
from service.records import recording
from service.records.curves import read_series
from service.records.recording import Batch, record
from service.settings import Settings
from service.vocabulary import DesiredState, Status
from service.workers.models import Worker
from tests.support import stored
from tests.support.ppca_spec import ppca_spec
from tests.support.starting import start_next

LEASE_S = 60.0


def submit(database: Database, **beside: Any) -> str:
    submission = Submission.model_validate({"spec": ppca_spec(), **beside})
    with database.transaction() as session:
        made = stored.submit(session, 1, submission)
    assert made is not None
    return made.id


def start(database: Database) -> Claim | None:
    with database.transaction() as session:
        return start_next(session, lease_s=LEASE_S)


def running(database: Database) -> Claim:
    submit(database)
    claimed = start(database)
    assert claimed is not None
    return claimed


def expire(database: Database, claimed: Claim) -> None:
    with database.transaction() as session:
        session.execute(
            update(Experiment)
            .where(Experiment.id == claimed.experiment_id)
            .values(lease_expires_at=now() - 1)
        )


def reap(database: Database, max_lost: int = 3) -> list[tuple[str, Status]]:
    with database.transaction() as session:
        return lease.expire(session, max_lost=max_lost)


def status(database: Database, experiment_id: str) -> tuple[str, int]:
    with database.snapshot() as session:
        found = session.get_one(Experiment, experiment_id)
        return found.status, found.attempt


def batch(first: int, count: int) -> Batch:
    made = Batch()
    for seq in range(first, first + count):
        made.add({"seq": seq, "record": "point", "series": "score", "labels": {"seed": 1},
                  "x": seq, "value": 1.0, "std_err": 0.1, "n": 1})  # fmt: skip
    made.add({"seq": first + count, "record": "log", "level": "info", "message": "so far"})
    made.add({"seq": first + count + 1, "record": "metric", "name": "lml", "labels": {},
              "value": 1.0, "std_err": 0.0})  # fmt: skip
    return made


def write(database: Database, claimed: Claim, records: Batch) -> str:
    with database.transaction() as session:
        return record(session, claimed, records, LEASE_S).desired


def stored_x(database: Database, experiment_id: str) -> list[float]:
    with database.snapshot() as session:
        found = read_series(session, experiment_id, max_points=1000)
        return [x for series in found for x in series.x]


def test_priority_then_age(either: Database) -> None:
    first, second = submit(either), submit(either)
    urgent = submit(either, priority=5)
    claims = [start(either) for _ in range(4)]
    ids = [None if claim is None else claim.experiment_id for claim in claims]
    assert ids == [urgent, first, second, None]


def test_a_repeated_batch_changes_nothing(either: Database) -> None:
    claimed = running(either)
    for _ in range(2):
        assert write(either, claimed, batch(1, 5)) == "run"
    write(either, claimed, batch(8, 5))
    assert stored_x(either, claimed.experiment_id) == [*range(1, 6), *range(8, 13)]
    with either.snapshot() as session:
        found = session.get_one(Experiment, claimed.experiment_id)
        assert found.last_seq == 14


def test_logs_of_a_run_are_limited(either: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cut does not depend on the batches, nor on a repeated batch."""
    monkeypatch.setattr(recording, "MAX_LOGS", 5)
    claimed = running(either)
    for first, count in ((1, 3), (1, 3), (4, 4), (4, 4), (8, 4)):
        logs = Batch()
        for seq in range(first, first + count):
            logs.add({"seq": seq, "record": "log", "level": "info", "message": f"{seq}"})
        write(either, claimed, logs)
    with either.snapshot() as session:
        found = session.scalars(select(Event).where(Event.kind == "log").order_by(Event.seq)).all()
    assert [event.seq for event in found] == [1, 2, 3, 4, 5, 6]
    assert [event.data["message"] for event in found[:5]] == ["1", "2", "3", "4", "5"]
    assert found[5].data == {"level": "warning", "message": recording.LAST_LOG}


def test_the_fence_refuses_an_older_attempt(either: Database) -> None:
    old = running(either)
    write(either, old, batch(1, 5))
    expire(either, old)
    assert reap(either) == [(old.experiment_id, "queued")]
    for write_late in (
        lambda: write(either, old, batch(8, 5)),
        lambda: end(either, old),
    ):
        with pytest.raises(LeaseLost):
            write_late()
    new = start(either)
    assert new is not None
    assert new.attempt == 2
    assert stored_x(either, old.experiment_id) == []  # the new attempt starts from the beginning
    with pytest.raises(LeaseLost):
        write(either, old, batch(8, 5))
    write(either, new, batch(1, 2))
    assert stored_x(either, old.experiment_id) == [1, 2]


def end(database: Database, claimed: Claim) -> None:
    with database.transaction() as session:
        lease.finish(session, claimed, Status.SUCCEEDED)


def test_an_expired_lease_is_valid_until_it_is_reaped(either: Database) -> None:
    claimed = running(either)
    expire(either, claimed)
    write(either, claimed, batch(1, 5))
    assert reap(either) == []


def test_lost_too_often(either: Database) -> None:
    claimed = running(either)
    expire(either, claimed)
    assert reap(either, max_lost=1) == [(claimed.experiment_id, "queued")]
    again = start(either)
    assert again is not None
    expire(either, again)
    assert reap(either, max_lost=1) == [(claimed.experiment_id, "failed")]
    with either.snapshot() as session:
        found = session.get_one(Experiment, claimed.experiment_id)
        assert found.failure_kind == "lost"
        assert "lost 2 times; at most 1" in (found.failure_message or "")
        assert found.finished_at is not None


def test_a_hand_back_is_not_a_loss(either: Database) -> None:
    claimed = running(either)
    with either.transaction() as session:
        lease.release(session, claimed)
    with either.snapshot() as session:
        found = session.get_one(Experiment, claimed.experiment_id)
        assert (found.status, found.lost, found.lease_expires_at) == ("queued", 0, None)


@pytest.mark.parametrize(("desired", "ends"), [("cancel", "cancelled"), ("pause", "paused")])
def test_a_lost_run_with_a_pending_cancel_ends(
    either: Database, desired: DesiredState, ends: str
) -> None:
    claimed = running(either)
    with either.transaction() as session:
        states.request(session, claimed.experiment_id, DesiredState(desired))
    expire(either, claimed)
    assert reap(either) == [(claimed.experiment_id, ends)]
    with either.snapshot() as session:
        finished_at = session.get_one(Experiment, claimed.experiment_id).finished_at
        assert (finished_at is None) == (ends == "paused")


def test_nothing_is_written_after_a_cancel(either: Database) -> None:
    claimed = running(either)
    with either.transaction() as session:
        lease.finish(session, claimed, Status.CANCELLED)
    with pytest.raises(LeaseLost):
        write(either, claimed, batch(1, 5))
    assert stored_x(either, claimed.experiment_id) == []


def test_a_failed_transaction_leaves_nothing(either: Database) -> None:
    def fail_midway() -> None:
        with either.transaction() as session:
            stored.submit(session, 1, Submission.model_validate({"spec": ppca_spec()}))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_midway()
    with either.snapshot() as session:
        assert session.scalar(select(func.count()).select_from(Experiment)) == 0


@contextmanager
def frozen(lab: Settings, *statements: str) -> Iterator[None]:
    """Another connection is frozen inside a transaction, and keeps its locks."""
    with closing(Database(lab.url)) as other, other.transaction() as session:
        for statement in statements:
            session.execute(text(statement))
        yield


def test_a_frozen_transaction_delays_only_its_own_rows(lab: Settings) -> None:
    with closing(Database(lab.url, timeouts="-c lock_timeout=300")) as database:
        held, lost = running(database), running(database)
        ended_held, ended = running(database), running(database)
        for one in (ended_held, ended):
            end(database, one)
        waits_held, waits = submit(database), submit(database)
        with database.transaction() as session:
            for name in ("held", "silent"):
                workers.beat(session, name, Vitals("host", Queue.CPU, 1))
            session.execute(update(Worker).values(heartbeat_at=1))
            session.execute(update(Experiment).values(finished_at=1))
            running_ones = Experiment.status == Status.RUNNING
            session.execute(update(Experiment).where(running_ones).values(lease_expires_at=1))
        of_runs = held.experiment_id, ended_held.experiment_id
        ids = "', '".join([*of_runs, waits_held])
        touch = f"UPDATE experiments SET note = 'x' WHERE id IN ('{ids}')"
        with frozen(lab, touch, "UPDATE workers SET host = 'x' WHERE id = 'held'"):
            claim = start(database)
            assert claim is not None
            assert claim.experiment_id == waits
            assert dict(reap(database)) == {lost.experiment_id: "queued"}
            with database.transaction() as session:
                both = [ended_held.experiment_id, ended.experiment_id]
                forgotten = lease.forget_checkpoints(session, both, after_s=1)
                assert forgotten == [ended.experiment_id]
            with database.transaction() as session:
                workers.forget_silent(session, after_s=1)
                assert session.scalars(select(Worker.id)).all() == ["held"]
        assert dict(reap(database)) == {held.experiment_id: "queued"}
