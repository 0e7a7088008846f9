"""Logs of real processes: JSON lines that say which request and which experiment."""

import asyncio
import json
import logging
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from anyio._backends._asyncio import CapacityLimiter
from celery.apps import worker as celery_worker
from fastapi import Response
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.pool import QueuePool
from starlette.types import Message, Receive, Scope, Send

from service.app import create_app
from service.logs import SHOWN, configure_logs, logged_process, write_line
from service.settings import Settings
from service.web import access_log
from service.web.meters import Meters
from tests.support.forks import fork
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import environment, lab_processes
from worker.children import WarmParent
from worker.tickets import make_celery

Line = dict[str, Any]


@pytest.fixture
def logging_restored() -> Iterator[None]:
    """Logging and hooks are put back as they were. An earlier test may have captured warnings."""
    logging.captureWarnings(False)
    root = logging.getLogger()
    hooks, before = (threading.excepthook, sys.unraisablehook), (root.handlers[:], root.level)
    yield
    root.handlers[:], root.level = before
    for name in SHOWN:
        logging.getLogger(name).setLevel(logging.NOTSET)
    logging.captureWarnings(False)
    threading.excepthook, sys.unraisablehook = hooks


@pytest.fixture
def lines(lab: Settings) -> list[Line]:
    """All that the processes of a lab write while one experiment runs, and requests that fail."""
    with lab_processes(lab) as running, running.client() as client:
        url = f"http://127.0.0.1:{running.port}"
        httpx.get(f"{url}/v1/workers", headers={"X-Request-ID": "mine"})
        submitted = client.submit(ppca_spec())["id"]
        client.wait(submitted, timeout_s=60)
    return [json.loads(line) for line in running.log.read_text().splitlines()]


def test_log_lines_name_their_request_and_experiment(lines: list[Line], lab: Settings) -> None:
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
    assert told == {"attempt 1 begins", "attempt 1: succeeded"}

    _, _, secret, _ = lab.key_file.read_text().strip().split("_")
    assert secret not in json.dumps(lines)


PROCESSES = {"service": [], "worker.controller": [], "worker": ["cpu"], "worker.every_gpu": [],
             "service.operations.prepare": []}  # fmt: skip
CRASHES = {
    "MPT_LEASE_S": ("soon", "event", "MPT_LEASE_S: Input should be a valid number"),
    "MPT_DATABASE_URL": ("postgresql+psycopg://127.0.0.1:port/lab", "exception", "invalid literal"),
}
"""For each setting, a value with which no process starts, and a part of its last line: of the
event, or of a traceback."""


@pytest.mark.parametrize("crash", CRASHES)
@pytest.mark.parametrize("module", PROCESSES)
def test_a_process_that_crashes_says_so_in_lines_of_json(
    settings: Settings, module: str, crash: str
) -> None:
    value, place, told = CRASHES[crash]
    log = settings.store / "log"
    given = environment(settings, **{crash: value})
    assert fork(["-m", module, *PROCESSES[module]], given, log).wait(60) == 1
    found = [json.loads(line) for line in log.read_text().splitlines()]
    assert told in found[-1][place]
    assert found[-1]["level"] == "critical"


def test_preparing_a_store_says_why_the_database_cannot_be_used(settings: Settings) -> None:
    (settings.store / "mptlab.sqlite3").unlink()
    (settings.store / "mptlab.sqlite3").mkdir()
    log = settings.store / "log"
    assert fork(["-m", "service.operations.prepare"], environment(settings), log).wait(60) == 1
    (*_, last) = [json.loads(line) for line in log.read_text().splitlines()]
    assert last["level"] == "critical"
    assert last["event"].startswith("the file of the database cannot be opened")
    assert "exception" not in last


@pytest.mark.usefixtures("logging_restored")
def test_all_output_of_a_process_is_json_lines(
    lab: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    """Threads, destructors, warnings, Celery's handlers, a missing setting, and a warm parent."""

    class Unraisable:
        def __del__(self) -> None:
            raise RuntimeError("in a destructor")

    @logged_process
    def main() -> None:
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
        Unraisable()
        warnings.warn("a library's warning", stacklevel=1)
        make_celery(lab)
        celery_worker.safe_say("worker: Warm shutdown")
        parent = WarmParent()
        parent._process.send_signal(signal.SIGSEGV)
        parent._process.wait()
        assert parent.ending == "was killed by signal 11 (SIGSEGV)"
        parent.close()
        raise SystemExit("a setting is missing")

    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    found = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    told = [(one["event"], one.get("exception", "")) for one in found]
    for event, exception in (
        ("a thread ended because of an unexpected error", "ZeroDivisionError"),
        ("an exception was ignored", "in a destructor"),
        ("a library's warning", ""),
        ("worker: Warm shutdown", ""),
        ("a setting is missing", ""),
    ):
        assert any(event in one and exception in two for one, two in told), event


@pytest.mark.usefixtures("logging_restored")
def test_a_terminal_shows_text_and_of_info_messages_only_those_of_runs(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("service.logs.is_read_by_a_person", lambda: True)
    configure_logs()
    logging.getLogger("worker.slot").info("it begins")
    logging.getLogger("service.web").info("all is well")
    logging.getLogger("service.web").warning("it is late: \x1b[2J%s", "\x07")
    first, second = capfd.readouterr().err.splitlines()
    assert "it begins" in first
    assert "it is late: \ufffd[2J\ufffd" in second
    assert "{" not in first + second


@pytest.mark.usefixtures("logging_restored")
def test_json_lines_have_the_time_in_utc(capfd: pytest.CaptureFixture[str]) -> None:
    configure_logs()
    before = datetime.now(UTC)
    logging.getLogger("service.web").warning("it is late")
    told = json.loads(capfd.readouterr().err)["timestamp"]
    assert before <= datetime.fromisoformat(told) <= datetime.now(UTC)


def test_a_line_of_a_signal_handler_is_like_the_others(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write_line("worker", "it stops")
    line = json.loads(capfd.readouterr().err)
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "it stops", "level": "info", "logger": "worker"}
    monkeypatch.setattr("service.logs.is_read_by_a_person", lambda: True)
    write_line("worker", "it stops")
    assert capfd.readouterr().err == "it stops\n"


def test_output_of_the_warm_parent_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Its traceback, where torch cannot be imported."""
    caplog.set_level("WARNING")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        parent = WarmParent.__new__(WarmParent)
        script = "raise ImportError('libtorch.so: cannot open')"
        parent._process = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        parent._log_output()
    parent._process.wait()
    assert parent.ending == "ended with exit status 1"
    assert "ImportError: libtorch.so: cannot open" in caplog.messages
    assert all("\n" not in line for line in caplog.messages)


@pytest.mark.parametrize(
    ("method", "status", "slow_s", "logged"),
    [
        ("GET", 200, 60, False),
        ("GET", 404, 60, True),
        ("GET", 200, 0, True),
        ("POST", 202, 60, True),
    ],
)
def test_requests_that_are_logged(
    method: str,
    status: int,
    slow_s: float,
    logged: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Changes, failures, and slow requests."""
    monkeypatch.setattr(access_log, "SLOW_S", slow_s)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(status_code=status)(scope, receive, send)

    caplog.set_level("INFO", logger=access_log.__name__)
    TestClient(access_log.AccessLog(app, Meters())).request(method, "/v1/experiments")
    assert bool([one for one in caplog.records if one.name == access_log.__name__]) == logged


def test_no_client_can_flood_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A path may have 60 KB, and a client over its rate limit may send thousands of requests."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["path_params"] = {"experiment_id": scope["path"]}
        await Response(status_code=429)(scope, receive, send)

    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    caplog.set_level("INFO", logger=access_log.__name__)
    logged = access_log.AccessLog(app, Meters())

    async def request() -> None:
        scope = {"type": "http", "method": "GET", "path": "/" + "x" * 60_000}
        await logged(scope, receive, send)

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        pass

    for clock[0] in (0.0, 0.25, 0.75, 1.0, 1.25, 2.5):
        asyncio.run(request())
    assert len(caplog.records) == 3
    line = vars(caplog.records[0])
    assert line["path"] == line["experiment_id"] == "/" + "x" * 199


def test_a_slow_request_logs_its_waits(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Threads and connections that others hold, and a lock of the database."""
    app = create_app(settings.model_copy(update={"api_connections": 1}))
    monkeypatch.setattr(access_log, "SLOW_S", 0.0)
    caplog.set_level("INFO", logger=access_log.__name__)
    key = settings.key_file.read_text().strip()
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def passing(seconds: float, real: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*arguments: Any, **named: Any) -> Any:
            clock[0] += seconds
            return real(*arguments, **named)

        return slow

    monkeypatch.setattr(QueuePool, "_do_get", passing(3.0, QueuePool._do_get))
    monkeypatch.setattr(DefaultDialect, "do_execute", passing(0.5, DefaultDialect.do_execute))
    limiter = CapacityLimiter.acquire_on_behalf_of

    async def acquire(self: Any, borrower: object) -> None:
        clock[0] += 10.0
        await limiter(self, borrower)

    monkeypatch.setattr(CapacityLimiter, "acquire_on_behalf_of", acquire)
    with TestClient(app, headers={"Authorization": f"Bearer {key}"}) as api:
        caplog.clear()
        assert api.get("/readyz").status_code == 200
        metrics = api.get("/metrics").text
    line = next(one for one in caplog.records if getattr(one, "path", "") == "/readyz")
    assert vars(line)["thread_ms"] == 20_000  # the handler, and its answer
    assert vars(line)["connection_ms"] == 6_000
    assert vars(line)["database_ms"] >= 1_000
    assert vars(line)["database_ms"] % 500 == 0
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
    }
    assert samples["mpt_http_request_seconds_count", "GET", "/readyz", "200"] == 1
    assert samples["mpt_http_request_seconds_sum", "GET", "/readyz", "200"] > 17
    assert samples["mpt_database_pool_wait_seconds_sum",] == 6
    assert samples["mpt_thread_wait_seconds_sum",] == 20
    assert samples["mpt_http_database_seconds_total", "/readyz"] >= 1
    assert samples["mpt_poller_lag_seconds",] == 0


def test_metrics_have_no_label_that_a_client_chooses(api: TestClient) -> None:
    """Metrics do not time streams, or answers that waited at the client's request."""
    api.get("/v1/experiments/0123")
    api.get("/v1/no-such-path/abc")
    api.request("BREW", "/v1/experiments")
    made = api.post("/v1/experiments", json={"spec": ppca_spec()}).json()["id"]
    api.get(f"/v1/experiments/{made}", headers={"Prefer": "wait=0.0"})
    api.get(f"/v1/experiments/{made}", headers={"Prefer": "wait=1"})
    text = api.get("/metrics").text
    assert 'method="GET",route="/v1/experiments/{experiment_id}",status="404"' in text
    assert 'method="GET",route="none",status="404"' in text
    assert 'method="other"' in text
    assert not any(word in text for word in ("BREW", made, "abc"))
    timed = [line for line in text.splitlines() if "seconds_count" in line and
             '{experiment_id}",status="200"' in line]  # fmt: skip
    assert [line.rsplit(" ", 1)[1] for line in timed] == ["1.0"]


@pytest.mark.usefixtures("logging_restored")
def test_addresses_of_webhooks_are_not_logged() -> None:
    """A webhook's may hold a token."""
    configure_logs()
    assert not logging.getLogger("httpx").isEnabledFor(logging.INFO)
