"""Projects: who is in them, and what may be submitted into them."""

import re
from collections.abc import Mapping
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.vocabulary import Status
from tests.service.experiments.test_deletion import becomes
from tests.support.callers import bearer, member
from tests.support.ppca_spec import ppca_spec

pytestmark = pytest.mark.usefixtures("inspected_here")

SPEC = {"spec": ppca_spec(), "cache": False}
POINTS = {**SPEC, "grid": {"seeds": [[4], [44]]}}


@pytest.fixture
def ann(admin: TestClient) -> dict[str, str]:
    return bearer(member(admin)["key"])


@pytest.fixture
def bob(admin: TestClient) -> dict[str, str]:
    admin.post("/v1/users", json={"name": "bob"})
    return bearer(admin.post("/v1/users/bob/keys", json={}).json()["key"])


@pytest.fixture
def vision(admin: TestClient, ann: object, bob: object) -> str:
    """A project of ann's."""
    made = admin.post("/v1/projects", json={"name": "vision", "shares": 3, "members": ["ann"]})
    assert made.status_code == 201
    assert (made.json()["members"], made.json()["shares"]) == (["ann"], 3)
    return "vision"


def change(admin: TestClient, name: str, **changes: Any) -> Any:
    answer = admin.patch(f"/v1/projects/{name}", json=changes)
    assert answer.status_code == 200, answer.text
    return answer.json()


def sends(api: TestClient, headers: Mapping[str, str], project: str | None) -> list[Any]:
    """Return the answers to an experiment, a batch of two and a sweep in a project."""
    experiment, points = {**SPEC, "project": project}, {**POINTS, "project": project}
    return [
        api.post("/v1/experiments", json=experiment, headers=headers),
        api.post("/v1/experiments:batch", json={"experiments": [SPEC, experiment]},
                 headers=headers),
        api.post("/v1/sweeps", json=points, headers=headers),
        api.post("/v1/experiments:validate", json=experiment, headers=headers),
    ]  # fmt: skip


def test_members_submit_into_their_projects(
    admin: TestClient, ann: dict[str, str], vision: str
) -> None:
    one, batch, sweep, validated = sends(admin, ann, vision)
    assert validated.status_code == 200
    assert one.json()["project"] == vision
    assert sweep.json()["project"] == vision
    second = admin.get(batch.json()["items"][1]["url"], headers=ann).json()
    first = admin.get(batch.json()["items"][0]["url"], headers=ann).json()
    assert (first["project"], second["project"]) == (None, vision)
    more = {"grid": {"seeds": [[5]]}}
    added = admin.post(f"/v1/sweeps/{sweep.json()['id']}/points", json=more, headers=ann)
    assert added.status_code == 202
    items = admin.get("/v1/experiments", headers=ann).json()["items"]
    points = [one["project"] for one in items if one["sweep"] == sweep.json()["id"]]
    assert points == [vision] * 3


@pytest.mark.parametrize("name", ["vision", "unknown"])
def test_others_are_refused_as_if_it_did_not_exist(
    admin: TestClient, bob: dict[str, str], vision: str, name: str
) -> None:
    pointers = ["/project", "/experiments/1/project", "/project", "/project"]
    admin.post("/v1/projects", json={"name": "speech", "members": ["bob"]})
    for answer, pointer in zip(sends(admin, bob, name), pointers, strict=True):
        assert answer.status_code == 422
        (error,) = answer.json()["errors"]
        assert error["pointer"] == pointer
        expected = f"you are in no open project {name}: you may use speech;"
        assert error["detail"].startswith(expected)
    assert admin.get("/v1/experiments", headers=bob).json()["items"] == []


def test_a_closed_project_and_a_former_member_are_refused(
    admin: TestClient, ann: dict[str, str], vision: str
) -> None:
    one, _, sweep, _ = sends(admin, ann, vision)
    becomes(admin, one.json()["id"], Status.FAILED)
    retry, points = f"{one.json()['urls']['self']}:retry", f"{sweep.json()['urls']['self']}/points"
    for shut, opened in (
        ({"open": False}, {"open": True}),
        ({"remove_members": ["ann"]}, {"add_members": ["ann"]}),
    ):
        change(admin, vision, **shut)
        assert {answer.status_code for answer in sends(admin, ann, vision)} == {422}
        assert admin.post(retry, headers=ann).status_code == 422
        assert admin.post(points, json={"grid": {"seeds": [[9]]}}, headers=ann).status_code == 422
        change(admin, vision, **opened)
        assert {answer.status_code for answer in sends(admin, ann, vision)} == {200, 202}
    retried = admin.post(retry, headers=ann)
    assert (retried.status_code, retried.json()["project"]) == (202, vision)


def test_unfinished_experiments_of_a_project_are_limited(
    admin: TestClient, ann: dict[str, str], bob: dict[str, str], vision: str
) -> None:
    change(admin, vision, add_members=["bob"], max_submitted=2)
    sent = {**SPEC, "project": vision}
    assert admin.post("/v1/experiments", json=sent, headers=ann).status_code == 202
    assert admin.post("/v1/experiments", json=sent, headers=bob).status_code == 202
    refused = admin.post("/v1/experiments", json=sent, headers=ann)
    assert (refused.status_code, refused.json()["reason"]) == (409, "limit_reached")
    assert admin.post("/v1/experiments", json=SPEC, headers=ann).status_code == 202


def test_the_bytes_in_a_project_are_limited_for_all_members(
    admin: TestClient, ann: dict[str, str], bob: dict[str, str], vision: str
) -> None:
    """Experiments, sweeps and data sets count, whoever owns them; nothing else is refused."""
    change(admin, vision, add_members=["bob"])

    def kept_bytes() -> int:
        """The bytes that the project keeps, as the refusals of a limit name them."""
        change(admin, vision, max_bytes=1)
        (answer, *others) = sends(admin, ann, vision)[:3]
        for refused in (answer, *others):
            assert (refused.status_code, refused.json()["reason"]) == (409, "storage_quota")
        change(admin, vision, max_bytes=None)
        found = re.search(r"project vision keeps (\d+) bytes", answer.json()["detail"])
        assert found is not None
        return int(found[1])

    assert kept_bytes() == 0
    sent = {**SPEC, "project": vision}
    sizes = []
    for headers in (ann, bob):
        assert admin.post("/v1/experiments", json=sent, headers=headers).status_code == 202
        sizes.append(kept_bytes())
    assert sizes[1] == 2 * sizes[0]
    upload: Any = {"headers": bob, "content": b"1,2\n3,5\n" * 1000}
    assert admin.post("/v1/datasets?name=a.csv", **upload).status_code == 201
    assert kept_bytes() == sizes[1]
    into = f"/v1/datasets?name=a.csv&project={vision}"
    change(admin, vision, max_bytes=sizes[1] + 8000)
    assert admin.post(into, **upload).json()["reason"] == "storage_quota"
    change(admin, vision, max_bytes=None)
    assert admin.post(into, **upload).json()["project"] == vision
    assert kept_bytes() >= sizes[1] + 8000
    change(admin, vision, max_bytes=0)
    assert admin.post("/v1/experiments", json=SPEC, headers=ann).status_code == 202


def test_texts_count_for_the_bytes_of_a_project(
    admin: TestClient, ann: dict[str, str], vision: str
) -> None:
    one = admin.post("/v1/experiments", json={**SPEC, "project": vision}, headers=ann).json()
    sweep = admin.post("/v1/sweeps", json={**POINTS, "project": vision}, headers=ann).json()
    change(admin, vision, max_bytes=1)
    for sent in (one, sweep):
        place = sent["urls"]["self"]
        answer = admin.patch(place, json={"note": "n" * 5000}, headers=ann)
        assert (answer.status_code, answer.json()["reason"]) == (409, "storage_quota")
        assert admin.patch(place, json={"note": None}, headers=ann).status_code == 200


def test_who_has_left_opens_nothing_to_the_members(
    admin: TestClient, ann: dict[str, str], bob: dict[str, str], vision: str
) -> None:
    """Neither what was private, nor new points; and sees the project's usage no more."""
    change(admin, vision, add_members=["bob"])
    private = {"project": vision, "visibility": "private"}
    place = f"/v1/datasets?name=a.csv&project={vision}&visibility=private"
    upload: Any = {"headers": ann, "content": b"1,2\n3,5\n" * 9}
    places = [
        admin.post("/v1/experiments", json={**SPEC, **private}, headers=ann).json()["urls"]["self"],
        admin.post("/v1/sweeps", json={**POINTS, **private}, headers=ann).json()["urls"]["self"],
        f"/v1/datasets/{admin.post(place, **upload).json()['id']}",
    ]
    change(admin, vision, remove_members=["ann"])
    for one in places:
        refused = admin.patch(one, json={"visibility": "project"}, headers=ann)
        assert refused.status_code == 422
        assert refused.json()["errors"][0]["pointer"] == "/visibility"
        null = admin.patch(one, json={"visibility": None}, headers=ann)
        assert (null.status_code, null.json()["visibility"]) == (200, "private")
        assert admin.get(one, headers=bob).status_code == 404
    points = admin.post(f"{places[1]}/points", json={"grid": {"seeds": [[4]]}}, headers=ann)
    assert points.status_code == 422
    assert admin.get("/v1/queue", headers=ann).json()["projects"] == []
    change(admin, vision, add_members=["ann"])
    for one in places:
        shared = admin.patch(one, json={"visibility": "project"}, headers=ann)
        assert shared.status_code == 200
        assert admin.get(one, headers=bob).status_code == 200


def test_members_see_their_own_projects_alone(
    admin: TestClient, ann: dict[str, str], bob: dict[str, str], vision: str
) -> None:
    def names(headers: Mapping[str, str] | None = None) -> list[str]:
        items = admin.get("/v1/projects", headers=headers).json()["items"]
        return [project["name"] for project in items]

    assert (names(), names(ann), names(bob)) == ([vision], [vision], [])
    change(admin, vision, remove_members=["ann"])
    assert names(ann) == []


def test_the_queue_and_the_usage_have_the_projects(
    admin: TestClient, ann: dict[str, str], bob: dict[str, str], vision: str
) -> None:
    change(admin, vision, max_running=4)
    mine = admin.get("/v1/queue", headers=ann).json()
    (project,) = mine["projects"]
    assert (project["name"], project["running"], project["max_running"]) == (vision, 0, 4)
    assert project["share"]["raw_shares"] == 3
    assert mine["share"]["raw_shares"] == 1
    assert admin.get("/v1/queue", headers=bob).json()["projects"] == []
    assert [one["name"] for one in admin.get("/v1/usage").json()["projects"]] == [vision]


def test_changes_of_projects_are_in_the_audit_log(admin: TestClient, vision: str) -> None:
    change(admin, vision, max_running=4, open=False)
    newest, first = admin.get("/v1/audit", params={"object_id": vision}).json()["items"]
    assert (newest["action"], newest["details"]) == (
        "project.changed", {"max_running": 4, "open": False},
    )  # fmt: skip
    assert (first["action"], first["details"]["members"]) == ("project.added", ["ann"])


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"name": "vision"}, 409),
        ({"name": "Not a name"}, 422),
        ({"name": "new", "members": ["nobody"]}, 422),
        ({"name": "new", "shares": 0}, 422),
    ],
)
def test_wrong_projects_are_refused(
    admin: TestClient, vision: str, body: dict[str, Any], status: int
) -> None:
    assert admin.post("/v1/projects", json=body).status_code == status
    assert len(admin.get("/v1/projects").json()["items"]) == 1
