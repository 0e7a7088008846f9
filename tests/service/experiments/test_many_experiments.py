"""Many experiments at once: all or none, and none that is not the caller's to see."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.accounts.users import ensure_key
from service.db.engine import Database
from service.experiments.query_routes import MAX_SPECS
from service.settings import Settings
from service.vocabulary import Status
from tests.support.attempts import submitted
from tests.support.filled_lab import end, metrics, running
from tests.support.stored import change

URL = "/v1/experiments:batchGet"


@pytest.fixture
def ids(database: Database) -> list[str]:
    """One that has ended with metrics, one that runs, one that waits."""
    claim, seq = running(database, "ended")
    metrics(database, claim, seq, -60.0)
    end(database, claim, Status.SUCCEEDED)
    return [claim.experiment_id, running(database, "runs")[0].experiment_id, submitted(database)]


def test_many_equal_the_single_requests(api: TestClient, ids: list[str]) -> None:
    order = [ids[2], ids[0], ids[1]]
    items = api.post(URL, json={"ids": order}).json()["items"]
    each: list[Any] = [api.get(f"/v1/experiments/{one}").json() for one in order]
    assert items == [{k: v for k, v in one.items() if k != "attempts"} for one in each]
    assert [len(one["metrics"]) for one in items] == [0, 4, 0]
    lml = [one for one in items[1]["metrics"] if one["name"] == "lml"]
    query = {"fields": "full", "metrics": "lml", "summary": "true", "status": "succeeded"}
    assert api.get("/v1/experiments", params=query).json()["items"] == [items[1] | {"metrics": lml}]
    assert [one["queue"] is None for one in items] == [False, True, True]


def test_a_request_for_many_fails_as_a_whole(
    api: TestClient, database: Database, settings: Settings, ids: list[str]
) -> None:
    with database.transaction() as session:
        other, _ = ensure_key(session, "other", settings.store / "other")
    change(database, ids[1], owner_id=other.id)
    change(database, ids[2], owner_id=other.id, visibility="lab")
    assert api.post(URL, json={"ids": [ids[0], ids[2]]}).status_code == 200
    with TestClient(api.app, headers=_bearer(settings)) as stranger:
        answer = stranger.post(URL, json={"ids": [ids[1], ids[0], "0"]})
        assert answer.status_code == 404
        assert [one["pointer"] for one in answer.json()["errors"]] == ["/ids/1", "/ids/2"]
        assert answer.json()["detail"] == f"you have no experiment of this id: {ids[0]}, 0"


def _bearer(settings: Settings) -> dict[str, str]:
    return {"Authorization": f"Bearer {(settings.store / 'other').read_text().strip()}"}


@pytest.mark.parametrize(
    ("ids", "pointer"),
    [([], "/ids"), (["a", "a"], "/ids/1"), ([*map(str, range(MAX_SPECS + 1))], "/ids")],
)
def test_invalid_lists_of_ids_are_refused(api: TestClient, ids: list[str], pointer: str) -> None:
    answer = api.post(URL, json={"ids": ids})
    assert answer.status_code == 422
    problem = answer.json()["errors"][0]
    assert problem["pointer"] == pointer
