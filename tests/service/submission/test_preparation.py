"""The storage of a sweep is limited, and other users do not wait for its preparation."""

import re
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event, select

from mptcore.specs import MAX_PROBLEMS
from service.experiments.models import Experiment
from service.experiments.references import ReferencedInputs
from service.submission import preparation, requests
from service.sweeps import expansion
from service.sweeps.models import Sweep, SweepPoint
from service.vocabulary import Status
from tests.service.accounts.test_users import database_of
from tests.service.sweeps.test_sweeps import (
    SPEC,
    refused,
    rows,
    sweep,
)
from tests.support.kept_bytes import bytes_agree
from tests.support.preparing import while_it_prepares
from tests.support.stored import change

__all__ = ["while_it_prepares"]  # a fixture

TEXT = {"model": {"family": "masked_lm", "checkpoint": "tiny"},
        "data": {"source": "text", "lines": ["word " * 20_000]}}  # fmt: skip


@pytest.fixture
def validated(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The specs that were made."""
    made: list[Any] = []
    complete = vars(preparation)["with_values"]

    def noted(base: Any, values: Any) -> Any:
        made.append(values)
        return complete(base, values)

    monkeypatch.setattr(preparation, "with_values", noted)
    return made


@pytest.mark.parametrize(
    ("points", "mib"),
    [
        ({"grid": {"seeds": [[i] for i in range(400)]}}, 39),
        ({"list": [{"seeds": [i]} for i in range(400)]}, 39),
        ({"random": {"n": 400, "fields": {"data.seed": {"low": 1, "high": 9}}}}, 39),
        ({"grid": {"data": [TEXT["data"]] * 4, "seeds": [[i] for i in range(100)]}}, 77),
    ],
)
def test_too_large_requests_are_refused_before_expansion(
    api: TestClient, validated: list[Any], points: dict[str, Any], mib: int
) -> None:
    ((_, detail),) = refused(api, spec=TEXT, **points)
    assert detail == (
        f"the specs of 400 points take {mib} MiB or more; a request may store 32 MiB: send fewer "
        "points, or a smaller spec"
    )
    assert validated == []
    assert api.get("/v1/sweeps").json()["items"] == []


def test_defaults_count_towards_the_size(api: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(api.get(f"/v1/experiments/{submitted(api)}").content)
    monkeypatch.setattr(expansion, "MAX_STORED_BYTES", 3 * size)
    grid = {"seeds": [[i] for i in range(9)]}
    answer = api.post("/v1/sweeps", json={"spec": SPEC, "grid": grid})
    assert "a request may store" in answer.json()["errors"][0]["detail"]


def submitted(api: TestClient, **beside: Any) -> str:
    experiment_id: str = api.post("/v1/experiments", json={"spec": SPEC, **beside}).json()["id"]
    return experiment_id


@pytest.mark.parametrize(("most", "is_refused"), [(6, False), (5, True)])
def test_predecessors_of_a_request_are_limited(
    api: TestClient, monkeypatch: pytest.MonkeyPatch, most: int, is_refused: bool
) -> None:
    """Predecessors cannot end while the references to them are stored, so their number is
    limited."""
    monkeypatch.setattr(preparation, "MAX_AFTER", most)
    after = [submitted(api, cache=False), submitted(api, cache=False)]
    grid = {"seeds": [[i] for i in range(7, 10)]}
    answer = api.post("/v1/sweeps", json={"spec": SPEC, "grid": grid, "after": after})
    assert answer.status_code == (422 if is_refused else 202)
    if is_refused:
        (problem,) = answer.json()["errors"]
        assert problem["pointer"] == "/after"
        assert "at most 5 others in all, not 6" in problem["detail"]
    with database_of(api).snapshot() as session:
        assert bytes_agree(session)


def test_too_many_predecessors_are_not_looked_up(
    api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch may name 100,000. PostgreSQL takes 65,535 parameters of a statement."""
    monkeypatch.setattr(preparation, "MAX_AFTER", 5)
    monkeypatch.setattr(ReferencedInputs, "of", None)
    batch = [{"spec": SPEC, "after": [f"{i}{j}" for j in range(3)]} for i in range(2)]
    answer = api.post("/v1/experiments:batch", json={"experiments": batch})
    assert answer.status_code == 422
    assert "at most 5 others in all, not 6" in answer.json()["detail"]


def test_the_specs_of_predecessors_are_not_read(api: TestClient) -> None:
    """There may be 20,000, each with a quarter of a megabyte."""
    first = submitted(api)
    statements: list[str] = []
    database = database_of(api)
    event.listen(database.engine, "before_cursor_execute", lambda *a: statements.append(a[2]))
    body = {"experiments": [{"spec": SPEC, "after": [first], "cache": False}]}
    assert api.post("/v1/experiments:batch", json=body).status_code == 202
    assert any("FROM experiments" in one for one in statements)
    assert not [one for one in statements if re.search(r"experiments\.(spec|note)\b", one)]


def test_a_base_spec_has_the_size_limit_of_a_single_spec(api: TestClient) -> None:
    long = {**TEXT, "data": {"source": "text", "lines": ["word " * 60_000]}}
    ((pointer, detail),) = refused(api, spec=long, grid={"seeds": [[1]]})
    assert pointer == "/spec"
    assert detail.startswith("at most 262144 bytes, as of one experiment, not 300")


def test_expansion_stops_after_many_wrong_points(api: TestClient, validated: list[Any]) -> None:
    grid = {"seeds": [[i] for i in range(1000)]}
    (found,) = refused(api, spec={**SPEC, "modell": {}}, grid=grid)
    assert found[0] == "/spec/modell"
    assert len(validated) == MAX_PROBLEMS


def take_write_lock(api: TestClient) -> None:
    """Begin a write as another process would. It fails if a request holds the lock of SQLite."""
    file = database_of(api).engine.url.database
    assert file is not None
    with sqlite3.connect(file, timeout=0.1, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")


@pytest.mark.parametrize("what", ["one", "batch", "sweep", "points", "retry", "retry of one"])
def test_others_write_while_a_request_prepares(
    api: TestClient, while_it_prepares: list[Callable[[], object]], what: str
) -> None:
    made = sweep(api)
    api.post(made["urls"]["cancel"])
    ended = rows(api, made["id"])[0]["experiment_id"]

    def write() -> None:
        take_write_lock(api)
        while_it_prepares.append(write)  # at every spec

    while_it_prepares.append(write)
    points = {"grid": {"data.seed": [1, 2]}}
    path, body = {
        "one": ("/v1/experiments", {"spec": SPEC}),
        "batch": ("/v1/experiments:batch", {"experiments": [{"spec": SPEC}] * 2}),
        "sweep": ("/v1/sweeps", {"spec": SPEC, **points}),
        "points": (made["urls"]["points"], points),
        "retry": (made["urls"]["retry"], None),
        "retry of one": (f"/v1/experiments/{ended}:retry", None),
    }[what]
    assert api.post(path, json=body).status_code == 202
    assert while_it_prepares == [write]


def test_an_interrupted_request_leaves_nothing(
    api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between any two of its statements: the database takes all back."""

    def cut_off(*_: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr("service.submission.submit.idempotency.keep", cut_off)
    key = {"Idempotency-Key": "k"}
    body = {"spec": SPEC, "grid": {"seeds": [[1], [2]]}}
    assert api.post("/v1/sweeps", json=body, headers=key).status_code == 500
    with database_of(api).snapshot() as session:
        for table in (Experiment, Sweep, SweepPoint):
            assert session.scalars(select(table)).all() == []
    monkeypatch.undo()
    assert api.post("/v1/sweeps", json=body, headers=key).json()["points"] == 2


def test_a_full_sweep_is_refused_before_expansion(
    api: TestClient, validated: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = sweep(api, list=[{}])
    validated.clear()
    monkeypatch.setattr(requests, "MAX_POINTS", 9)
    answer = api.post(made["urls"]["points"], json={"list": [{}] * 9})
    assert answer.json()["errors"][0]["detail"] == "a sweep has at most 9 points"
    assert validated == []


def test_specs_that_are_no_longer_valid_are_not_retried(api: TestClient) -> None:
    old = submitted(api)
    spec = {**SPEC, "model": {"family": "gone"}}
    change(database_of(api), old, status=Status.FAILED, spec=spec)
    answer = api.post(f"/v1/experiments/{old}:retry")
    assert answer.status_code == 422
    assert [one["pointer"] for one in answer.json()["errors"]] == ["/spec/model/family"]
