"""Looks for changes: each event is reported once, in any order of commits."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import permutations
from typing import NoReturn

import pytest
from sqlalchemy import insert
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from service.db.engine import Database
from service.events import changes as module
from service.events.changes import Changes, Look, Subject
from service.experiments.models import Event
from service.queue import states
from service.settings import Settings
from service.vocabulary import DesiredState
from tests.support.attempts import submitted


@pytest.fixture
def far(lab: Settings) -> Iterator[Database]:
    """Database on PostgreSQL, where transactions may commit in another order than that of their
    ids."""
    with closing(Database(lab.url, connections=4)) as database:
        yield database


def cancel(session: Session, experiment_id: str) -> None:
    states.request(session, experiment_id, DesiredState.CANCEL)
    session.flush()


def look(database: Database, changes: Changes, *listened: Subject) -> Look:
    with database.snapshot() as session:
        return changes.look(session, listened, listened)


def changed(database: Database, changes: Changes) -> set[str | int]:
    """Return the experiments that something happened to since the last look."""
    return {one.id for one in look(database, changes).events if one.what == "experiment"}


def test_every_event_is_reported_once_in_any_order_of_commits(far: Database) -> None:
    """Three transactions, in every order of writing and committing, with a look after each step."""
    experiment = submitted(far)
    orders = {one for one in permutations("aabbcc") if [*dict.fromkeys(one)] == ["a", "b", "c"]}
    for order in sorted(orders):
        changes = Changes()
        look(far, changes)
        written: dict[str, int] = {}
        with ExitStack() as stack:
            sessions = {name: stack.enter_context(Session(far.engine)) for name in "abc"}
            for name in order:
                expected = []
                if name in written:
                    sessions[name].commit()
                    expected = [written[name]]
                else:
                    row = {"experiment_id": experiment, "kind": "log", "data": {}}
                    new = insert(Event).values(row).returning(Event.id)
                    written[name] = sessions[name].scalars(new).one()
                events = look(far, changes).events.get(Subject("experiment", experiment), [])
                assert events == expected, order


def test_the_window_begins_at_an_earlier_look(
    far: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if it is as short as possible, an event is found that was committed one look later than
    an event with a higher id."""
    monkeypatch.setattr(module, "WINDOW_S", 0.0)
    late, other = submitted(far), submitted(far)
    changes = Changes()
    look(far, changes)
    with Session(far.engine) as slow, slow.begin():
        cancel(slow, late)
        with far.transaction() as session:
            cancel(session, other)
        assert changed(far, changes) == {other}
    assert changed(far, changes) == {late}


def test_a_failed_poll_loses_nothing(either: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next poll reports the changes that the failed one could not read."""
    one = submitted(either)
    changes = Changes()
    changed(either, changes)
    with either.transaction() as session:
        cancel(session, one)
    with monkeypatch.context() as broken:
        broken.setattr(Changes, "_runs", unreachable)
        with pytest.raises(OperationalError):
            changed(either, changes)
    assert changed(either, changes) == {one}


def unreachable(*_: object) -> NoReturn:
    raise OperationalError("SELECT", {}, Exception("the connection was closed"))
