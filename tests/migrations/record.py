"""Record an archive of a lab: its backup, and the answers of its API. Run it at a release, for the
tests of later versions: `python -m tests.migrations.record FOLDER` writes `sqlite.tar.xz` and
`postgresql.tar.xz`.

An archive has the files `database.sqlite3` or `database.dump` and the folder `store` of a backup,
the key of the user ann in `key-of-ann`, and the answers in `answers.json`.
"""

import argparse
import json
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx

from mptlab import Client
from service.db.engine import Database
from service.experiments.models import Checkpoint
from service.operations import backup
from service.operations.prepare import prepare
from service.queue import lease, ledger, workers
from service.queue.lease import FailureCause
from service.records.recording import Batch, record
from service.settings import Settings
from service.vocabulary import Role, Status
from tests.support.attempts import claim_next, submitted
from tests.support.browser import Service
from tests.support.filled_lab import H100, LEASE_S, end, key_of, of_texts, running, succeeded, swept
from tests.support.ppca_spec import ppca_spec
from tests.support.servers import PostgreSQL

EXPERIMENTS = "/v1/experiments?limit=100"
LISTS = (
    EXPERIMENTS,
    "/v1/sweeps",
    "/v1/datasets",
    "/v1/webhooks",
    "/v1/users",
    "/v1/users/local/keys",
    "/v1/users/ann/keys",
    "/v1/audit?limit=200",
)
PARTS = {
    "/v1/experiments": ("", "/metrics", "/curves", "/events?limit=500", "/artifacts"),
    "/v1/sweeps": ("", "/table"),
    "/v1/datasets": ("",),
}


def answers(get: Callable[[str], Any]) -> Iterator[tuple[str, Any]]:
    """Yield the path and the JSON of each answer that shows what is stored."""
    for path in LISTS:
        answer = get(path)
        assert answer.status_code == 200, answer.text
        yield path, answer.json()
        objects = path.partition("?")[0]
        for part in PARTS.get(objects, ()):
            for row in answer.json()["items"]:
                of_one = f"{objects}/{row['id']}{part}"
                yield of_one, get(of_one).json()


def fill_lab(database: Database, client: Client, settings: Settings) -> None:
    """Add experiments in every status, a sweep, an upload, a webhook, users, keys and a drain."""
    succeeded(database, "with curves")
    of_texts(database, settings, "texts")
    swept(database, client, "sweep")
    submitted(database, name="failed", priority=100)
    end(database, claim_next(database, LEASE_S), Status.FAILED, FailureCause("oom", "too large"))
    running(database, "running")
    rows = settings.store / "rows.csv"
    rows.write_text("0.3,0.1,0.2\n0.1,0.2,0.3\n0.4,0.5,0.7\n0.7,0.8,0.9\n")
    client.upload(rows)
    rows.unlink()
    ended = client.submit(ppca_spec(seeds=[5]), name="ended", tags=["a", "b"], priority=90)["id"]
    claim = claim_next(database, LEASE_S)
    log = Batch()
    log.add({"seq": 1, "record": "log", "level": "warning", "message": "a line"})
    with database.transaction() as session:
        record(session, claim, log, LEASE_S)
    end(database, claim, Status.SUCCEEDED)
    client.change(ended, note="kept", visibility="lab", pinned=True)
    after = client.submit(ppca_spec(seeds=[6]), name="after", after=[ended])["id"]
    client.cancel(after)
    gone = client.submit(ppca_spec(seeds=[7]), name="gone")["id"]
    client.cancel(gone)
    client.delete(gone)
    client.submit(ppca_spec(seeds=[8]), name="once", idempotency_key="once")
    client.pause(client.retry(after)["id"])
    claim, _ = running(database, "with a checkpoint")
    folder = settings.checkpoints(claim.experiment_id) / "1"
    folder.mkdir(parents=True)
    (folder / "000000030.safetensors").write_bytes(b"weights")
    columns = {"attempt": 1, "after_seq": 30, "sha256": "0" * 64, "bytes": 7, "created_at": 1.0}
    with database.transaction() as session:
        session.add(Checkpoint(experiment_id=claim.experiment_id, file=f"{folder}", **columns))
        full = FailureCause("disk_full", "the disk is full")
        lease.hand_back(session, claim, "disk_full", 3, full)
        ledger.fold(session, settings.share)
    with database.transaction() as session:
        workers.beat(session, "node2:gpu0", H100)
    client.drain(H100.host)
    submitted(database, ppca_spec(seeds=[9]), name="queued")


def make(settings: Settings, target: Path) -> None:
    prepare(settings)
    with tempfile.TemporaryDirectory() as folder:
        with closing(Database(settings.url)) as database, served(settings) as (client, api):
            webhook = {"url": "https://example.org/ended", "statuses": ["failed"]}
            assert api.post("/v1/webhooks", json=webhook).status_code == 201
            fill_lab(database, client, settings)
            key = key_of(database, "ann", Role.MEMBER)
            Path(folder, "key-of-ann").write_text(key)
            Path(folder, "answers.json").write_text(json.dumps(dict(answers(api.get)), indent=1))
        backup.save(settings, Path(folder))
        with tarfile.open(target, "w:xz") as archive:
            archive.add(folder, ".")


@contextmanager
def served(settings: Settings) -> Iterator[tuple[Client, httpx.Client]]:
    """Serve the API while the block runs, to the key of the first admin."""
    key = settings.key_file.read_text().strip()
    bearer = {"Authorization": f"Bearer {key}"}
    service = Service(settings)
    service.start()
    try:
        with (
            Client(service.url, key) as client,
            httpx.Client(base_url=service.url, headers=bearer) as api,
        ):
            yield client, api
    finally:
        service.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        make(Settings(store=Path(place, "store"), database_url=None), folder / "sqlite.tar.xz")
        server = PostgreSQL(Path(place))
        server.start()
        server.create("lab")
        programs = server.program("pg_dump").parent
        os.environ["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"
        lab = Settings(store=Path(place, "lab"), database_url=server.url("lab"))
        make(lab, folder / "postgresql.tar.xz")
        server.stop()


if __name__ == "__main__":
    main()
