"""Logs of real processes: JSON lines that say which request and which experiment."""

import json
from typing import Any

import httpx
import pytest

from service.settings import Settings
from tests.conftest import ppca_spec
from tests.processes import lab_processes

Line = dict[str, Any]


@pytest.fixture
def lines(lab: Settings) -> list[Line]:
    """All that the processes of a lab write while one experiment runs, and requests that fail."""
    with lab_processes(lab) as running, running.client() as client:
        url = f"http://127.0.0.1:{running.port}"
        httpx.get(f"{url}/v1/me", headers={"X-Request-ID": "mine"})
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

    gets = [line for line in requests if line.get("experiment_id") == experiment_id]
    assert {line["path"] for line in gets} == {f"/v1/experiments/{experiment_id}"}
    assert len({line["request_id"] for line in gets}) == len(gets)

    (refused,) = [line for line in requests if line["request_id"] == "mine"]
    assert refused["status"] in (401, 404)
    assert not any(line["path"] == "/readyz" and line["status"] == 200 for line in requests)

    about_it = [line for line in lines if line.get("experiment_id") == experiment_id]
    told = {line["event"] for line in about_it if "request_id" not in line}
    assert told == {"dispatched to cpu", "attempt 1 begins", "attempt 1: succeeded"}

    _, _, secret = lab.key_file.read_text().strip().split("_")
    assert secret not in json.dumps(lines)
