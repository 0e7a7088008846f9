"""The horizon: what is read up to it is whole, in whatever order transactions commit."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from typing import NoReturn

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from service.database import Database
from service.experiments import states
from service.experiments.models import DesiredState
from service.main import create_app
from service.settings import Settings
from service.streams.changes import Changes
from tests.service.test_users import bearer
from tests.support.attempts import claim_next, submitted
from tests.support.stored import change


@pytest.fixture
def far(lab: Settings) -> Iterator[Database]:
    """On PostgreSQL, where transactions commit in another order than they took their ids in."""
    with closing(Database(lab.url, connections=4)) as database:
        yield database


def cancel(session: Session, experiment_id: str) -> None:
    states.request(session, experiment_id, DesiredState.CANCEL)
    session.flush()


def changed(database: Database, changes: Changes) -> set[str | int]:
    """The experiments that something happened to since the last look."""
    with database.snapshot() as session:
        return {one.id for one in changes.look(session) if one.what == "experiment"}


def test_an_event_that_comes_to_light_late_is_not_passed_over(far: Database) -> None:
    """Of two transactions the one with the lower event id commits last."""
    slow_one, quick_one = submitted(far), submitted(far)
    changes = Changes()
    changed(far, changes)
    before = changes.horizon
    assert before is not None
    with Session(far.engine) as slow, slow.begin():
        cancel(slow, slow_one)
        with far.transaction() as session:
            cancel(session, quick_one)
        assert [changed(far, changes) for _ in range(3)] == [set()] * 3
        assert changes.horizon == before
    assert changed(far, changes) == {slow_one, quick_one}
    assert changed(far, changes) == set()


def test_a_look_that_fails_takes_nothing_away(
    far: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the database could not tell to its end is told by the next look."""
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


def test_what_begins_later_holds_nothing_back(far: Database) -> None:
    slow_one, early, late = (submitted(far) for _ in range(3))
    changes = Changes()
    changed(far, changes)
    with far.transaction() as session:
        cancel(session, early)
    with Session(far.engine) as slow, slow.begin():
        cancel(slow, slow_one)
        with far.transaction() as session:
            cancel(session, late)
        assert changed(far, changes) == set()
    with Session(far.engine) as slow, slow.begin():
        cancel(slow, submitted(far))
        assert changed(far, changes) >= {slow_one, early, late}


def test_pages_tell_both_of_two_that_commit_the_other_way_round(
    far: Database, lab: Settings
) -> None:
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


def test_a_run_that_moves_is_seen(either: Database) -> None:
    changes = Changes()
    submitted(either)
    claim = claim_next(either)
    changed(either, changes)
    assert changed(either, changes) == set()
    for columns in ({"last_seq": 3}, {"progress_done": 1}):
        change(either, claim.experiment_id, **columns)
        assert changed(either, changes) == {claim.experiment_id}
        assert changed(either, changes) == set()
