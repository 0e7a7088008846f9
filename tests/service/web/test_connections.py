"""Cost of a connection before there is a request."""

import asyncio
import logging
import re
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl

from mptlab import serve
from service.app import create_app
from service.settings import Settings
from service.web import bodies, connections
from service.web.connections import HEAD_BYTES, BoundedHeads
from tests.support.processes import wait_until

HEAD = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
SIGN_IN = (
    b"POST /v1/sign-in HTTP/1.1\r\nHost: x\r\nSec-Fetch-Site: same-origin\r\n"
    b"Content-Type: application/json\r\n"
)


SERVERS: dict[int, uvicorn.Server] = {}
"""Running services, by port."""


@contextmanager
def served(settings: Settings) -> Iterator[int]:
    """The service on a port, in a thread."""
    chosen = serve.free_port()
    config = uvicorn.Config(
        create_app(settings),
        port=chosen,
        log_config=None,
        http=BoundedHeads,
        timeout_keep_alive=600,  # it is closed for another reason
    )
    server = SERVERS[chosen] = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_until(lambda: server.started)
    yield chosen
    server.should_exit = True
    thread.join()


@pytest.fixture
def port(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(connections, "HEAD_S", 0.5)
    monkeypatch.setattr(connections, "STALL_S", 0.5)
    with served(settings.model_copy(update={"body_s": 0.5})) as chosen:
        yield chosen


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def answer(connection: socket.socket) -> bytes:
    """All that comes until the other end closes."""
    received = bytearray()
    try:
        while piece := connection.recv(65536):
            received += piece
    except ConnectionResetError:
        pass
    return bytes(received)


def one_answer(connection: socket.socket) -> bytes:
    """An answer with a JSON object, whose body may come in a piece of its own."""
    received = b""
    while not received.endswith(b"}"):
        piece = connection.recv(65536)
        assert piece, received
        received += piece
    return received


def test_heads_of_usual_size_are_accepted(port: int) -> None:
    with connect(port) as connection:
        for _ in range(3):  # each is counted for itself
            connection.sendall(HEAD + b"X-Long: " + b"x" * (HEAD_BYTES // 2) + b"\r\n\r\n")
            assert one_answer(connection).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("bomb", [b"X-Long: " + b"x" * 2**20, b"X-Many: 1\r\n" * 10**5])
def test_a_too_large_head_is_refused_while_it_arrives(port: int, bomb: bytes) -> None:
    with connect(port) as connection:
        try:
            connection.sendall(HEAD + bomb)
        except (BrokenPipeError, ConnectionResetError):
            return  # it was cut off before it was sent
        told = answer(connection)  # nothing, where the rest that was sent reset the connection
        assert not told or b"at most" in told


def test_warnings_of_malformed_requests_are_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anyone may send thousands a second. Errors always pass."""
    day = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: day)
    seldom = connections.SeldomWarnings()
    levels = (logging.WARNING, logging.WARNING, logging.ERROR, logging.INFO)
    records = [logging.LogRecord("uvicorn.error", one, "", 1, "a", (), None) for one in levels]
    assert [seldom.filter(one) for one in records] == [True, False, True, True]
    day += connections.WARNED_EVERY_S
    assert [seldom.filter(one) for one in records] == [True, False, True, True]


def test_the_server_passes_few_warnings() -> None:
    """However many servers a process has, there is one filter."""
    log = logging.getLogger("uvicorn.error")
    log.removeFilter(connections.SELDOM_WARNINGS)
    for _ in range(2):
        connections.Server(uvicorn.Config("a:b", log_config=None))
        assert log.filters.count(connections.SELDOM_WARNINGS) == 1


@pytest.mark.parametrize("header", [b"X-Long: " + b"x" * 1000, b"a:"])
def test_a_too_large_head_in_one_piece_is_refused(port: int, header: bytes) -> None:
    """Nothing of it is used, although it is complete. A smaller one is accepted."""
    for size, status in ((HEAD_BYTES // 2, 200), (2 * HEAD_BYTES, 400)):
        with connect(port) as connection:
            many = (header + b"\r\n") * (size // (len(header) + 2))
            connection.sendall(HEAD + many + b"Connection: close\r\n\r\n")
            told = answer(connection)
            assert told.startswith(b"HTTP/1.1 %d" % status)
            assert (b"at most" in told) == (status == 400)


def test_a_url_that_is_too_large_is_refused(port: int) -> None:
    with connect(port) as connection:
        connection.sendall(b"GET /" + b"x" * (HEAD_BYTES + 1))
        told = answer(connection)
        assert told.startswith(b"HTTP/1.1 400")
        assert b"at most" in told


@pytest.mark.parametrize(
    "bomb",
    [b"0\r\n" + b"a:b\r\n" * 10**6, b"0\r\nA: " + b"a" * 2**22, b"1;" + b"a" * 2**22],
    ids=["many trailers", "one trailer", "a chunk size"],
)
def test_a_body_of_trailers_is_refused_while_it_arrives(
    port: int, bomb: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[int] = []
    on_header = BoundedHeads.on_header

    def noted(protocol: BoundedHeads, name: bytes, value: bytes) -> None:
        kept.append(len(name) + len(value))
        on_header(protocol, name, value)

    monkeypatch.setattr(BoundedHeads, "on_header", noted)
    with connect(port) as connection:
        try:
            connection.sendall(SIGN_IN + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n")
            connection.sendall(bomb)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it was cut off before it was sent
        else:
            told = answer(connection)
            assert not told or b"at most" in told
    assert sum(kept) < 2**20


def test_a_body_may_come_in_small_chunks(port: int) -> None:
    with connect(port) as connection:
        connection.sendall(SIGN_IN + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(4):
            connection.sendall(b"1;" + b"a" * (HEAD_BYTES // 2) + b"\r\n \r\n")
        connection.sendall(b"2\r\n{}\r\n0\r\nA: b\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 422")


@pytest.mark.parametrize("before", [b"", HEAD + b"\r\n"])
def test_a_slow_head_times_out(port: int, before: bytes) -> None:
    """The first of a connection, and a later one."""
    with connect(port) as connection:
        connection.sendall(before)
        if before:
            assert one_answer(connection).startswith(b"HTTP/1.1 200")
        connection.sendall(HEAD)
        began = time.monotonic()
        try:
            while time.monotonic() < began + 5:
                connection.sendall(b"X: 1\r\n")
                time.sleep(0.05)
        except (BrokenPipeError, ConnectionResetError):
            return
        pytest.fail("it was still listened to")


def test_a_slow_body_times_out(port: int) -> None:
    with connect(port) as connection:
        connection.sendall(SIGN_IN + b"Content-Length: 100\r\n\r\n{")
        assert connection.recv(65536).startswith(b"HTTP/1.1 408")


def test_an_answer_to_a_body_that_is_not_read_closes_the_connection(port: int) -> None:
    """Otherwise the server would continue to read the request."""
    for head in (b"POST /v1/experiments", b"GET /healthz", b"POST /v1/sign-out"):
        with connect(port) as connection:
            connection.sendall(head + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n{")
            told = answer(connection)
            assert told.startswith(b"HTTP/1.1 ")
            assert b"\r\nconnection: close\r\n" in told


@pytest.mark.parametrize("first", [HEAD + b"\r\n", SIGN_IN + b"Content-Length: 2\r\n\r\n{}"])
def test_only_the_first_of_requests_that_are_sent_at_once_is_answered(
    port: int, first: bytes
) -> None:
    with connect(port) as connection:
        connection.sendall(first + 1000 * (HEAD + b"\r\n"))
        head, _, body = answer(connection).partition(b"\r\n\r\n")
    assert head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 422"))
    assert b"\r\nconnection: close" in head
    assert b"HTTP/1.1" not in body


def test_an_answer_that_is_not_read_is_cut_off(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 60.0)
    with connect(port) as connection:
        mine = connection.getsockname()[1]
        wait_until(lambda: (port, mine) in held())
        with suppress(ConnectionError):  # it may be cut off while this still asks
            for _ in range(200):  # some forty megabytes: more than all buffers on the way hold
                connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(lambda: (port, mine) not in held())


def held() -> set[tuple[int, int]]:
    """The connections of this process, by their ports here and there."""
    found = psutil.Process().net_connections("tcp")
    return {(one.laddr.port, one.raddr.port) for one in found if one.raddr}


class Sending(asyncio.Transport):
    """Replaces a transport with a given number of unsent bytes at each check."""

    def __init__(self, left: list[int]):
        super().__init__()
        self.left, self.is_aborted = left, False

    def get_write_buffer_size(self) -> int:
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]

    def abort(self) -> None:
        self.is_aborted = True


def test_a_slow_reader_is_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only clients that read nothing are disconnected."""
    monkeypatch.setattr(connections, "STALL_S", 0.01)
    transport = Sending([9, 8, 7, 6, 5, 5])

    async def send() -> None:
        protocol = object.__new__(BoundedHeads)
        protocol.loop = asyncio.get_running_loop()
        protocol.transport = transport
        protocol._watch_sending()
        while not transport.is_aborted:
            await asyncio.sleep(0.01)

    asyncio.run(send())
    assert transport.left == [5]


@pytest.mark.parametrize(
    ("users", "first_cut"),
    [((1, 1, 1, 1, 1), 0), ((None,) * 5, 0), ((7, 8, 9, 8, 8), 1), ((7, 8, 8, 9, 9), 0)],
)
def test_the_longest_waiting_of_too_many_unread_answers_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, users: Sequence[int | None], first_cut: int
) -> None:
    """However slowly they are read; one of the user with the most unread bytes. One member opened
    24 connections and read nothing: another one's slow download ended early."""
    monkeypatch.setattr(connections, "MAX_UNSENT_BYTES", 110)
    sizes = (60, 30, 10, 40, 0)

    async def send() -> list[list[bool]]:
        protocols: list[BoundedHeads] = []
        transports: list[Sending] = []
        aborted = []
        for size, user in zip(sizes, users, strict=True):
            protocol = object.__new__(BoundedHeads)
            state: dict[str, Any] = {} if user is None else {"caller": SimpleNamespace(id=user)}
            protocol.cycle = SimpleNamespace(scope={"state": state})  # type: ignore[assignment]
            protocol.loop = asyncio.get_running_loop()
            protocol.flow = FlowControl(asyncio.Transport())
            protocol.connections = protocols  # type: ignore[assignment]
            transports.append(Sending([size]))
            protocol.transport = transports[-1]
            monkeypatch.setattr(protocol.flow, "pause_writing", lambda: None)
            protocols.append(protocol)
            protocol.pause_writing()
            aborted.append([one.is_aborted for one in transports])
            for one, transport in zip(protocols, transports, strict=True):
                if transport.is_aborted:
                    one._go_on_sending()  # as when the connection is lost
        return aborted

    none = [False] * 3
    cut = [i == first_cut for i in range(4)]
    assert asyncio.run(send()) == [none[:1], none[:2], none, cut, [*cut, False]]


@contextmanager
def used(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Connections that have each had an answer."""
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            found.append(stack.enter_context(connect(port)))
            found[-1].sendall(HEAD + b"\r\n")
            read_answer(found[-1])
            wait_until(lambda: is_idle(port, found[-1]))
        yield found


def is_idle(port: int, connection: socket.socket) -> bool:
    """Return whether the service has recorded the end of an answer, shortly after its last byte."""
    ours = connection.getsockname()
    known = [*SERVERS[port].server_state.connections]
    return any(
        one._is_idle for one in known if isinstance(one, BoundedHeads) and one.client == ours
    )


def read_answer(connection: socket.socket) -> None:
    """Read all of a successful answer: the connection is idle only after its last byte."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(65536)
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    assert length is not None
    while len(body) < int(length[1]):
        body += connection.recv(65536)


@pytest.fixture(params=["MAX_CONNECTIONS", "MAX_OF_ADDRESS"])
def for_three(
    request: pytest.FixtureRequest, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> Iterator[int]:
    """Service that allows three connections: in total, through a proxy, or from one address."""
    limits = {"MAX_CONNECTIONS": 99, "MAX_OF_ADDRESS": 0, request.param: 3}
    for name, limit in limits.items():
        monkeypatch.setattr(connections, name, limit)
    proxy = "10.0.0.1" if request.param == "MAX_OF_ADDRESS" else "127.0.0.1"
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", proxy)
    with served(settings.model_copy(update={"max_user_uploads": 3})) as chosen:
        yield chosen


def test_the_longest_idle_connection_is_closed_first(for_three: int) -> None:
    with used(for_three, 1) as (oldest,), used(for_three, 2) as others, used(for_three, 1):
        assert answer(oldest) == b""
        for one in others:
            one.sendall(HEAD + b"\r\n")
            assert one.recv(65536).startswith(b"HTTP/1.1 200")


def awaited(port: int, head: bytes) -> socket.socket:
    """A connection whose request's body the service waits for."""
    connection = connect(port)
    connection.sendall(head + b"Expect: 100-continue\r\nContent-Length: 9\r\n\r\n")
    assert connection.recv(65536).startswith(b"HTTP/1.1 100")
    return connection


def test_without_idle_connections_the_longest_awaited_body_is_closed(
    for_three: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "PUBLIC_BODY_S", 600.0)
    with ExitStack() as stack:
        (idle,) = stack.enter_context(used(for_three, 1))
        oldest, *others = [stack.enter_context(awaited(for_three, SIGN_IN)) for _ in range(3)]
        assert answer(idle) == b""
        (newest,) = stack.enter_context(used(for_three, 1))
        told = answer(oldest)
        assert told.startswith(b"HTTP/1.1 503")
        assert b"Retry-After: 2" in told
        for one in others:
            one.sendall(b"{}".ljust(9))
            assert one.recv(65536).startswith(b"HTTP/1.1 422")
        newest.sendall(HEAD + b"\r\n")
        assert newest.recv(65536).startswith(b"HTTP/1.1 200")


def test_a_connection_is_refused_if_all_others_are_busy(for_three: int, settings: Settings) -> None:
    """All other connections are uploads, which are never replaced."""
    key = settings.key_file.read_bytes().strip()
    head = b"POST /v1/datasets?name=a.npy HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + key
    with ExitStack() as stack:
        uploads = [stack.enter_context(awaited(for_three, head + b"\r\n")) for _ in range(3)]
        told = answer(stack.enter_context(connect(for_three)))
        assert told.startswith(b"HTTP/1.1 503")
        assert b"Retry-After: 2" in told
        for one in uploads:
            one.sendall(b"no array!")
            assert one.recv(65536).startswith(b"HTTP/1.1 422")


@pytest.mark.parametrize(("trusted", "count"), [("10.0.0.1", 1), ("127.0.0.1", 0)])
def test_a_proxy_that_is_not_trusted_is_logged_once(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    trusted: str,
    count: int,
) -> None:
    monkeypatch.setattr(BoundedHeads, "_has_warned", False)
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", trusted)
    with served(settings) as port, connect(port) as connection:
        for _ in range(2):
            connection.sendall(HEAD + b"X-Forwarded-For: 192.0.2.1\r\n\r\n")
            assert one_answer(connection).startswith(b"HTTP/1.1 200")
    warned = [text for text in caplog.messages if "FORWARDED_ALLOW_IPS" in text]
    assert len(warned) == count
    assert all(text.startswith("127.0.0.1 ") for text in warned)
