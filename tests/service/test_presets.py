"""Presets over HTTP: what is listed can be submitted, and stored results get their verdict."""

from fastapi.testclient import TestClient

from mptcore.presets import PRESETS
from service.database import Database
from service.experiments import lease
from service.experiments.dispatch import dispatch_next
from service.experiments.models import Status
from service.experiments.recording import Batch, record


def test_every_preset_can_be_submitted(api: TestClient) -> None:
    listed = api.get("/v1/presets").json()["items"]
    assert [preset["name"] for preset in listed] == list(PRESETS)
    for preset in listed:
        assert preset["statement"]
        for spec in preset["specs"]:
            answer = api.post("/v1/experiments:validate", json={"spec": spec})
            assert answer.status_code == 200, answer.json()
    assert api.get("/v1/presets/fig1-left").json() == listed[1]
    assert "table1" in api.get("/v1/presets/nothing").json()["detail"]


def store_results(api: TestClient, database: Database, difference: float) -> str:
    """An experiment of fig4-left, with made-up results."""
    (spec,) = api.get("/v1/presets/fig4-left").json()["specs"]
    submitted: str = api.post("/v1/experiments", json={"spec": spec, "cache": False}).json()["id"]
    with database.transaction() as session:
        dispatch = dispatch_next(session)
        assert dispatch is not None
        claim = lease.claim(session, submitted, dispatch.dispatch_no, worker="w", lease_s=60)
    assert claim is not None
    batch = Batch()
    seq = 0
    for seed in spec["seeds"]:
        for size in range(1, 201):
            seq += 1
            value = -0.2 - 2 * max(0, size - 180) / 20
            batch.add({"seq": seq, "record": "point", "series": "score", "labels": {"seed": seed},
                       "x": size, "value": value, "std_err": None, "n": 1})  # fmt: skip
        own = difference + spec["seeds"].index(seed) / 5 - 0.4
        for name, value in (("lml", -60.0), ("mpt", -60.0 + own), ("difference", own)):
            seq += 1
            batch.add({"seq": seq, "record": "metric", "name": name, "labels": {"seed": seed},
                       "value": value, "std_err": 0.4})  # fmt: skip
    with database.transaction() as session:
        record(session, claim, batch, 60)
        lease.finish(session, claim, Status.SUCCEEDED)
    return submitted


def test_the_verdict_comes_from_stored_records(api: TestClient, database: Database) -> None:
    for difference, verdict in ((0.1, "agrees"), (50.0, "differs")):
        experiment = store_results(api, database, difference)
        answer = api.get(f"/v1/presets/fig4-left/verdict?experiment={experiment}").json()
        assert answer["verdict"] == verdict, answer
        assert answer["comparisons"]


def test_a_verdict_needs_the_presets_own_results(api: TestClient, database: Database) -> None:
    experiment = store_results(api, database, 0.0)
    for query in (f"table1/verdict?experiment={experiment}", "fig4-left/verdict?experiment=x"):
        answer = api.get(f"/v1/presets/{query}")
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["pointer"].startswith("/query/experiment")
