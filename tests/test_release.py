"""Checklist of a release: what a lab relies on when it installs this version over an earlier one.

`migrations` tests the tables of earlier versions in detail.
"""

from contextlib import closing
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from mptlab import __version__
from service.app import create_app
from service.db.engine import Database
from service.settings import Settings
from tests.support.archived_labs import empty_lab, put_in_place, unpack
from tests.support.forks import fork
from tests.support.processes import embedded_service, environment, lab_processes, wait_until


@pytest.fixture(params=["sqlite", "postgresql"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def archive(kind: str, tmp_path: Path) -> Path:
    """The folder of a backup of version 0.2."""
    return unpack("version_0_2", kind, tmp_path / "backup")


@pytest.fixture
def empty(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Settings:
    return empty_lab(kind, tmp_path / "store", request, monkeypatch)


def run_mpt(settings: Settings, *words: str) -> None:
    output = settings.store.parent / "output"
    assert fork(words, environment(settings), output).wait() == 0, output.read_text()


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
