"""What a connection may cost before there is a request."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator

import psutil
import pytest
import uvicorn

from mptlab import serve
from service import connections
from service.connections import HEAD_BYTES, BoundedHeads
from service.main import create_app
from service.settings import Settings
from tests.support.processes import wait_until

HEAD = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture
def port(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(connections, "HEAD_S", 0.5)
    monkeypatch.setattr(connections, "STALL_S", 0.5)
    quick = settings.model_copy(update={"body_s": 0.5})
    chosen = serve.free_port()
    config = uvicorn.Config(create_app(quick), port=chosen, log_config=None, http=BoundedHeads)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_until(lambda: server.started)
    yield chosen
    server.should_exit = True
    thread.join()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=5)


def answer(connection: socket.socket) -> bytes:
    """All that comes until the other end closes."""
    received = bytearray()
    try:
        while piece := connection.recv(65536):
            received += piece
    except ConnectionResetError:
        pass
    return bytes(received)


def test_heads_of_a_usual_size_are_taken(port: int) -> None:
    with connect(port) as connection:
        for _ in range(3):  # each is counted for itself
            connection.sendall(HEAD + b"X-Long: " + b"x" * (HEAD_BYTES // 2) + b"\r\n\r\n")
            told = b""
            while not told.endswith(b"}"):  # its body may come in a piece of its own
                told += connection.recv(65536)
            assert told.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("bomb", [b"X-Long: " + b"x" * 2**20, b"X-Many: 1\r\n" * 10**5])
def test_a_head_that_is_too_large_is_refused_while_it_comes(port: int, bomb: bytes) -> None:
    with connect(port) as connection:
        try:
            connection.sendall(HEAD + bomb)
        except (BrokenPipeError, ConnectionResetError):
            return  # it was cut off before it was sent
        told = answer(connection)  # nothing, where the rest that was sent reset the connection
        assert not told or b"at most" in told


def test_a_url_that_is_too_large_is_refused(port: int) -> None:
    with connect(port) as connection:
        connection.sendall(b"GET /" + b"x" * (HEAD_BYTES + 1))
        told = answer(connection)
        assert told.startswith(b"HTTP/1.1 400")
        assert b"at most" in told


@pytest.mark.parametrize("before", [b"", HEAD + b"\r\n"])
def test_a_head_that_comes_too_slowly_is_given_up(port: int, before: bytes) -> None:
    """The first of a connection, and a later one."""
    with connect(port) as connection:
        connection.sendall(before)
        if before:
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.sendall(HEAD)
        began = time.monotonic()
        try:
            while time.monotonic() < began + 5:
                connection.sendall(b"X: 1\r\n")
                time.sleep(0.05)
        except (BrokenPipeError, ConnectionResetError):
            return
        pytest.fail("it was still listened to")


def test_a_body_that_comes_too_slowly_is_given_up(port: int) -> None:
    with connect(port) as connection:
        connection.sendall(
            b"POST /v1/experiments HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100\r\n\r\n{"
        )
        assert connection.recv(65536).startswith(b"HTTP/1.1 408")


def test_an_answer_that_no_one_takes_is_cut_off(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 60.0)
    with connect(port) as connection:
        mine = connection.getsockname()[1]
        wait_until(lambda: (port, mine) in held())
        for _ in range(200):  # some forty megabytes: more than all buffers on the way hold
            connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(lambda: (port, mine) not in held())


def held() -> set[tuple[int, int]]:
    """The connections of this process, by their ports here and there."""
    found = psutil.Process().net_connections("tcp")
    return {(one.laddr.port, one.raddr.port) for one in found if one.raddr}


class Sending(asyncio.Transport):
    """Stands for a transport of which so many bytes are left to send, look by look."""

    def __init__(self, left: list[int]):
        super().__init__()
        self.left, self.is_aborted = left, False

    def get_write_buffer_size(self) -> int:
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]

    def abort(self) -> None:
        self.is_aborted = True


def test_who_takes_an_answer_slowly_is_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only who takes nothing any more."""
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
