"""A real API process's server in a thread, and what comes by its event streams."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn

from mptlab import serve
from service.connections import BoundedHeads, Server
from service.main import create_app
from service.settings import Settings
from tests.support.processes import wait_until

TIMEOUT_S = 30.0


@contextmanager
def served(settings: Settings) -> Iterator[httpx.Client]:
    """A client, with the local key, of the service while the block runs."""
    port = serve.free_port()
    config = uvicorn.Config(create_app(settings), port=port, log_config=None, http=BoundedHeads)
    server = Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_until(lambda: server.started)
    key = settings.key_file.read_text().strip()
    headers = {"Authorization": f"Bearer {key}"}
    try:
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=TIMEOUT_S
        ) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()


@dataclass(frozen=True)
class Told:
    """One event of a stream."""

    kind: str
    id: str
    body: dict[str, Any]

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = self.body["data"]
        return found


@contextmanager
def stream(client: httpx.Client, path: str, **how: Any) -> Iterator[Iterator[Told]]:
    """The events of a stream as they come, to its end."""
    headers = {"Accept": "text/event-stream", **how.pop("headers", {})}
    with client.stream("GET", path, headers=headers, **how) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield _events(answer.iter_lines())


def _events(lines: Iterator[str]) -> Iterator[Told]:
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "event" in fields:
            yield Told(fields["event"], fields["id"], json.loads(fields["data"]))
            fields = {}
