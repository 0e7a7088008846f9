"""The bounds of pages and curves: just inside, and just outside."""

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
from tests.support.attempts import submitted

LISTS = ["/v1/experiments", "/v1/datasets"]


@pytest.fixture
def ids(database: Database) -> list[str]:
    """Ids of three experiments, which are also three data sets."""
    ids = [submitted(database) for _ in range(3)]
    with database.transaction() as session:
        for id_ in ids:
            session.add(Dataset(id=id_, owner_id=1, name="a", format="npy", bytes=1, sha256=id_,
                                n=1, dim=1))  # fmt: skip
    return ids


@pytest.mark.parametrize("path", LISTS)
def test_only_an_incomplete_page_has_a_next_page(
    api: TestClient, ids: list[str], path: str
) -> None:
    for limit in (1, 2, 3, 4, 500):
        page = api.get(path, params={"limit": limit}).json()
        assert [one["id"] for one in page["items"]] == ids[::-1][:limit]
        assert (page["next_cursor"] is not None) == (limit < 3)


@pytest.mark.parametrize("path", LISTS)
def test_each_item_is_on_exactly_one_page(api: TestClient, ids: list[str], path: str) -> None:
    for limit in (1, 2):
        seen, cursor = [], ""
        while cursor is not None:
            page = api.get(path, params={"limit": limit, "cursor": cursor}).json()
            seen += [one["id"] for one in page["items"]]
            cursor = page["next_cursor"]
        assert seen == ids[::-1]


@pytest.mark.parametrize(
    ("number", "status"), [(2**31 - 1, 200), (2**31, 422), (10**17, 422), (10**30, 422)]
)
def test_cursors_of_numbers_are_limited(lab: Settings, number: int, status: int) -> None:
    """PostgreSQL refuses to compare a column with a larger number."""
    key = lab.key_file.read_text().strip()
    cursor = base64.urlsafe_b64encode(str(number).encode()).decode().rstrip("=")
    with TestClient(create_app(lab), headers={"Authorization": f"Bearer {key}"}) as api:
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
    forgeries: list[Any] = [
        [digest],
        [digest, "x", "y"],
        [digest, None, "y"],
        [digest, 10**400, "y"],
        [digest, [1], "y"],
        {},
        5,
        [digest, 1, 2, 3],
    ]
    for forged in forgeries:
        text = base64.urlsafe_b64encode(json.dumps(forged).encode()).decode()
        assert ask(text, filter="priority = 0")[0] == 422, forged
    for told in ([digest, float("nan"), "y"], [digest, 5, {"a": 1}]):
        text = base64.urlsafe_b64encode(json.dumps(told).encode()).decode()
        assert ask(text, filter="priority = 0")[0] in (200, 422)
    assert ask("é")[0] == 422


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("status=suceeded", "/query/status"),
        ("created_after=yesterday", "/query/created_after"),
        ("finished_before=0.5", "/query/finished_before"),
        ("filter=stats%3D1", "/query/filter"),
        ("limit=5&limit=6", "/query/limit"),
        ("order_by=colour", "/query/order_by"),
        ("whose=all,mine", "/query/whose"),
        (f"filter={'a' * 2001}", "/query/filter"),
    ],
)
def test_unknown_filters_are_refused(api: TestClient, query: str, pointer: str) -> None:
    answer = api.get(f"/v1/experiments?{query}")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"].startswith(pointer)


def test_the_default_page_has_fifty_items(api: TestClient, database: Database) -> None:
    for _ in range(51):
        submitted(database)
    page = api.get("/v1/experiments").json()
    assert len(page["items"]) == 50
    assert len(api.get("/v1/experiments?fields=full&limit=50").json()["items"]) == 50


@pytest.mark.parametrize(
    ("query", "inside"),
    [
        ("limit=0", False),
        ("limit=1", True),
        ("limit=500", True),
        ("limit=501", False),
        ("fields=full&limit=50", True),
        ("fields=full&limit=51", False),
    ],
)
def test_the_page_size_is_bounded(api: TestClient, query: str, inside: bool) -> None:
    assert api.get(f"/v1/experiments?{query}").status_code == (200 if inside else 422)


@pytest.mark.parametrize("path", ["curves", "curves/score"])
@pytest.mark.parametrize(
    ("query", "inside"),
    [
        ("max_points=1", False),
        ("max_points=2", True),
        ("max_points=1000000", True),
        ("max_points=1000001", False),
        ("after=-1", False),
        ("after=0", True),
        ("after=2147483647", True),
        ("after=2147483648", False),
    ],
)
def test_the_curve_length_is_bounded(
    api: TestClient, database: Database, path: str, query: str, inside: bool
) -> None:
    answer = api.get(f"/v1/experiments/{submitted(database)}/{path}?{query}")
    assert answer.status_code == (200 if inside else 422)


def test_an_unknown_family_is_refused(api: TestClient) -> None:
    answer = api.get("/v1/experiments?family=vae&family=vea")
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["pointer"] == "/query/family"
    assert "there is no family vea: did you mean vae? there are factor_analysis" in error["detail"]


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
    assert answer.json()["errors"] == [
        {"pointer": "/ids", "detail": "name fewer experiments: they have more than 4 metrics "
         "together"}
    ]  # fmt: skip
    assert api.post("/v1/experiments:batchGet", json={"ids": ids[:2]}).is_success
