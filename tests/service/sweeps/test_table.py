"""Tables of sweeps: what they hold, and which are refused."""

import csv
import io
import json
import re
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event, select

from service.experiments.models import Experiment, Metric
from service.records import results
from service.sweeps import store, views
from tests.service.accounts.test_users import admin, database_of, place, processes
from tests.service.sweeps.test_sweeps import claim_next, count, finish, rows, sweep

__all__ = ["admin", "place", "processes"]  # fixtures


def test_a_table_reads_specs_in_parts(admin: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them together may not fit into memory."""
    monkeypatch.setattr("service.sweeps.store.POINTS_AT_ONCE", 4)
    made = sweep(admin)
    statements: list[str] = []
    event.listen(
        database_of(admin).engine, "before_cursor_execute", lambda *a: statements.append(a[2])
    )
    assert [row["point"] for row in rows(admin, made["id"])] == [*range(6)]
    reads = [one for one in statements if re.search(r"experiments\.spec\b", one)]
    assert len(reads) == 3
    assert all("LIMIT" in one for one in reads)


def finished(api: TestClient) -> None:
    """End the first point with two metrics."""
    database = database_of(api)
    claim = claim_next(database)
    assert claim is not None
    with database.transaction() as session:
        for seq, name in enumerate(("lml", "mpt_score"), 1):
            metric = {"experiment_id": claim.experiment_id, "seq": seq, "name": name}
            session.add(Metric(**metric, labels="{}", value=1.0, std_err=0.1))
    finish(database, claim)


def test_a_table_of_large_values_is_refused(
    admin: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A point may set a value of 200 KB, and a sweep may have 10,000 points: an answer with 750 of
    them took half a gigabyte of memory."""
    made = sweep(admin)
    path = made["urls"]["table"]
    size = sum(len(json.dumps(row["fields"])) for row in rows(admin, made["id"]))
    monkeypatch.setattr(views, "MAX_TABLE_BYTES", size)
    assert admin.get(path).status_code == 200
    monkeypatch.setattr(views, "MAX_TABLE_BYTES", size - 1)
    for form in ("", "?format=csv", "?format=csv&form=long", "?format=csv&form=pooled"):
        answer = admin.get(path + form)
        assert answer.status_code == 422
        (problem,) = answer.json()["errors"]
        assert problem["pointer"] == "/path/sweep_id"
        assert "MiB of swept values" in problem["detail"]


def test_a_long_csv_of_large_values_is_refused(
    admin: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It repeats the values of a point for each metric."""
    made = sweep(admin)
    finished(admin)
    path = made["urls"]["table"] + "?format=csv&form=long"
    lines = [*csv.reader(io.StringIO(admin.get(path).text))][1:]
    assert len(lines) == 2
    texts = [[cell for cell in line if not cell.replace(".", "").isdigit()] for line in lines]
    size = sum(len(cell) for line in texts for cell in line)
    monkeypatch.setattr(views, "MAX_CSV_CHARACTERS", size)
    assert admin.get(path).status_code == 200
    monkeypatch.setattr(views, "MAX_CSV_CHARACTERS", size - 1)
    answer = admin.get(path)
    assert answer.status_code == 422
    assert "MiB of text as CSV" in answer.json()["detail"]


def test_a_csv_of_very_many_cells_is_refused(
    admin: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each metric of one point is three empty cells of each other point. A sweep of 4,500 points,
    ten with 3,000 metrics each, had 400 million cells."""
    made = sweep(admin)
    finished(admin)
    path = made["urls"]["table"] + "?format=csv"
    head, *lines = csv.reader(io.StringIO(admin.get(path).text))
    cells = len(head) * (1 + len(lines))
    monkeypatch.setattr(views, "MAX_CSV_CELLS", cells)
    assert admin.get(path).status_code == 200
    monkeypatch.setattr(views, "MAX_CSV_CELLS", cells - len(head) - 1)
    answer = admin.get(path)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/query/form"
    assert admin.get(f"{path}&form=long").status_code == 200
    assert admin.get(made["urls"]["table"]).status_code == 200


def test_a_table_of_points_with_large_specs_is_refused(
    admin: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = sweep(admin)
    with database_of(admin).snapshot() as session:
        size = sum(session.scalars(select(Experiment.spec_bytes)))
    monkeypatch.setattr(store, "MAX_SPEC_BYTES", size)
    assert admin.get(made["urls"]["table"]).status_code == 200
    monkeypatch.setattr(store, "MAX_SPEC_BYTES", size - 1)
    answer = admin.get(made["urls"]["table"])
    assert answer.status_code == 422
    (problem,) = answer.json()["errors"]
    assert problem["pointer"] == "/path/sweep_id"
    assert f"have {size} bytes" in problem["detail"]


def test_a_table_of_very_many_metrics_is_refused(
    admin: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million take a gigabyte of memory."""
    made = sweep(admin)
    finished(admin)
    monkeypatch.setattr(results, "MAX_METRICS", 2)
    assert admin.get(made["urls"]["table"]).status_code == 200
    monkeypatch.setattr(results, "MAX_METRICS", 1)
    for form in ("", "?format=csv", "?format=csv&form=long"):
        answer = admin.get(made["urls"]["table"] + form)
        assert answer.status_code == 422
        (problem,) = answer.json()["errors"]
        assert problem["pointer"] == "/path/sweep_id"
        assert "at most 1 metrics" in problem["detail"]


def test_points_with_the_same_experiment_have_its_metrics_once_each(admin: TestClient) -> None:
    """The cache answers equal points with one experiment. Its metrics were read once for each
    point, and then counted so many times at each."""
    database = database_of(admin)
    made = sweep(admin, list=[{"seeds": [4]}])
    one = rows(admin, made["id"])[0]["experiment_id"]
    finish(database, claim_next(database))
    with database.transaction() as session:
        session.add(Metric(experiment_id=one, name="lml", labels='{"seed":4}', seq=1, value=2.0))
    made = sweep(admin, list=[{"seeds": [4]}] * 3)
    table = admin.get(f"/v1/sweeps/{made['id']}/table").json()
    cell = {"value": 2.0, "std_err": None, "count": 1}
    assert [row["metrics"] for row in table["items"]] == [{"lml": cell}] * 3
    assert [(row["points"], row["metrics"]) for row in table["pooled"]] == [(3, {"lml": cell})]
    url, form = f"/v1/sweeps/{made['id']}/table", {"format": "csv", "form": "long"}
    assert len(admin.get(url, params=form).text.splitlines()) == 1 + 3


def test_the_experiments_of_a_deleted_sweep_are_no_parameters(admin: TestClient) -> None:
    """A sweep that was retried often has more than SQLite and PostgreSQL take in a statement."""
    made = sweep(admin)
    ids = {row["experiment_id"] for row in rows(admin, made["id"])}
    admin.post(made["urls"]["cancel"])
    deletions: list[Any] = []

    def noted(*arguments: Any) -> None:
        if "SET deleted_at" in arguments[2]:
            deletions.append(arguments[3])

    event.listen(database_of(admin).engine, "before_cursor_execute", noted)
    assert admin.delete(made["urls"]["self"]).status_code == 204
    assert len(deletions) == 2  # its experiments and itself
    for parameters in deletions:
        values = parameters.values() if isinstance(parameters, dict) else parameters
        assert not ids.intersection(map(str, values))
    assert count(admin) == 0
