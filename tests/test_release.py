"""Checklist of a release: what a lab relies on when it installs this version over an earlier one.

The archives in `migrations/version_0_2` are backups that a lab of version 0.2 (commit 7cfc9dc) made
with its own processes, on either database: experiments that had succeeded, one of a sweep among
them, others that were running, queued and paused, an upload, a webhook, and the key of the user
ann. A store of version 0.1 is carried over in `migrations/test_upgrade_from_0_1.py`.
"""

import os
import shutil
import subprocess
import tarfile
import uuid
from contextlib import closing
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from mptlab import __version__
from service.app import create_app
from service.db.engine import Database
from service.settings import Settings
from tests.support.forks import fork
from tests.support.processes import embedded_service, environment, lab_processes, wait_until
from tests.support.servers import PostgreSQL, Redis

ARCHIVES = Path(__file__).parent / "migrations/version_0_2"


@pytest.fixture(params=["sqlite", "postgresql"])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The folder of a backup of version 0.2."""
    folder = tmp_path / "backup"
    with tarfile.open(ARCHIVES / f"{request.param}.tar.gz") as file:
        file.extractall(folder, filter="data")
    return folder


@pytest.fixture
def empty(
    archive: Path, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Settings:
    """Settings of an empty database of the archive's kind, and of a store that does not exist."""
    store = tmp_path / "store"
    if (archive / "database.sqlite3").exists():
        return Settings(store=store, database_url=None)
    server: PostgreSQL = request.getfixturevalue("postgresql")
    redis: Redis = request.getfixturevalue("redis")
    name = f"release_{uuid.uuid4().hex}"
    server.create(name)
    folder = server.program("pg_restore").parent
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    url = server.url(name)
    return Settings(store=store, database_url=url, redis_url=redis.new_url())


def run_mpt(settings: Settings, *words: str) -> None:
    output = settings.store.parent / "output"
    assert fork(words, environment(settings), output).wait() == 0, output.read_text()


def put_in_place(archive: Path, settings: Settings) -> None:
    """Lay out the store and the database as version 0.2 left them."""
    shutil.copytree(archive / "store", settings.store)
    if settings.database_url is None:
        shutil.copy(archive / "database.sqlite3", settings.store / "mptlab.sqlite3")
    else:
        url = settings.database_url.replace("+psycopg", "")
        dump = str(archive / "database.dump")
        subprocess.run(["pg_restore", "--no-owner", "--dbname", url, dump], check=True)


@pytest.mark.parametrize("way", ["store", "backup"])
def test_a_store_and_a_backup_of_version_0_2_are_carried_over(
    archive: Path, empty: Settings, way: str
) -> None:
    if way == "store":
        put_in_place(archive, empty)
        run_mpt(empty, "migrate")
    else:
        run_mpt(empty, "restore", str(archive))
    key = empty.key_file.read_text().strip()
    with TestClient(create_app(empty), headers={"Authorization": f"Bearer {key}"}) as api:
        rows = {row["name"]: row for row in api.get("/v1/experiments").json()["items"]}
        running = "running" if way == "store" else "queued"  # it still has its lease
        assert {name: row["status"] for name, row in rows.items()} == {
            "ended": "succeeded", None: "succeeded", "running": running, "queued": "queued",
            "paused": "paused",
        }  # fmt: skip
        ended = api.get(rows["ended"]["urls"]["self"]).json()
        assert (ended["tags"], ended["note"]) == (["a", "b"], "kept")
        series = api.get(f"{ended['urls']['self']}/curves").json()["series"]
        assert [len(one["x"]) for one in series if one["name"] == "score"] == [6]
        assert {one["name"] for one in ended["metrics"]} >= {"mpt", "lml"}
        (sweep,) = api.get("/v1/sweeps").json()["items"]
        assert sweep["counts"]["succeeded"] == sweep["points"] == 2
        (upload,) = api.get("/v1/datasets").json()["items"]
        assert (upload["name"], upload["n"], upload["dim"]) == ("rows.csv", 4, 3)
        (webhook,) = api.get("/v1/webhooks").json()["items"]
        assert webhook["url"] == "https://example.org/ended"
        ann = {"Authorization": f"Bearer {(archive / 'key-of-ann').read_text()}"}
        assert api.get("/v1/me", headers=ann).json()["name"] == "ann"
        again = api.post("/v1/experiments", json={"spec": ended["spec"], "cache": False})
        assert again.status_code == 202


@pytest.mark.slow  # the processes of a lab, and runs
def test_the_queue_of_version_0_2_goes_on(archive: Path, empty: Settings) -> None:
    put_in_place(archive, empty)
    run_mpt(empty, "migrate")
    log = empty.store.parent / "log"
    processes = lab_processes(empty) if empty.redis_url else embedded_service(empty, log)
    with processes as lab, lab.client() as client:
        ids = {row["name"]: row["id"] for row in client.experiments()}
        # The long one first: if it starts first, the others wait for its worker.
        wait_until(lambda: client.get(ids["running"])["attempt"] > 1, what="another attempt")
        client.cancel(ids["running"])
        assert client.wait(ids["running"], timeout_s=240)["status"] == "cancelled"
        assert client.wait(ids["queued"], timeout_s=240)["status"] == "succeeded"
        client.resume(ids["paused"])
        assert client.wait(ids["paused"], timeout_s=240)["status"] == "succeeded"


OLD = (
    ["service"],
    ["worker", "cpu", "--local"],
    ["worker.every_gpu"],
    ["worker.controller"],
    ["service.operations.backup", "save", "elsewhere"],
    ["service.operations.retention"],
    ["service.operations.prepare"],
)
"""Commands of processes that an upgrade may have left behind."""


@pytest.mark.parametrize("words", OLD, ids=lambda words: words[0])
def test_an_old_process_beside_new_tables_refuses_to_start(
    settings: Settings, words: list[str]
) -> None:
    with closing(Database(settings.url)) as database, database.transaction() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    output = settings.store / "output"
    assert fork(["-m", *words], environment(settings), output).wait(30) == 1
    assert "migrated by a newer version of MPT Lab" in output.read_text()
    assert "start that version, or restore a backup that this version made" in output.read_text()
    assert "Traceback" not in output.read_text()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/events?after=17"),
        ("GET", "/v1/experiments/a/turns"),
        ("POST", "/v1/helps:release"),
    ],
)
def test_an_old_client_is_told_the_version_of_the_service(
    settings: Settings, method: str, path: str
) -> None:
    """It sends what this version no longer has, and shows the detail of the answer."""
    key = settings.key_file.read_text().strip()
    with TestClient(create_app(settings), headers={"Authorization": f"Bearer {key}"}) as api:
        answer = api.request(method, path)
    assert answer.status_code in (404, 422)
    assert f"MPT Lab {__version__}" in answer.json()["detail"]


def test_an_old_client_is_told_which_statuses_there_are(settings: Settings) -> None:
    key = settings.key_file.read_text().strip()
    with TestClient(create_app(settings), headers={"Authorization": f"Bearer {key}"}) as api:
        answer = api.get("/v1/experiments?status=dispatched")
    assert answer.status_code == 422
    assert "'queued', 'running'" in answer.json()["detail"]
