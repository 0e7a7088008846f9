"""Requests of the client, sent in this process to the real routes of the service."""

import io
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console
from starlette.testclient import TestClient

from mptlab import Client, Refused, api
from mptlab.progress import shown_progress
from service.app import create_app
from service.settings import Settings
from tests.support.ppca_spec import ppca_spec


@pytest.fixture
def client(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """Connected to the service without a port between them."""
    key = settings.key_file.read_text().strip()
    headers = {"Authorization": f"Bearer {key}"}
    with (
        TestClient(create_app(settings), headers=headers) as service,
        Client("http://testserver", key) as client,
    ):
        monkeypatch.setattr(client, "_http", service)
        yield client


def test_a_submission_under_one_key_is_queued_once(client: Client) -> None:
    first = client.submit(ppca_spec(), idempotency_key="once")
    assert client.submit(ppca_spec(), idempotency_key="once")["id"] == first["id"]
    assert client.submit(ppca_spec())["id"] != client.submit(ppca_spec())["id"]
    assert len(list(client.experiments())) == 3


def test_a_retry_under_one_key_is_queued_once(client: Client) -> None:
    old = client.submit(ppca_spec())["id"]
    client.cancel(old)
    made = [client.retry(old, idempotency_key="once")["id"] for _ in range(2)]
    assert made[0] == made[1]


def test_filters_apply_to_every_page(client: Client) -> None:
    ids = [client.submit(ppca_spec())["id"] for _ in range(5)]
    for one in ids[::2]:
        client.cancel(one)
    found = [one["id"] for one in client.experiments(status="cancelled", limit=1)]
    assert found == ids[::2][::-1]


def test_filters_and_orders_go_to_the_service(client: Client) -> None:
    for name in ("b", "a", "c"):
        client.submit(ppca_spec(), name=name, tags=["x"] if name != "c" else [])
    listed = client.experiments(filter='tag = "x"', order_by="name", limit=1)
    assert [one["name"] for one in listed] == ["a", "b"]
    with pytest.raises(Refused, match=r"column 1: there is no field nam: did you mean name\?"):
        list(client.experiments(filter="nam = a"))


def test_curves_of_more_experiments_than_one_request_allows(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "MAX_AT_ONCE", 2)
    ids = [client.submit(ppca_spec())["id"] for _ in range(5)]
    found = client.curves_of(iter(ids), series=["score"], seed=[4, 44])
    assert [one["experiment_id"] for one in found] == ids
    with pytest.raises(Refused, match="you have no experiment"):
        client.curves_of([ids[0], "a"])


def test_more_experiments_than_one_page_allows(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "MAX_WITH_SPECS", 2)
    ids = [client.submit(ppca_spec())["id"] for _ in range(3)]
    found = client.get_many([*ids, ids[0]])
    assert [one["id"] for one in found] == [*ids, ids[0]]
    assert found[0]["spec"]["seeds"] == [4]
    with pytest.raises(Refused, match="no experiment of this id"):
        client.get_many([*ids, "a"])


def test_worker_history_and_user_usage(client: Client) -> None:
    history = client.worker_history(hours=1)
    assert (history["items"], len(history["at"])) == ([], 60)
    assert [one["name"] for one in client.usage()] == ["local"]


def test_a_wait_without_an_end_times_out(client: Client) -> None:
    queued = client.submit(ppca_spec())["id"]
    seen: list[str] = []
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"is queued after 0\.3 s: no CPU worker"):
        client.wait(queued, 0.3, on_change=lambda one: seen.append(one["status"]), poll_s=0.1)
    assert 0.3 <= time.monotonic() - began < 10
    assert set(seen) == {"queued"}
    assert len(seen) > 1


def shown(*looks: dict[str, Any], terminal: bool = True) -> str:
    """Return the last line that is displayed for an experiment."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=terminal, no_color=True, width=100)
    with shown_progress(console) as show:
        for look in looks:
            show({"id": "a", "name": None, **look})
    return screen.getvalue()


def test_the_progress_bar_shows_the_share_that_is_done() -> None:
    progress = {"done": 30, "total": 120, "unit": "masks"}
    bar = shown({"status": "queued", "progress": None}, {"status": "running", "progress": progress})
    last = bar.rpartition("running")[2]
    assert "30/120 masks" in last
    assert last.count("━") == 3  # of twelve
    assert "1/4 points" in shown({"status": "running", "progress": progress, "points": 4})


def test_a_plain_progress_line_shows_the_remaining_time() -> None:
    """Check an experiment and a sweep; a line is printed for each tenth."""
    end = (datetime.now(UTC) + timedelta(seconds=90)).isoformat()
    progress = {"done": 30, "total": 120, "unit": "masks"}
    running = {"status": "running", "terminal": False}
    run = running | {"progress": {**progress, "estimated_end": end}}
    sweep = running | {"progress": progress, "estimated_end": end, "points": 4}
    for one, what in ((run, "120 masks"), (sweep, "4 points")):
        line = shown(one, one, terminal=False)
        assert re.fullmatch(rf"a  running  20 % of {what}, about 0:01:\d\d left\n", line)
    unknown = running | {"progress": {**progress, "estimated_end": None}}
    overdue = running | {"progress": {**progress, "estimated_end": "2026-01-31T12:00:00Z"}}
    ended = {**sweep, "status": "failed", "terminal": True}
    for one in (unknown, overdue):
        assert shown(one, terminal=False) == "a  running  20 % of 120 masks\n"
    assert shown(ended, terminal=False) == "a  failed  20 % of 4 points\n"
    whole = {**ended, "progress": {**progress, "done": 120}}
    assert shown(whole, terminal=False) == "a  failed  100 % of 4 points\n"
    unknown_total = {**ended, "progress": {**progress, "total": 0}}
    assert shown(unknown_total, {**ended, "progress": None}, terminal=False) == "a  failed\n"
