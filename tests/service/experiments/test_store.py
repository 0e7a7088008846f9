"""Stored submissions, idempotency keys, and visibility for other users."""

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.exc import InvalidRequestError

from mptcore.specs.experiment import MAX_CURVES
from service.accounts import permissions as permission
from service.accounts.models import AuditEntry, User
from service.accounts.users import Caller
from service.db.engine import Database
from service.experiments import store
from service.experiments.models import Artifact, Attempt, Event, Experiment, Held, Metric
from service.experiments.schemas import Submission
from service.fair_share import FairShare
from service.queue import quota
from service.queue.claims import MAX_PRIORITY
from service.records import results
from service.refusals import ApiError
from service.vocabulary import Role, Scope, Status
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


def counted(database: Database) -> int:
    with database.snapshot() as session:
        return session.scalar(select(func.count()).select_from(Experiment)) or 0


def test_all_of_a_submission_is_stored(database: Database) -> None:
    made = submit(database, **BESIDE)
    found = row(database, made.id)
    assert found.owner_id == ME
    assert {name: getattr(found, name) for name in BESIDE} == BESIDE
    assert found.spec == submission().spec.model_dump(mode="json")
    assert (found.status, found.desired_state, found.retry_of) == ("queued", "run", None)
    assert status_events(database, made.id) == [{"status": "queued"}]
    assert len(made.id) == 32


def test_new_rows_are_returned_as_stored(database: Database) -> None:
    made = submit(database)
    assert (made.attempt, made.lost, made.last_seq) == (0, 0, 0)
    assert made.created_at > 1.5e9


def test_without_a_key_each_submission_is_new(database: Database) -> None:
    assert submit(database).id < submit(database).id
    assert counted(database) == 2


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


def refused(database: Database, most: int, priority: int = 0, more: int = 1) -> tuple[str, str]:
    """Return the reason, as a word and a sentence, why a user may not submit this number; empty if
    it is allowed."""
    with database.transaction() as session:
        try:
            quota.check_limits(session, ME, priority, more, FairShare(max_submitted=most))
        except ApiError as error:
            return error.reason, str(error)
    return "", ""


def test_unfinished_experiments_are_limited(database: Database) -> None:
    """Experiments of others and finished ones do not count; the limit of the user is checked
    first."""
    with database.snapshot() as session:
        assert quota.submitted_of(session, ME, FairShare(max_submitted=3)) == (0, 3)
    with database.transaction() as session:
        stored.submit(session, ME, submission(), fair_share=FairShare(max_submitted=1))
    change(database, submit(database).id, status=Status.RUNNING)
    change(database, submit(database).id, status=Status.FAILED)
    submit(database, owner_id=OTHER)
    assert refused(database, 3) == ("", "")
    told = "2 of your experiments have not ended, and your limit is 2"
    assert refused(database, 2) == ("limit_reached", told)
    assert refused(database, 4, more=2) == ("", "")
    told = "2 of your experiments have not ended, and your limit is 3; these are 2 more"
    assert refused(database, 3, more=2) == ("limit_reached", told)
    for own, may in ((3, True), (2, False), (0, False)):
        with database.transaction() as session:
            session.execute(update(User).where(User.id == ME).values(max_submitted=own))
        assert (refused(database, 100) == ("", "")) == may


def test_a_high_priority_needs_permission(database: Database) -> None:
    with database.transaction() as session:
        session.execute(update(User).where(User.id == OTHER).values(may_jump=True))
    assert refused(database, 9, MAX_PRIORITY) == ("", "")
    told = "a priority above 100 jumps the queue: an administrator allows it"
    assert refused(database, 9, MAX_PRIORITY + 1) == ("may_not_jump", told)
    with database.transaction() as session:
        session.execute(update(User).where(User.id == ME).values(may_jump=True))
    assert refused(database, 9, MAX_PRIORITY + 1) == ("", "")


def test_the_queue_of_a_user_is_in_the_order_in_which_it_runs(database: Database) -> None:
    """Held experiments are last. Specs are not loaded."""
    first, second, held, urgent, running = (
        submit(database, priority=priority).id for priority in (0, 0, 9, 1, 0)
    )
    submit(database, owner_id=OTHER)
    change(database, held, held=Held.AFTER)
    change(database, running, status=Status.RUNNING)
    with database.snapshot() as session:
        found = store.next_in_turn(session, ME, 9)
        assert [one.id for one in found] == [urgent, first, second, held]
        assert len(store.next_in_turn(session, ME, 2)) == 2
        with pytest.raises(InvalidRequestError):
            found[0].spec  # noqa: B018


def test_experiments_visible_to_a_reader(database: Database) -> None:
    """A member sees own and shared experiments, an admin sees all, and nobody sees deleted ones."""
    mine, theirs, deleted = submit(database).id, *(submit(database, OTHER).id for _ in "ab")
    shared = submit(database, OTHER, visibility="lab").id
    change(database, deleted, deleted_at=1.0, visibility="lab")
    ids = [shared, deleted, theirs, mine]
    me = Caller(ME, "local", Role.MEMBER, "k", frozenset())
    admin = replace(me, scopes=frozenset(Scope))
    with database.transaction() as session:
        for user, read in ((me, {mine, shared}), (admin, {mine, shared, theirs})):
            found = {one for one in ids if permission.find_readable(session, user, Experiment, one)}
            assert found == read
        assert permission.find_readable(session, me, Experiment, "0" * 32) is None
        assert [*permission.readable_ones(session, ME, Experiment, ids)] == [mine, shared]
        assert permission.readable_ones(session, ME, Experiment, []) == {}
        assert store.readable_ids(session, me, ids) == {mine, shared}
        assert store.readable_ids(session, admin, ids) == {mine, shared, theirs}
        assert {one.id for one in store.readable_ones(session, me, ids)} == {mine, shared}
        assert [one.id for one in store.readable_ones(session, me, [mine])] == [mine]
        assert {one.id for one in store.readable_ones(session, admin, ids)} == {
            mine, shared, theirs,
        }  # fmt: skip


@pytest.mark.parametrize("whole", [True, False])
def test_specs_are_read_only_if_requested(database: Database, whole: bool) -> None:
    made = submit(database)
    me = Caller(ME, "local", Role.MEMBER, "k", frozenset())
    with database.snapshot() as session:
        wanted = {"whole": True} if whole else {}
        (one,) = store.readable_ones(session, me, [made.id], **wanted)
        if whole:
            assert (one.spec, one.owner.name) == (made.spec, "local")
        else:
            with pytest.raises(InvalidRequestError):
                one.spec  # noqa: B018


def test_metrics_of_several_by_their_names(database: Database) -> None:
    made = [submit(database).id for _ in range(3)]
    with database.transaction() as session:
        for one, name, seq in ((0, "lml", 2), (0, "mpt", 1), (1, "lml", 1)):
            session.add(Metric(experiment_id=made[one], name=name, labels="{}", seq=seq))
    with database.snapshot() as session:

        def names(wanted: list[str] | None) -> dict[str, list[str]]:
            found = results.metrics_of(session, made[:2], wanted)
            return {one: [metric.name for metric in of_it] for one, of_it in found.items()}

        assert names(None) == {made[0]: ["mpt", "lml"], made[1]: ["lml"]}
        assert names(["mpt"]) == {made[0]: ["mpt"], made[1]: []}
        assert names([]) == {}


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


def test_attempts_are_in_their_order(database: Database) -> None:
    made, other = submit(database).id, submit(database).id
    with database.transaction() as session:
        for one, number in ((made, 2), (made, 1), (other, 1)):
            line = {"owner_id": ME, "queue": "cpu", "worker": "w", "started_at": 1.0}
            session.add(Attempt(experiment_id=one, attempt=number, family="ppca", **line))
    with database.snapshot() as session:
        found = results.attempts(session, made)
        assert [(one.experiment_id, one.attempt) for one in found] == [(made, 1), (made, 2)]


def test_the_latest_attempts_are_listed(database: Database) -> None:
    """A thousand attempts with their environments take 20 MB."""
    made = submit(database).id
    with database.transaction() as session:
        for number in range(1, results.MAX_ATTEMPTS + 3):
            line = {"owner_id": ME, "queue": "cpu", "worker": "w", "started_at": 1.0}
            session.add(Attempt(experiment_id=made, attempt=number, family="ppca", **line))
    with database.snapshot() as session:
        found = [one.attempt for one in results.attempts(session, made)]
    assert found == [*range(3, results.MAX_ATTEMPTS + 3)]


@pytest.mark.parametrize("again", [False, True])
def test_the_audit_names_who_submitted(database: Database, again: bool) -> None:
    me = Caller(ME, "local", Role.MEMBER, "k", frozenset())
    with database.transaction() as session:
        made = stored.submit(session, ME, submission(), by=me)
        if again:
            made = stored.retry(session, made, by=me)
        note = session.scalars(select(AuditEntry).order_by(AuditEntry.id.desc())).first()
        assert note is not None
        assert (note.action, note.object_id) == ("experiment.submitted", made.id)
        assert note.details == ({"retry_of": made.retry_of} if again else {})


def test_predecessors_are_stored(database: Database) -> None:
    """Predecessors are named, or follow from weights, each once. The experiment is held only while
    one of them has not ended. A retry waits for those that have not ended."""
    first, second = submit(database).id, submit(database).id
    with database.transaction() as session:
        after = submission(after=[first])
        made = stored.submit(session, ME, after, unfinished=[first, second])
        free = stored.submit(session, ME, after)
        again = stored.retry(session, made, unfinished=[second])
        assert (made.comes_after, made.held) == ([first, second], Held.AFTER)
        assert (free.comes_after, free.held) == ([first], Held.NOT)
        assert (again.comes_after, again.held) == ([first, second], Held.AFTER)
        assert stored.retry(session, made).held == Held.NOT


def test_metrics_of_too_many_are_not_read(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metrics of 320 experiments with 1,000 seeds took 3 GB of memory."""
    made = [submit(database).id for _ in range(2)]
    with database.transaction() as session:
        for one, name, seq in ((0, "lml", 1), (0, "mpt", 2), (1, "lml", 1)):
            session.add(Metric(experiment_id=made[one], name=name, labels="{}", seq=seq))
    monkeypatch.setattr(results, "MAX_METRICS", 2)
    with database.snapshot() as session:
        with pytest.raises(results.TooManyMetrics, match="more than 2 metrics"):
            results.metrics_of(session, made, None)
        assert results.metrics_of(session, made, ["lml"]).keys() == {*made}
        monkeypatch.setattr(results, "MAX_METRICS", 1)
        assert len(results.metrics_of(session, made[:1], None)[made[0]]) == 2


def test_one_experiment_has_no_more_metrics_than_an_answer() -> None:
    """Its metrics are read whole, so its spec limits them: a curve has twelve at most."""
    assert 12 * MAX_CURVES <= results.MAX_METRICS
