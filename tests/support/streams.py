"""The server of a real API process in a thread, and the events of its streams."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from mptlab import serve
from service.app import create_app
from service.settings import Settings
from service.web.server import Server
from tests.support.processes import wait_until

TIMEOUT_S = 30.0


@contextmanager
def served(settings: Settings, app: FastAPI | None = None) -> Iterator[httpx.Client]:
    """A client, with the local key, of the service while the block runs."""
    port = serve.free_port()
    app = app or create_app(settings)
    config = uvicorn.Config(app, port=port, log_config=None)
    server = Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_until(lambda: server.started)
    key = settings.key_file.read_text().strip()
    headers = {"Authorization": f"Bearer {key}"}
    url = f"http://127.0.0.1:{port}"
    with httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT_S) as client:
        try:
            yield client
        finally:
            server.should_exit = True
            thread.join()


@dataclass(frozen=True)
class Told:
    """One event of a stream."""

    kind: str
    id: str | None
    """Position after it; None in streams of several experiments."""
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
            yield Told(fields["event"], fields.get("id"), json.loads(fields["data"]))
            fields = {}
