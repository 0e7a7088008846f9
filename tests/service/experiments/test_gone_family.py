"""Experiments whose family is gone: its package is no longer installed. They are shown as they are
stored, and nothing new is accepted."""

import io
import json
import zipfile
from contextlib import closing
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from service.db.engine import Database
from service.experiments.models import Attempt, Experiment
from service.settings import Settings
from service.sweeps.models import Sweep
from service.vocabulary import Status
from tests.support.filled_lab import succeeded, swept
from tests.support.ppca_spec import ppca_spec

GONE = {
    "model": {"family": "gone", "stay": 0.8},
    "data": {"rows": 3},
    "evaluate": None,
    "train": None,
    "baseline": None,
    "seeds": [4],
    "compute": {"device": "cpu", "max_runtime_s": 60, "threads": 1},
}

GONE_COLUMNS = {"spec": GONE, "family": "gone", "cache_key": None, "name": None}


@pytest.fixture
def gone(settings: Settings, api: TestClient) -> str:
    """The id of an experiment of a family that is gone, and that succeeded. A preset has its
    tag."""
    with closing(Database(settings.url)) as database:
        experiment_id = succeeded(database, "of old", tags=["preset:table1", "part:1"])
        swept(database, _client(api), "swept")
        with database.transaction() as session:
            session.execute(update(Experiment).values(GONE_COLUMNS))
            failed = Experiment.sweep_id.is_not(None)
            session.execute(update(Experiment).where(failed).values(status=Status.FAILED))
            session.execute(update(Attempt).values(family="gone"))
            session.execute(update(Sweep).values(spec=GONE))
    return experiment_id


def _client(api: TestClient) -> Any:
    """Submits sweeps as a client does."""

    class Sweeps:
        def sweep(self, spec: dict[str, Any], grid: dict[str, Any], **beside: Any) -> Any:
            answer = api.post("/v1/sweeps", json={"spec": spec, "grid": grid, **beside})
            assert answer.status_code == 202, answer.text
            return type("Made", (), answer.json())

    return Sweeps()


def test_all_that_was_stored_is_shown(gone: str, api: TestClient) -> None:
    own = f"/v1/experiments/{gone}"
    ids = {"ids": [one["id"] for one in api.get("/v1/experiments").json()["items"]]}
    (sweep,) = (one["id"] for one in api.get("/v1/sweeps").json()["items"])
    paths = [
        "/v1/experiments", "/v1/experiments?fields=full", "/v1/experiments?family=gone",
        "/v1/experiments?filter=family = gone", own, f"{own}/curves", f"{own}/curves?format=csv",
        f"{own}/metrics", f"{own}/logs", f"{own}/artifacts", f"{own}/bundle", "/v1/sweeps",
        f"/v1/sweeps/{sweep}", f"/v1/sweeps/{sweep}/table", f"/v1/sweeps/{sweep}/table?format=csv",
        "/v1/presets:runs",
    ]  # fmt: skip
    answers = {path: api.get(path) for path in paths}
    assert {path: one.text for path, one in answers.items() if one.status_code != 200} == {}
    for path in ("/v1/experiments:batchGet", "/v1/curves:batchGet"):
        assert api.post(path, json=ids).status_code == 200
    verdict = api.get("/v1/presets/table1/verdict", params={"experiment": [gone] * 3})
    assert verdict.status_code == 422, verdict.text
    assert answers[own].json()["spec"] == GONE
    items = answers["/v1/experiments?family=gone"].json()["items"]
    assert {*ids["ids"]} == {one["id"] for one in items}
    assert answers["/v1/experiments?filter=family = gone"].json()["items"] == items
    with zipfile.ZipFile(io.BytesIO(answers[f"{own}/bundle"].content)) as archive:
        assert json.loads(archive.read(f"experiment-{gone}/spec.json")) == GONE


def test_a_name_that_no_experiment_has_is_refused(gone: str, api: TestClient) -> None:
    for query in ({"family": "gon"}, {"filter": "family = gon"}):
        answer = api.get("/v1/experiments", params=query)
        assert answer.status_code == 422, answer.text


def test_nothing_new_of_it_is_accepted(gone: str, api: TestClient) -> None:
    """The reason names the family."""
    (sweep,) = (one["id"] for one in api.get("/v1/sweeps").json()["items"])
    failed = api.get("/v1/experiments?status=failed").json()["items"][0]["id"]
    grid = {"grid": {"model.stay": [0.1]}}
    for path, body in [
        (f"/v1/experiments/{failed}:retry", None),
        (f"/v1/sweeps/{sweep}:retry", None),
        ("/v1/experiments", {"spec": GONE}),
        (f"/v1/sweeps/{sweep}/points", grid),
        ("/v1/sweeps", {"spec": GONE, **grid}),
    ]:
        answer = api.post(path, json=body)
        assert answer.status_code == 422, (path, answer.text)
        problems = answer.json()["errors"]
        assert any(one["pointer"].endswith("/spec/model/family") for one in problems), problems
    retried = api.post(f"/v1/experiments/{failed}:retry").json()["errors"]
    assert "'gone'" in retried[0]["detail"]


def test_estimates_of_others_do_not_read_it(settings: Settings, gone: str, api: TestClient) -> None:
    """Runs of a family that this version cannot read, as those of another version of a package."""
    with closing(Database(settings.url)) as database, database.transaction() as session:
        session.execute(update(Attempt).values(family="ppca"))
    answer = api.post("/v1/experiments:validate", json={"spec": ppca_spec()})
    assert answer.status_code == 200, answer.text
