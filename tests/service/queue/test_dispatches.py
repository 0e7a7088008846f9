"""Dispatches: chosen for a worker under a number, claimed once, and put back if nobody claims them.

Tests that need no dispatch by itself start runs through tests.support.starting.
"""

import time
from collections.abc import Callable

import pytest
from sqlalchemy import select

from service.db.engine import Database
from service.experiments.models import Attempt, Queue, Status
from service.queue import lease
from service.queue.dispatch import Dispatch, dispatch_next
from service.queue.lease import BEYOND, Claim
from service.settings import Settings
from tests.support.attempts import submitted
from tests.support.dispatches import dispatched
from tests.support.ppca_spec import spec_on
from tests.support.stored import change, row, status_events
from worker.fitness import UnfitWorker
from worker.slot import Slot


def claim(database: Database, dispatch: tuple[str, int]) -> Claim | None:
    with database.transaction() as session:
        return lease.claim(session, *dispatch, worker="w", lease_s=60)


@pytest.mark.parametrize("queue", Queue)
def test_a_dispatch_is_stored(database: Database, queue: Queue) -> None:
    """Under a new number each time."""
    one, other = (submitted(database, spec_on("auto")) for _ in range(2))
    change(database, one, dispatch_no=4)
    with database.transaction() as session:
        assert dispatch_next(session, queue) == Dispatch(one, 5, queue)
    found = row(database, one)
    assert (found.status, found.queue, found.dispatch_no) == ("dispatched", queue, 5)
    assert found.dispatched_at == pytest.approx(time.time(), abs=60)
    assert status_events(database, one)[-1] == {"status": "dispatched", "dispatch_no": 5}
    assert (row(database, other).status, row(database, other).dispatch_no) == ("queued", 0)


@pytest.mark.parametrize("off", [-1, 1])
def test_a_claim_of_another_dispatch_is_refused(database: Database, off: int) -> None:
    submitted(database)
    experiment_id, number = dispatched(database)
    with database.transaction() as session:
        assert lease.claim(session, experiment_id, number + off, worker="w", lease_s=1) is None
        assert lease.claim(session, "0" * 32, number, worker="w", lease_s=1) is None
    assert row(database, experiment_id).status == "dispatched"


@pytest.mark.parametrize(("at", "is_over"), [(69.0, True), (70.0, False), (71.0, False)])
def test_a_dispatch_that_may_be_claimed_is_not_reaped(
    database: Database, at: float, is_over: bool
) -> None:
    submitted(database)
    experiment_id, number = dispatched(database)
    change(database, experiment_id, dispatched_at=at)
    with database.transaction() as session:
        reaped = lease.reap(session, dispatch_timeout_s=30, max_lost=3, as_of=100.0)
    assert reaped == ([(experiment_id, "queued")] if is_over else [])
    found = row(database, experiment_id)
    assert (found.status, found.lost) == ("queued" if is_over else "dispatched", 0)
    if is_over:
        assert status_events(database, experiment_id)[-1] == {
            "status": "queued",
            "unclaimed_dispatch": number,
        }


def test_restored_dispatched_experiments_are_queued(database: Database) -> None:
    submitted(database)
    experiment_id, number = dispatched(database)
    with database.transaction() as session:
        assert lease.begin_anew(session) == 1
    found = row(database, experiment_id)
    assert (found.status, found.dispatch_no) == ("queued", number + BEYOND)
    assert claim(database, (experiment_id, number)) is None
    assert status_events(database, experiment_id)[-1] == {"status": "queued", "restored": True}


def test_a_dispatch_is_claimed_once(either: Database) -> None:
    experiment_id = submitted(either)
    _, number = dispatched(either)
    assert claim(either, (experiment_id, number - 1)) is None
    claimed = claim(either, (experiment_id, number))
    assert claimed is not None
    assert claimed.attempt == 1
    assert claim(either, (experiment_id, number)) is None
    found = row(either, experiment_id)
    assert (found.status, found.attempt) == ("running", 1)


def test_a_dispatch_from_before_the_reaper_is_stale(either: Database) -> None:
    experiment_id = submitted(either)
    old = dispatched(either)
    with either.transaction() as session:
        assert lease.reap(session, dispatch_timeout_s=30, max_lost=3) == []
    with either.transaction() as session:
        assert lease.reap(session, dispatch_timeout_s=-1, max_lost=3) == [(experiment_id, "queued")]
    new = dispatched(either)
    assert claim(either, old) is None
    assert claim(either, new) is not None


def test_a_dispatch_without_a_queue_belongs_to_the_cpu_queue(database: Database) -> None:
    """It is from before there were two queues."""
    submitted(database)
    experiment_id, number = dispatched(database)
    change(database, experiment_id, queue=None)
    begun = claim(database, (experiment_id, number))
    assert begun is not None
    assert begun.queue == Queue.CPU
    with database.snapshot() as session:
        assert session.scalars(select(Attempt.queue)).all() == [Queue.CPU]


def test_a_cancelled_dispatch_is_not_claimed(database: Database) -> None:
    submitted(database)
    experiment_id, number = dispatched(database)
    change(database, experiment_id, status=Status.CANCELLED)
    assert claim(database, (experiment_id, number)) is None


def test_a_dispatch_that_needs_more_memory_is_put_back(database: Database) -> None:
    submitted(database)
    experiment_id, number = dispatched(database)
    change(database, experiment_id, memory_bytes=6)
    with database.transaction() as session:
        chosen = experiment_id, number
        assert lease.claim(session, *chosen, worker="w", lease_s=1, room=5.0) is None
    assert status_events(database, experiment_id)[-1] == {
        "status": "queued", "unclaimed_dispatch": number, "reason": "no memory for it here",
    }  # fmt: skip


def test_only_open_dispatches_are_reaped(database: Database) -> None:
    """The clock decides, but not for a run that has begun or ended, or is still in the queue."""
    ids = [submitted(database) for _ in range(3)]
    numbers = [dispatched(database)[1] for _ in ids]
    assert claim(database, (ids[0], numbers[0])) is not None
    change(database, ids[1], status=Status.FAILED)
    queued = submitted(database)
    for experiment_id in (*ids, queued):
        change(database, experiment_id, dispatched_at=time.time() - 120)
    with database.transaction() as session:
        reaped = lease.reap(session, dispatch_timeout_s=60, max_lost=0)
    assert reaped == [(ids[2], "queued")]


def test_an_old_message_costs_no_preparation(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that hung may find hundreds of them."""
    slot = Slot(database, settings, "w")
    submitted(database)
    experiment_id, number = dispatched(database)

    def prepared(_: Callable[[], bool]) -> None:
        raise UnfitWorker("prepared")

    monkeypatch.setattr(slot, "be_ready", prepared)
    assert not slot.run(experiment_id, number - 1, lambda: False)
    with pytest.raises(UnfitWorker):
        slot.run(experiment_id, number, lambda: False)
    change(database, experiment_id, status="running")
    assert not slot.run(experiment_id, number, lambda: False)
