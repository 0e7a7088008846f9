"""The routes, on experiments that a real supervisor need not run."""

import re
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import event

from service.accounts.users import ensure_key
from service.app import create_app
from service.db.engine import Database
from service.experiments.models import Metric, Queue
from service.queue import lease, workers
from service.queue.workers import Vitals
from service.records.recording import Batch, record
from service.settings import Settings
from service.vocabulary import Status
from tests.support.attempts import claim_next
from tests.support.ppca_spec import ppca_spec

OPEN = {"/healthz", "/readyz", "/v1/sign-in", "/v1/sign-in:preview", "/v1/sign-out"}


def submit(api: TestClient, **beside: object) -> str:
    answer = api.post("/v1/experiments", json={"spec": ppca_spec(), **beside})
    assert answer.status_code == 202
    experiment_id: str = answer.json()["id"]
    assert answer.headers["location"] == f"/v1/experiments/{experiment_id}"
    return experiment_id


def points(count: int, first: int = 1) -> Batch:
    batch = Batch()
    for i in range(first, first + count):
        batch.add(
            {
                "seq": i,
                "record": "point",
                "series": "score",
                "labels": {"seed": 4 + i % 2},
                "x": i,
                "value": None if i == 5 else -i / 10,
                "std_err": None,
                "n": 1,
                "reason": "value is nan" if i == 5 else "one draw",
            }
        )
    return batch


def test_no_route_without_authorisation(api: TestClient) -> None:
    app = api.app
    assert isinstance(app, FastAPI)
    api.headers.pop("Authorization")
    answered = {
        path
        for path, methods in app.openapi()["paths"].items()
        for method in methods
        if api.request(method, re.sub("[{}]", "", path), json={}).status_code != 401
    }
    assert answered == OPEN


def test_health(api: TestClient) -> None:
    assert api.get("/healthz").json() == {"status": "ok"}
    assert api.get("/readyz").json() == {"status": "ready", "warnings": []}


def test_a_full_disk_of_the_store_is_a_warning(settings: Settings) -> None:
    """The service stays ready: reading and deleting go on."""
    full = settings.model_copy(update={"reserve_bytes": 2**60})
    with TestClient(create_app(full)) as api:
        ready = api.get("/readyz")
    assert ready.status_code == 200
    (warning,) = ready.json()["warnings"]
    assert "MPT_RESERVE_BYTES" in warning


def test_the_contract_describes_the_spec_of_each_family_and_every_error(api: TestClient) -> None:
    contract = api.get("/openapi.json").json()
    schemas = contract["components"]["schemas"]
    families = [one["properties"].get("family", {}).get("const") for one in schemas.values()
                if "properties" in one]  # fmt: skip
    assert {*families} - {None} == {
        "ppca", "factor_analysis", "linear_vae", "vae", "masked_lm",
    }  # fmt: skip
    assert set(schemas["ProblemDocument"]["required"]) >= {"status", "detail", "reason", "errors"}
    for path, methods in contract["paths"].items():
        for method, operation in methods.items():
            error = operation["responses"]["4XX"]["content"]["application/problem+json"]["schema"]
            assert error == {"$ref": "#/components/schemas/ProblemDocument"}, (method, path)


def test_an_experiment_from_submission_to_curves(api: TestClient, database: Database) -> None:
    first, second = submit(api, name="one"), submit(api, name="two", tags=["a"], note="b")
    waiting = api.get(f"/v1/experiments/{second}").json()
    assert waiting["status"] == "queued"
    no_worker = "no CPU worker is registered"
    assert waiting["queue"] == {
        "position": 1,
        "reason": no_worker,
        "blocked": True,
        "estimated_start": None,
        "estimate": no_worker,
    }
    assert waiting["spec"]["model"]["family"] == "ppca"
    with database.transaction() as session:
        workers.beat(session, "w", Vitals("host", Queue.CPU, 1))
    assert api.get(f"/v1/experiments/{second}").json()["queue"]["reason"] == "1 before it"

    claim = claim_next(database)
    assert claim.experiment_id == first
    batch = points(9)
    batch.add({"seq": 10, "record": "metric", "name": "lml", "labels": {"seed": 4},
               "value": -1.5, "std_err": 0.0})  # fmt: skip
    batch.add({"seq": None, "record": "progress", "done": 3, "total": 6, "unit": "masks"})
    with database.transaction() as session:
        record(session, claim, batch, lease_s=60)
    running = api.get(f"/v1/experiments/{first}").json()
    assert running["status"] == "running"
    assert {"done": 3, "total": 6, "unit": "masks"}.items() <= running["progress"].items()
    assert running["metrics"] == [
        {"name": "lml", "labels": {"seed": 4}, "value": -1.5, "std_err": 0.0, "reason": None}
    ]

    curves = api.get(f"/v1/experiments/{first}/curves").json()
    assert curves["last_seq"] == 10
    odd, even = curves["series"]
    assert (odd["labels"], even["labels"]) == ({"seed": 5}, {"seed": 4})
    assert odd["x"] == [1, 3, 5, 7, 9]
    assert odd["value"] == [-0.1, -0.3, None, -0.7, -0.9]
    assert odd["reasons"][1:3] == ["one draw", "value is nan"]
    assert odd["total_points"] == 5
    assert not odd["sampled"]
    only = api.get(f"/v1/experiments/{first}/curves/score?seed=4").json()["series"]
    assert only == [even]
    sampled = api.get(f"/v1/experiments/{first}/curves?max_points=4").json()
    assert [one["x"] for one in sampled["series"]] == [[1, 9], [2, 8]]
    assert [one["sampled"] for one in sampled["series"]] == [True, True]
    assert (sampled["sampled"], sampled["total_points"], sampled["partial"]) == (True, 9, True)
    assert api.get(f"/v1/experiments/{first}/curves?after=10").json()["series"] == []


def test_unknown_series_and_labels(api: TestClient, database: Database) -> None:
    """A series that may still come is empty while the run continues, and missing after its end."""
    experiment_id = submit(api)
    claim = claim_next(database)

    def ask(query: str) -> tuple[int, str]:
        answer = api.get(f"/v1/experiments/{experiment_id}/curves/{query}")
        body = answer.json()
        return answer.status_code, body["detail"] if answer.is_error else str(len(body["series"]))

    assert ask("score?seed=4") == (200, "0")
    assert ask("scores")[0] == 404
    assert "score, score_by_rate" in ask("scores")[1]
    assert ask("score?sed=4")[0] == 422
    with database.transaction() as session:
        record(session, claim, points(9), lease_s=60)
    assert ask("score?seed=4") == (200, "1")
    assert ask("score?seed=77") == (200, "0")
    assert ask("loss") == (200, "0")
    assert ask("score?seed=4&seed=5") == (200, "2")
    assert ask("score?model=x&seed=4") == (
        422,
        "/query/model: not a label of the series score: there are seed",
    )
    with database.transaction() as session:
        lease.finish(session, claim, Status.SUCCEEDED)
    assert ask("score?seed=4") == (200, "1")
    assert ask("score?seed=77") == (
        404,
        "no series score has seed=77: there are seed=5; seed=4",
    )
    assert ask("loss") == (404, "there is no series loss: the series are score")


def test_no_route_ignores_a_query_parameter(api: TestClient) -> None:
    app = api.app
    assert isinstance(app, FastAPI)
    own_page = {"Sec-Fetch-Site": "same-origin"}  # which sign-in asks for first
    checked = 0
    for path, methods in app.openapi()["paths"].items():
        for method in methods:
            url = re.sub(r"\{\w+\}", "a", path)
            answer = api.request(method, f"{url}?colour=1", json={}, headers=own_page)
            if "{experiment_id}/curves" in path:
                assert answer.status_code == 404  # there is no experiment a
            else:
                assert answer.status_code == 422, (method, path)
                pointers = [error["pointer"] for error in answer.json()["errors"]]
                assert pointers == ["/query/colour"], (method, path)
            checked += 1
    assert checked >= 20
    detail = api.get("/v1/experiments?stauts=failed").json()["detail"]
    assert "did you mean status? the parameters are created_after, created_before, " in detail


def test_a_retry_sent_again_is_one_retry(api: TestClient) -> None:
    first, second = submit(api), submit(api)
    for one in (first, second):
        api.post(f"/v1/experiments/{one}:cancel")
    headers = {"Idempotency-Key": "again"}
    made = [api.post(f"/v1/experiments/{first}:retry", headers=headers).json() for _ in range(2)]
    assert made[0]["id"] == made[1]["id"]
    assert made[0]["retry_of"] == first
    other = api.post(f"/v1/experiments/{second}:retry", headers=headers)
    assert (other.status_code, other.json()["reason"]) == (409, "idempotency_key_reused")
    assert len(api.get("/v1/experiments").json()["items"]) == 3


@pytest.mark.parametrize(
    ("given", "kept"),
    [("a-1_b.c", True), ("x" * 128, True), ("x" * 129, False), ("a b", False), ('a"}', False)],
)
def test_only_a_sensible_request_id_is_echoed(api: TestClient, given: str, kept: bool) -> None:
    answer = api.get("/v1/nothing", headers={"X-Request-ID": given})
    echoed = answer.headers["x-request-id"]
    assert echoed == answer.json()["request_id"]
    assert (echoed == given) == kept
    assert len(echoed) <= 128


@pytest.mark.parametrize("path", ["/v1/experiments/", "/v1/sweeps/", "/openapi.json/"])
def test_a_path_with_an_extra_slash_is_unknown(api: TestClient, path: str) -> None:
    """A redirect would lead to the address in the header Host."""
    answer = api.get(path, headers={"Host": "evil.example"}, follow_redirects=False)
    assert answer.status_code == 404
    assert "evil" not in answer.text
    assert "location" not in answer.headers


def test_pages_continue_each_other(api: TestClient) -> None:
    submitted = [submit(api) for _ in range(5)]
    seen, cursor = [], None
    for _ in range(3):
        page = api.get("/v1/experiments", params={"limit": 2, "cursor": cursor}).json()
        seen += [item["id"] for item in page["items"]]
        cursor = page["next_cursor"]
        submit(api)  # new experiments do not shift the pages
    assert seen == submitted[::-1]
    assert cursor is None
    assert len(api.get("/v1/experiments?status=queued").json()["items"]) == 8
    assert api.get("/v1/experiments?status=failed").json()["items"] == []


def test_a_page_has_the_requested_metrics(api: TestClient, database: Database) -> None:
    ids = [submit(api) for _ in range(2)]
    with database.transaction() as session:
        for name, seed, value in (("lml", 4, -1.0), ("lml", 44, None), ("mpt", 4, -2.0)):
            session.add(Metric(experiment_id=ids[0], name=name, labels=f'{{"seed":{seed}}}',
                               seq=seed, value=value))  # fmt: skip
    for fields in ("summary", "full"):
        query = f"limit=10&fields={fields}"
        items = api.get(f"/v1/experiments?{query}&metrics=lml&metrics=none").json()["items"]
        found = {one["id"]: [(m["labels"]["seed"], m["value"]) for m in one["metrics"]]
                 for one in items}  # fmt: skip
        assert found == {ids[0]: [(4, -1.0), (44, None)], ids[1]: []}
        assert all(("spec" in one) is (fields == "full") for one in items)
        assert "metrics" not in api.get(f"/v1/experiments?{query}").json()["items"][0]
    assert api.get("/v1/experiments?" + "metrics=a&" * 21).status_code == 422


def test_a_page_leaves_out_specs_and_counts_the_queue_once(
    api: TestClient, database: Database
) -> None:
    submitted = [submit(api, priority=i % 3) for i in range(6)]
    statements: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        statements.append(statement)

    app = api.app
    assert isinstance(app, FastAPI)
    event.listen(app.state.database.engine, "before_cursor_execute", note)
    api.get("/v1/experiments?limit=3")
    asked = len(statements)
    items = api.get("/v1/experiments").json()["items"]
    assert len(statements) == 2 * asked
    reads = [one for one in statements if re.search(r"experiments\.spec\b", one)]
    assert len(reads) == 2  # for the titles of each page, small specs only
    assert all("spec_bytes <=" in one for one in reads)
    places = {one["id"]: one["queue"]["position"] for one in items}
    assert places == {id_: place for place, id_ in enumerate(
        sorted(submitted, key=lambda one: (-(submitted.index(one) % 3), one))
    )}  # fmt: skip
    for one in items:
        full = api.get(f"/v1/experiments/{one['id']}").json()
        assert full.keys() - one.keys() == {
            "spec", "metrics", "attempts", "cached_from"
        }  # fmt: skip
        assert {key: full[key] for key in one} == one | {"summary": []}


def test_a_page_with_specs(api: TestClient) -> None:
    submit(api)
    (item,) = api.get("/v1/experiments?fields=full").json()["items"]
    assert item["spec"]["model"]["family"] == "ppca"
    answer = api.get("/v1/experiments?fields=full&limit=51")
    assert answer.status_code == 422
    assert answer.json()["errors"] == [
        {"pointer": "/query/limit", "detail": "at most 50 with fields=full, not 51"}
    ]


def test_validate_stores_nothing(api: TestClient) -> None:
    submit(api)
    answer = api.post("/v1/experiments:validate", json={"spec": ppca_spec(seeds=[1, 2])}).json()
    assert answer["masks"] == 2 * 6 * 4
    assert answer["queue_position"] == 1
    assert answer["spec"]["compute"]["max_runtime_s"] == 3600
    assert len(api.get("/v1/experiments").json()["items"]) == 1


def test_cancel(api: TestClient, database: Database) -> None:
    running, waiting = submit(api), submit(api)
    claim = claim_next(database)
    assert api.post(f"/v1/experiments/{waiting}:cancel").json()["status"] == "cancelled"
    assert api.post(f"/v1/experiments/{waiting}:cancel").status_code == 202
    answer = api.post(f"/v1/experiments/{running}:cancel").json()
    assert (answer["status"], answer["desired_state"]) == ("running", "cancel")
    assert api.post(f"/v1/experiments/{running}:cancel").status_code == 202
    assert api.post(f"/v1/experiments/{running}:resume").status_code == 409
    with database.transaction() as session:
        assert lease.heartbeat(session, claim, 60) == "cancel"
        lease.finish(session, claim, Status.SUCCEEDED)
    late = api.post(f"/v1/experiments/{running}:cancel")
    assert late.status_code == 409
    assert late.json()["reason"] == "wrong_state"


def test_experiments_of_others_are_unknown(
    api: TestClient, database: Database, settings: Settings
) -> None:
    mine = submit(api)
    with database.transaction() as session:
        other_file = settings.store / "other-key"
        ensure_key(session, "other", other_file)
    api.headers["Authorization"] = f"Bearer {other_file.read_text().strip()}"
    for path in ("", "/curves", "/metrics", "/curves/score"):
        assert api.get(f"/v1/experiments/{mine}{path}").status_code == 404
    assert api.post(f"/v1/experiments/{mine}:cancel").status_code == 404
    assert api.get("/v1/experiments").json()["items"] == []


def test_the_key_file_is_readable_only_by_its_user(settings: Settings) -> None:
    assert settings.key_file.stat().st_mode & 0o777 == 0o600
    assert settings.store.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("path", ["/nothing", "/v1/nothing", "/v1/experiments/../curves"])
def test_unknown_paths_are_problems(api: TestClient, path: str) -> None:
    answer = api.get(path)
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
