"""Requests that are sent again, for how long and after which pauses, and outages of the service."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

import httpx
import pytest
import uvicorn

from mptlab import Client, NoAnswer, Refused, connection, serve
from mptlab.retries import LONGEST_PAUSE_S, send_again
from service.db.engine import Database
from service.queue import states
from service.vocabulary import DesiredState
from tests.mptlab.conftest import Killable
from tests.support.answers import Answers
from tests.support.ppca_spec import ppca_spec

PATIENT_S = 20.0
"""Longer than any of these tests takes."""


def answer(status: int, **headers: str) -> httpx.Response:
    return httpx.Response(status, headers={k.replace("_", "-"): v for k, v in headers.items()})


class Service:
    """Answers in turn; then 200."""

    def __init__(self, *answers: httpx.Response | Exception):
        self.answers: Iterator[httpx.Response | Exception] = iter(answers)
        self.requests = 0
        self.causes: list[str] = []

    def ask(self, *, idempotent: bool = True, for_s: float = PATIENT_S) -> httpx.Response:
        return send_again(
            self.send, idempotent=idempotent, for_s=for_s, on_outage=self.causes.append
        )

    def send(self) -> httpx.Response:
        self.requests += 1
        given = next(self.answers, answer(200))
        if isinstance(given, Exception):
            raise given
        return given


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Lengths of the pauses, which take no time."""
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    return pauses


@pytest.mark.parametrize("status", [429, 502, 503, 504])
@pytest.mark.usefixtures("pauses")
def test_a_busy_answer_is_retried(status: int) -> None:
    service = Service(answer(status))
    assert service.ask().status_code == 200
    assert service.causes == [f"HTTP {status}"]


@pytest.mark.parametrize("status", [200, 400, 404, 409, 500])
def test_other_answers_are_not_retried(status: int) -> None:
    service = Service(answer(status))
    assert service.ask().status_code == status
    assert (service.requests, service.causes) == (1, [])


NOT_SENT = [httpx.ConnectError("refused"), httpx.ConnectTimeout("slow")]
NOT_ANSWERED = [httpx.ReadError("cut"), httpx.WriteError("cut"), httpx.ReadTimeout("slow"),
                httpx.RemoteProtocolError("gone")]  # fmt: skip


@pytest.mark.parametrize("error", [*NOT_SENT, *NOT_ANSWERED])
@pytest.mark.usefixtures("pauses")
def test_idempotent_requests_are_retried_until_answered(error: Exception) -> None:
    service = Service(error, error)
    assert service.ask().status_code == 200
    assert service.causes == [str(error)]  # once


@pytest.mark.parametrize("refusal", [*NOT_SENT, answer(429)])
@pytest.mark.usefixtures("pauses")
def test_other_requests_are_retried_only_if_the_service_has_not_read_them(
    refusal: httpx.Response | Exception,
) -> None:
    assert Service(refusal).ask(idempotent=False).status_code == 200
    assert Service(answer(503)).ask(idempotent=False).status_code == 503
    for error in (*NOT_ANSWERED, httpx.UnsupportedProtocol("ftp")):
        service = Service(error)
        with pytest.raises(type(error)):
            service.ask(idempotent=False)
        assert service.requests == 1


def test_the_last_outcome_is_returned_at_the_timeout() -> None:
    service = Service(*[answer(503)] * 1000)
    began = time.monotonic()
    assert service.ask(for_s=0.5).status_code == 503
    assert service.requests > 1
    assert time.monotonic() - began >= 0.5
    service = Service(*[httpx.ConnectError("refused")] * 1000)
    with pytest.raises(httpx.ConnectError, match="refused"):
        service.ask(for_s=0.0)
    assert service.requests == 1


@pytest.mark.parametrize(
    ("header", "least", "most"), [("59", 59, 59), ("3600", 60, 60), ("soon", 0, 0.2)]
)
def test_a_pause_is_as_long_as_the_service_asks_but_at_most_a_minute(
    pauses: list[float], header: str, least: float, most: float
) -> None:
    Service(answer(503, Retry_After=header)).ask(for_s=1000)
    (pause,) = pauses
    assert least <= pause <= most


def test_the_service_may_name_the_end_of_a_pause(pauses: list[float]) -> None:
    at = datetime.now(UTC) + timedelta(seconds=40)
    Service(answer(503, Retry_After=format_datetime(at, usegmt=True))).ask(for_s=1000)
    assert pauses == [pytest.approx(40, abs=20)]


def test_a_pause_is_no_longer_than_the_remaining_time(pauses: list[float]) -> None:
    Service(answer(503, Retry_After="7")).ask(for_s=0.5)
    (pause,) = pauses
    assert 0 < pause <= 0.5


def test_pauses_are_random_and_grow_up_to_a_bound(pauses: list[float]) -> None:
    for _ in range(100):
        Service(*[answer(503)] * 10).ask(for_s=1000)
    first, last = pauses[::10], pauses[9::10]
    assert len({*first}) > 1
    assert max(first) < max(last) <= LONGEST_PAUSE_S


@pytest.mark.parametrize(
    ("for_s", "variable", "sent"), [(0.0, "20", 1), (20.0, "0", 2), (None, "0", 1)]
)
def test_the_time_of_retries_is_the_argument_or_else_the_variable(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, for_s: float | None, variable: str, sent: int
) -> None:
    monkeypatch.setenv("MPT_RETRY_S", variable)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    answers.given = [httpx.Response(503), httpx.Response(200, json={})]
    with answers.client(for_s) as client, nullcontext() if sent == 2 else pytest.raises(Refused):
        client.me()
    assert len(answers.seen) == sent


# Outages


def test_an_unreachable_service_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPT_RETRY_S", "0.5")
    messages: list[str] = []
    url = f"http://127.0.0.1:{serve.free_port()}"
    with Client(url, "key", on_outage=messages.append) as client:
        with pytest.raises(NoAnswer, match=rf"^{url} does not answer .*`mpt serve` starts"):
            client.wait("a")
    (message,) = messages
    assert "Connection refused" in message


def test_wait_survives_a_server_that_is_killed_and_started_again(
    killable: Killable, database: Database
) -> None:
    client = killable.client
    with ThreadPoolExecutor(1) as beside:
        experiment_id = client.submit(ppca_spec(), cache=False)["id"]
        ended = beside.submit(client.wait, experiment_id, 60)
        time.sleep(0.3)
        killable.kill()
        killable.wait_until_missed()
        with database.transaction() as session:
            states.request(session, experiment_id, DesiredState.CANCEL)
        killable.start()
        assert ended.result()["status"] == "cancelled"
    assert len(killable.told) == 1


def client_of(respond: Callable[[httpx.Request], httpx.Response]) -> tuple[Client, list[str]]:
    """Return a client of this service, and the messages of its outages."""
    messages: list[str] = []
    client = Client("http://lab:1", "key", on_outage=messages.append)
    client._http = httpx.Client(transport=httpx.MockTransport(respond), base_url=client.url)
    return client, messages


def test_an_outage_is_reported_once_for_threads_that_share_a_client() -> None:
    all_wait = threading.Barrier(6)
    statuses = [503] * 6 + [200] * 6 + [503, 200]
    numbers = count()

    def respond(_: httpx.Request) -> httpx.Response:
        number = next(numbers)
        if number < 6:
            all_wait.wait(60)
        return httpx.Response(statuses[number], json={})

    client, told = client_of(respond)
    with ThreadPoolExecutor(6) as threads:
        [*threads.map(client.get, "abcdef")]
    assert told == ["http://lab:1 does not answer (HTTP 503): retrying"]
    client.get("a")
    assert len(told) == 2


def test_many_waits_together_poll_less_often_each(pauses: list[float]) -> None:
    looks: list[int] = []
    all_wait = threading.Barrier(40)

    def respond(_: httpx.Request) -> httpx.Response:
        looks.append(1)
        is_second = len(looks) > 40
        if not is_second:
            all_wait.wait(60)
        return httpx.Response(200, json={"status": "", "terminal": is_second})

    client, _ = client_of(respond)
    with ThreadPoolExecutor(40) as threads:
        waits = [threads.submit(client.wait, f"{i}", poll_s=0.5) for i in range(40)]
        for ended in waits:
            ended.result()
    assert max(pauses) == pytest.approx(4 * 0.5)  # as often as ten waits do


class _Kept(BaseHTTPRequestHandler):
    """Keeps its connections, and counts them."""

    protocol_version = "HTTP/1.1"
    count = 0

    def setup(self) -> None:
        _Kept.count += 1
        super().setup()

    def do_PATCH(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = json.dumps({"id": "a"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(("idle_s", "connections"), [(0.02, 2), (20.0, 1)])
def test_a_connection_that_the_service_may_end_is_not_used(
    idle_s: float, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that met this end was lost, if it could not be repeated."""
    assert connection.IDLE_S < uvicorn.Config("service").timeout_keep_alive
    monkeypatch.setattr(connection, "IDLE_S", idle_s)
    monkeypatch.setattr(_Kept, "count", 0)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Kept) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        with Client(f"http://127.0.0.1:{server.server_address[1]}", "key") as client:
            for _ in range(2):
                client.change("a", priority=1)
                time.sleep(0.2)
        server.shutdown()
        thread.join()
    assert _Kept.count == connections
