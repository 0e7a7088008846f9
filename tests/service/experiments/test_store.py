"""What is stored of a submission, what one key makes once, and what others do not see."""

import hashlib
from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.database import Database
from service.experiments import store
from service.experiments.models import Artifact, Experiment, Metric, Status
from service.experiments.schemas import Submission
from service.users import User
from tests.support.ppca_spec import ppca_spec
from tests.support.stored import change, row, status_events

ME, OTHER = 1, 2
BESIDE: dict[str, Any] = {"name": "a name", "tags": ["x", "y"], "note": "a note", "priority": 3}


@pytest.fixture(autouse=True)
def _two_users(database: Database) -> None:
    with database.transaction() as session:
        session.add(User(id=OTHER, name="other"))


def submission(**beside: Any) -> Submission:
    return Submission.model_validate({"spec": ppca_spec(), **beside})


def submit(
    database: Database, key: str | None = None, owner_id: int = ME, **beside: Any
) -> Experiment:
    with database.transaction() as session:
        return store.submit(session, owner_id, submission(**beside), key)


def counted(database: Database) -> int:
    with database.snapshot() as session:
        return session.scalar(select(func.count()).select_from(Experiment)) or 0


def test_all_of_a_submission_is_stored(database: Database) -> None:
    made = submit(database, "key", **BESIDE)
    found = row(database, made.id)
    assert found.owner_id == ME
    assert {name: getattr(found, name) for name in BESIDE} == BESIDE
    assert found.spec == submission().spec.model_dump(mode="json")
    assert (found.status, found.desired_state, found.retry_of) == ("queued", "run", None)
    assert found.idempotency_key == "key"
    text = submission(**BESIDE).model_dump_json(exclude={"visibility", "after", "cache"})
    assert found.submission_sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert status_events(database, made.id) == [{"status": "queued"}]
    assert len(made.id) == 32


def test_what_is_made_is_given_as_it_stands_in_the_tables(database: Database) -> None:
    made = submit(database)
    assert (made.attempt, made.lost, made.last_seq, made.dispatch_no) == (0, 0, 0, 0)
    assert made.created_at > 1.5e9


def test_without_a_key_each_is_a_new_one(database: Database) -> None:
    assert submit(database).id < submit(database).id
    assert counted(database) == 2


def test_one_key_makes_one_experiment(database: Database) -> None:
    first = submit(database, "key", note="a")
    again = submit(database, "key", note="a")
    assert again.id == first.id
    assert counted(database) == 1
    assert status_events(database, first.id) == [{"status": "queued"}]
    assert submit(database, "other key", note="a").id != first.id


@pytest.mark.parametrize("beside", [{"note": "b"}, {"name": "b"}, {"priority": 1}, {"tags": ["b"]}])
def test_no_second_request_under_a_key(database: Database, beside: dict[str, Any]) -> None:
    """Whatever differs: the spec, or only what stands beside it."""
    submit(database, "key")
    with database.transaction() as session:
        with pytest.raises(store.KeyReused):
            store.submit(session, ME, submission(**beside), "key")
        with pytest.raises(store.KeyReused):
            store.submitted(session, ME, submission(**beside), "key")
    assert counted(database) == 1


def test_a_key_is_its_owners_alone(database: Database) -> None:
    mine = submit(database, "key", note="a")
    with database.transaction() as session:
        assert store.submitted(session, OTHER, submission(note="a"), "key") is None
    theirs = submit(database, "key", OTHER, note="a")
    assert mine.id != theirs.id
    assert theirs.owner_id == OTHER
    assert submit(database, "key", note="a").id == mine.id


def test_no_request_of_another_stands_in_the_way_of_a_key(database: Database) -> None:
    """Which came first, and was another."""
    submit(database, "key", OTHER, note="b")
    mine = submit(database, "key", note="a")
    assert mine.owner_id == ME
    assert submit(database, "key", note="a").id == mine.id


def test_what_a_key_made_before(database: Database) -> None:
    made = submit(database, "key")
    without_key = submit(database)
    with database.transaction() as session:
        found = store.submitted(session, ME, submission(), "key")
        assert found is not None
        assert found.id == made.id
        assert store.submitted(session, ME, submission(), "another") is None
        assert store.submitted(session, ME, submission(), None) is None
    assert counted(database) == 2
    assert without_key.idempotency_key is None


def test_the_rest_of_a_transaction_survives_a_key_that_was_used(database: Database) -> None:
    submit(database, "key")
    with database.transaction() as session:
        new = store.submit(session, ME, submission(note="before"))
        store.submit(session, ME, submission(), "key")
    assert row(database, new.id).note == "before"


def test_no_other_defect_passes_for_a_used_key(database: Database) -> None:
    """An experiment of nobody breaks a constraint too."""
    with database.transaction() as session, pytest.raises(IntegrityError):
        store.submit(session, 77, submission(), "key")
    assert counted(database) == 0


def test_a_retry_is_like_the_old_one(database: Database) -> None:
    old = submit(database, "key", OTHER, **BESIDE)
    change(database, old.id, status=Status.FAILED, attempt=3, failure_kind="oom")
    with database.transaction() as session:
        made = store.retry(session, session.get_one(Experiment, old.id))
    assert made.id > old.id
    assert (made.retry_of, made.owner_id, made.spec) == (old.id, OTHER, old.spec)
    assert {name: getattr(made, name) for name in BESIDE} == BESIDE
    assert (made.status, made.attempt, made.failure_kind) == ("queued", 0, None)
    assert made.idempotency_key is None
    assert status_events(database, made.id) == [{"status": "queued"}]


def test_one_key_makes_one_retry(database: Database) -> None:
    first, second = submit(database), submit(database)

    def retry(session: Session, old: Experiment) -> Experiment:
        return store.retry(session, session.get_one(Experiment, old.id), "key")

    with database.transaction() as session:
        made = retry(session, first)
        assert made.id not in (first.id, second.id)
        assert retry(session, first).id == made.id
        with pytest.raises(store.KeyReused):
            retry(session, second)
        with pytest.raises(store.KeyReused):
            store.submit(session, ME, submission(), "key")
    text = f"retry {first.id}"
    assert row(database, made.id).submission_sha256 == hashlib.sha256(text.encode()).hexdigest()


def test_an_experiment_is_found_by_its_owner_alone(database: Database) -> None:
    mine, theirs = submit(database), submit(database, owner_id=OTHER)
    with database.snapshot() as session:
        found = store.find(session, ME, mine.id)
        assert found is not None
        assert found.id == mine.id
        assert store.find(session, OTHER, mine.id) is None
        assert store.find(session, ME, theirs.id) is None
        assert store.find(session, ME, "0" * 32) is None


def test_metrics_and_artifacts_come_in_the_order_of_their_records(database: Database) -> None:
    mine, other = submit(database).id, submit(database).id
    with database.transaction() as session:
        for seq, name, one in ((9, "a", mine), (2, "z", mine), (5, "m", mine), (1, "b", other)):
            session.add(Metric(experiment_id=one, name=name, labels="{}", seq=seq, value=seq))
            session.add(Artifact(experiment_id=one, file=name, attempt=1, seq=seq,
                                 media_type="image/png", sha256=""))  # fmt: skip
    with database.snapshot() as session:
        assert [one.name for one in store.metrics(session, mine)] == ["z", "m", "a"]
        assert [one.file for one in store.artifacts(session, mine)] == ["z", "m", "a"]
