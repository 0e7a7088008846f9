"""Retries of sweeps: how many points they may have."""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, update

from service.accounts.models import User
from service.experiments.models import Experiment
from service.submission import requests
from service.sweeps import store
from tests.service.sweeps.test_sweeps import rows, sweep
from tests.support.callers import database_of


def test_a_retry_stores_no_more_than_a_request_may(
    admin: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep may have grown by many requests. To retry 3,000 points of 120 KB at once took
    gigabytes of memory, and held up the writes of others."""
    made = sweep(admin)
    assert admin.post(made["urls"]["cancel"]).is_success
    with database_of(admin).snapshot() as session:
        sizes = [*session.scalars(select(Experiment.spec_bytes).order_by(Experiment.id))]
    retry = made["urls"]["retry"]
    monkeypatch.setattr(requests, "MAX_RETRIED", 1)
    assert admin.post(retry).json() == {"count": 1, "more": True}
    monkeypatch.setattr(requests, "MAX_RETRIED", 1000)
    monkeypatch.setattr(requests, "MAX_STORED_BYTES", sum(sizes[1:4]))
    assert admin.post(retry).json() == {"count": 3, "more": True}
    assert [row["status"] for row in rows(admin, made["id"])] == ["queued"] * 4 + ["cancelled"] * 2
    monkeypatch.setattr(requests, "MAX_STORED_BYTES", sizes[4] - 1)
    assert admin.post(retry).json() == {"count": 1, "more": True}  # one alone always fits
    assert admin.post(retry).json() == {"count": 1, "more": False}
    assert [row["status"] for row in rows(admin, made["id"])] == ["queued"] * 6
    assert admin.post(retry).json() == {"count": 0, "more": False}


@pytest.mark.parametrize("with_key", [True, False])
def test_a_retry_is_in_the_audit_log_once(admin: TestClient, with_key: bool) -> None:
    """Also if the request is repeated under its key."""
    made = sweep(admin)
    assert admin.post(made["urls"]["cancel"]).is_success
    headers = {"Idempotency-Key": "again"} if with_key else {}
    for _ in range(1 + with_key):
        assert admin.post(made["urls"]["retry"], headers=headers).json()["count"] == 6
    lines = admin.get("/v1/audit").json()["items"]
    (line,) = [line for line in lines if line["action"] == "sweep.retried"]
    assert line["details"]["experiments"] == 6


def test_a_retry_takes_as_many_points_as_its_owner_may_have(admin: TestClient) -> None:
    """The specs of the other points are not read."""
    made = sweep(admin)
    assert admin.post(made["urls"]["cancel"]).is_success
    with database_of(admin).transaction() as session:
        session.execute(update(User).where(User.id == 1).values(max_submitted=4))
    retry = made["urls"]["retry"]
    assert admin.post(retry).json() == {"count": 4, "more": True}
    answer = admin.post(retry)
    assert (answer.status_code, answer.json()["reason"]) == (409, "limit_reached")
    assert [row["status"] for row in rows(admin, made["id"])] == ["queued"] * 4 + ["cancelled"] * 2


def test_a_sweep_has_a_limited_number_of_experiments(
    admin: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of its visibility locks and updates all of them: with 100,000 retries this took ten
    seconds, and others waited for places, locks and, on SQLite, for the database."""
    monkeypatch.setattr(store, "MAX_EXPERIMENTS", 9)
    made = sweep(admin)
    assert admin.post(made["urls"]["cancel"]).is_success
    retry, points = made["urls"]["retry"], f"{made['urls']['self']}/points"
    assert admin.post(retry).json() == {"count": 3, "more": True}
    one = rows(admin, made["id"])[-1]["experiment_id"]
    more = {"grid": {"seeds": [[9]]}}
    for path, body in ((retry, None), (f"/v1/experiments/{one}:retry", None), (points, more)):
        answer = admin.post(path, json=body)
        assert (answer.status_code, answer.json()["reason"]) == (409, "limit_reached")
        assert "at most 9 experiments" in answer.json()["detail"]
    assert [row["status"] for row in rows(admin, made["id"])] == ["queued"] * 3 + ["cancelled"] * 3
    with database_of(admin).snapshot() as session:
        sizes = [*session.scalars(select(Experiment.spec_bytes).order_by(Experiment.id))]
    monkeypatch.setattr(store, "MAX_EXPERIMENTS", 100)
    monkeypatch.setattr(store, "MAX_BYTES", sum(sizes) + sizes[3] + sizes[4])
    assert admin.post(retry).json() == {"count": 2, "more": True}
    answer = admin.post(f"/v1/experiments/{one}:retry")
    assert (answer.status_code, answer.json()["reason"]) == (409, "limit_reached")


def test_a_deleted_experiment_is_not_retried(admin: TestClient) -> None:
    made = sweep(admin)
    assert admin.post(made["urls"]["cancel"]).is_success
    one = rows(admin, made["id"])[0]["experiment_id"]
    assert admin.delete(f"/v1/experiments/{one}").is_success
    assert admin.post(made["urls"]["retry"]).json() == {"count": 5, "more": False}
