"""Shared objects can be used by others; private ones cannot be reached in any way."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from service.experiments.models import Experiment, Queue
from service.queue import workers
from service.queue.workers import Vitals
from service.vocabulary import Status
from tests.service.datasets.test_datasets import upload_spec
from tests.service.experiments.test_deletion import becomes, submit
from tests.support.attempts import keep_weights
from tests.support.callers import bearer, database_of, member
from tests.support.ppca_spec import TRAINED, from_weights, ppca_spec
from tests.support.uploads import GOOD, npy

pytestmark = pytest.mark.usefixtures("inspected_here")


@pytest.fixture
def ann(admin: TestClient) -> dict[str, str]:
    return bearer(member(admin)["key"])


@pytest.fixture
def bob(admin: TestClient) -> dict[str, str]:
    admin.post("/v1/users", json={"name": "bob"})
    return bearer(admin.post("/v1/users/bob/keys", json={}).json()["key"])


def with_baseline(experiment_id: str) -> dict[str, Any]:
    base = {"family": "ppca", "latent_dim": 2, "init": "experiment", "experiment": experiment_id}
    return {**ppca_spec(), "baseline": base}


def text_spec(dataset_id: str) -> dict[str, Any]:
    model = {"family": "masked_lm", "checkpoint": "any"}
    return {"model": model, "data": {"source": "text", "dataset": dataset_id}}


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("experiments", from_weights),
        ("experiments", with_baseline),
        ("datasets", upload_spec),
        ("datasets", text_spec),
    ],
)
def test_weights_of_shared_experiments_can_be_used(
    admin: TestClient, ann: dict[str, str], bob: dict[str, str], kind: str, spec: Any
) -> None:
    if kind == "experiments":
        one = submit(admin, TRAINED, ann)
        becomes(admin, one, Status.SUCCEEDED)
        keep_weights(database_of(admin), one)
    else:
        name, content = ("a.txt", b"text\n") if spec is text_spec else ("a.npy", npy(GOOD))
        one = admin.post(f"/v1/datasets?name={name}", content=content, headers=ann).json()["id"]

    def tried(experiment_id: str, verb: str = "") -> tuple[int, Any]:
        body = {"spec": spec(experiment_id)}
        answer = admin.post(f"/v1/experiments{verb}", json=body, headers=bob)
        return answer.status_code, answer.json().get("errors")

    for verb in ("", ":validate"):
        assert tried(one, verb) == tried("0" * 32, verb)
        assert tried(one, verb)[0] == 422
    admin.patch(f"/v1/{kind}/{one}", json={"visibility": "lab"}, headers=ann)
    assert tried(one)[0] == 202
    assert tried(one, ":validate")[0] == 200

    made = admin.post("/v1/experiments", json={"spec": spec(one)}, headers=bob).json()["id"]
    becomes(admin, made, Status.FAILED)
    once = {**bob, "Idempotency-Key": "once"}
    retried = admin.post(f"/v1/experiments/{made}:retry", headers=once).json()["id"]
    admin.patch(f"/v1/{kind}/{one}", json={"visibility": "private"}, headers=ann)
    assert tried(one)[0] == 422
    assert admin.post(f"/v1/experiments/{made}:retry", headers=bob).status_code == 422
    again = admin.post(f"/v1/experiments/{made}:retry", headers=once)
    assert (again.status_code, again.json()["id"]) == (202, retried)
    assert admin.get(f"/v1/experiments/{retried}", headers=bob).status_code == 200


def test_workers_and_metrics_show_no_one_elses_ids(
    admin: TestClient, ann: dict[str, str], bob: dict[str, str]
) -> None:
    private, shared = submit(admin, headers=ann), submit(admin, headers=ann)
    admin.patch(f"/v1/experiments/{shared}", json={"visibility": "lab"}, headers=ann)
    with database_of(admin).transaction() as session:
        for worker, one in (("h:1", private), ("h:2", shared)):
            workers.beat(session, worker, Vitals("h", Queue.CPU, 1))
            values = {"status": Status.RUNNING, "worker": worker}
            session.execute(update(Experiment).where(Experiment.id == one).values(**values))

    def seen(headers: dict[str, str]) -> list[tuple[bool, str | None]]:
        items = admin.get("/v1/workers", headers=headers).json()["items"]
        return [(item["busy"], item["experiment_id"]) for item in items]

    assert seen(ann) == seen({}) == [(True, private), (True, shared)]
    assert seen(bob) == [(True, None), (True, shared)]
    metrics = admin.get("/metrics", headers=bob).text
    assert 'mpt_experiments{status="running"} 2' in metrics
    assert private not in metrics
    assert shared not in metrics


def test_an_admins_key_without_the_scope_has_the_rights_of_a_member(
    admin: TestClient, ann: dict[str, str]
) -> None:
    one = submit(admin, headers=ann)
    scopes = ["read", "submit", "cancel"]
    key = admin.post("/v1/users/local/keys", json={"scopes": scopes}).json()["key"]
    assert admin.get(f"/v1/experiments/{one}").status_code == 200
    assert admin.get(f"/v1/experiments/{one}", headers=bearer(key)).status_code == 404
    listed = admin.get("/v1/experiments?whose=all", headers=bearer(key))
    assert listed.status_code == 422


def test_equal_uploads_of_two_users_are_separate(
    admin: TestClient, ann: dict[str, str], bob: dict[str, str]
) -> None:
    path = "/v1/datasets?name=a.npy"
    one = admin.post(path, content=npy(GOOD), headers=ann).json()
    other = admin.post(path, content=npy(GOOD), headers=bob)
    assert other.status_code == 201
    assert other.json()["id"] != one["id"]
    shared = admin.post(f"{path}&visibility=lab", content=npy(GOOD + 1), headers=ann).json()
    assert shared["visibility"] == "lab"
    assert admin.get(f"/v1/datasets/{shared['id']}", headers=bob).json() == shared


def test_only_the_given_fields_are_changed(admin: TestClient) -> None:
    one = submit(admin)
    path = f"/v1/experiments/{one}"
    first = admin.patch(path, json={"name": "n", "note": "m", "tags": ["a"], "priority": 3}).json()
    assert [first[key] for key in ("name", "note", "tags", "priority")] == ["n", "m", ["a"], 3]
    second = admin.patch(path, json={"name": None, "visibility": "lab"}).json()
    assert second == {**first, "name": None, "title": second["title"], "visibility": "lab"}
    assert (first["title"], second["title"][:4]) == ("n", "ppca")
    assert admin.patch(path, json={}).json() == second
    for body, pointer in (
        ({"spec": {}}, "/spec"),
        ({"priority": 201}, "/priority"),
        ({"tags": None}, "/tags"),
        ({"visibility": "all"}, "/visibility"),
        ({"pinned": 1}, "/pinned"),
        ({"owner": "bob"}, "/owner"),
    ):
        answer = admin.patch(path, json=body)
        assert answer.status_code == 422
        assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
