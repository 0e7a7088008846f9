"""Uploads that go wrong on the way, and that are many."""

import errno
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from service.app import create_app
from service.datasets import files, store
from service.datasets import routes as datasets
from service.datasets.retention import ABANDONED_S, sweep
from service.db.engine import Database
from service.db.revisions import NotMigrated
from service.places import Places
from service.settings import Settings
from service.web import receiving
from tests.support.processes import wait_until
from tests.support.streams import served
from tests.support.uploads import GOOD, npy, post, stored

pytestmark = pytest.mark.usefixtures("inspected_here")

SQLITE_ROWS = "SELECT count(*) FROM datasets"


def api_on(settings: Settings) -> TestClient:
    key = settings.key_file.read_text().strip()
    return TestClient(
        create_app(settings),
        headers={"Authorization": f"Bearer {key}"},
        raise_server_exceptions=False,
    )


def rows(settings: Settings) -> int:
    with Database(settings.url).snapshot() as session:
        return session.scalar(text(SQLITE_ROWS)) or 0


# Repeated uploads


def test_equal_bytes_of_a_user_are_stored_once(api: TestClient, settings: Settings) -> None:
    first = post(api, "first.npy", npy(GOOD))
    again = post(api, "again.npy", npy(GOOD))
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == first.json()
    assert stored(settings) == [settings.datasets(first.json()["id"])]


def test_a_repeated_upload_repairs_a_damaged_file(api: TestClient, settings: Settings) -> None:
    made = post(api, "a.npy", npy(GOOD)).json()
    file = settings.datasets(made["id"]) / "data.npy"
    for damage in (lambda: file.write_bytes(b""), file.unlink):
        damage()
        assert post(api, "a.npy", npy(GOOD)).json() == made
        assert file.read_bytes() == npy(GOOD)


@pytest.mark.parametrize("mode", ["settings", "lab"])
def test_two_equal_uploads_at_once_are_stored_once(
    request: pytest.FixtureRequest, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are inspected before either is stored, by two processes of the API."""
    settings: Settings = request.getfixturevalue(mode)
    together = threading.Barrier(2)
    found = {"n": 10, "dim": 4, "problems": []}

    def inspect(*_: object) -> dict[str, Any]:
        together.wait(10)
        return found

    monkeypatch.setattr("service.datasets.routes.inspect", inspect)
    with api_on(settings) as one, api_on(settings) as other, ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda api: post(api, "a.npy", npy(GOOD)), [one, other]))
    assert sorted(answer.status_code for answer in answers) == [200, 201]
    assert answers[0].json() == answers[1].json()
    assert rows(settings) == 1
    (folder,) = stored(settings)
    assert (folder / "data.npy").read_bytes() == npy(GOOD)


def test_a_user_has_one_inspection_at_a_time(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second upload waits for the first one's."""
    under_way = threading.Lock()

    def inspect(*_: object) -> dict[str, Any]:
        assert under_way.acquire(blocking=False)
        time.sleep(0.5)  # in which the second would begin
        under_way.release()
        return {"n": 10, "dim": 4, "problems": []}

    monkeypatch.setattr(datasets, "inspect", inspect)
    with api_on(settings) as api, ThreadPoolExecutor(2) as pool:
        files = [("a.npy", npy(GOOD)), ("b.npy", npy(GOOD + 1))]
        answers = list(pool.map(lambda file: post(api, *file), files))
    assert [answer.status_code for answer in answers] == [201, 201]


@pytest.mark.parametrize("mode", ["settings", "lab"])
def test_an_upload_is_repeated_during_its_deletion(
    request: pytest.FixtureRequest, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The delete comes before the file is moved, or after it: nothing is left without a row."""
    settings: Settings = request.getfixturevalue(mode)
    with api_on(settings) as api, ThreadPoolExecutor(1) as beside:
        url = f"/v1/datasets/{post(api, 'a.npy', npy(GOOD)).json()['id']}"
        deletions: list[Future[Any]] = []

        def move_late(file: Path, place: Path) -> None:
            deletions.append(beside.submit(api.delete, url))
            wait(deletions, timeout=0.5)
            files.move(file, place)

        monkeypatch.setattr("service.datasets.routes.move", move_late)
        assert post(api, "a.npy", npy(GOOD)).status_code == 200
        (deletion,) = deletions
        assert deletion.result().status_code == 204
        assert api.get(url).status_code == 404
    assert stored(settings) == []


# Incomplete and too large uploads


def begin(client: httpx.Client, length: int, sent: bytes = b"") -> socket.socket:
    """An upload that is sent only partly."""
    url = client.base_url
    connection = socket.create_connection((url.host, url.port or 80), timeout=20)
    head = (
        f"POST /v1/datasets?name=a.npy HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n"
        f"Authorization: {client.headers['Authorization']}\r\n\r\n"
    )
    connection.sendall(head.encode() + sent)
    return connection


@pytest.fixture
def hasty(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    """A real server that does not wait long for a body."""
    monkeypatch.setattr(receiving, "STALL_S", 1.5)
    monkeypatch.setattr(datasets, "MAX_USER_UPLOADS", 3)
    with served(settings) as client:
        yield client


def test_an_upload_that_stalls_is_ended(hasty: httpx.Client, settings: Settings) -> None:
    with begin(hasty, 10_000, b"half") as connection:
        answer = connection.recv(10_000).decode()
    assert answer.startswith("HTTP/1.1 408")
    wait_until(lambda: stored(settings) == [])


def test_an_upload_that_breaks_off_leaves_nothing(
    hasty: httpx.Client, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "STALL_S", 600.0)  # so that it is not ended for this
    with begin(hasty, 10_000, b"half"):
        wait_until(lambda: bool(stored(settings)))
    wait_until(lambda: stored(settings) == [])


def test_uploads_that_arrive_slowly_hold_up_no_others(
    hasty: httpx.Client, settings: Settings
) -> None:
    """Four of two members, at 20 KB/s, held all places for days."""
    under_way = [begin(hasty, 10_000, b"half") for _ in range(2)]
    wait_until(lambda: len(stored(settings)) == 2)
    assert hasty.post("/v1/datasets?name=a.npy", content=npy(GOOD)).status_code == 201
    for connection in under_way:
        connection.close()


def test_inspections_of_small_files_wait_for_no_large_ones(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of two members, of 400 MB, held both places for a minute."""
    with api_on(settings) as api, ThreadPoolExecutor(1) as pool, ExitStack() as held:
        inspections: Places = api.app.state.inspections  # type: ignore[attr-defined]
        assert api.portal is not None
        for user in (2, 3):
            held.enter_context(api.portal.wrap_async_context_manager(inspections.place(user)))
        assert api.post("/v1/datasets?name=a.npy", content=npy(GOOD)).status_code == 201
        monkeypatch.setattr(datasets, "SMALL_FILE_BYTES", 10)
        answer = pool.submit(api.post, "/v1/datasets?name=b.npy", content=npy(GOOD + 1))
        time.sleep(0.5)
        assert not answer.done()
        held.close()
        assert answer.result().status_code == 201


@pytest.mark.parametrize("declared", [True, False])
def test_a_disk_keeps_its_reserve(settings: Settings, declared: bool) -> None:
    full = settings.model_copy(update={"reserve_bytes": 2**60})
    content = npy(GOOD)
    with api_on(full) as api:
        body: Any = content if declared else iter([content])
        answer = api.post("/v1/datasets?name=a.npy", content=body)
    assert answer.status_code == 507
    assert "too full" in answer.json()["detail"]
    assert stored(settings) == []


@pytest.mark.parametrize(
    ("code", "status", "reason"),
    [(errno.ENOSPC, 507, "disk_full"), (errno.EDQUOT, 507, "disk_full"),
     (errno.EROFS, 503, "disk_read_only")],
)  # fmt: skip
def test_a_full_disk_is_reported_to_the_uploader(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, code: int, status: int, reason: str
) -> None:
    """`make chaos` has real disks."""

    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    with api_on(settings) as api:
        monkeypatch.setattr("os.mkdir", refuse)
        answer = api.post("/v1/datasets?name=a.npy", content=npy(GOOD))
    assert (answer.status_code, answer.json()["reason"]) == (status, reason)
    assert "internal" not in answer.text
    assert stored(settings) == []


def test_a_file_of_known_size_is_refused_before_it_comes(settings: Settings) -> None:
    small = settings.model_copy(update={"max_upload_bytes": 1000})
    with served(small) as client, begin(client, 10_000) as connection:
        assert connection.recv(10_000).decode().startswith("HTTP/1.1 413")


def test_an_answered_upload_is_on_the_disk(
    api: TestClient, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file, its folder and the folder above, in this order, and all before the row."""
    synced: list[tuple[str, int]] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
        synced.append((name, rows(settings)))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    made = post(api, "a.npy", npy(GOOD)).json()
    assert synced == [("data.npy", 0), (made["id"], 0), ("datasets", 0)]


# Remains of a process that was ended


def test_retention_deletes_unused_files(
    api: TestClient, settings: Settings, database: Database
) -> None:
    kept = post(api, "a.npy", npy(GOOD)).json()["id"]
    cut_off, unfinished, young = (f"{i:032x}" for i in range(3))
    for name in (kept, cut_off, unfinished, young):
        (settings.all_incoming / name).mkdir(parents=True)
    (settings.all_incoming / cut_off / "data.npy").write_bytes(b"half")
    settings.datasets(unfinished).mkdir()
    settings.datasets("not-ours").mkdir()
    long_ago = time.time() - ABANDONED_S - 60
    for folder in (kept, cut_off, unfinished):
        for path in (*(settings.all_incoming / folder).iterdir(), settings.all_incoming / folder):
            os.utime(path, (long_ago, long_ago))
    sweep(database, settings)
    assert [folder.name for folder in settings.all_incoming.iterdir()] == [young]
    assert {folder.name for folder in settings.store.glob("datasets/*")} == {kept, "not-ours"}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OperationalError("COMMIT", None, Exception("connection lost")), 503),
        (NotMigrated(), 503),
        (OSError("disk I/O error"), 500),
    ],
)
def test_a_commit_with_unknown_outcome(
    api: TestClient, settings: Settings, database: Database, error: Exception, status: int
) -> None:
    """After any error while the row is committed, the file is kept until retention can check
    whether the row exists."""

    def lose(connection: Any) -> None:
        if any(settings.store.glob("datasets/*")):
            raise error

    app = api.app
    assert isinstance(app, FastAPI)
    engine = app.state.database.engine
    event.listen(engine, "commit", lose)
    assert post(api, "a.npy", npy(GOOD)).status_code == status
    event.remove(engine, "commit", lose)
    (marker,) = settings.all_incoming.iterdir()
    assert (settings.datasets(marker.name) / "data.npy").read_bytes() == npy(GOOD)
    os.utime(marker, (0, 0))
    sweep(database, settings)
    assert stored(settings) == []


def test_a_disk_that_fails_after_the_move(
    api: TestClient, settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path) -> None:
        raise OSError("disk I/O error")

    monkeypatch.setattr(files, "sync_folder", fail)
    answer = post(api, "a.npy", npy(GOOD))
    assert (answer.status_code, answer.json()["reason"]) == (500, "internal_error")
    (marker,) = settings.all_incoming.iterdir()
    os.utime(marker, (0, 0))
    sweep(database, settings)
    assert stored(settings) == []


def test_two_retention_runs_at_once(
    settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first cleanup saw two folders; a second one removes both."""
    for name in ("a", "b"):
        (settings.all_incoming / name).mkdir(parents=True)
        os.utime(settings.all_incoming / name, (0, 0))
    exists = store.exists
    sweeps = iter([sweep])

    def exists_late(session: Session, dataset_id: str) -> bool:
        for other in sweeps:
            other(database, settings)
        return exists(session, dataset_id)

    monkeypatch.setattr(store, "exists", exists_late)
    sweep(database, settings)
    assert stored(settings) == []


def test_an_upload_in_progress_is_not_deleted(settings: Settings, database: Database) -> None:
    folder = settings.all_incoming / "a"
    folder.mkdir(parents=True)
    (folder / "data.npy").write_bytes(b"")
    os.utime(folder, (0, 0))
    sweep(database, settings)
    assert folder.exists()
