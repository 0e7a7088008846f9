"""Experiments that come after others: they wait, run once these have succeeded, or fail."""

from contextlib import closing
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from service.db.engine import Database
from service.experiments.models import Event, Experiment, Held, Wait
from service.experiments.references import MAX_READ_BYTES
from service.experiments.schemas import Submission
from service.queue import lease, states
from service.queue.lease import Claim, FailureCause
from service.settings import Settings
from service.vocabulary import DesiredState, Status
from tests.support import stored
from tests.support.attempts import claim_next, keep_weights, submitted
from tests.support.callers import bearer, database_of, member
from tests.support.ppca_spec import TRAINED, from_weights, ppca_spec
from tests.support.starting import release_held, start_next

FITTED = ppca_spec(model__init="maximum_likelihood", model__noise_precision=...)
DRAWN = ppca_spec(model__init="random")


def submit(
    api: TestClient,
    *after: str,
    spec: dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
    **beside: Any,
) -> str:
    body = {"spec": spec or ppca_spec(), "after": after, **beside}
    answer = api.post("/v1/experiments", json=body, headers=headers)
    assert answer.status_code == 202, answer.text
    experiment_id: str = answer.json()["id"]
    return experiment_id


def get(api: TestClient, experiment_id: str) -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"/v1/experiments/{experiment_id}").json()
    return found


def finish(database: Database, claim: Claim, status: Status = Status.SUCCEEDED) -> None:
    cause = FailureCause("error", "it broke") if status == Status.FAILED else None
    with database.transaction() as session:
        lease.finish(session, claim, status, cause)


def is_idle(database: Database) -> bool:
    with database.transaction() as session:
        return start_next(session) is None


def nothing_waits(database: Database) -> bool:
    with database.snapshot() as session:
        held = select(Experiment.id).where(
            Experiment.held == Held.AFTER, Experiment.status == Status.QUEUED
        )
        return not session.scalars(select(Wait)).all() and not session.scalars(held).all()


def test_an_experiment_waits_until_all_predecessors_have_succeeded(admin: TestClient) -> None:
    database = database_of(admin)
    first, second = submit(admin), submit(admin)
    last = submit(admin, first, second, priority=100)
    queue = get(admin, last)["queue"]
    assert f"{first} (queued), {second} (queued)" in queue["reason"]
    assert queue["estimated_start"] is None
    assert get(admin, last)["after"] == [first, second]
    one, other = claim_next(database), claim_next(database)
    assert is_idle(database)
    finish(database, other)
    assert f"waits for {first} (running)" in get(admin, last)["queue"]["reason"]
    assert is_idle(database)
    finish(database, one)
    release_held(database)
    assert claim_next(database).experiment_id == last
    assert nothing_waits(database)


@pytest.mark.parametrize("how", ["failed", "cancelled", "deleted", "cancelled while it runs"])
def test_successors_of_a_failure_fail_along_the_chain(admin: TestClient, how: str) -> None:
    database = database_of(admin)
    first = submit(admin)
    chain = [submit(admin, first)]
    chain.append(submit(admin, chain[0]))
    paused = submit(admin, chain[1], first)
    admin.post(f"/v1/experiments/{paused}:pause")
    beside = submit(admin)
    match how:
        case "failed":
            finish(database, claim_next(database), Status.FAILED)
        case "cancelled":
            admin.post(f"/v1/experiments/{first}:cancel")
        case "deleted":
            assert admin.delete(f"/v1/experiments/{first}").status_code == 204
        case _:
            claim = claim_next(database)
            admin.post(f"/v1/experiments/{first}:cancel")
            with database.transaction() as session:
                lease.release(session, claim)
    release_held(database)
    became = "failed" if how == "failed" else "was cancelled"
    for one, cause in ((chain[0], f"{first}, which {became}"), (paused, f"{first}, which {became}"),
                       (chain[1], f"{chain[0]}, which failed")):  # fmt: skip
        document = get(admin, one)
        assert (document["status"], document["failure"]["kind"]) == ("failed", "invalid")
        assert document["failure"]["message"].endswith(cause)
        assert document["finished_at"] is not None
    assert claim_next(database).experiment_id == beside
    assert nothing_waits(database)
    with database.snapshot() as session:
        events = select(Event.data).where(Event.experiment_id == chain[1]).order_by(Event.id)
        assert [data["status"] for data in session.scalars(events)] == ["queued", "failed"]


@pytest.mark.parametrize("spec", [TRAINED, FITTED], ids=["trained", "fitted"])
def test_an_experiment_waits_for_the_run_that_makes_its_weights(
    admin: TestClient, spec: dict[str, Any]
) -> None:
    database = database_of(admin)
    trained = submit(admin, spec=spec)
    waiting = submit(admin, spec=from_weights(trained))
    assert get(admin, waiting)["after"] == [trained]
    claim = claim_next(database)
    keep_weights(database, trained)
    finish(database, claim)
    release_held(database)
    assert claim_next(database).experiment_id == waiting
    ready = submit(admin, trained, spec=from_weights(trained))  # which has succeeded by now
    assert claim_next(database).experiment_id == ready


def test_a_run_without_its_weights_is_refused(admin: TestClient) -> None:
    """An earlier version did not keep what it fitted."""
    database = database_of(admin)
    fitted = submit(admin, spec=FITTED)
    finish(database, claim_next(database))
    answer = admin.post("/v1/experiments", json={"spec": from_weights(fitted)})
    (error,) = answer.json()["errors"]
    assert error["pointer"] == "/spec/model/experiment"
    assert "no weights" in error["detail"]
    keep_weights(database, fitted)
    submit(admin, spec=from_weights(fitted))


@pytest.mark.parametrize("standardize", [True, "columns", False])
def test_models_and_data_unlike_those_of_the_weights_are_refused(
    admin: TestClient, standardize: bool | str
) -> None:
    """So an experiment that waits for its weights need not run to fail."""
    digits = {"source": "digits", "standardize": standardize}
    fitted = {"model": {"family": "ppca", "latent_dim": 5, "init": "maximum_likelihood"}}
    scaled = submit(admin, spec={**fitted, "data": digits})
    model = {"family": "ppca", "latent_dim": 5, "init": "experiment", "experiment": scaled}
    bare = {"model": model, "data": {"source": "digits"}}
    small = from_weights(submit(admin, spec=FITTED))
    unlike = {
        "/spec/model/latent_dim": {**small, "model": {**small["model"], "latent_dim": 1}},
        "/spec/data": {**small, "data": {**small["data"], "dim": 7}},
        **({"/spec/data/standardize": bare} if standardize else {}),
    }
    for pointer, spec in unlike.items():
        answer = admin.post("/v1/experiments:validate", json={"spec": spec})
        assert [one["pointer"] for one in answer.json()["errors"]] == [pointer]
    submit(admin, spec=small)
    submit(admin, spec={"model": model, "data": digits})
    stored.change(database_of(admin), small["model"]["experiment"], spec_bytes=MAX_READ_BYTES + 1)
    submit(admin, spec=unlike["/spec/model/latent_dim"])  # which its run will find


def test_invalid_predecessors_are_refused(admin: TestClient) -> None:
    ended, untrained = submit(admin), submit(admin, spec=DRAWN)
    admin.post(f"/v1/experiments/{ended}:cancel")
    someone = member(admin)
    theirs = submit(admin, headers=bearer(someone["key"]), spec=TRAINED)
    shared = submit(admin, headers=bearer(someone["key"]), visibility="lab")
    for after, spec, pointer, detail in (
        (["0" * 32], ppca_spec(), "/after/0", "the id of an experiment, yours or shared"),
        ([ended], ppca_spec(), "/after/0", "this experiment is cancelled"),
        ([shared, theirs], ppca_spec(), "/after/1", "the id of an experiment, yours or"),
        ([], from_weights(untrained), "/spec/model/experiment", "trains or fits a model"),
        ([], from_weights(ended), "/spec/model/experiment", "did not fail"),
        ([], from_weights(theirs), "/spec/model/experiment", "yours or shared"),
        (["a b"], ppca_spec(), "/after/0", "the id of an experiment, from"),
    ):
        body = {"spec": spec, "after": after}
        for path in ("/v1/experiments", "/v1/experiments:validate"):
            answer = admin.post(path, json=body)
            (error,) = answer.json()["errors"]
            assert (error["pointer"], detail in error["detail"]) == (pointer, True), error
    submit(admin, shared)


def test_a_retry_keeps_its_predecessors(admin: TestClient) -> None:
    first = submit(admin)
    second = submit(admin, first)
    admin.post(f"/v1/experiments/{second}:cancel")
    again = admin.post(f"/v1/experiments/{second}:retry").json()
    assert (again["after"], again["queue"]["reason"][:8]) == ([first], "it waits")
    admin.post(f"/v1/experiments/{again['id']}:cancel")
    admin.post(f"/v1/experiments/{first}:cancel")
    refused = admin.post(f"/v1/experiments/{second}:retry")
    assert refused.json()["errors"][0]["pointer"] == "/after/0"


def test_readers_do_not_see_private_predecessors(admin: TestClient) -> None:
    first = submit(admin)
    shared = submit(admin, first, visibility="lab")
    own = bearer(member(admin)["key"])
    seen = admin.get(f"/v1/experiments/{shared}", headers=own).json()
    assert "waits for other experiments" in seen["queue"]["reason"]
    assert first not in str(seen["queue"])


def test_waiting_experiments_have_no_queue_position(admin: TestClient) -> None:
    first = submit(admin)
    for _ in range(3):
        submit(admin, first, priority=50)
    assert get(admin, submit(admin))["queue"]["position"] == 1


@pytest.mark.parametrize("end", [Status.SUCCEEDED, Status.FAILED])
@pytest.mark.parametrize("is_inserted", [True, False])
def test_a_run_ends_during_a_submission_that_names_it(
    lab: Settings, end: Status, is_inserted: bool
) -> None:
    """The end of the run does not wait for the submission, and the next look finds both."""
    with (
        closing(Database(lab.url)) as database,
        closing(Database(lab.url, timeouts="-c statement_timeout=3s")) as impatient,
    ):
        first = submitted(database)
        claim = claim_next(database)
        submission = Submission.model_validate({"spec": ppca_spec(), "after": [first]})
        with database.transaction() as session:
            if is_inserted:
                last = stored.submit(session, 1, submission, unfinished=[first]).id
            finish(impatient, claim, end)
            release_held(impatient)
            if not is_inserted:
                last = stored.submit(session, 1, submission, unfinished=[first]).id
        assert stored.row(database, last).held == Held.AFTER
        release_held(database)
        assert stored.row(database, last).status == (
            Status.QUEUED if end == Status.SUCCEEDED else Status.FAILED
        )
        assert nothing_waits(database)


def test_a_waiting_experiment_can_be_cancelled(admin: TestClient) -> None:
    database = database_of(admin)
    first = submit(admin)
    last = submit(admin, first)
    with database.transaction() as session:
        assert states.request(session, last, DesiredState.CANCEL) == Status.CANCELLED
    finish(database, claim_next(database))
    release_held(database)
    assert get(admin, last)["status"] == "cancelled"
    assert nothing_waits(database)
