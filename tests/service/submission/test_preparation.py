"""The storage of a sweep is limited, and other users do not wait for its preparation."""

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from service.experiments.models import Experiment
from service.submission import preparation
from service.sweeps import expansion
from service.sweeps.models import Sweep, SweepPoint
from service.vocabulary import Status
from tests.service.sweeps.test_sweeps import (
    SPEC,
    refused,
    rows,
    sweep,
)
from tests.support.callers import database_of
from tests.support.kept_bytes import bytes_agree
from tests.support.preparing import while_it_prepares
from tests.support.stored import change

__all__ = ["while_it_prepares"]  # a fixture

TEXT = {"model": {"family": "masked_lm", "checkpoint": "tiny"},
        "data": {"source": "text", "lines": ["word " * 20_000]}}  # fmt: skip


@pytest.mark.parametrize(
    "points",
    [
        {"grid": {"seeds": [[i] for i in range(400)]}},
        {"list": [{"seeds": [i]} for i in range(400)]},
        {"random": {"n": 400, "fields": {"data.seed": {"low": 1, "high": 9}}}},
        {"grid": {"data": [TEXT["data"]] * 4, "seeds": [[i] for i in range(100)]}},
    ],
)
def test_too_large_requests_are_refused(api: TestClient, points: dict[str, Any]) -> None:
    ((_, detail),) = refused(api, spec=TEXT, **points)
    assert "a request may store 32 MiB" in detail
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


def test_predecessors_of_a_request_are_limited(
    api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They cannot end while the references to them are stored."""
    monkeypatch.setattr(preparation, "MAX_AFTER", 5)
    after = [submitted(api, cache=False), submitted(api, cache=False)]
    batch = [{"spec": SPEC, "after": after, "cache": False}] * 3
    for path, body, pointer in (
        ("/v1/sweeps", {**batch[0], "grid": {"seeds": [[7], [8], [9]]}}, "/after"),
        ("/v1/experiments:batch", {"experiments": batch}, None),
    ):
        answer = api.post(path, json=body)
        assert answer.status_code == 422
        (problem,) = answer.json()["errors"]
        assert pointer in (problem["pointer"], None)
        assert "at most 5 others in all, not 6" in problem["detail"]
    assert api.post("/v1/experiments:batch", json={"experiments": batch[:2]}).status_code == 202
    with database_of(api).snapshot() as session:
        assert bytes_agree(session)


def test_a_base_spec_has_the_size_limit_of_a_single_spec(api: TestClient) -> None:
    long = {**TEXT, "data": {"source": "text", "lines": ["word " * 60_000]}}
    ((pointer, detail),) = refused(api, spec=long, grid={"seeds": [[1]]})
    assert pointer == "/spec"
    assert detail.startswith("at most 262144 bytes")


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


def test_specs_that_are_no_longer_valid_are_not_retried(api: TestClient) -> None:
    old = submitted(api)
    spec = {**SPEC, "model": {"family": "gone"}}
    change(database_of(api), old, status=Status.FAILED, spec=spec)
    answer = api.post(f"/v1/experiments/{old}:retry")
    assert answer.status_code == 422
    assert [one["pointer"] for one in answer.json()["errors"]] == ["/spec/model/family"]
