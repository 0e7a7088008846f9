"""The routes, on experiments that a real supervisor need not run."""

import re

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

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


def submit(api: TestClient, **beside: object) -> str:
    answer = api.post("/v1/experiments", json={"spec": ppca_spec(), **beside})
    assert answer.status_code == 202
    experiment_id: str = answer.json()["id"]
    assert answer.headers["location"] == f"/v1/experiments/{experiment_id}"
    return experiment_id


def points(count: int, first: int = 1) -> Batch:
    """Points of two seeds; the fifth has no value."""
    batch = Batch()
    for i in range(first, first + count):
        value, reason = (None, "value is nan") if i == 5 else (-i / 10, "one draw")
        batch.add({"seq": i, "record": "point", "series": "score", "labels": {"seed": 4 + i % 2},
                   "x": i, "value": value, "std_err": None, "n": 1, "reason": reason})  # fmt: skip
    return batch


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


def test_an_experiment_from_submission_to_curves(api: TestClient, database: Database) -> None:
    first, second = submit(api, name="one"), submit(api, name="two", tags=["a"], note="b")
    waiting = api.get(f"/v1/experiments/{second}").json()
    assert waiting["status"] == "queued"
    queue = waiting["queue"]
    assert (queue["position"], queue["estimated_start"]) == (1, None)
    assert "no CPU worker" in queue["reason"]
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

    with database.transaction() as session:
        record(session, claim, points(9), lease_s=60)
    assert ask("score?seed=4") == (200, "1")
    assert ask("score?seed=4&seed=5") == (200, "2")
    assert ask("score?seed=77") == ask("loss") == (200, "0")
    status, detail = ask("scores")
    assert (status, "score, score_by_rate" in detail) == (404, True)
    status, detail = ask("score?model=x&seed=4")
    assert (status, detail.endswith("there are seed")) == (422, True)
    with database.transaction() as session:
        lease.finish(session, claim, Status.SUCCEEDED)
    assert ask("score?seed=4") == (200, "1")
    for query, available in (("score?seed=77", "seed=5; seed=4"), ("loss", "score")):
        status, detail = ask(query)
        assert (status, detail.endswith(available)) == (404, True)


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


@pytest.mark.parametrize(("given", "kept"), [("a-1_b.c", True), ("x" * 129, False), ('a"}', False)])
def test_only_a_sensible_request_id_is_echoed(api: TestClient, given: str, kept: bool) -> None:
    answer = api.get("/v1/nothing", headers={"X-Request-ID": given})
    echoed = answer.headers["x-request-id"]
    assert echoed == answer.json()["request_id"]
    assert (echoed == given) == kept


def test_a_page_has_the_requested_fields_and_metrics(api: TestClient, database: Database) -> None:
    ids = [submit(api, priority=i % 3) for i in range(6)]
    with database.transaction() as session:
        for name, seed, value in (("lml", 4, -1.0), ("lml", 44, None), ("mpt", 4, -2.0)):
            session.add(Metric(experiment_id=ids[0], name=name, labels=f'{{"seed":{seed}}}',
                               seq=seed, value=value))  # fmt: skip
    for fields in ("summary", "full"):
        query = f"limit=10&fields={fields}"
        items = api.get(f"/v1/experiments?{query}&metrics=lml&metrics=none").json()["items"]
        found = {one["id"]: [(m["labels"]["seed"], m["value"]) for m in one["metrics"]]
                 for one in items}  # fmt: skip
        assert found == {one: [] for one in ids} | {ids[0]: [(4, -1.0), (44, None)]}
        assert all(("spec" in one) is (fields == "full") for one in items)
        assert "metrics" not in api.get(f"/v1/experiments?{query}").json()["items"][0]
    assert api.get("/v1/experiments?" + "metrics=a&" * 21).status_code == 422
    items = api.get("/v1/experiments").json()["items"]
    in_turn = sorted(items, key=lambda one: one["queue"]["position"])
    assert [one["id"] for one in in_turn] == [ids[i] for i in (2, 5, 1, 4, 0, 3)]
    for one in items:
        full = api.get(f"/v1/experiments/{one['id']}").json()
        assert {key: full[key] for key in one.keys() - {"summary"}} == {
            key: value for key, value in one.items() if key != "summary"
        }


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
        assert lease.heartbeat(session, claim, 60).desired == "cancel"
        lease.finish(session, claim, Status.SUCCEEDED)
    late = api.post(f"/v1/experiments/{running}:cancel")
    assert late.status_code == 409
    assert late.json()["reason"] == "wrong_state"
