"""The lease and its fence, in the store itself."""

from typing import Any

import pytest
from sqlalchemy import func, select, update

from service.database import Database, now
from service.experiments import queue, store
from service.experiments.curves import read_series
from service.experiments.models import Experiment, Status
from service.experiments.queue import Claim, LeaseLost
from service.experiments.recording import Batch, record
from service.experiments.schemas import Submission
from tests.conftest import ppca_spec

LEASE_S = 60.0


def submit(database: Database, **beside: Any) -> str:
    submission = Submission.model_validate({"spec": ppca_spec(), **beside})
    with database.transaction() as session:
        return store.submit(session, 1, submission).id


def dispatch(database: Database) -> tuple[str, int]:
    with database.transaction() as session:
        dispatched = queue.dispatch_next(session)
    assert dispatched is not None
    return dispatched


def claim(database: Database, dispatched: tuple[str, int]) -> Claim | None:
    with database.transaction() as session:
        return queue.claim(session, *dispatched, worker="w", lease_s=LEASE_S)


def running(database: Database) -> Claim:
    submit(database)
    claimed = claim(database, dispatch(database))
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
        return queue.reap(session, dispatch_timeout_s=30, max_lost=max_lost)


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
        return record(session, claimed, records, LEASE_S)


def stored_x(database: Database, experiment_id: str) -> list[float]:
    with database.snapshot() as session:
        found = read_series(session, experiment_id, max_points=1000)
        return [x for series in found for x in series.x]


def test_priority_then_age(database: Database) -> None:
    first, second = submit(database), submit(database)
    urgent = submit(database, priority=5)
    assert [dispatch(database)[0] for _ in range(3)] == [urgent, first, second]
    with database.transaction() as session:
        assert queue.dispatch_next(session) is None


def test_a_dispatch_is_claimed_once(database: Database) -> None:
    experiment_id = submit(database)
    dispatched = dispatch(database)
    assert claim(database, (experiment_id, dispatched[1] - 1)) is None
    claimed = claim(database, dispatched)
    assert claimed is not None
    assert claimed.attempt == 1
    assert claim(database, dispatched) is None
    assert status(database, experiment_id) == ("running", 1)


def test_a_dispatch_from_before_the_reaper_is_stale(database: Database) -> None:
    experiment_id = submit(database)
    old = dispatch(database)
    assert reap(database) == []
    with database.transaction() as session:
        assert queue.reap(session, dispatch_timeout_s=-1, max_lost=3) == [(experiment_id, "queued")]
    new = dispatch(database)
    assert claim(database, old) is None
    assert claim(database, new) is not None


def test_a_batch_again_changes_nothing(database: Database) -> None:
    claimed = running(database)
    for _ in range(2):
        assert write(database, claimed, batch(1, 5)) == "run"
    write(database, claimed, batch(8, 5))
    assert stored_x(database, claimed.experiment_id) == [*range(1, 6), *range(8, 13)]
    with database.snapshot() as session:
        found = session.get_one(Experiment, claimed.experiment_id)
        assert found.last_seq == 14


def test_the_fence_shuts_out_an_older_attempt(database: Database) -> None:
    old = running(database)
    write(database, old, batch(1, 5))
    expire(database, old)
    assert reap(database) == [(old.experiment_id, "queued")]
    for write_late in (
        lambda: write(database, old, batch(8, 5)),
        lambda: end(database, old),
    ):
        with pytest.raises(LeaseLost):
            write_late()
    new = claim(database, dispatch(database))
    assert new is not None
    assert new.attempt == 2
    assert stored_x(database, old.experiment_id) == []  # the new attempt begins anew
    with pytest.raises(LeaseLost):
        write(database, old, batch(8, 5))
    write(database, new, batch(1, 2))
    assert stored_x(database, old.experiment_id) == [1, 2]


def end(database: Database, claimed: Claim) -> None:
    with database.transaction() as session:
        queue.finish(session, claimed, Status.SUCCEEDED)


def test_an_expired_lease_that_no_one_reaped_is_still_good(database: Database) -> None:
    claimed = running(database)
    expire(database, claimed)
    write(database, claimed, batch(1, 5))
    assert reap(database) == []


def test_lost_too_often(database: Database) -> None:
    claimed = running(database)
    expire(database, claimed)
    assert reap(database, max_lost=0) == [(claimed.experiment_id, "failed")]
    with database.snapshot() as session:
        found = session.get_one(Experiment, claimed.experiment_id)
        assert found.failure_kind == "lost"
        assert "lost 1 times; at most 0" in (found.failure_message or "")


def test_a_hand_back_is_not_a_loss(database: Database) -> None:
    claimed = running(database)
    with database.transaction() as session:
        queue.hand_back(session, claimed)
    with database.snapshot() as session:
        found = session.get_one(Experiment, claimed.experiment_id)
        assert (found.status, found.lost, found.lease_expires_at) == ("queued", 0, None)


def test_a_cancelled_run_that_is_lost_is_cancelled(database: Database) -> None:
    claimed = running(database)
    with database.transaction() as session:
        assert queue.request_cancel(session, claimed.experiment_id) == "running"
    expire(database, claimed)
    assert reap(database) == [(claimed.experiment_id, "cancelled")]


def test_no_write_after_a_cancel(database: Database) -> None:
    claimed = running(database)
    with database.transaction() as session:
        queue.finish(session, claimed, Status.CANCELLED)
    with pytest.raises(LeaseLost):
        write(database, claimed, batch(1, 5))
    assert stored_x(database, claimed.experiment_id) == []


def test_a_failed_transaction_leaves_nothing(database: Database) -> None:
    def fail_midway() -> None:
        with database.transaction() as session:
            store.submit(session, 1, Submission.model_validate({"spec": ppca_spec()}))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_midway()
    with database.snapshot() as session:
        assert session.scalar(select(func.count()).select_from(Experiment)) == 0
