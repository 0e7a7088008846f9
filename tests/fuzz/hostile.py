"""Hostile connections, before or during a request; the service must close each of them."""

import socket
from collections.abc import Callable, Iterator

MIB = b"x" * 2**20
LARGE = 100


class Connection:
    """Connection to the service of a client that ignores the answer."""

    def __init__(self, port: int, key: str):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.head = f"Host: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n".encode()

    def send(self, pieces: Iterator[bytes]) -> int | None:
        """The status of the answer to all that was taken; None where there was none."""
        try:
            for piece in pieces:
                self.socket.sendall(piece)
        except OSError:
            pass  # cut off, as it should be; an answer may still be there
        try:
            line = self.socket.recv(65_536).split(b"\r\n", 1)[0].split(b" ")
        except ConnectionResetError:
            return None
        finally:
            self.socket.close()
        return int(line[1]) if len(line) > 1 else None


def chunked(connection: Connection, method: bytes, target: bytes) -> Iterator[bytes]:
    """A body of 100 MiB, which does not say how large it is."""
    yield b"%s %s HTTP/1.1\r\n%s" % (method, target, connection.head)
    yield b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    for _ in range(LARGE):
        yield b"100000\r\n%s\r\n" % MIB
    yield b"0\r\n\r\n"


def large_header(connection: Connection) -> Iterator[bytes]:
    yield b"GET /v1/me HTTP/1.1\r\n" + connection.head + b"X-Large: "
    yield from [MIB] * LARGE


def many_headers(connection: Connection) -> Iterator[bytes]:
    yield b"GET /v1/me HTTP/1.1\r\n" + connection.head
    yield from [b"X-Many: 1\r\n" * 10_000] * 100


def large_target(connection: Connection) -> Iterator[bytes]:
    yield b"GET /"
    yield from [MIB] * LARGE


def smuggled(connection: Connection) -> Iterator[bytes]:
    """Two lengths of one body."""
    yield b"POST /v1/experiments HTTP/1.1\r\n" + connection.head
    yield b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
    yield b"0\r\n\r\nGET /v1/users HTTP/1.1\r\n"


def cut_off(connection: Connection) -> Iterator[bytes]:
    yield b"POST /v1/datasets?name=a.csv HTTP/1.1\r\n" + connection.head
    yield b"Content-Length: 1000\r\n\r\n1,2\n"
    connection.socket.shutdown(socket.SHUT_WR)


def no_http(connection: Connection) -> Iterator[bytes]:
    yield b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\r\n\r\n"


ATTACKS: dict[str, Callable[[Connection], Iterator[bytes]]] = {
    "100 MiB chunked to a JSON route": lambda one: chunked(one, b"POST", b"/v1/experiments"),
    "100 MiB chunked to an upload": lambda one: chunked(one, b"POST", b"/v1/datasets?name=a.csv"),
    "100 MiB chunked to a read": lambda one: chunked(one, b"GET", b"/v1/me"),
    "100 MiB chunked to nowhere": lambda one: chunked(one, b"POST", b"/nowhere"),
    "100 MiB of one header": large_header,
    "a million headers": many_headers,
    "100 MiB of path": large_target,
    "two lengths": smuggled,
    "an upload that is cut off": cut_off,
    "no HTTP": no_http,
}


class SlowLoris:
    """Many connections that each send only a part of a request."""

    def __init__(self, port: int, count: int = 200):
        self.connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
        for i, one in enumerate(self.connections):
            one.sendall(b"GET /v1/me HTTP/1.1\r\nHost: x\r\nX-Slow: " + b"x" * (i % 7))

    def still_open(self) -> int:
        """Number of connections that the service has not closed."""
        return sum(map(_is_open, self.connections))

    def close(self) -> None:
        for one in self.connections:
            one.close()


def _is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        while piece := connection.recv(65_536):
            del piece
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False
