"""The OpenAPI document: its statements about each field and answer, compared with real answers."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import TypeAdapter

from mptcore.specs import validate_spec
from service.accounts import projects
from service.accounts.users import ensure_key
from service.app import create_app
from service.datasets.models import Dataset
from service.db.engine import Database
from service.experiments.models import Artifact, Event, Queue
from service.experiments.schemas import Changes, Submission
from service.queue import drains, workers
from service.queue.workers import Vitals
from service.records.schemas import CurvesWanted
from service.settings import Settings
from service.submission.requests import Batch
from service.sweeps.expansion import with_values
from service.sweeps.models import Sweep
from service.sweeps.schemas import MorePoints, SweepChanges, SweepSubmission
from service.vocabulary import Status
from service.web.contract import EXAMPLES
from service.webhooks.models import Webhook
from service.webhooks.schemas import NewWebhook
from tests.support.attempts import submitted
from tests.support.ppca_spec import ppca_spec
from tests.support.stored import change
from tests.support.text_tables import stored_table

pytestmark = pytest.mark.usefixtures("inspected_here")

PROBLEM = "application/problem+json"


@pytest.fixture(scope="module")
def document(prepared_store: Any) -> dict[str, Any]:
    return create_app(Settings(store=prepared_store, database_url=None)).openapi()


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def test_every_field_and_parameter_is_described(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    bare = [
        f"{name}.{field}"
        for name, schema in schemas.items()
        for field, about in schema.get("properties", {}).items()
        if not about.get("description")
    ]
    bare += [
        f"{name} ?{parameter['name']}"
        for name, operation in operations(document)
        for parameter in operation.get("parameters", ())
        if not parameter.get("description")
    ]
    assert bare == []
    assert len(schemas) > 50


def test_every_error_response_is_a_problem_document(document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        for status, response in operation["responses"].items():
            if status[0] in "45":
                assert [*response["content"]] == [PROBLEM], (name, status)
                schema = response["content"][PROBLEM]["schema"]
                assert schema == {"$ref": "#/components/schemas/ProblemDocument"}


def test_every_link_leads_to_an_operation(document: dict[str, Any]) -> None:
    """The operation accepts the parameter of the link."""
    by_id = {operation["operationId"]: operation for _, operation in operations(document)}
    made = set()
    for name, operation in operations(document):
        for response in operation["responses"].values():
            for link in response.get("links", {}).values():
                made.add(name)
                ((parameter, value),) = link["parameters"].items()
                assert value == "$response.body#/id"
                takes = by_id[link["operationId"]]["parameters"]
                assert parameter in [one["name"] for one in takes]
    assert made == {
        "POST /v1/experiments",
        "POST /v1/experiments/{experiment_id}:retry",
        "POST /v1/sweeps",
        "POST /v1/datasets",
    }


def test_every_body_has_an_example_that_its_schema_accepts(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    taken = {
        operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].split("/")[-1]
        for _, operation in operations(document)
        if "application/json" in operation.get("requestBody", {}).get("content", {})
    }
    models = (Submission, Changes, CurvesWanted, Batch, SweepSubmission, MorePoints, SweepChanges,
              NewWebhook)  # fmt: skip
    assert {model.__name__ for model in models} <= taken
    assert [name for name in taken if not schemas[name].get("examples")] == []
    for model in models:
        for example in schemas[model.__name__]["examples"]:
            TypeAdapter(model).validate_python(example)


def test_the_examples_of_sweeps_make_specs() -> None:
    (more,) = map(MorePoints.model_validate, EXAMPLES["MorePoints"])
    for sweep in map(SweepSubmission.model_validate, EXAMPLES["SweepSubmission"]):
        for point in (*sweep.points(), *more.points()):
            validate_spec(with_values(sweep.spec, point.values))


def promised(document: dict[str, Any]) -> set[tuple[str, str, str]]:
    """Each operation with each status and media type of success."""
    return {
        (name, status, media_type)
        for name, operation in operations(document)
        for status, response in operation["responses"].items()
        if status[0] in "23"
        for media_type in response.get("content") or [""]
    }


SPEC = {"spec": ppca_spec()}
ONE = "/v1/experiments/{experiment_id}"
SWEEP = "/v1/sweeps/{sweep_id}"
STREAM = {"Accept": "text/event-stream"}
TAKES: dict[str, list[dict[str, Any]]] = {
    "POST /v1/experiments": [{"json": SPEC}, {"json": SPEC, "computed": True}],
    "POST /v1/experiments:batch": [{"json": {"experiments": [SPEC]}}],
    "POST /v1/experiments:validate": [{"json": SPEC}],
    f"GET {ONE}": [{}, {"known": True}],
    f"GET {ONE}/metrics": [{}, {"known": True}],
    f"GET {ONE}/bundle": [{"status": Status.SUCCEEDED}],
    f"GET {ONE}/curves": [{}, {"known": True}, {"form": "csv"}, {"form": "arrow"}],
    f"GET {ONE}/curves/{{series}}": [{}, {"known": True}, {"form": "csv"}, {"form": "arrow"}],
    f"GET {ONE}/logs": [{}, {"form": "text"}],
    f"GET {ONE}/texts": [{}, {"form": "csv"}],
    f"GET {ONE}/events": [{}, {"status": Status.CANCELLED, "headers": STREAM}],
    f"GET {SWEEP}/events": [{}, {"status": Status.CANCELLED, "headers": STREAM}],
    f"PATCH {ONE}": [{"json": {"name": "new"}}],
    f"POST {ONE}:retry": [{"status": Status.FAILED}],
    f"POST {ONE}:resume": [{"status": Status.PAUSED}],
    "POST /v1/experiments:batchGet": [{"ids": True}],
    "POST /v1/experiments:cancel": [{"params": {"status": "queued"}}],
    "POST /v1/curves:batchGet": [{"ids": True}, {"ids": True, "form": "csv"},
                                 {"ids": True, "form": "arrow"}],
    "POST /v1/sweeps": [{"json": {**SPEC, "grid": {"seeds": [[4], [44]]}}}],
    f"PATCH {SWEEP}": [{"json": {"name": "new"}}],
    f"GET {SWEEP}/table": [{}, {"form": "csv"}],
    f"POST {SWEEP}/points": [{"json": {"list": [{"seeds": [7]}]}}],
    "POST /v1/webhooks": [{"json": {"url": "https://example.org/"}}],
    "POST /v1/datasets": [{"content": b"a line\n"}, {"content": b"a line\n"}],
    "PATCH /v1/datasets/{dataset_id}": [{"json": {"visibility": "lab"}}],
    "GET /v1/presets/{name}/verdict": [{"verdict": True}],
    "POST /v1/drains": [{"json": {"host": "gpu3"}}],
    "POST /v1/users": [{"json": {"name": "new"}}],
    "PATCH /v1/users/{name}": [{"json": {"role": "viewer"}}],
    "POST /v1/projects": [{"json": {"name": "new"}}],
    "PATCH /v1/projects/{name}": [{"json": {"shares": 3}}],
    "POST /v1/users/{name}/keys": [{"json": {"name": "laptop"}}],
    "POST /v1/sign-in": [{"sign_in": True, "own_page": True}],
    "POST /v1/sign-in:preview": [{"code": True, "own_page": True}],
    "POST /v1/me/keys": [{"json": {"name": "laptop", "lasts_days": 1}}],
    "POST /v1/sign-in:begin": [{"json": {}, "own_page": True}],
    "POST /v1/sign-in:finish": [{"json": {"state": "a"}, "own_page": True}],
    "POST /v1/sign-out": [{"own_page": True}],
}  # fmt: skip
"""Requests for each operation besides the path; operations that are missing here send nothing."""
NEVER = {
    ("GET /v1/presets/{name}/verdict", "200", "application/json"),
    ("GET /v1/events", "200", "text/event-stream"),
    ("POST /v1/sign-in:begin", "200", "application/json"),
    ("POST /v1/sign-in:finish", "204", ""),
    ("POST /v1/me/keys", "201", "application/json"),
}
"""Tested elsewhere: answers of finished runs (tests/service/presets/test_presets.py), endless
ones (tests/service/events), and those with a provider (tests/service/accounts/test_oidc.py)."""
NEED_PROVIDER = {name for name, _, _ in NEVER if name.startswith("POST")}


def test_every_documented_answer_is_given(
    api: TestClient, database: Database, settings: Settings, document: dict[str, Any]
) -> None:
    """No other answer is given: each operation is tested for all documented answers."""
    given: set[tuple[str, str, str]] = set()
    for name, operation in operations(document):
        for how in TAKES.get(name, [{}]):
            answer = ask(api, database, settings, name, dict(how))
            if name == "GET /v1/presets/{name}/verdict":
                assert answer.status_code == 422
                continue
            if name in NEED_PROVIDER:
                assert answer.status_code == 404
                continue
            media_type = answer.headers.get("content-type", "").partition(";")[0]
            if not answer.content:
                media_type = ""
            if name.endswith("/artifacts/{name}"):
                assert media_type == "text/plain"  # as it was recorded
                media_type = "*/*"
            status = str(answer.status_code)
            assert status in operation["responses"], (name, status, answer.text)
            given.add((name, status, media_type))
    assert given == promised(document) - NEVER


def ask(
    api: TestClient, database: Database, settings: Settings, name: str, how: dict[str, Any]
) -> Any:
    method, path = name.split()
    names = made(database, settings, how.pop("status", Status.QUEUED))
    url = re.sub(r"\{(\w+)\}", lambda part: names[part[1]], path)
    if path.startswith("/v1/presets/"):
        url = url.replace("a.txt", "table1")
    if path.startswith("/v1/projects/"):
        url = url.replace("a.txt", "vision")
    if path.startswith("/v1/users/"):
        url = url.replace("a.txt", "other")
    params: dict[str, str] = dict(how.pop("params", {}))
    if name == "POST /v1/datasets":
        params["name"] = "b.txt"
    if how.pop("computed", False):
        before = api.post("/v1/experiments", json=SPEC).json()
        change(database, before["id"], status=Status.SUCCEEDED)
    if form := how.pop("form", None):
        params["format"] = form
    if how.pop("verdict", False):
        params["experiment"] = names["experiment_id"]
    if how.pop("ids", False):
        how["json"] = {"ids": [names["experiment_id"]]}
    headers = how.pop("headers", {})
    if how.pop("known", False):
        headers = {"If-None-Match": "*"}
    if how.pop("own_page", False):
        headers = {"Sec-Fetch-Site": "same-origin"}
    if how.pop("sign_in", False):
        how["json"] = {"key": settings.key_file.read_text().strip()}
    if how.pop("code", False):
        how["json"] = {"code": api.post("/v1/sign-in-codes").json()["code"]}
    return api.request(method, url, params=params, headers=headers, **how)


def made(database: Database, settings: Settings, status: Status) -> dict[str, str]:
    """An experiment with a file, a sweep, an upload, another user and its key, and a drained
    machine."""
    experiment_id = submitted(database)
    change(database, experiment_id, status=status)
    folder = settings.artifacts(experiment_id, 1)
    folder.mkdir(parents=True)
    (folder / "a.txt").write_bytes(b"a")
    sha256 = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"
    columns = {"file": "a.txt", "attempt": 1, "seq": 1, "media_type": "text/plain"}
    table = stored_table(folder, [{"row": 0, "text": "a", "pll": -1.5}], experiment_id)
    key_file = settings.store / f"key-{experiment_id}"
    with database.transaction() as session:
        session.add(Artifact(experiment_id=experiment_id, sha256=sha256, **columns))
        session.add(table)
        line = {"level": "info", "message": "begun"}
        session.add(Event(experiment_id=experiment_id, kind="log", seq=1, data=line))
        other, _ = ensure_key(session, "other", key_file)
        projects.add(session, "vision")
        session.add(Sweep(id=experiment_id, owner_id=1, tags=[], priority=0, spec=ppca_spec(),
                          fields=[], comes_after=[]))  # fmt: skip
        hook = {"owner_id": other.id, "url": "", "secret": "", "statuses": "failed"}
        session.add(Webhook(id=experiment_id, **hook))
        workers.beat(session, "gpu3:1", Vitals("gpu3", Queue.CPU, 1))
        drains.drain(session, "gpu3", "local")
        session.add(Dataset(id=experiment_id, owner_id=1, name="a", format="npy", bytes=1,
                            sha256=experiment_id, n=1, dim=1))  # fmt: skip
    return {
        "experiment_id": experiment_id,
        "sweep_id": experiment_id,
        "webhook_id": experiment_id,
        "dataset_id": experiment_id,
        "key_id": key_file.read_text().split("_")[1],
        "name": "a.txt",
        "host": "gpu3",
        "series": "score",
    }
