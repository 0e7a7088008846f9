"""Logs of real processes: JSON lines that say which request and which experiment."""

import json
import logging
from typing import Any

import httpx
import pytest
from fastapi import Response
from fastapi.testclient import TestClient
from starlette.types import Receive, Scope, Send

from service import access
from service.logs import configure_logs
from service.settings import Settings
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import lab_processes

Line = dict[str, Any]


@pytest.fixture
def lines(lab: Settings) -> list[Line]:
    """All that the processes of a lab write while one experiment runs, and requests that fail."""
    with lab_processes(lab) as running, running.client() as client:
        url = f"http://127.0.0.1:{running.port}"
        httpx.get(f"{url}/v1/workers", headers={"X-Request-ID": "mine"})
        submitted = client.submit(ppca_spec())["id"]
        client.wait(submitted, timeout_s=60)
        # Read before the stop, which Celery answers with a plain line of its own.
        return [json.loads(line) for line in running.log.read_text().splitlines()]


def test_every_line_says_what_it_is_about(lines: list[Line], lab: Settings) -> None:
    assert all({"event", "level", "logger", "timestamp"} <= set(line) for line in lines)
    (submitted,) = [line for line in lines if line["event"] == "submitted"]
    experiment_id = submitted["experiment_id"]
    requests = [line for line in lines if line["event"] == "request"]

    (post,) = [line for line in requests if line["method"] == "POST"]
    assert (post["path"], post["status"]) == ("/v1/experiments", 202)
    assert post["request_id"] == submitted["request_id"]
    assert 0 < post["duration_ms"] < 10_000

    (refused,) = [line for line in requests if line["request_id"] == "mine"]
    assert (refused["path"], refused["status"]) == ("/v1/workers", 401)
    looks = [line for line in requests if line["method"] == "GET" and line["status"] < 400]
    assert all(line["duration_ms"] > 1000 for line in looks), "looks that succeed leave no line"

    about_it = [line for line in lines if line.get("experiment_id") == experiment_id]
    told = {line["event"] for line in about_it if "request_id" not in line}
    assert told == {"dispatched to cpu", "attempt 1 begins", "attempt 1: succeeded"}

    _, _, secret, _ = lab.key_file.read_text().strip().split("_")
    assert secret not in json.dumps(lines)


@pytest.mark.parametrize(
    ("method", "status", "slow_s", "logged"),
    [
        ("GET", 200, 60, False),
        ("GET", 404, 60, True),
        ("GET", 200, 0, True),
        ("POST", 202, 60, True),
    ],
)
def test_what_leaves_a_line(
    method: str,
    status: int,
    slow_s: float,
    logged: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A change, a failure, and what takes long."""
    monkeypatch.setattr(access, "SLOW_S", slow_s)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(status_code=status)(scope, receive, send)

    caplog.set_level("INFO", logger=access.__name__)
    TestClient(access.AccessLog(app)).request(method, "/v1/experiments")
    assert bool(caplog.records) == logged


def test_no_address_that_is_asked_is_told() -> None:
    """A webhook's may hold a token."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        configure_logs()
        assert not logging.getLogger("httpx").isEnabledFor(logging.INFO)
    finally:
        root.handlers[:], root.level = before
