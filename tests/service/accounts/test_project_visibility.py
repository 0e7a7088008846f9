"""Things that are shared with a project: its present members read them and start from them."""

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from service.accounts.models import ProjectMember
from service.datasets import routes as datasets
from service.settings import Settings
from service.vocabulary import Status
from tests.service.datasets.test_datasets import upload_spec
from tests.service.experiments.test_deletion import becomes
from tests.support.attempts import keep_weights
from tests.support.callers import bearer, database_of
from tests.support.ppca_spec import TRAINED, from_weights, ppca_spec
from tests.support.uploads import GOOD, npy, stored

pytestmark = pytest.mark.usefixtures("inspected_here")

Headers = dict[str, str]
EXPERIMENT = {"spec": ppca_spec(), "cache": False}
SWEEP = {**EXPERIMENT, "grid": {"seeds": [[4], [44]]}}
KINDS = ("experiments", "sweeps", "datasets")


@pytest.fixture
def ann(admin: TestClient) -> Headers:
    return _user(admin, "ann")


@pytest.fixture
def bob(admin: TestClient) -> Headers:
    return _user(admin, "bob")


def _user(admin: TestClient, name: str) -> Headers:
    admin.post("/v1/users", json={"name": name})
    return bearer(admin.post(f"/v1/users/{name}/keys", json={}).json()["key"])


@pytest.fixture
def vision(admin: TestClient, ann: object, bob: object) -> str:
    """A project of both. Ann alone is in another one, too."""
    for name, members in (("vision", ["ann", "bob"]), ("speech", ["ann"])):
        assert admin.post("/v1/projects", json={"name": name, "members": members}).is_success
    return "vision"


def change(admin: TestClient, **changes: Any) -> None:
    assert admin.patch("/v1/projects/vision", json=changes).status_code == 200


def send(api: TestClient, headers: Headers, kind: str, **beside: Any) -> Any:
    """Submit an experiment or a sweep, or upload a data set."""
    if kind == "datasets":
        query = {"name": "a.npy", **beside}
        return api.post("/v1/datasets", params=query, content=npy(GOOD), headers=headers)
    body = EXPERIMENT if kind == "experiments" else SWEEP
    return api.post(f"/v1/{kind}", json={**body, **beside}, headers=headers)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("sent", "visibility"),
    [
        ({"project": "vision"}, "project"),
        ({"project": "vision", "visibility": "project"}, "project"),
        ({"project": "vision", "visibility": "private"}, "private"),
        ({"project": "vision", "visibility": "lab"}, "lab"),
        ({}, "private"),
        ({"visibility": "lab"}, "lab"),
    ],
)
def test_what_is_in_a_project_is_open_to_it_unless_said_otherwise(
    admin: TestClient, ann: Headers, vision: str, kind: str, sent: dict[str, str], visibility: str
) -> None:
    made = send(admin, ann, kind, **sent).json()
    assert (made["visibility"], made["project"]) == (visibility, sent.get("project"))
    if kind == "sweeps":
        items = admin.get("/v1/experiments", headers=ann).json()["items"]
        assert [(one["visibility"], one["project"]) for one in items] == [
            (visibility, sent.get("project"))
        ] * 2


def test_null_is_the_default(admin: TestClient, ann: Headers, vision: str) -> None:
    for project, visibility in ((None, "private"), (vision, "project")):
        for kind in ("experiments", "sweeps"):
            made = send(admin, ann, kind, project=project, visibility=None).json()
            assert made["visibility"] == visibility


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_in_no_project_is_open_to_none(
    admin: TestClient, ann: Headers, vision: str, kind: str
) -> None:
    refused = send(admin, ann, kind, visibility="project")
    made = send(admin, ann, kind).json()
    changed = admin.patch(f"/v1/{kind}/{made['id']}", json={"visibility": "project"}, headers=ann)
    for answer, pointer in (
        (refused, "/query/visibility" if kind == "datasets" else "/visibility"),
        (changed, "/visibility"),
    ):
        assert answer.status_code == 422
        (error,) = answer.json()["errors"]
        assert error["pointer"] == pointer
        assert error["detail"].startswith("private or lab")
    path = f"/v1/{kind}/{made['id']}"
    assert admin.get(path, headers=ann).json()["visibility"] == "private"


def test_an_experiment_of_a_batch_is_refused_at_its_place(
    admin: TestClient, ann: Headers, vision: str
) -> None:
    body = {"experiments": [EXPERIMENT, {**EXPERIMENT, "visibility": "project"}]}
    answer = admin.post("/v1/experiments:batch", json=body, headers=ann)
    (error,) = answer.json()["errors"]
    assert error["pointer"] == "/experiments/1/visibility"


@pytest.mark.parametrize("kind", KINDS)
def test_owners_change_who_reads(
    admin: TestClient, ann: Headers, bob: Headers, vision: str, kind: str
) -> None:
    made = send(admin, ann, kind, project=vision).json()
    path = f"/v1/{kind}/{made['id']}"

    def read_by_bob() -> list[int]:
        items = admin.get("/v1/experiments?whose=project", headers=bob).json()["items"]
        paths = [path, *(f"/v1/experiments/{one['id']}" for one in items)]
        return [admin.get(one, headers=bob).status_code for one in paths]

    shared = read_by_bob()
    assert shared == [200] * {"experiments": 2, "sweeps": 3, "datasets": 1}[kind]
    assert admin.patch(path, json={"visibility": "private"}, headers=bob).status_code == 403
    assert admin.delete(path, headers=bob).status_code == 403
    for visibility, expected in (("private", [404]), ("project", shared), ("private", [404]),
                                 (None, shared)):  # fmt: skip
        changed = admin.patch(path, json={"visibility": visibility}, headers=ann)
        assert changed.json()["visibility"] == (visibility or "project")
        assert read_by_bob() == expected
    log = admin.get("/v1/audit", params={"object_id": made["id"]}).json()["items"]
    assert log[0]["details"]["visibility"] == "project"


@pytest.mark.parametrize("kind", KINDS)
def test_present_members_read(
    admin: TestClient, ann: Headers, bob: Headers, vision: str, kind: str
) -> None:
    """Also in a closed project. Who leaves keeps what is their own."""
    made = send(admin, ann, kind, project=vision).json()
    path = f"/v1/{kind}/{made['id']}"

    def statuses() -> tuple[int, int]:
        asked = (admin.get(path, headers=headers) for headers in (ann, bob))
        mine, theirs = (answer.status_code for answer in asked)
        return mine, theirs

    assert statuses() == (200, 200)
    change(admin, open=False)
    assert statuses() == (200, 200)
    change(admin, remove_members=["bob"])
    assert statuses() == (200, 404)
    change(admin, add_members=["bob"], remove_members=["ann"])
    assert statuses() == (200, 200)


def test_a_retry_is_open_to_the_project(admin: TestClient, ann: Headers, vision: str) -> None:
    one = send(admin, ann, "experiments", project=vision).json()
    becomes(admin, one["id"], Status.FAILED)
    retried = admin.post(f"{one['urls']['self']}:retry", headers=ann).json()
    assert (retried["visibility"], retried["project"]) == ("project", vision)


def test_members_use_weights_and_data_of_the_project(
    admin: TestClient, ann: Headers, bob: Headers, vision: str
) -> None:
    """A retry of theirs finds them no more after they have left."""
    body = {"spec": TRAINED, "project": vision}
    trained = admin.post("/v1/experiments", json=body, headers=ann).json()["id"]
    becomes(admin, trained, Status.SUCCEEDED)
    keep_weights(database_of(admin), trained)
    uploaded = send(admin, ann, "datasets", project=vision).json()
    made = []
    for spec in (from_weights(trained), upload_spec(uploaded["id"])):
        answer = admin.post("/v1/experiments", json={"spec": spec}, headers=bob)
        assert answer.status_code == 202, answer.text
        made.append(answer.json()["urls"]["self"])
        becomes(admin, answer.json()["id"], Status.FAILED)
    change(admin, remove_members=["bob"])
    for path in made:
        assert admin.post(f"{path}:retry", headers=bob).status_code == 422


def test_the_cache_answers_with_what_the_project_may_read(
    admin: TestClient, ann: Headers, vision: str
) -> None:
    """Only an experiment of the same project answers a submission that its members may read."""
    body = {"spec": ppca_spec()}

    def cached_from(**beside: Any) -> str | None:
        answer = admin.post("/v1/experiments:validate", json={**body, **beside}, headers=ann)
        found: str | None = answer.json()["cached_from"]
        return found

    made = admin.post("/v1/experiments", json={**body, "project": vision}, headers=ann).json()
    becomes(admin, made["id"], Status.SUCCEEDED)
    assert cached_from() == made["id"]
    assert cached_from(visibility="private") == made["id"]
    assert cached_from(project=vision) == made["id"]
    assert cached_from(project=vision, visibility="project") == made["id"]
    assert cached_from(project="speech", visibility="private") == made["id"]
    assert cached_from(project="speech") is None
    assert cached_from(project="speech", visibility="project") is None
    assert cached_from(visibility="lab") is None


def test_an_upload_joins_a_project(
    admin: TestClient, ann: Headers, bob: Headers, vision: str
) -> None:
    """The same bytes are one data set of their owner, in one project."""
    first = send(admin, ann, "datasets").json()
    path = f"/v1/datasets/{first['id']}"
    joined = send(admin, ann, "datasets", project=vision)
    assert joined.status_code == 200
    assert joined.json() == {**first, "project": vision, "visibility": "project"}
    assert admin.get(path, headers=bob).status_code == 200
    log = admin.get("/v1/audit", params={"object_id": first["id"]}).json()["items"]
    assert log[0]["details"] == {"project": vision, "visibility": "project"}

    for beside in ({}, {"project": vision, "visibility": "lab"}):
        again = send(admin, ann, "datasets", **beside)
        assert (again.status_code, again.json()) == (200, joined.json())
    refused = send(admin, ann, "datasets", project="speech")
    assert (refused.status_code, refused.json()["reason"]) == (409, "in_another_project")
    assert first["id"] in refused.json()["detail"]
    assert vision in refused.json()["detail"]
    assert admin.get(path, headers=ann).json() == joined.json()
    assert len(admin.get("/v1/audit", params={"object_id": first["id"]}).json()["items"]) == 2


@pytest.mark.parametrize(
    ("before", "beside", "after"),
    [
        ("private", {"visibility": "private"}, "private"),
        ("lab", {}, "lab"),
        ("lab", {"visibility": "private"}, "lab"),
    ],
)
def test_an_upload_that_joins_a_project_is_not_hidden_and_not_shown_unasked(
    admin: TestClient,
    ann: Headers,
    vision: str,
    before: str,
    beside: dict[str, str],
    after: str,
) -> None:
    send(admin, ann, "datasets", visibility=before)
    joined = send(admin, ann, "datasets", project=vision, **beside).json()
    assert (joined["project"], joined["visibility"]) == (vision, after)


@pytest.mark.parametrize("name", ["vision", "unknown"])
def test_nobody_uploads_into_the_project_of_others(
    admin: TestClient, place: Settings, monkeypatch: pytest.MonkeyPatch, vision: str, name: str
) -> None:
    """The answer is as if it did not exist, and comes before the file is received."""
    carol = _user(admin, "carol")
    monkeypatch.setattr(datasets, "receive", None)
    refused = send(admin, carol, "datasets", project=name)
    (error,) = refused.json()["errors"]
    assert (refused.status_code, error["pointer"]) == (422, "/query/project")
    assert error["detail"].startswith(f"you are in no open project {name}; ")
    assert stored(place) == []


@pytest.mark.parametrize("step", ["receive", "inspect"])
def test_who_leaves_during_an_upload_stores_nothing(
    admin: TestClient,
    ann: Headers,
    vision: str,
    place: Settings,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    """New bytes are not stored, and the data set of known ones stays as it is."""
    if step == "receive":
        send(admin, ann, "datasets")
    before = admin.get("/v1/datasets", headers=ann).json()
    files = stored(place)
    work: Callable[..., Any] = vars(datasets)[step]

    def leaving(*arguments: Any, **options: Any) -> Any:
        with database_of(admin).transaction() as session:
            session.execute(update(ProjectMember).values(left_at=1.0))
        return work(*arguments, **options)

    monkeypatch.setattr(datasets, step, leaving)
    refused = send(admin, ann, "datasets", project=vision)
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/query/project")
    assert admin.get("/v1/datasets", headers=ann).json() == before
    assert stored(place) == files
