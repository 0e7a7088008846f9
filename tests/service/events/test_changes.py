"""The horizon: reading up to it is complete, in any order of commits."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from itertools import permutations
from typing import NoReturn

import psycopg
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, insert, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from service.app import create_app
from service.db.engine import Database
from service.events.changes import WRITERS_LOCK, Changes
from service.experiments.models import DesiredState, Event
from service.queue import states
from service.settings import Settings
from tests.service.accounts.test_users import bearer
from tests.support.attempts import claim_next, submitted
from tests.support.processes import wait_until
from tests.support.servers import PostgreSQL
from tests.support.stored import change


@pytest.fixture
def far(lab: Settings) -> Iterator[Database]:
    """Database on PostgreSQL, where transactions may commit in another order than that of their
    ids."""
    with closing(Database(lab.url, connections=4)) as database:
        yield database


def cancel(session: Session, experiment_id: str) -> None:
    states.request(session, experiment_id, DesiredState.CANCEL)
    session.flush()


def changed(database: Database, changes: Changes) -> set[str | int]:
    """The experiments that something happened to since the last look."""
    with database.snapshot() as session:
        return {one.id for one in changes.look(session) if one.what == "experiment"}


def test_an_event_that_becomes_visible_late_is_delivered(far: Database) -> None:
    """The transaction with the lower event id commits last. Listeners of the other experiment wake
    at once, and again when the horizon has passed its event."""
    slow_one, quick_one = submitted(far), submitted(far)
    changes = Changes()
    changed(far, changes)
    before = changes.horizon
    assert before is not None
    with Session(far.engine) as slow, slow.begin():
        cancel(slow, slow_one)
        with far.transaction() as session:
            cancel(session, quick_one)
        assert [changed(far, changes) for _ in range(3)] == [{quick_one}, set(), set()]
        assert changes.horizon == before
    assert changed(far, changes) == {slow_one, quick_one}
    assert changed(far, changes) == set()


def test_every_event_is_delivered_in_any_order_of_commits(far: Database) -> None:
    """Three transactions, in every order of writing and committing, with a look after each step:
    events up to the horizon are complete for ever."""
    experiment = submitted(far)
    orders = {one for one in permutations("aabbcc") if [*dict.fromkeys(one)] == ["a", "b", "c"]}
    for order in sorted(orders):
        changes = Changes()
        seen: set[int] = set()
        with ExitStack() as stack:
            sessions = {name: stack.enter_context(Session(far.engine)) for name in "abc"}
            for name in order:
                if sessions[name].in_transaction():
                    sessions[name].commit()
                else:
                    row = {"experiment_id": experiment, "kind": "log", "data": {}}
                    sessions[name].execute(insert(Event), [row])
                before = changes.horizon
                changed(far, changes)
                visible = visible_events(far)
                if before is not None:
                    assert {one for one in visible if one <= before} == seen, order
                seen = {one for one in visible if one <= (changes.horizon or 0)}
        changed(far, changes)
        assert changes.horizon == max(visible_events(far)), order


def visible_events(database: Database) -> set[int]:
    with database.snapshot() as session:
        return {*session.scalars(select(Event.id))}


def test_a_writer_holds_the_lock_before_its_event_has_an_id(far: Database) -> None:
    experiment = submitted(far)
    row = {"experiment_id": experiment, "kind": "log", "data": {}}
    take = func.pg_advisory_xact_lock(WRITERS_LOCK)
    last_id = text("SELECT last_value FROM events_id_seq")

    def write() -> None:
        with far.transaction() as session:
            session.execute(insert(Event), [row])

    with ThreadPoolExecutor(1) as pool, Session(far.engine) as other, other.begin():
        before = other.scalar(last_id)
        other.execute(select(take))
        written = pool.submit(write)
        waiting = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        wait_until(lambda: other.scalar(waiting) == 1)
        assert other.scalar(last_id) == before
        other.rollback()
        written.result()


@contextmanager
def foreign_transaction(server: PostgreSQL, lab: Settings) -> Iterator[None]:
    """In another database of the same server, which may be another lab's."""
    with psycopg.connect(server.address("postgres")) as other:
        other.execute("SELECT pg_current_xact_id()")
        other.execute("SELECT pg_advisory_xact_lock_shared(%s)", [WRITERS_LOCK])
        yield


@contextmanager
def transaction_without_events(server: PostgreSQL, lab: Settings) -> Iterator[None]:
    """In the lab's database, by another program."""
    with psycopg.connect(server.address(lab.url.rpartition("/")[2])) as other:
        other.execute("SELECT pg_current_xact_id()")
        yield


@pytest.mark.parametrize("held", [foreign_transaction, transaction_without_events])
def test_only_writers_of_events_delay_the_horizon(
    held: Callable[..., Iterator[None]], far: Database, lab: Settings, postgresql: PostgreSQL
) -> None:
    one = submitted(far)
    changes = Changes()
    with held(postgresql, lab):  # type: ignore[attr-defined]
        changed(far, changes)
        assert changes.horizon is not None
        with far.transaction() as session:
            cancel(session, one)
        assert changed(far, changes) == {one}
        assert changes.horizon == max(visible_events(far))


def test_a_failed_poll_loses_nothing(far: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next poll reports the changes that the failed one could not read."""
    one = submitted(far)
    changes = Changes()
    changed(far, changes)
    with far.transaction() as session:
        cancel(session, one)
    with monkeypatch.context() as broken:
        broken.setattr(Changes, "_runs", unreachable)
        with pytest.raises(OperationalError):
            changed(far, changes)
    assert changed(far, changes) == {one}


def unreachable(*_: object) -> NoReturn:
    raise OperationalError("SELECT", {}, Exception("the connection was closed"))


def test_later_transactions_do_not_delay_the_horizon(far: Database) -> None:
    slow_one, early, late = (submitted(far) for _ in range(3))
    changes = Changes()
    changed(far, changes)
    with far.transaction() as session:
        cancel(session, early)
    with Session(far.engine) as slow, slow.begin():
        cancel(slow, slow_one)
        with far.transaction() as session:
            cancel(session, late)
        assert changed(far, changes) == {early, late}
        assert slow_one not in changed(far, changes)
    with Session(far.engine) as slow, slow.begin():
        cancel(slow, submitted(far))
        assert changed(far, changes) >= {slow_one, early, late}


def test_pages_contain_both_events_committed_in_reverse_order(far: Database, lab: Settings) -> None:
    headers = bearer(lab.key_file.read_text().strip())
    slow_one, quick_one = submitted(far), submitted(far)
    with (
        TestClient(create_app(lab), headers=headers) as api,
        ThreadPoolExecutor(1) as pool,
    ):
        after = api.get("/v1/events").json()["last_id"]
        with Session(far.engine) as slow, slow.begin():
            cancel(slow, slow_one)
            with far.transaction() as session:
                cancel(session, quick_one)
            first = pool.submit(api.get, "/v1/events", params={"after": after})
            wait([first], timeout=0.5)
        page = first.result().json()
        rest = api.get("/v1/events", params={"after": page["last_id"]}).json()
    told = [one["experiment_id"] for one in page["items"] + rest["items"]]
    assert told == [slow_one, quick_one]


def test_progress_of_a_run_is_noticed(either: Database) -> None:
    changes = Changes()
    submitted(either)
    claim = claim_next(either)
    changed(either, changes)
    assert changed(either, changes) == set()
    for columns in ({"last_seq": 3}, {"progress_done": 1}):
        change(either, claim.experiment_id, **columns)
        assert changed(either, changes) == {claim.experiment_id}
        assert changed(either, changes) == set()
