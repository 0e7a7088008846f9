"""Helpers that stop for others: experiments that wait, limits of their owner, spare slots."""

from contextlib import closing
from dataclasses import replace

import pytest
from celery import Celery
from sqlalchemy import select, text, update

from service.fair_share import FairShare
from service.queue import dispatch, helper_choice, helping, workers
from service.queue.helping import HelpOver
from service.settings import Settings
from service.tables.engine import Database, now
from service.tables.experiments import (
    Attempt,
    Held,
    Queue,
    Status,
)
from service.tables.helpers import Help
from service.tables.users import User
from tests.service.queue.test_holds import limited_sweeps
from tests.support import stored
from tests.support.attempts import submitted
from tests.support.helps import (
    LEASE_S,
    RULES,
    add_user,
    add_workers,
    beat,
    begun,
    ended,
    helps,
    long_run,
    offered,
    stopped,
)
from worker.dispatcher import Dispatcher


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


@pytest.mark.parametrize("waits", ["queued", "dispatched"])
def test_a_helper_gives_way_to_what_an_idle_worker_has_not_taken(
    either: Database, waits: str
) -> None:
    """The idle worker may hang, though it sends heartbeats. One helper stops, and no other while
    its worker has time to take the experiment."""
    long_run(either)
    add_workers(either, "w", "a", "b", "hangs")
    for name in "ab":
        begun(either, name)
    waiting = submitted(either)
    if waits == "dispatched":
        columns = {"status": Status.DISPATCHED, "queue": Queue.CPU, "dispatched_at": now()}
        stored.change(either, waiting, **columns)
    assert stopped(either) == []
    column = "created_at" if waits == "queued" else "dispatched_at"
    stored.change(either, waiting, **{column: now() - helper_choice.PATIENCE_S - 1})
    (first,) = stopped(either)
    assert stopped(either) == [first]
    ended(either, first)
    assert stopped(either) == [first]
    with either.transaction() as session:
        session.execute(
            update(Help).where(Help.id == first).values(ended_at=now() - helper_choice.SETTLE_S - 1)
        )
    assert len(stopped(either)) == 2


def test_a_helper_gives_way_though_several_idle_workers_hang(
    database: Database, settings: Settings
) -> None:
    """Helps are on their way to workers that hang. To withdraw them frees no worker, so a helper
    stops at once, and the messages of those helps find nothing. No further one is offered."""
    long_run(database)
    add_workers(database, "w", "a", *(f"hangs{i}" for i in range(5)))
    helper = begun(database, "a")
    many = replace(RULES, max_workers=9)
    assert None not in [offered(database, many) for _ in range(3)]
    dispatched = {"status": Status.DISPATCHED, "queue": Queue.CPU, "dispatched_at": now()}
    late = submitted(database)
    stored.change(database, late, **dispatched)
    dispatcher = Dispatcher(database, settings.model_copy(update={"max_workers": 5}), Celery())
    dispatcher.share_idle_workers()
    assert len(helps(database)) == 4
    stored.change(database, late, dispatched_at=now() - helper_choice.PATIENCE_S - 1)
    assert dispatcher.share_idle_workers() == []
    assert [(one.id, one.must_stop) for one in helps(database)] == [(helper.id, True)]
    assert offered(database, many) is None


def test_another_helper_gives_way_if_the_first_is_frozen(either: Database) -> None:
    long_run(either)
    add_workers(either, "w", "a", "b")
    first, second = begun(either, "a"), begun(either, "b")
    submitted(either)
    (frozen,) = stopped(either)
    assert stopped(either) == [frozen]
    silent = now() + LEASE_S - helper_choice.PATIENCE_S - 0.5
    with either.transaction() as session:
        session.execute(update(Help).where(Help.id == frozen).values(lease_expires_at=silent))
    assert stopped(either) == sorted([first.id, second.id])


def test_a_help_that_has_not_begun_is_never_told_to_stop(
    either: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that was about to begin it had locked it, and has given up since."""
    long_run(either)
    add_workers(either, "w", "a")
    assert offered(either) is not None
    monkeypatch.setattr(helping, "withdraw", lambda *_: None)
    submitted(either)
    submitted(either)
    assert stopped(either) == []
    with either.transaction() as session:
        session.execute(update(Help).values(must_stop=True))
    assert len(stopped(either)) == 1


def test_a_help_that_ended_in_the_future_delays_nothing(either: Database) -> None:
    """The clock was set back since."""
    long_run(either)
    add_workers(either, "w", "a", "b", "hangs")
    stops, goes = begun(either, "a"), begun(either, "b")
    ended(either, stops.id)
    with either.transaction() as session:
        ahead = {"ended_at": now() + 3600, "must_stop": True}
        session.execute(update(Help).where(Help.id == stops.id).values(**ahead))
    assert offered(either) is not None
    stored.change(either, submitted(either), created_at=now() - helper_choice.PATIENCE_S - 1)
    assert goes.id in stopped(either)


def test_helpers_of_a_disabled_user_stop(either: Database) -> None:
    owner = add_user(either, "owner")
    long_run(either, owner_id=owner)
    add_workers(either, *"abcde")
    claim = begun(either, "a")
    assert stopped(either) == []
    with either.transaction() as session:
        session.execute(update(User).where(User.id == owner).values(disabled_at=now()))
    assert stopped(either) == [claim.id]


def test_no_helper_gives_way_to_a_run_that_leaves_its_place_to_a_gpu_run(either: Database) -> None:
    """The user's limit has one place left, and a GPU run comes first. Workers that are idle help
    meanwhile."""
    other = add_user(either, "other")
    long_run(either)
    long_run(either, owner_id=other)
    add_workers(either, *"abcd")
    add_workers(either, "gpu", queue=Queue.GPU)
    with either.transaction() as session:
        session.execute(update(User).where(User.id == other).values(max_running=2))
    begun(either, "a")
    for device, priority in (("cuda", 5), ("cpu", 0)):
        columns = {"owner_id": other, "device": device, "priority": priority}
        stored.change(either, submitted(either), **columns)
    with either.transaction() as session:
        assert dispatch.dispatch_next(session, Queue.CPU) is None
    assert stopped(either) == []
    assert offered(either) is not None


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
    assert stopped(either) == []
    assert coming not in [one.id for one in helps(either)]
    with either.transaction() as session:
        workers.leave(session, "c")
    assert len(stopped(either)) == 1


def test_helpers_stop_for_a_run_that_reaches_the_limit_of_its_owner(either: Database) -> None:
    """It began beside them. Helpers of others go on."""
    owner = add_user(either, "limited")
    add_workers(either, *"abcdefgh")
    long_run(either, owner_id=owner)
    mine = begun(either, "a")
    long_run(either)
    begun(either, "b")
    with either.transaction() as session:
        session.execute(update(User).where(User.id == owner).values(max_running=2))
    assert stopped(either) == []
    long_run(either, owner_id=owner)
    assert stopped(either) == [mine.id]
    assert stopped(either) == [mine.id]


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


def test_as_many_helpers_give_way_as_experiments_could_begin(either: Database) -> None:
    """A user at a limit may have hundreds in the queue."""
    busy = add_user(either, "busy")
    long_run(either)
    add_workers(either, "w", "a", "b", "idle")
    helping_now = [begun(either, name).id for name in "ab"]
    with either.transaction() as session:
        session.execute(update(User).where(User.id == busy).values(max_running=2))
    for _ in range(5):
        stored.change(either, submitted(either), owner_id=busy)
    (stops,) = stopped(either)
    assert stops in helping_now


def test_helpers_give_way_up_to_the_spare_slots(either: Database) -> None:
    """Two of five workers are kept free for others: one more run of a user with two may begin."""
    busy = add_user(either, "busy")
    rules = replace(RULES, fair_share=FairShare(spare_slots=2))
    long_run(either)
    add_workers(either, "w", "a", "b", "c", "d")
    for name in "ab":
        begun(either, name)
    for name in "cd":
        long_run(either, owner_id=busy, worker=name)
    for _ in range(3):
        stored.change(either, submitted(either), owner_id=busy)
    with either.transaction() as session:
        assert helper_choice.give_way(session, Queue.CPU, rules) == 1


def test_helpers_leave_the_spare_slots_when_a_run_begins_beside_them(either: Database) -> None:
    """One worker of four is kept free for others."""
    owner = add_user(either, "owner")
    long_run(either, owner_id=owner)
    add_workers(either, *"abcd")
    for name in "ab":
        begun(either, name)
    assert stopped(either) == []
    long_run(either, owner_id=owner)
    assert len(stopped(either)) == 1


def test_a_helper_that_hangs_in_a_transaction_holds_up_nobody(lab: Settings) -> None:
    """It gives way once it is free again. The dispatch lock is held meanwhile."""
    with closing(Database(lab.url)) as database, closing(Database(lab.url)) as other:
        long_run(database)
        add_workers(database, "w", "w1", "w2")
        claim, coming = begun(database), offered(database)
        for _ in range(2):
            submitted(database)
        with other.transaction() as hung:
            helping.beat(hung, claim, LEASE_S)
            hung.execute(select(Help.id).where(Help.id == coming).with_for_update())
            with database.transaction() as session:
                session.execute(text("SET LOCAL lock_timeout = '2s'"))
                helper_choice.give_way(session, Queue.CPU, RULES)
            assert [(one.id, one.must_stop) for one in helps(database)] == [
                (claim.id, False),
                (coming, False),
            ]
        assert stopped(database) == [claim.id]
        assert [one.id for one in helps(database)] == [claim.id]


def test_a_helper_that_hangs_in_a_transaction_is_disconnected(lab: Settings) -> None:
    """The end of its run waits for its locks."""
    with closing(Database(lab.url)) as database:
        long_run(database)
        add_workers(database, "w", "w1")
        claim = begun(database)
        with database.transaction() as session:
            helping.beat(session, claim, LEASE_S)
            limit = text("SHOW idle_in_transaction_session_timeout")
            assert session.scalar(limit) == "3s"
        with database.transaction() as session:
            assert session.scalar(limit) == "1min"
