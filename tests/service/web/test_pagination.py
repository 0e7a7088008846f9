"""Pages of lists: each item is on exactly one, and an answer is never too large."""

import base64
import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.datasets.models import Dataset
from service.db.engine import Database
from service.experiments.models import Metric
from service.records import results
from service.settings import Settings
from service.sweeps.models import Sweep
from tests.support.attempts import submitted

LISTS = ["/v1/experiments", "/v1/datasets", "/v1/sweeps"]


@pytest.fixture
def ids(database: Database) -> list[str]:
    """Ids of three experiments, which are also those of three data sets and sweeps."""
    ids = [submitted(database) for _ in range(3)]
    with database.transaction() as session:
        for id_ in ids:
            session.add(Dataset(id=id_, owner_id=1, name="a", format="npy", bytes=1, sha256=id_,
                                n=1, dim=1))  # fmt: skip
            session.add(Sweep(id=id_, owner_id=1, tags=[], priority=0, spec={}, fields=[],
                              comes_after=[]))  # fmt: skip
    return ids


@pytest.mark.parametrize("path", LISTS)
def test_each_item_is_on_exactly_one_page(
    api: TestClient, database: Database, ids: list[str], path: str
) -> None:
    """New experiments do not shift the pages. Only an incomplete page has a next one."""
    for limit in (1, 2, 3):
        seen, cursor = [], ""
        while cursor is not None:
            page = api.get(path, params={"limit": limit, "cursor": cursor}).json()
            seen += [one["id"] for one in page["items"]]
            cursor = page["next_cursor"]
            submitted(database)
        assert [one for one in seen if one in ids] == ids[::-1]
    last = api.get(path, params={"limit": 500}).json()
    assert last["next_cursor"] is None


def test_cursors_of_numbers_are_limited(lab: Settings) -> None:
    """PostgreSQL refuses to compare a column with a larger number."""
    key = lab.key_file.read_text().strip()
    with TestClient(create_app(lab), headers={"Authorization": f"Bearer {key}"}) as api:
        for number, status in ((2**31 - 1, 200), (2**31, 422), (10**30, 422)):
            cursor = base64.urlsafe_b64encode(str(number).encode()).decode().rstrip("=")
            assert api.get("/v1/audit", params={"cursor": cursor}).status_code == status


def test_a_cursor_is_only_for_its_own_list(api: TestClient, ids: list[str]) -> None:
    def ask(cursor: str, **query: str) -> tuple[int, str]:
        answer = api.get("/v1/experiments", params={"limit": 1, **query, "cursor": cursor})
        return answer.status_code, answer.json().get("detail", "")

    page = api.get("/v1/experiments", params={"limit": 1, "filter": "priority = 0"}).json()
    cursor = page["next_cursor"]
    assert ask(cursor, filter="priority = 0", fields="full")[0] == 200
    for other in ({}, {"filter": "priority < 1"}, {"filter": "priority = 0", "order_by": "name"},
                  {"filter": "priority = 0", "status": "queued"}):  # fmt: skip
        status, detail = ask(cursor, **other)
        assert (status, "other filters" in detail) == (422, True), other
    digest = json.loads(base64.urlsafe_b64decode(cursor + "=="))[0]
    forgeries: list[Any] = [[digest], [digest, "x", "y"], [digest, None, "y"],
                            [digest, 10**400, "y"], [digest, [1], "y"], {}, 5,
                            [digest, 1, 2, 3]]  # fmt: skip
    for forged in forgeries:
        text = base64.urlsafe_b64encode(json.dumps(forged).encode()).decode()
        assert ask(text, filter="priority = 0")[0] == 422, forged
    for told in ([digest, float("nan"), "y"], [digest, 5, {"a": 1}]):
        text = base64.urlsafe_b64encode(json.dumps(told).encode()).decode()
        assert ask(text, filter="priority = 0")[0] in (200, 422)
    assert ask("é")[0] == 422


def test_a_page_has_fifty_items_by_default_and_at_most_five_hundred(
    api: TestClient, database: Database
) -> None:
    for _ in range(51):
        submitted(database)
    assert len(api.get("/v1/experiments").json()["items"]) == 50
    assert len(api.get("/v1/experiments?fields=full").json()["items"]) == 50
    assert len(api.get("/v1/experiments?limit=500").json()["items"]) == 51


@pytest.mark.parametrize("path", ["curves", "curves/score"])
def test_the_curve_length_is_bounded(api: TestClient, database: Database, path: str) -> None:
    url = f"/v1/experiments/{submitted(database)}/{path}"
    assert api.get(f"{url}?max_points=1000000&after=2147483647").status_code == 200
    for query in ("max_points=1", "max_points=1000001", "after=-1", "after=2147483648"):
        assert api.get(f"{url}?{query}").status_code == 422, query


@pytest.mark.parametrize("order", ["created desc", "metrics.lml"])
def test_a_page_with_very_many_metrics_is_shorter(
    api: TestClient,
    ids: list[str],
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    order: str,
) -> None:
    """A page of 320 runs with 1,000 seeds was an answer of 112 MB, which took 3 GB of memory."""
    with database.transaction() as session:
        for place, one in enumerate(ids):
            for seq in (1, 2):
                labels = json.dumps({"seed": seq})
                session.add(Metric(experiment_id=one, name="lml", labels=labels, seq=seq,
                                   value=-place))  # fmt: skip
    monkeypatch.setattr(results, "MAX_METRICS", 4)
    query: dict[str, Any] = {"order_by": order, "limit": 3, "metrics": "lml"}
    pages, cursor = [], ""
    while cursor is not None:
        page = api.get("/v1/experiments", params={**query, "cursor": cursor}).json()
        pages.append([one["id"] for one in page["items"]])
        assert all(len(one["metrics"]) == 2 for one in page["items"])
        cursor = page["next_cursor"]
    assert pages == [[ids[2]], [ids[1], ids[0]]]
    answer = api.post("/v1/experiments:batchGet", json={"ids": ids})
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert (error["pointer"], "more than 4 metrics" in error["detail"]) == ("/ids", True)
    assert api.post("/v1/experiments:batchGet", json={"ids": ids[:2]}).is_success
