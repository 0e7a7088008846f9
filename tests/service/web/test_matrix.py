"""Permissions: each route is called as each kind of user.

A route that is missing in the matrix, or in the application, is an error.
"""

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from fastapi.testclient import TestClient
from sqlalchemy import select, update
from sqlalchemy.orm import Session
from uuid6 import uuid7

from service.accounts import accounts, projects
from service.accounts.models import ApiKey, Project, User
from service.app import create_app
from service.datasets.models import Dataset
from service.db.engine import Database
from service.experiments.models import Artifact, Experiment, Queue
from service.experiments.schemas import Submission
from service.operations.prepare import prepare
from service.queue import drains, workers
from service.queue.workers import Vitals
from service.settings import Settings
from service.sweeps import store as sweeps
from service.sweeps.models import Sweep
from service.sweeps.schemas import SweepSubmission
from service.ui.pages import PAGES
from service.vocabulary import ROLE_SCOPES, Role, Scope, Status, Visibility
from service.webhooks.models import Webhook
from tests.service.datasets.test_datasets import upload_spec
from tests.support import stored
from tests.support.ppca_spec import ppca_spec
from tests.support.servers import PostgreSQL
from tests.support.text_tables import stored_table

pytestmark = pytest.mark.usefixtures("inspected_here")

CALLERS = (
    "owner", "other", "shared", "in project", "in another", "former", "admin", "viewer", "no key",
    "revoked", "expired", "wrong scope",
)  # fmt: skip
"""Kinds of callers. They request an object that is private to its owner; for `shared`, another
member, it is shared with the lab, and for the next three with a project: they are a member of it,
of another project, and a former member of it. `revoked`, `expired` and `wrong scope` are keys of
the owner, or of an admin for routes that only admins may use."""
NOT_IN_PROJECT = ("other", "in another", "former")


@dataclass(frozen=True)
class Row:
    """A route, the request, and the status of the answer for each caller."""

    method: str
    path: str
    statuses: tuple[int, ...]
    body: dict[str, Any] | None = None
    status: Status = Status.QUEUED
    """Status of the experiment in the request."""
    query: dict[str, str] = field(default_factory=dict)
    scope: Scope | None = None
    """Required scope, if the method does not determine it."""

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def ids(self) -> set[str]:
        """Names of the objects in its path and its body."""
        return set(re.findall(r"{(\w+_id)}", f"{self.path} {self.body}"))


def row(method: str, path: str, statuses: str, **how: Any) -> Row:
    return Row(method, path, tuple(map(int, statuses.split())), **how)


SPEC = {"spec": ppca_spec()}
HOST, PROJECT = "drained", "vision"
TWO_POINTS = {"grid": {"seeds": [[4], [44]]}}
ONE, UPLOAD = "/v1/experiments/{experiment_id}", "/v1/datasets/{dataset_id}"
SWEEP = "/v1/sweeps/{sweep_id}"
# fmt: off
MATRIX = [
    # owner, other, shared, of the project, of another one, formerly of it, admin, viewer, and the
    # owner's keys: none, revoked, expired, without the scope
    row("GET", "/healthz",                  "200 200 200 200 200 200 200 200 200 200 200 200"),
    row("GET", "/readyz",                   "200 200 200 200 200 200 200 200 200 200 200 200"),
    row("GET", "/metrics",                  "200 200 200 200 200 200 200 200 401 401 401 403",
        scope=Scope.METRICS),
    row("POST", "/v1/experiments",          "202 202 202 202 202 202 202 403 401 401 401 403",
        body=SPEC),
    row("POST", "/v1/experiments:validate", "200 200 200 200 200 200 200 403 401 401 401 403",
        body=SPEC),
    row("POST", "/v1/experiments:batch",    "202 202 202 202 202 202 202 403 401 401 401 403",
        body={"experiments": [SPEC]}),
    row("GET", "/v1/experiments",           "200 200 200 200 200 200 200 200 401 401 401 403"),
    row("GET", ONE,                         "200 404 200 200 404 404 200 404 401 401 401 403"),
    row("PATCH", ONE,                       "200 404 403 403 404 404 200 403 401 401 401 403",
        body={"name": "new"}),
    row("DELETE", ONE,                      "204 404 403 403 404 404 204 403 401 401 401 403"),
    row("POST", f"{ONE}:cancel",            "202 404 403 403 404 404 202 403 401 401 401 403",
        scope=Scope.CANCEL),
    row("POST", f"{ONE}:pause",             "202 404 403 403 404 404 202 403 401 401 401 403",
        scope=Scope.CANCEL),
    row("POST", f"{ONE}:undelete",          "200 404 403 403 404 404 200 403 401 401 401 403",
        scope=Scope.CANCEL),
    row("POST", f"{ONE}:resume",            "202 404 403 403 404 404 202 403 401 401 401 403",
        status=Status.PAUSED, scope=Scope.CANCEL),
    row("POST", f"{ONE}:retry",             "202 404 403 403 404 404 202 403 401 401 401 403",
        status=Status.FAILED),
    row("GET", f"{ONE}/artifacts",          "200 404 200 200 404 404 200 404 401 401 401 403"),
    row("GET", ONE + "/artifacts/{name}",   "200 404 200 200 404 404 200 404 401 401 401 403"),
    row("GET", f"{ONE}/texts",              "200 404 200 200 404 404 200 404 401 401 401 403"),
    row("GET", f"{ONE}/bundle",             "200 404 200 200 404 404 200 404 401 401 401 403",
        status=Status.SUCCEEDED),
    row("GET", f"{ONE}/metrics",            "200 404 200 200 404 404 200 404 401 401 401 403"),
    row("GET", f"{ONE}/curves",             "200 404 200 200 404 404 200 404 401 401 401 403"),
    row("GET", ONE + "/curves/{series}",    "200 404 200 200 404 404 200 404 401 401 401 403"),
    row("GET", f"{ONE}/logs",               "200 404 200 200 404 404 200 404 401 401 401 403"),
    row("GET", f"{ONE}/events",             "200 404 200 200 404 404 200 404 401 401 401 403"),
    row("GET", f"{SWEEP}/events",           "200 404 200 200 404 404 200 404 401 401 401 403"),
    row("GET", "/v1/events",                "200 200 200 200 200 200 200 200 401 401 401 403"),
    row("POST", "/v1/curves:batchGet",      "200 404 200 200 404 404 200 404 401 401 401 403",
        body={"ids": ["{experiment_id}"]}, scope=Scope.READ),
    row("POST", "/v1/experiments:cancel",   "202 202 202 202 202 202 202 403 401 401 401 403",
        query={"status": "queued"}, scope=Scope.CANCEL),
    row("POST", "/v1/experiments:batchGet", "200 404 200 200 404 404 200 404 401 401 401 403",
        body={"ids": ["{experiment_id}"]}, scope=Scope.READ),
    row("POST", "/v1/sweeps",               "202 202 202 202 202 202 202 403 401 401 401 403",
        body={**SPEC, **TWO_POINTS}),
    row("GET", "/v1/sweeps",                "200 200 200 200 200 200 200 200 401 401 401 403"),
    row("GET", SWEEP,                       "200 404 200 200 404 404 200 404 401 401 401 403"),
    row("GET", f"{SWEEP}/table",            "200 404 200 200 404 404 200 404 401 401 401 403"),
    row("POST", f"{SWEEP}/points",          "202 404 403 403 404 404 202 403 401 401 401 403",
        body=TWO_POINTS),
    row("PATCH", SWEEP,                     "200 404 403 403 404 404 200 403 401 401 401 403",
        body={"name": "new"}),
    row("DELETE", SWEEP,                    "204 404 403 403 404 404 204 403 401 401 401 403"),
    row("POST", f"{SWEEP}:cancel",          "202 404 403 403 404 404 202 403 401 401 401 403",
        scope=Scope.CANCEL),
    row("POST", f"{SWEEP}:retry",           "202 404 403 403 404 404 202 403 401 401 401 403"),
    row("POST", "/v1/webhooks",             "201 201 201 201 201 201 201 403 401 401 401 403",
        body={"url": "https://example.org/"}),
    row("GET", "/v1/webhooks",              "200 200 200 200 200 200 200 200 401 401 401 403"),
    row("DELETE", "/v1/webhooks/{webhook_id}",
                                            "204 404 404 404 404 404 204 403 401 401 401 403"),
    row("POST", "/v1/datasets",             "201 201 201 201 201 201 201 403 401 401 401 403",
        query={"name": "a.txt"}),
    row("GET", "/v1/datasets",              "200 200 200 200 200 200 200 200 401 401 401 403"),
    row("GET", UPLOAD,                      "200 404 200 200 404 404 200 404 401 401 401 403"),
    row("PATCH", UPLOAD,                    "200 404 403 403 404 404 200 403 401 401 401 403",
        body={"visibility": "lab"}),
    row("DELETE", UPLOAD,                   "204 404 403 403 404 404 204 403 401 401 401 403"),
    row("GET", "/v1/presets",               "200 200 200 200 200 200 200 200 401 401 401 403"),
    row("GET", "/v1/presets:runs",          "200 200 200 200 200 200 200 200 401 401 401 403"),
    row("GET", "/v1/presets/{name}",        "200 200 200 200 200 200 200 200 401 401 401 403"),
    row("GET", "/v1/presets/{name}/verdict", "422 422 422 422 422 422 422 422 401 401 401 403",
        query={"experiment": "a"}),
    row("GET", "/v1/workers",               "200 200 200 200 200 200 200 200 401 401 401 403"),
    row("GET", "/v1/workers/history",       "200 200 200 200 200 200 200 200 401 401 401 403"),
    row("GET", "/v1/drains",                "200 200 200 200 200 200 200 200 401 401 401 403"),
    row("POST", "/v1/drains",               "403 403 403 403 403 403 201 403 401 401 401 403",
        body={"host": HOST}, scope=Scope.ADMIN),
    row("DELETE", "/v1/drains/{host}",      "403 403 403 403 403 403 204 403 401 401 401 403",
        scope=Scope.ADMIN),
    row("GET", "/v1/queue",                 "200 200 200 200 200 200 200 200 401 401 401 403"),
    row("GET", "/v1/usage",                 "403 403 403 403 403 403 200 403 401 401 401 403",
        scope=Scope.ADMIN),
    row("GET", "/v1/me",                    "200 200 200 200 200 200 200 200 401 401 401 200"),
    row("POST", "/v1/me/keys",              "404 404 404 404 404 404 404 404 401 401 401 403",
        body={"name": "laptop", "lasts_days": 1}, scope=Scope.READ),
    row("GET", "/v1/users",                 "403 403 403 403 403 403 200 403 401 401 401 403",
        scope=Scope.ADMIN),
    row("POST", "/v1/users",                "403 403 403 403 403 403 201 403 401 401 401 403",
        body={"name": "new"}, scope=Scope.ADMIN),
    row("PATCH", "/v1/users/{name}",        "403 403 403 403 403 403 200 403 401 401 401 403",
        body={"role": "member"}, scope=Scope.ADMIN),
    row("GET", "/v1/projects",              "200 200 200 200 200 200 200 200 401 401 401 403"),
    row("POST", "/v1/projects",             "403 403 403 403 403 403 201 403 401 401 401 403",
        body={"name": "new"}, scope=Scope.ADMIN),
    row("PATCH", "/v1/projects/{name}",     "403 403 403 403 403 403 200 403 401 401 401 403",
        body={"shares": 2}, scope=Scope.ADMIN),
    row("GET", "/v1/users/{name}/keys",     "200 404 404 404 404 404 200 404 401 401 401 403"),
    row("POST", "/v1/users/{name}/keys",    "403 403 403 403 403 403 201 403 401 401 401 403",
        body={"name": "laptop"}, scope=Scope.ADMIN),
    row("DELETE", "/v1/users/{name}/keys/{key_id}",
                                            "204 404 404 404 404 404 204 403 401 401 401 403"),
    row("GET", "/v1/audit",                 "403 403 403 403 403 403 200 403 401 401 401 403",
        scope=Scope.ADMIN),
    row("POST", "/v1/sign-in",              "204 204 204 204 204 204 204 204 401 401 401 204",
        body={"key": "{key}"}),
    row("POST", "/v1/sign-in:preview",      "401 401 401 401 401 401 401 401 401 401 401 401",
        body={"code": "none"}),
    row("POST", "/v1/sign-in:begin",        "404 404 404 404 404 404 404 404 404 404 404 404",
        body={}),
    row("POST", "/v1/sign-in:finish",       "404 404 404 404 404 404 404 404 404 404 404 404",
        body={"state": "none"}),
    row("POST", "/v1/sign-out",             "204 204 204 204 204 204 204 204 204 204 204 204"),
    row("POST", "/v1/sign-in-codes",        "201 201 201 201 201 201 201 201 401 401 401 201"),
    *(row("GET", page, "200 200 200 200 200 200 200 200 200 200 200 200")
      for page in [*PAGES, "/docs", "/help"]),
    row("GET", "/help/{name}",              "404 404 404 404 404 404 404 404 404 404 404 404"),
    row("GET", "/static/{edition}/{name}",
                                            "404 404 404 404 404 404 404 404 404 404 404 404"),
]
"""Pages contain no data, so anyone may load them; /help and /static have no page of that name. This
lab has no provider of accounts (tests/service/accounts/test_oidc.py has one)."""
# fmt: on


@dataclass(frozen=True)
class Lab:
    """The service with its users' keys, and the owner's objects."""

    api: TestClient
    database: Database
    settings: Settings
    keys: dict[str, str]

    def objects(
        self, ids: set[str], visibility: Visibility, status: Status = Status.QUEUED
    ) -> dict[str, str]:
        """New objects of the owner for these names, by name."""
        with self.database.transaction() as session:
            owner = accounts.find(session, "owner")
            assert owner is not None
            return {id_: self._object(session, owner, id_, visibility, status) for id_ in ids}

    def _object(
        self, session: Session, owner: User, id_: str, visibility: Visibility, status: Status
    ) -> str:
        made: Experiment | Dataset | Sweep | ApiKey | Webhook
        match id_:
            case "experiment_id":
                made = stored.submit(session, owner.id, Submission.model_validate(SPEC))
                made.status = status
                session.add(_artifact(self.settings, made.id))
                folder = self.settings.artifacts(made.id, 1)
                session.add(stored_table(folder, [{"row": 0, "text": "a"}], made.id))
            case "dataset_id":
                session.add(made := _upload(owner.id))
            case "key_id":
                scopes = ROLE_SCOPES[Role.MEMBER]
                made, _ = accounts.add_key(session, owner, name=None, scopes=scopes, lasts_s=None)
            case "sweep_id":
                submission = SweepSubmission.model_validate({**SPEC, **TWO_POINTS})
                made = sweeps.add(session, sweeps.new(owner.id, submission))
            case "webhook_id":
                hook = {"owner_id": owner.id, "url": "", "secret": "", "statuses": "failed"}
                session.add(made := Webhook(id=uuid7().hex, **hook))
            case _:
                raise ValueError(id_)
        if isinstance(made, Experiment | Dataset | Sweep):
            made.visibility = visibility
            if visibility == Visibility.PROJECT:
                made.project_id = session.scalars(select(Project.id).filter_by(name=PROJECT)).one()
        return made.id


def _artifact(settings: Settings, experiment_id: str) -> Artifact:
    folder = settings.artifacts(experiment_id, 1)
    folder.mkdir(parents=True)
    (folder / "a.txt").write_bytes(b"")
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    columns = {"file": "a.txt", "attempt": 1, "seq": 1, "media_type": "text/plain"}
    return Artifact(experiment_id=experiment_id, sha256=empty, **columns)


def _upload(owner_id: int) -> Dataset:
    upload_id = uuid7().hex
    columns = {"name": "a.npy", "format": "npy", "bytes": 1, "n": 10, "dim": 4}
    return Dataset(id=upload_id, owner_id=owner_id, sha256=upload_id, **columns)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """On either database, one for all routes."""
    settings = _settings(request, tmp_path_factory)
    with closing(Database(settings.url)) as database:
        keys = _keys(database)
        with TestClient(create_app(settings), raise_server_exceptions=False) as api:
            yield Lab(api, database, settings, keys)


def _settings(request: pytest.FixtureRequest, folders: pytest.TempPathFactory) -> Settings:
    url = None
    if request.param == "postgresql":
        server: PostgreSQL = request.getfixturevalue("postgresql")
        name = f"matrix_{uuid7().hex}"
        server.create(name, template="prepared")
        url = server.url(name)
    settings = Settings(store=folders.mktemp("matrix") / "store", database_url=url)
    prepare(settings)
    return settings


def _keys(database: Database) -> dict[str, str]:
    """A key of each kind of caller, by its name."""
    made: dict[str, str] = {}
    with database.transaction() as session:

        def key(kind: str, user: User, scopes: tuple[Scope, ...] | None = None) -> ApiKey:
            scopes = ROLE_SCOPES[Role(user.role)] if scopes is None else scopes
            row, made[kind] = accounts.add_key(
                session, user, name=kind, scopes=scopes, lasts_s=1000.0
            )
            return row

        users = {role: accounts.add(session, f"a-{role}", role) for role in Role}
        owner, other = (accounts.add(session, name, Role.MEMBER) for name in ("owner", "other"))
        assert owner is not None
        assert other is not None
        of_project: dict[str, Project] = {}
        for caller, name in {
            "in project": PROJECT, "in another": "speech", "former": PROJECT
        }.items():  # fmt: skip
            user = accounts.add(session, caller.replace(" ", "-"), Role.MEMBER)
            assert user is not None
            project = of_project.get(name) or projects.add(session, name)
            assert project is not None
            of_project[name] = project
            projects.change_members(session, project, [user, owner], [])
            if caller == "former":
                projects.change_members(session, project, [], [user])
            key(caller, user)
        key("owner", owner)
        key("other", other)
        key("shared", other)
        for kind in (Role.ADMIN, Role.VIEWER):
            user = users[kind]
            assert user is not None
            key(kind, user)
        revoked = key("revoked", owner)
        accounts.revoke(session, owner, revoked.id)
        expired = key("expired", owner)
        ago = ApiKey.expires_at - 2000.0
        session.execute(update(ApiKey).where(ApiKey.id == expired.id).values(expires_at=ago))
        for scope in Scope:
            # All that the user's role allows, but this.
            user = users[Role.ADMIN] if scope == Scope.ADMIN else owner
            assert user is not None
            key(f"all but {scope}", user, tuple(one for one in Scope if one != scope))
    return made


def routes(app: FastAPI) -> set[str]:
    """Every method and path that the application answers, in its document or not."""
    return {
        f"{method} {route.path_format}"
        for route in iter_route_contexts(app.routes)
        for method in route.methods or {"any method of"}
    }


def test_every_route_has_a_row(lab: Lab) -> None:
    app = lab.api.app
    assert isinstance(app, FastAPI)
    contract = {"GET /openapi.json", "HEAD /openapi.json"}
    assert {one.name for one in MATRIX} | contract == routes(app)


@pytest.mark.parametrize("one", MATRIX, ids=lambda one: one.name)
def test_a_route_answers_each_caller_as_the_matrix_says(lab: Lab, one: Row) -> None:
    """HEAD is answered as GET."""
    for method in ("GET", "HEAD") if one.method == "GET" else (one.method,):
        statuses = {caller: ask(lab, one, caller, method) for caller in CALLERS}
        assert statuses == dict(zip(CALLERS, one.statuses, strict=True)), method


BY_METHOD = {
    "GET": Scope.READ,
    "POST": Scope.SUBMIT,
    "PATCH": Scope.SUBMIT,
    "DELETE": Scope.CANCEL,
}


SHARED = {
    "shared": Visibility.LAB,
    **dict.fromkeys(("in project", "in another", "former"), Visibility.PROJECT),
}
"""Visibility of the objects that a caller requests, if it is not private."""


def ask(lab: Lab, one: Row, caller: str, method: str) -> int:
    objects = lab.objects(one.ids, SHARED.get(caller, Visibility.PRIVATE), one.status)
    path = one.path.format_map(_Names(objects))
    if one.path.startswith("/v1/presets/"):
        path = path.replace("a.txt", "table1")
    if one.path.startswith("/v1/projects/"):
        path = path.replace("a.txt", PROJECT)
    if one.path.startswith("/v1/users/"):
        path = path.replace("a.txt", "owner")
    if "/v1/drains" in one.path:
        path = path.replace("a.txt", HOST)
        with lab.database.transaction() as session:
            workers.beat(session, f"{HOST}:1", Vitals(HOST, Queue.CPU, 1))
            drains.drain(session, HOST, "a-admin")
    kind = f"all but {one.scope or BY_METHOD[one.method]}" if caller == "wrong scope" else caller
    key = "" if kind == "no key" else lab.keys[kind]
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    headers["Sec-Fetch-Site"] = "same-origin"
    body: dict[str, Any] = (
        {} if one.body is None else {"json": _fresh(one.body, {**objects, "key": key})}
    )
    if one.path == "/v1/datasets" and one.method == "POST":
        body = {"content": caller.encode()}
    answer = lab.api.request(method, path, params=one.query, headers=headers, **body)
    lab.api.cookies.clear()
    return answer.status_code


class _Names(dict[str, str]):
    """Names for the path parameters; others name the owner's file and series."""

    def __missing__(self, name: str) -> str:
        return {"series": "score", "edition": "0"}.get(name, "a.txt")


def _fresh(body: dict[str, Any], objects: dict[str, str]) -> dict[str, Any]:
    """No two users have one name."""
    if body == {"ids": ["{experiment_id}"]}:
        return {"ids": [objects["experiment_id"]]}
    if body == {"key": "{key}"}:
        return {"key": objects["key"]}
    return {**body, "name": f"new-{uuid7().hex}"} if body == {"name": "new"} else body


@pytest.mark.parametrize(
    "one",
    [one for one in MATRIX if one.path.startswith("/v1/") and "_id}" in one.path],
    ids=lambda one: one.name,
)
@pytest.mark.parametrize("caller", NOT_IN_PROJECT)
def test_things_of_others_are_not_found(lab: Lab, one: Row, caller: str) -> None:
    """The answer to another member is the same, word for word."""
    there = lab.objects(one.ids, SHARED.get(caller, Visibility.PRIVATE), one.status)
    nowhere = {name: "0" * (16 if name == "key_id" else 32) for name in there}
    answers = []
    for names in (there, nowhere):
        path = one.path.format_map(_Names({**names, "series": "score", "name": "owner"}))
        headers = {"Authorization": f"Bearer {lab.keys[caller]}"}
        answer = lab.api.request(one.method, path, headers=headers, json=one.body)
        assert answer.status_code == 404
        text = answer.text
        for name, value in names.items():
            text = text.replace(value, name)
        answers.append(text.replace(answer.json()["request_id"], ""))
    assert answers[0] == answers[1]


def test_a_viewer_reads_shared_experiments(lab: Lab) -> None:
    headers = {"Authorization": f"Bearer {lab.keys['viewer']}"}
    ids = {"experiment_id", "dataset_id"}
    one, hidden = (lab.objects(ids, of) for of in (Visibility.LAB, Visibility.PRIVATE))
    for place, name in (("experiments", "experiment_id"), ("datasets", "dataset_id")):
        assert lab.api.get(f"/v1/{place}/{one[name]}", headers=headers).json()["owner"] == "owner"
        listed = lab.api.get(f"/v1/{place}?whose=lab&limit=500", headers=headers).json()["items"]
        assert one[name] in [item["id"] for item in listed]
        assert hidden[name] not in [item["id"] for item in listed]
        assert {item["visibility"] for item in listed} == {"lab"}
        assert lab.api.get(f"/v1/{place}", headers=headers).json()["items"] == []
        assert lab.api.get(f"/v1/{place}?whose=all", headers=headers).status_code == 422


def listed(lab: Lab, caller: str, path: str, **query: str) -> list[str]:
    headers = {"Authorization": f"Bearer {lab.keys[caller]}"}
    answer = lab.api.get(path, params={"limit": "500", **query}, headers=headers)
    assert answer.status_code == 200, answer.text
    return [item["id"] for item in answer.json()["items"]]


@pytest.mark.parametrize("kind", ["experiment", "sweep", "dataset"])
def test_lists_have_the_things_of_projects_for_their_members(lab: Lab, kind: str) -> None:
    """Also those of a closed project. Admins list them with those of everyone."""
    one = lab.objects({f"{kind}_id"}, Visibility.PROJECT)[f"{kind}_id"]
    hidden = lab.objects({f"{kind}_id"}, Visibility.PRIVATE)[f"{kind}_id"]
    with lab.database.transaction() as session:
        session.execute(update(Project).where(Project.name == PROJECT).values(closed_at=1.0))
    path = f"/v1/{kind}s"
    try:
        assert one in listed(lab, "in project", path, whose="project")
    finally:
        with lab.database.transaction() as session:
            session.execute(update(Project).values(closed_at=None))
    assert hidden not in listed(lab, "in project", path, whose="project")
    for caller in ("in project", *NOT_IN_PROJECT):
        for whose in ("mine", "lab", *(["project"] if caller in NOT_IN_PROJECT else [])):
            assert one not in listed(lab, caller, path, whose=whose)
    assert {one, hidden} <= {*listed(lab, "owner", path)}
    assert one in listed(lab, "admin", path, whose="all")


def test_filters_find_the_experiments_of_a_project_for_its_members(lab: Lab) -> None:
    one = lab.objects({"experiment_id"}, Visibility.PROJECT)["experiment_id"]
    own = lab.objects({"experiment_id"}, Visibility.LAB)["experiment_id"]

    def found(caller: str, text: str, whose: str = "project") -> list[str]:
        return listed(lab, caller, "/v1/experiments", filter=text, whose=whose)

    assert one in found("in project", f"project = {PROJECT}")
    assert one in found("in project", "project != speech and visibility = project")
    assert one not in found("in project", "project = speech")
    assert one in found("in project", "project != unknown")
    assert one not in found("in project", "project = unknown")
    assert one not in found("in project", "project = null")
    assert own in found("in project", "project = null", "lab")
    assert own not in found("in project", "project != null", "lab")
    for caller in NOT_IN_PROJECT:
        for whose in ("mine", "project", "lab"):
            assert one not in found(caller, f"project = {PROJECT}", whose)
            assert one not in found(caller, f'id = "{one}"', whose)


def sent(lab: Lab, caller: str, body: dict[str, Any], verb: str = "") -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {lab.keys[caller]}"}
    answer = lab.api.post(f"/v1/experiments{verb}", json=body, headers=headers)
    return answer.status_code, answer.json()


def test_only_members_refer_to_the_things_of_a_project(lab: Lab) -> None:
    """To others they are as unknown as what does not exist."""
    things = lab.objects({"experiment_id", "dataset_id"}, Visibility.PROJECT)
    unknown = dict.fromkeys(things, "0" * 32)

    def bodies(ids: dict[str, str]) -> list[dict[str, Any]]:
        return [
            {**SPEC, "cache": False, "after": [ids["experiment_id"]]},
            {"spec": upload_spec(ids["dataset_id"]), "cache": False},
        ]

    for body, nowhere in zip(bodies(things), bodies(unknown), strict=True):
        assert sent(lab, "in project", body)[0] == 202
        for caller in NOT_IN_PROJECT:
            for verb in ("", ":validate"):
                refused, alike = (sent(lab, caller, one, verb) for one in (body, nowhere))
                assert refused[0] == alike[0] == 422
                assert refused[1]["errors"] == alike[1]["errors"]


def test_only_members_get_the_results_of_a_project_from_the_cache(lab: Lab) -> None:
    body = {"spec": ppca_spec(seeds=[77])}
    status, one = sent(lab, "owner", {**body, "project": PROJECT})
    assert (status, one["visibility"]) == (202, "project")
    with lab.database.transaction() as session:
        session.get_one(Experiment, one["id"]).status = Status.SUCCEEDED
    for caller in NOT_IN_PROJECT:
        assert sent(lab, caller, body, ":validate")[1]["cached_from"] is None
        status, made = sent(lab, caller, body)
        assert (status, made["cached_from"]) == (202, None)
    assert sent(lab, "in project", body)[1]["cached_from"] == one["id"]
