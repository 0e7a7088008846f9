"""The transaction that stores a request: it locks what the request refers to, and refuses a request
if something has changed since it was prepared."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from service.accounts.models import User
from service.datasets.models import Dataset
from service.db.engine import Database
from service.experiments import deletion
from service.experiments.models import Attempt, Experiment, Held, Wait
from service.experiments.schemas import Submission
from service.fair_share import FairShare
from service.queue import lease
from service.queue.quota import UNLIMITED
from service.refusals import ApiError
from service.settings import Settings
from service.submission.models import KeptRequest
from service.submission.preparation import Entry, Prepared, prepare
from service.submission.requests import Bodies
from service.submission.submit import insert_all
from service.sweeps import store as sweeps
from service.sweeps.schemas import SweepSubmission
from service.vocabulary import Role, Status
from tests.service.sweeps.test_sweeps import SPEC, claim_next, count, finish, rows, sweep
from tests.support import attempts, stored
from tests.support.callers import database_of
from tests.support.locks import wait_for_waiting
from tests.support.ppca_spec import TRAINED, from_weights, ppca_spec
from tests.support.preparing import while_it_prepares
from tests.support.starting import release_held
from tests.support.stored import LOCAL, change, sent

__all__ = ["while_it_prepares"]  # a fixture


def using(dataset_id: str) -> dict[str, Any]:
    data = {"source": "upload", "dataset": dataset_id, "n": 9, "dim": 7}
    return {"model": {"family": "ppca", "init": "maximum_likelihood", "latent_dim": 2},
            "data": data}  # fmt: skip


def add_upload(session: Session) -> str:
    session.add(
        Dataset(id="d", owner_id=1, name="a.csv", format="csv", bytes=1, sha256="d", n=9, dim=7)
    )
    return "d"


def submitted(api: TestClient, spec: dict[str, Any] = SPEC, **beside: Any) -> str:
    answer = api.post("/v1/experiments", json={"spec": spec, "cache": False, **beside})
    experiment_id: str = answer.json()["id"]
    return experiment_id


def refused(api: TestClient, path: str, body: Any = None) -> None:
    """Check that a request under a key is refused because something has changed, and that nothing
    of it is stored."""
    before = count(api)
    answer = api.post(path, json=body, headers={"Idempotency-Key": "k"})
    assert (answer.status_code, answer.json()["reason"]) == (503, "changed_meanwhile")
    assert answer.headers["Retry-After"] == "1"
    with database_of(api).snapshot() as session:
        assert session.scalars(select(KeptRequest)).all() == []
    assert count(api) <= before


def again(api: TestClient, path: str, body: Any = None) -> Any:
    """The answer to the request that a client repeats by itself."""
    return api.post(path, json=body, headers={"Idempotency-Key": "k"})


ToDo = list[Callable[[], object]]


@pytest.mark.parametrize("kind", ["one", "batch", "sweep"])
@pytest.mark.parametrize("named_by", ["after", "weights", "upload"])
def test_what_a_request_refers_to_is_deleted_during_preparation(
    api: TestClient, while_it_prepares: ToDo, kind: str, named_by: str
) -> None:
    database = database_of(api)
    with database.transaction() as session:
        upload = add_upload(session)
    first = submitted(api, TRAINED)
    spec = {"after": SPEC, "weights": from_weights(first), "upload": using(upload)}[named_by]
    body: dict[str, Any] = {"spec": spec, "after": [first] if named_by == "after" else []}
    path = {"one": "", "batch": ":batch"}.get(kind, "")
    path = "/v1/sweeps" if kind == "sweep" else f"/v1/experiments{path}"
    if kind == "sweep":
        body |= {"grid": {"seeds": [[4], [5]]}}
    if kind == "batch":
        body = {"experiments": [body]}
    uploads = f"/v1/datasets/{upload}"
    gone = uploads if named_by == "upload" else f"/v1/experiments/{first}"
    while_it_prepares.append(lambda: api.delete(gone))
    refused(api, path, body)
    assert api.get("/v1/sweeps").json()["items"] == []
    pointer = {"after": "/after/0", "weights": "/spec/model/experiment"}
    place = ("/experiments/0" if kind == "batch" else "") + pointer.get(
        named_by, "/spec/data/dataset"
    )
    (error, *_) = again(api, path, body).json()["errors"]
    assert error["pointer"] == place


def test_a_predecessor_that_is_private_now_is_noticed(
    api: TestClient, while_it_prepares: ToDo
) -> None:
    first, database = submitted(api, visibility="lab"), database_of(api)
    with database.transaction() as session:
        session.add(User(id=2, name="ann", role=Role.MEMBER))
    change(database, first, owner_id=2)
    while_it_prepares.append(lambda: change(database, first, visibility="private"))
    body = {"spec": SPEC, "after": [first]}
    refused(api, "/v1/experiments", body)
    assert again(api, "/v1/experiments", body).status_code == 422


@pytest.mark.parametrize("status", [Status.PAUSED, Status.SUCCEEDED, Status.FAILED])
@pytest.mark.parametrize("path", ["/v1/experiments", "/v1/experiments:batch", "/v1/sweeps"])
def test_a_predecessor_that_ends_during_preparation_is_found_by_the_next_look(
    api: TestClient, while_it_prepares: ToDo, path: str, status: Status
) -> None:
    database = database_of(api)
    first = submitted(api)
    while_it_prepares.append(lambda: change(database, first, status=status))
    body: dict[str, Any] = {"spec": SPEC, "after": [first], "cache": False}
    if path.endswith("sweeps"):
        body |= {"grid": {"seeds": [[4]]}}
    answer = api.post(path, json={"experiments": [body]} if path.endswith("batch") else body)
    assert answer.status_code == 202
    with database.snapshot() as session:
        last = session.scalars(select(Experiment.id).where(Experiment.id != first)).one()
    release_held(database)
    with database.snapshot() as session:
        row = session.get_one(Experiment, last)
        waits = session.scalars(select(Wait)).all()
    if status == Status.PAUSED:
        assert (row.status, row.held, len(waits)) == (Status.QUEUED, Held.AFTER, 1)
    else:
        became = Status.QUEUED if status == Status.SUCCEEDED else Status.FAILED
        assert (row.status, waits) == (became, [])


@pytest.mark.parametrize("of_one", [True, False])
def test_changes_during_preparation_apply_to_a_retry(
    api: TestClient, while_it_prepares: ToDo, of_one: bool
) -> None:
    made = sweep(api, list=[{"seeds": [1]}], visibility="lab")
    (old,) = (row["experiment_id"] for row in rows(api, made["id"]))
    api.post(made["urls"]["cancel"])
    own = f"/v1/experiments/{old}"
    path = f"{own}:retry" if of_one else made["urls"]["retry"]
    while_it_prepares.append(lambda: api.patch(own, json={"visibility": "private"}))
    refused(api, path)
    assert again(api, path).status_code == 202
    (new,) = (row["experiment_id"] for row in rows(api, made["id"]))
    assert new != old
    assert api.get(f"/v1/experiments/{new}").json()["visibility"] == "private"


def test_an_experiment_retried_during_preparation_is_retried_once(
    api: TestClient, while_it_prepares: ToDo
) -> None:
    made = sweep(api, list=[{"seeds": [1]}, {"seeds": [2]}])
    api.post(made["urls"]["cancel"])
    while_it_prepares.append(lambda: api.post(made["urls"]["retry"]))
    answer = api.post(made["urls"]["retry"])
    assert answer.json()["reason"] == "changed_meanwhile"
    assert api.post(made["urls"]["retry"]).json() == {"count": 0, "more": False}
    assert count(api) == 4


def test_a_result_deleted_during_preparation_is_not_used(
    api: TestClient, while_it_prepares: ToDo
) -> None:
    first = submitted(api)
    finish(database_of(api), claim_next(database_of(api)))
    body = {"spec": SPEC, "list": [{"seeds": SPEC["seeds"]}]}
    assert api.post("/v1/sweeps", json=body).json()["status"] == "succeeded"
    while_it_prepares.append(lambda: api.delete(f"/v1/experiments/{first}"))
    refused(api, "/v1/sweeps", body)
    (row,) = rows(api, again(api, "/v1/sweeps", body).json()["id"])
    assert (row["status"], row["experiment_id"] != first) == ("queued", True)


@contextmanager
def two(lab: Settings) -> Iterator[tuple[Database, Database]]:
    """Two connections to PostgreSQL, of which the second is impatient."""
    impatient = "-c lock_timeout=3s"
    with closing(Database(lab.url)) as one, closing(Database(lab.url, timeouts=impatient)) as other:
        yield one, other


@pytest.fixture
def source(lab: Settings) -> str:
    """A succeeded experiment with weights."""
    with closing(Database(lab.url)) as database:
        experiment_id = attempts.submitted(database, TRAINED)
        claim = attempts.claim_next(database)
        attempts.keep_weights(database, experiment_id)
        with database.transaction() as session:
            lease.finish(session, claim, Status.SUCCEEDED)
            session.execute(update(Attempt).values(folded=True))
            add_upload(session)
    return experiment_id


def referring(source: str, named_by: str) -> Submission:
    spec = {"after": ppca_spec(), "weights": from_weights(source), "upload": using("d")}[named_by]
    after = [source] if named_by == "after" else []
    return Submission.model_validate({"spec": spec, "after": after})


def remove(session: Session, source: str, named_by: str) -> None:
    """Delete the row of what a submission refers to."""
    if named_by == "upload":
        session.execute(delete(Dataset).where(Dataset.id == "d"))
    else:
        session.execute(update(Experiment).where(Experiment.id == source).values(deleted_at=1.0))
        assert deletion.purge(session, source)


@pytest.mark.parametrize("named_by", ["after", "weights", "upload"])
def test_a_submission_waits_for_a_removal_and_stores_nothing(
    lab: Settings, source: str, named_by: str
) -> None:
    submission = referring(source, named_by)
    with two(lab) as (database, other), ThreadPoolExecutor(1) as pool:
        with database.snapshot() as session:
            request = Bodies([submission]).submissions(session, lab, LOCAL)
            prepared = prepare(session, lab, request)

        def store() -> None:
            with database.transaction() as session:
                insert_all(session, prepared, by=LOCAL, fair_share=FairShare())

        with other.transaction() as session:
            remove(session, source, named_by)
            future = pool.submit(store)
            wait_for_waiting(other, 1)
        with pytest.raises(ApiError) as refusal:
            future.result()
        assert refusal.value.reason == "changed_meanwhile"
        with database.snapshot() as session:
            assert session.scalars(select(Experiment).where(Experiment.id != source)).all() == []


@pytest.mark.parametrize("named_by", ["after", "weights"])
def test_a_purge_leaves_what_is_being_referred_to(
    lab: Settings, source: str, named_by: str
) -> None:
    """It was deleted after the submission had read it. The purge of weights that a run needs waits
    for the run."""
    with two(lab) as (database, other):

        def delete_and_purge() -> None:
            with other.transaction() as session:
                hide = update(Experiment).where(Experiment.id == source)
                session.execute(hide.values(deleted_at=1.0))
            with other.transaction() as session:
                assert not deletion.purge(session, source)

        sent(database, lab, referring(source, named_by), delete_and_purge)
        with database.snapshot() as session:
            (kept,) = deletion.purgeable(session, 2.0, None)
            assert kept.removable == (named_by == "after")


def test_an_upload_is_deleted_after_a_submission_that_uses_it(lab: Settings, source: str) -> None:
    """The deletion waits for the submission. The run will report the missing upload."""
    with two(lab) as (database, other), ThreadPoolExecutor(1) as pool:

        def remove_upload() -> None:
            with other.transaction() as session:
                remove(session, source, "upload")

        deletions = []

        def delete() -> None:
            deletions.append(pool.submit(remove_upload))
            wait_for_waiting(other, 1)

        accepted = sent(database, lab, referring(source, "upload"), delete)
        deletions[0].result()
        assert stored.row(database, accepted.outcomes[0].id).status == Status.QUEUED


@pytest.mark.parametrize("named_by", ["after", "weights"])
def test_a_submission_holds_up_no_run_that_it_refers_to(lab: Settings, named_by: str) -> None:
    """Neither its heartbeats nor its end wait for the transaction of the submission."""
    with two(lab) as (database, other):
        first = attempts.submitted(database, TRAINED)
        claim = attempts.claim_next(database)
        attempts.keep_weights(database, first)

        def go_on() -> None:
            with other.transaction() as session:
                assert lease.heartbeat(session, claim, lease_s=60)
            with other.transaction() as session:
                lease.finish(session, claim, Status.SUCCEEDED)

        accepted = sent(database, lab, referring(first, named_by), go_on)
        release_held(database)
        assert attempts.claim_next(database).experiment_id == accepted.outcomes[0].id


def test_two_retries_at_once_do_not_both_take_the_last_place_of_a_sweep(
    lab: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "MAX_EXPERIMENTS", 3)
    with two(lab) as (database, other), ThreadPoolExecutor(1) as pool:
        body = SweepSubmission.model_validate({"spec": ppca_spec(), "grid": {"seeds": [[1], [2]]}})
        with database.transaction() as session:
            added = sweeps.add(session, sweeps.new(1, body))
            point = stored.prepared(Entry(Submission.model_validate({"spec": ppca_spec()})))
            points = Prepared(1, [point, point], UNLIMITED)
            insert_all(session, points, by=LOCAL, fair_share=FairShare(), sweep=added)
            session.execute(update(Experiment).values(status=Status.FAILED))
            ids = session.scalars(select(Experiment.id)).all()

        def retry(id: str) -> None:
            with other.transaction() as session:
                stored.retry(session, session.get_one(Experiment, id))

        with database.transaction() as session:
            stored.retry(session, session.get_one(Experiment, ids[0]))
            second = pool.submit(retry, ids[1])
            wait_for_waiting(database, 1)
        with pytest.raises(ApiError, match="a sweep has at most 3 experiments"):
            second.result()


def limit(api: TestClient, **limits: int) -> None:
    with database_of(api).transaction() as session:
        session.execute(update(User).where(User.id == 1).values(**limits))


@pytest.mark.parametrize("kind", ["sweep", "points", "batch"])
def test_more_experiments_than_their_owner_may_have(api: TestClient, kind: str) -> None:
    grid = {"seeds": [[1], [2], [3]]}
    path: str = "/v1/sweeps"
    body: dict[str, Any] = {"spec": SPEC, "grid": grid}
    if kind == "points":
        path, body = sweep(api, list=[{}])["urls"]["points"], {"grid": grid}
        api.post("/v1/experiments:cancel?status=queued")
    if kind == "batch":
        path = "/v1/experiments:batch"
        body = {"experiments": [{"spec": {**SPEC, "seeds": [i]}} for i in range(3)]}
    limit(api, max_submitted=2)
    answer = api.post(path, json=body)
    assert (answer.status_code, answer.json()["reason"]) == (409, "limit_reached")
    assert answer.json()["detail"].endswith("these are 3 more")
    limit(api, max_submitted=3)
    assert api.post(path, json=body).status_code == 202
    finish(database_of(api), claim_next(database_of(api)))
    limit(api, max_submitted=0)  # experiments that the cache answers do not count
    (ended,) = api.get("/v1/experiments?status=succeeded&fields=full").json()["items"]
    same = {"spec": ended["spec"], "list": [{}] * 3}
    assert sweep(api, **same)["counts"]["succeeded"] == 3
