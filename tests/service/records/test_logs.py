"""The log of a run: pages of it, by level, as JSON and as text."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.db.engine import Database
from service.records.recording import Batch, record
from tests.support.attempts import claimed


@pytest.fixture
def url(database: Database) -> str:
    """URL of the log of an experiment with four lines and a point."""
    claim = claimed(database)
    batch = Batch()
    for seq, level in enumerate(["info", "warning", "info", "warning"], 1):
        batch.add({"seq": seq, "record": "log", "level": level, "message": f"line {seq}"})
    batch.add({"seq": 5, "record": "point", "series": "score", "labels": {}, "x": 1,
               "value": -1.0, "std_err": 0.1, "n": 1})  # fmt: skip
    with database.transaction() as session:
        record(session, claim, batch, 60)
    return f"/v1/experiments/{claim.experiment_id}/logs"


def told(page: dict[str, Any]) -> list[int]:
    assert [one["message"] for one in page["items"]] == [
        f"line {one['seq']}" for one in page["items"]
    ]
    return [one["seq"] for one in page["items"]]


def test_a_log_in_pages(api: TestClient, url: str) -> None:
    first = api.get(url, params={"limit": 3}).json()
    assert (told(first), first["last_seq"], first["more"]) == ([1, 2, 3], 3, True)
    rest = api.get(url, params={"limit": 3, "after": 3}).json()
    assert (told(rest), rest["last_seq"], rest["more"]) == ([4], 4, False)
    none = api.get(url, params={"after": 4}).json()
    assert (told(none), none["last_seq"], none["more"]) == ([], 4, False)


def test_a_log_of_a_level(api: TestClient, url: str) -> None:
    page = api.get(url, params={"level": "warning"}).json()
    assert told(page) == [2, 4]
    assert {one["level"] for one in page["items"]} == {"warning"}
    assert told(api.get(url, params={"level": "info", "limit": 1}).json()) == [1]
    refused = api.get(url, params={"level": "loud"})
    assert refused.status_code == 422
    assert refused.json()["errors"] == [
        {"pointer": "/query/level", "detail": "one of 'info' or 'warning'"}
    ]


@pytest.mark.parametrize(
    "how", [{"params": {"format": "text"}}, {"headers": {"Accept": "text/plain"}}]
)
def test_a_log_as_text(api: TestClient, url: str, how: dict[str, Any]) -> None:
    answer = api.get(url, **how)
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    lines = [line.split(maxsplit=2) for line in answer.text.splitlines()]
    assert [one[1:] for one in lines] == [
        ["info", "line 1"], ["warning", "line 2"], ["info", "line 3"], ["warning", "line 4"]
    ]  # fmt: skip
    assert (answer.headers["MPT-Last-Seq"], answer.headers["MPT-More"]) == ("4", "false")
    how.setdefault("params", {})["limit"] = "2"
    part = api.get(url, **how)
    assert (part.headers["MPT-Last-Seq"], part.headers["MPT-More"]) == ("2", "true")
