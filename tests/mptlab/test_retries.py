"""The client survives an outage of the service, and repeats only requests that may be repeated. The
service that answers 503 is a small server in this file: the real one does so only while its
database is unreachable.
"""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
import uvicorn

from mptlab import Client, NoAnswer, Refused, Sweep, connection, serve
from service.db.engine import Database
from service.queue import states
from service.vocabulary import DesiredState
from tests.mptlab.conftest import Killable
from tests.support.ppca_spec import ppca_spec


class Answers(ThreadingHTTPServer):
    """A server that is busy for the first requests; `seen` lists the requests."""

    def __init__(self, busy: int, status: int = 503, retry_after: str | None = None):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.busy, self.status, self.retry_after = busy, status, retry_after
        self.seen: list[tuple[str, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Answers

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.seen.append((self.command, self.headers.get("Idempotency-Key")))
        busy = len(self.server.seen) <= self.server.busy
        self.send_response(self.server.status if busy else 200)
        if busy and self.server.retry_after:
            self.send_header("Retry-After", self.server.retry_after)
        body = json.dumps({"detail": "busy"} if busy else {"id": "a", "terminal": True}).encode()
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_PATCH = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def answers(request: pytest.FixtureRequest) -> Iterator[Answers]:
    with Answers(**request.param) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def busy(count: int, **more: object) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("answers", [{"busy": count, **more}], indirect=True)


class _Kept(_Handler):
    """Keeps its connections, and counts them."""

    protocol_version = "HTTP/1.1"
    count = 0

    def setup(self) -> None:
        _Kept.count += 1
        super().setup()


@pytest.mark.parametrize(("idle_s", "connections"), [(0.02, 2), (20.0, 1)])
def test_a_connection_that_the_service_may_end_is_not_used(
    idle_s: float, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that met this end was lost, if it could not be repeated."""
    assert connection.IDLE_S < uvicorn.Config("service").timeout_keep_alive
    monkeypatch.setattr(connection, "IDLE_S", idle_s)
    monkeypatch.setattr(_Kept, "count", 0)
    with Answers(0) as server:
        server.RequestHandlerClass = _Kept
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        with Client(server.url, "key") as client:
            for _ in range(2):
                client.change("a", priority=1)
                time.sleep(0.2)
        server.shutdown()
        thread.join()
    assert _Kept.count == connections


@busy(2)
def test_a_busy_service_is_retried(answers: Answers) -> None:
    told: list[str] = []
    with Client(answers.url, "key", on_outage=told.append) as client:
        assert client.get("a")["id"] == "a"
    assert len(answers.seen) == 3
    assert told == [f"{answers.url} does not answer (HTTP 503): retrying"]


@busy(1, retry_after="1")
def test_a_retry_after_header_is_respected(answers: Answers) -> None:
    began = time.monotonic()
    with Client(answers.url, "key") as client:
        client.get("a")
    assert time.monotonic() - began >= 1


@busy(2)
def test_a_retried_submission_keeps_its_idempotency_key(answers: Answers) -> None:
    with Client(answers.url, "key") as client:
        client.submit({})
        client.submit({})
    keys = [key for _, key in answers.seen]
    assert keys[0] == keys[1] == keys[2]
    assert keys[3] not in (None, keys[0])


@busy(1)
def test_non_idempotent_requests_are_sent_once(answers: Answers) -> None:
    with Client(answers.url, "key") as client, pytest.raises(Refused, match="busy"):
        client.resume("a")
    assert len(answers.seen) == 1


@busy(1, status=422)
def test_a_refusal_is_not_retried(answers: Answers) -> None:
    with Client(answers.url, "key") as client, pytest.raises(Refused):
        client.get("a")
    assert len(answers.seen) == 1


@busy(1000)
def test_a_wait_ends_at_its_own_timeout(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPT_RETRY_S", "0")
    with Client(answers.url, "key") as client:
        with pytest.raises(Refused):
            client.wait("a", timeout_s=0.5)
        with pytest.raises(TimeoutError, match="HTTP 503"):
            Sweep(client, "a").wait(0.5, progress=False)


@busy(1000, retry_after="20")
def test_pauses_are_limited_by_the_remaining_time(
    answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPT_RETRY_S", "0.5")
    began = time.monotonic()
    with Client(answers.url, "key") as client:
        with pytest.raises(Refused, match="busy"):
            client.get("a")
        assert len(answers.seen) == 2  # at once, and at the end
        known = Sweep(client, "a")
        with pytest.raises(TimeoutError, match="HTTP 503"):
            known.wait(0.5, progress=False)
    assert time.monotonic() - began < 5


def test_an_unreachable_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPT_RETRY_S", "0.5")
    told: list[str] = []
    url = f"http://127.0.0.1:{serve.free_port()}"
    with Client(url, "key", on_outage=told.append) as client:
        with pytest.raises(NoAnswer, match=rf"^{url} does not answer .*`mpt serve` starts"):
            client.wait("a")
    assert len(told) == 1
    assert "Connection refused" in told[0]


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


@busy(6)
def test_an_outage_is_reported_once_for_threads_that_share_a_client(answers: Answers) -> None:
    told: list[str] = []
    client = Client(answers.url, "key", on_outage=told.append)
    with ThreadPoolExecutor(6) as threads:
        [*threads.map(client.get, "abcdef")]
    assert len(told) == 1
    answers.busy = len(answers.seen) + 1
    client.get("a")
    assert len(told) == 2


def test_many_waits_together_poll_at_most_like_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    pauses: list[float] = []
    all_wait = threading.Barrier(40)

    def answer(_: httpx.Request) -> httpx.Response:
        looks.append(1)
        is_second = len(looks) > 40
        if not is_second:
            all_wait.wait(60)
        return httpx.Response(200, json={"status": "", "terminal": is_second})

    client = Client("http://lab:1", "key")
    client._http = httpx.Client(transport=httpx.MockTransport(answer), base_url=client.url)
    monkeypatch.setattr(time, "sleep", pauses.append)
    with ThreadPoolExecutor(40) as threads:
        waits = [threads.submit(client.wait, f"{i}", poll_s=0.5) for i in range(40)]
        assert len([one.result() for one in waits]) == 40
    assert len(pauses) == 40
    assert max(pauses) == 2.0
