"""Cancelling all experiments that match filters."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from service.app import create_app
from service.experiments import routes as experiments
from service.experiments.models import Experiment
from service.settings import Settings
from service.vocabulary import DesiredState, Status
from service.webhooks.models import Delivery, Webhook
from tests.support.callers import bearer, database_of, member
from tests.support.locks import wait_for_waiting
from tests.support.ppca_spec import ppca_spec
from tests.support.starting import release_held
from tests.support.stored import change, row, status_events

URL = "/v1/experiments:cancel"


def submitted(api: TestClient, count: int, key: str | None = None, **beside: Any) -> list[str]:
    headers = {} if key is None else bearer(key)
    body = {"experiments": [{"spec": ppca_spec(), "cache": False, **beside}] * count}
    answer = api.post("/v1/experiments:batch", json=body, headers=headers)
    assert answer.status_code == 202, answer.text
    return [one["id"] for one in answer.json()["items"]]


def test_an_administrator_ends_a_users_backlog(
    admin: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The effects equal those of single cancels: events, webhooks, waiting experiments and audit
    lines."""
    monkeypatch.setattr(experiments, "MAX_CANCELLED", 3)
    database = database_of(admin)
    key = member(admin)["key"]
    theirs, mine = submitted(admin, 4, key), submitted(admin, 1)
    (after,) = submitted(admin, 1, key, after=[theirs[3]], tags=["later"])
    change(database, theirs[0], status=Status.RUNNING)
    change(database, theirs[1], status=Status.SUCCEEDED)
    owner_id = row(database, after).owner_id
    with database.transaction() as session:
        session.add(Webhook(id="w", owner_id=owner_id, url="", secret="", statuses="cancelled"))
    where: dict[str, Any] = {"whose": "all", "owner": "ann"}
    answer = admin.post(URL, params=where)
    assert (answer.status_code, answer.json()) == (202, {"cancelled": 2, "ending": 1, "more": True})
    assert row(database, theirs[0]).desired_state == DesiredState.CANCEL
    assert [row(database, one).status for one in (*theirs[1:], *mine)] == [
        "succeeded", "cancelled", "cancelled", "queued"
    ]  # fmt: skip
    release_held(database)
    assert row(database, after).status == Status.FAILED
    assert [one["status"] for one in status_events(database, theirs[2])] == ["queued", "cancelled"]
    with database.snapshot() as session:
        assert set(session.scalars(select(Delivery.experiment_id))) == set(theirs[2:])
    done = [one for one in admin.get("/v1/audit").json()["items"] if "cancelled" in one["action"]]
    assert {(one["actor"], one["object_id"]) for one in done} == {
        ("local", one) for one in (theirs[0], *theirs[2:])
    }
    assert admin.post(URL, params=where).json() == {"cancelled": 0, "ending": 0, "more": False}


@pytest.mark.parametrize("given", [{"status": "queued"}, {"filter": "status = queued"}])
def test_a_run_that_begins_during_the_search_is_not_cancelled(
    admin: TestClient, monkeypatch: pytest.MonkeyPatch, given: dict[str, str]
) -> None:
    """The status is looked at again, because a search may take seconds."""
    begins, stays = submitted(admin, 2)
    search = experiments._matching

    def slow(*arguments: Any, **named: Any) -> Any:
        found = search(*arguments, **named)
        change(database_of(admin), begins, status=Status.RUNNING)
        return found

    monkeypatch.setattr(experiments, "_matching", slow)
    answer = admin.post(URL, params=given).json()
    assert answer == {"cancelled": 1, "ending": 0, "more": True}
    assert row(database_of(admin), begins).desired_state == DesiredState.RUN
    assert row(database_of(admin), stays).status == Status.CANCELLED


@pytest.mark.parametrize("given", [{"status": "queued"}, {"filter": "status = queued"}])
def test_a_run_that_is_beginning_is_not_cancelled(lab: Settings, given: dict[str, str]) -> None:
    """Another transaction has changed its status, and has not yet ended."""
    headers = bearer(lab.key_file.read_text().strip())
    with TestClient(create_app(lab), headers=headers) as api, ThreadPoolExecutor(1) as pool:
        database = database_of(api)
        begins, stays = submitted(api, 2)
        with database.transaction() as session:
            session.get_one(Experiment, begins).status = Status.RUNNING
            session.flush()
            asked = pool.submit(api.post, URL, params=given)
            wait_for_waiting(database, 1)
        assert asked.result().json() == {"cancelled": 1, "ending": 0, "more": True}
        assert row(database, begins).desired_state == DesiredState.RUN
        assert row(database, stays).status == Status.CANCELLED


def test_cancelling_uses_the_filters_of_the_list(admin: TestClient) -> None:
    kept, tagged, paused = (submitted(admin, 1, tags=[tag])[0] for tag in "abc")
    change(database_of(admin), paused, status=Status.PAUSED)
    for query, count in (
        ({"tag": "b", "status": "paused"}, 0),
        ({"tag": "b"}, 1),
        ({"filter": f'id = "{paused}"'}, 1),
    ):
        assert admin.post(URL, params=query).json()["cancelled"] == count
    assert row(database_of(admin), kept).status == Status.QUEUED
    assert row(database_of(admin), tagged).status == Status.CANCELLED


@pytest.mark.parametrize("query", [{}, {"whose": "lab"}, {"order_by": "name"}, {"q": " "}])
def test_without_a_filter_nothing_is_cancelled(admin: TestClient, query: dict[str, str]) -> None:
    (one,) = submitted(admin, 1)
    assert admin.post(URL, params=query).json()["errors"][0]["pointer"] == "/query"
    assert row(database_of(admin), one).status == Status.QUEUED


def test_shared_experiments_of_others_are_not_cancelled(admin: TestClient) -> None:
    key = member(admin)["key"]
    (one,) = submitted(admin, 1, visibility="lab")
    for whose in ("lab", "mine"):
        answer = admin.post(URL, params={"whose": whose, "status": "queued"}, headers=bearer(key))
        assert answer.json() == {"cancelled": 0, "ending": 0, "more": False}
    refused = admin.post(URL, params={"whose": "all", "owner": "local"}, headers=bearer(key))
    assert refused.status_code == 422
    assert row(database_of(admin), one).status == Status.QUEUED
