"""A user's own server that receives webhooks."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Receiver:
    """Received requests as (headers, body), and the statuses of the answers: one after another, the
    last one repeated."""

    url: str = ""
    port: int = 0
    statuses: list[int] = field(default_factory=lambda: [200])
    told: list[tuple[dict[str, str], bytes]] = field(default_factory=list)


@contextmanager
def receiving(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """On a loopback port while the block runs."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.told.append((dict(self.headers.items()), body))
            status = receiver.statuses.pop(0) if receiver.statuses[1:] else receiver.statuses[0]
            self.send_response(status)
            if status in range(300, 400):
                self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    receiver.port = server.server_port
    receiver.url = f"http://127.0.0.1:{receiver.port}/ended"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
