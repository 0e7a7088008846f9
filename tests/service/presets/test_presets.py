"""Presets over HTTP: all listed presets can be submitted, and stored results get a verdict."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from mptcore.presets import PRESETS
from service.db.engine import Database
from service.experiments.models import Experiment
from service.presets import runs as preset_runs
from service.queue import lease
from service.records.recording import Batch, record
from service.vocabulary import Status
from tests.support import stored
from tests.support.starting import start_next


def test_every_preset_can_be_submitted(api: TestClient) -> None:
    listed = api.get("/v1/presets").json()["items"]
    assert [preset["name"] for preset in listed] == list(PRESETS)
    for preset in listed:
        assert preset["statement"]
        assert len(preset["tags"]) == len(preset["specs"])
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
        claim = start_next(session)
    assert claim is not None
    assert claim.experiment_id == submitted
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


def runs_of(api: TestClient, preset: str) -> list[str | None]:
    items = api.get("/v1/presets:runs").json()["items"]
    assert [one["name"] for one in items] == list(PRESETS)
    (runs,) = (one["runs"] for one in items if one["name"] == preset)
    return [one and one["id"] for one in runs]


def submit(api: TestClient, spec: dict[str, Any], *tags: str, **beside: Any) -> str:
    body = {"spec": spec, "tags": list(tags), "cache": False, **beside}
    experiment: str = api.post("/v1/experiments", json=body).json()["id"]
    return experiment


def test_runs_of_presets_are_found_for_any_kind_of_submission(api: TestClient) -> None:
    """They are found by their spec if they have no tag, and by tag if the spec is computed
    otherwise."""
    first, second, third = api.get("/v1/presets/table1").json()["specs"]
    assert runs_of(api, "table1") == [None] * 3
    untagged = submit(api, second)
    assert runs_of(api, "table1") == [None, untagged, None]
    threads = {**third, "compute": {**third["compute"], "threads": 1}}
    tagged = submit(api, threads, *api.get("/v1/presets/table1").json()["tags"][2])
    assert runs_of(api, "table1") == [None, untagged, tagged]
    newer = submit(api, second, "mine")
    assert runs_of(api, "table1") == [None, newer, tagged]
    submit(api, {**first, "seeds": [1]}, "preset:table1", "part:1")  # another spec
    submit(api, first, "preset:table1", "part:2")  # under another part's tag
    found = runs_of(api, "table1")
    assert (found[0] is not None, found[1:]) == (True, [newer, tagged])
    api.delete(f"/v1/experiments/{newer}")
    assert runs_of(api, "table1")[1] == untagged


@pytest.mark.parametrize(
    ("statuses", "status"),
    [
        ([None, None], "not run"),
        (["succeeded", None], "incomplete"),
        (["failed", "succeeded"], "incomplete"),
        (["failed", "queued"], "running"),
        (["paused", None], "running"),
        (["succeeded", "succeeded"], "succeeded"),
    ],
)
def test_a_preset_has_a_status(statuses: list[str | None], status: str) -> None:
    runs = [None if one is None else Experiment(status=one) for one in statuses]
    assert preset_runs.status_of(runs) == status


def test_a_run_of_another_preset_with_an_equal_spec_is_the_last_choice(api: TestClient) -> None:
    """A run of Table 1 had the name of a figure."""
    spec = api.get("/v1/presets/table1").json()["specs"][0]
    assert api.get("/v1/presets/fig4-left").json()["specs"] == [spec]
    figure = submit(api, spec, "preset:fig4-left", "part:1")
    assert runs_of(api, "table1")[0] == figure
    table = submit(api, spec, "preset:table1", "part:1")
    newest = submit(api, spec, "preset:fig4-left", "part:1")
    assert (runs_of(api, "table1")[0], runs_of(api, "fig4-left")[0]) == (table, newest)
    untagged = submit(api, spec)
    assert runs_of(api, "table1")[0] == untagged


@pytest.mark.parametrize("status", ["failed", "cancelled", "paused"])
def test_a_newer_run_without_a_result_hides_no_other(
    api: TestClient, database: Database, status: str
) -> None:
    spec = api.get("/v1/presets/table1").json()["specs"][1]
    first = submit(api, spec)
    newer = submit(api, spec)
    assert runs_of(api, "table1")[1] == newer
    stored.change(database, newer, status=status)
    assert runs_of(api, "table1")[1] == first
    stored.change(database, first, status=status)
    assert runs_of(api, "table1")[1] == newer


def test_shared_successful_runs_of_others_are_shown(api: TestClient, database: Database) -> None:
    shared = store_results(api, database, 0.1)
    made = api.post("/v1/users", json={"name": "ann", "role": "member"})
    assert made.status_code == 201, made.text
    key = api.post("/v1/users/ann/keys", json={}).json()["key"]
    ann = TestClient(api.app, headers={"Authorization": f"Bearer {key}"})
    assert runs_of(ann, "fig4-left") == [None]
    api.patch(f"/v1/experiments/{shared}", json={"visibility": "lab"})
    assert runs_of(ann, "fig4-left") == [shared]
    (spec,) = api.get("/v1/presets/fig4-left").json()["specs"]
    submit(api, spec, visibility="lab")  # newer, but it has not succeeded
    assert runs_of(ann, "fig4-left") == [shared]
    own = submit(ann, spec)
    assert runs_of(ann, "fig4-left") == [own]


def test_the_latest_run_that_has_succeeded_is_shown(api: TestClient, database: Database) -> None:
    """Before runs that wait, and those that were cancelled."""
    spec = api.get("/v1/presets/table1").json()["specs"][1]
    runs = [submit(api, spec) for _ in range(6)]
    for one, status in zip(runs[1:], ["succeeded"] * 2 + ["cancelled"] * 3, strict=True):
        stored.change(database, one, status=status)
    assert runs_of(api, "table1") == [None, runs[2], None]
