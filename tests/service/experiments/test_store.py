"""Stored submissions, idempotency keys, and visibility for other users."""

from typing import Any

import pytest
from sqlalchemy import update

from mptcore.specs.experiment import MAX_CURVES
from service.accounts.models import User
from service.db.engine import Database
from service.experiments import store
from service.experiments.models import Artifact, Attempt, Event, Experiment, Held, Metric
from service.experiments.schemas import Submission
from service.fair_share import FairShare
from service.queue import quota
from service.records import results
from service.refusals import ApiError
from service.vocabulary import Status
from tests.support import stored
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


def submit(database: Database, owner_id: int = ME, **beside: Any) -> Experiment:
    with database.transaction() as session:
        return stored.submit(session, owner_id, submission(**beside))


def test_all_of_a_submission_is_stored(database: Database) -> None:
    made = submit(database, **BESIDE)
    found = row(database, made.id)
    assert found.owner_id == ME
    assert {name: getattr(found, name) for name in BESIDE} == BESIDE
    assert found.spec == submission().spec.model_dump(mode="json")
    assert (found.status, found.desired_state, found.retry_of) == ("queued", "run", None)
    assert status_events(database, made.id) == [{"status": "queued"}]
    assert (made.attempt, made.lost, made.last_seq) == (0, 0, 0)
    assert len(made.id) == 32
    assert submit(database, **BESIDE).id > made.id  # without a key each submission is new


def test_a_retry_copies_the_old_submission(database: Database) -> None:
    old = submit(database, OTHER, **BESIDE)
    change(database, old.id, status=Status.FAILED, attempt=3, failure_kind="oom")
    with database.transaction() as session:
        made = stored.retry(session, session.get_one(Experiment, old.id))
    assert made.id > old.id
    assert (made.retry_of, made.owner_id, made.spec) == (old.id, OTHER, old.spec)
    assert {name: getattr(made, name) for name in BESIDE} == BESIDE
    assert (made.status, made.attempt, made.failure_kind) == ("queued", 0, None)
    assert status_events(database, made.id) == [{"status": "queued"}]


def test_metrics_and_artifacts_come_in_the_order_of_their_records(database: Database) -> None:
    mine, other = submit(database).id, submit(database).id
    with database.transaction() as session:
        for seq, name, one in ((9, "a", mine), (2, "z", mine), (5, "m", mine), (1, "b", other)):
            session.add(Metric(experiment_id=one, name=name, labels="{}", seq=seq, value=seq))
            session.add(Artifact(experiment_id=one, file=name, attempt=1, seq=seq,
                                 media_type="image/png", sha256=""))  # fmt: skip
    with database.snapshot() as session:
        assert [one.name for one in results.metrics(session, mine)] == ["z", "m", "a"]
        assert [one.file for one in results.artifacts(session, mine)] == ["z", "m", "a"]


def refused(database: Database, most: int, more: int = 1) -> str:
    """Return why a user may not submit this number; empty if it is allowed."""
    with database.transaction() as session:
        try:
            quota.check_limits(session, ME, 0, more, FairShare(max_submitted=most))
        except ApiError as error:
            return f"{error.reason}: {error}"
    return ""


def test_unfinished_experiments_are_limited(database: Database) -> None:
    """Experiments of others and finished ones do not count. The limit of the user is checked
    first."""
    with database.transaction() as session:
        stored.submit(session, ME, submission(), fair_share=FairShare(max_submitted=1))
    change(database, submit(database).id, status=Status.RUNNING)
    change(database, submit(database).id, status=Status.FAILED)
    submit(database, owner_id=OTHER)
    assert refused(database, 3) == refused(database, 4, more=2) == ""
    assert refused(database, 2).startswith("limit_reached: ")
    assert "your limit is 2" in refused(database, 2)
    assert "these are 2 more" in refused(database, 3, more=2)
    for own, may in ((3, True), (2, False), (0, False)):
        with database.transaction() as session:
            session.execute(update(User).where(User.id == ME).values(max_submitted=own))
        assert (refused(database, 100) == "") == may


def test_the_queue_of_a_user_is_in_the_order_in_which_it_runs(database: Database) -> None:
    """Held experiments are last."""
    first, second, held, urgent, running = (
        submit(database, priority=priority).id for priority in (0, 0, 9, 1, 0)
    )
    submit(database, owner_id=OTHER)
    change(database, held, held=Held.AFTER)
    change(database, running, status=Status.RUNNING)
    with database.snapshot() as session:
        found = [one.id for one in store.next_in_turn(session, ME, 9)]
        assert found == [urgent, first, second, held]
        assert [one.id for one in store.next_in_turn(session, ME, 2)] == found[:2]


def test_a_log_after_a_record_and_of_a_level(database: Database) -> None:
    made, other = submit(database).id, submit(database).id
    with database.transaction() as session:
        for one, seq, level in ((made, 3, "info"), (made, 2, "warning"), (made, 5, "warning"),
                                (other, 4, "info")):  # fmt: skip
            data = {"level": level, "message": "m"}
            session.add(Event(experiment_id=one, kind="log", seq=seq, data=data))
    with database.snapshot() as session:

        def seqs(after: int, level: str | None = None, limit: int = 9) -> list[int | None]:
            return [one.seq for one in results.logs(session, made, after, level, limit)]

        assert seqs(0) == [2, 3, 5]
        assert seqs(2) == [3, 5]
        assert seqs(0, "warning") == [2, 5]
        assert seqs(0, limit=2) == [2, 3]


def test_the_latest_attempts_are_listed_in_their_order(database: Database) -> None:
    """A thousand attempts with their environments take 20 MB."""
    made, other = submit(database).id, submit(database).id
    numbers = [*range(results.MAX_ATTEMPTS + 2, 0, -1)]
    with database.transaction() as session:
        for one, number in ((other, 1), *((made, number) for number in numbers)):
            line = {"owner_id": ME, "queue": "cpu", "worker": "w", "started_at": 1.0}
            session.add(Attempt(experiment_id=one, attempt=number, family="ppca", **line))
    with database.snapshot() as session:
        found = [one.attempt for one in results.attempts(session, made)]
    assert found == [*range(3, results.MAX_ATTEMPTS + 3)]


def test_one_experiment_has_no_more_metrics_than_an_answer() -> None:
    """Its metrics are read whole, so its spec limits them: a curve has twelve at most."""
    assert 12 * MAX_CURVES <= results.MAX_METRICS
