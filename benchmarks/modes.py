"""The service as `benchmarks.service` measures it, with the processes that users run: embedded
(SQLite), and as a lab (PostgreSQL, Redis)."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mptlab import Client, serve
from service.operations.prepare import prepare
from service.settings import Settings
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import Lab, wait_until
from tests.support.servers import PostgreSQL, Redis

SMALL = ppca_spec()
LONG = ppca_spec(data__dim=150, evaluate__masks__per_size=100_000)
"""Keeps a worker computing for as long as the clients ask."""


@contextmanager
def sqlite() -> Iterator[Settings]:
    """A fresh embedded store."""
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        settings = Settings(store=Path(folder, "store"), database_url=None, redis_url=None)
        prepare(settings)
        yield settings


@contextmanager
def postgresql() -> Iterator[Settings]:
    """A fresh lab on servers of its own."""
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        database, broker = PostgreSQL(Path(folder), options=""), Redis(Path(folder))
        database.start()
        broker.start()
        try:
            database.create("lab")
            url, redis_url = database.url("lab"), broker.new_url()
            made = Settings(store=Path(folder, "store"), database_url=url, redis_url=redis_url)
            prepare(made)
            yield made
        finally:
            broker.stop()
            database.stop()


@contextmanager
def running(settings: Settings) -> Iterator[Client]:
    """The whole service on these settings, with one idle worker."""
    port = serve.free_port()
    key = settings.key_file.read_text().strip()
    log = settings.store / "log"
    with Client(f"http://127.0.0.1:{port}", key) as client:
        if settings.database_url is None:
            with serve.embedded(settings.store, port, log):
                _wait_for_worker(client)
                yield client
        else:
            lab = Lab(settings, log)
            lab.port = port
            lab.start_all()
            try:
                _wait_for_worker(client)
                yield client
            finally:
                lab.stop()


def _wait_for_worker(client: Client) -> None:
    serve.wait_until(client.is_ready)
    wait_until(lambda: bool(client.workers()), what="a worker")
    client.wait(client.submit(SMALL, cache=False)["id"], timeout_s=60)


MODES: dict[str, Any] = {"embedded, SQLite": sqlite, "lab, PostgreSQL": postgresql}
