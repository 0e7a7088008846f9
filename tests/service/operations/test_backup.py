"""A backup during a run, the loss of everything, and the restore: real processes on either
database."""

import os
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, text, update

from mptlab import Client
from service.accounts.models import User
from service.db.engine import Database
from service.experiments.models import Attempt, Event, Experiment, Usage
from service.experiments.schemas import Submission
from service.operations import backup
from service.operations.backup import BackupFailed
from service.queue import lease, states
from service.queue.lease import LeaseLost
from service.settings import Settings
from service.vocabulary import DesiredState, Status
from tests.service.conftest import client_of
from tests.support import stored
from tests.support.callers import bearer, member
from tests.support.forks import fork
from tests.support.invariants import Record
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import Lab, environment, wait_until
from tests.support.servers import PostgreSQL
from tests.support.starting import start_next
from tests.support.undisturbed import undisturbed_records

LONG = ppca_spec(data__dim=60, evaluate__masks__per_size=36_000)
ROWS = b"0.3,0.1,0.2\n0.1,0.2,0.3\n0.4,0.5,0.7\n0.7,0.8,0.9\n"
LEFT_OUT = ("incoming/half/data.csv", "hub/models/weights")


@pytest.fixture
def elsewhere(place: Settings, request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """The same, on an empty database and a store that is not there."""
    url = None
    if place.database_url is not None:
        postgresql: PostgreSQL = request.getfixturevalue("postgresql")
        name = f"restored_{uuid.uuid4().hex}"
        postgresql.create(name)
        url = postgresql.url(name)
    return Settings(store=tmp_path / "new", database_url=url, redis_url=place.redis_url)


@contextmanager
def service(settings: Settings) -> Iterator[tuple[Lab, Client]]:
    """All processes of a service while the block runs; then they are killed."""
    lab = Lab(settings, settings.store / "lab.log", fork)
    if settings.database_url is None:
        lab.start("api", "api", "--port", str(lab.port))
        lab.start("worker", "-m", "worker", "cpu", "--local")
    else:
        lab.start_all()
    try:
        with lab.client() as client:
            yield lab, client
    finally:
        family = lab.family()
        for process in family:
            process.send_signal(signal.SIGKILL)
        psutil.wait_procs(family, timeout=20)


@pytest.fixture
def mpt(place: Settings, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL's client programs are at hand where its database is used."""
    if place.database_url is None:
        return
    postgresql: PostgreSQL = request.getfixturevalue("postgresql")
    folder = postgresql.program("pg_dump").parent
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def run_mpt(settings: Settings, folder: Path, *words: str) -> str:
    """Run the command with these settings, and return its output without log lines."""
    said = folder / "said"
    status = fork(words, environment(settings), said).wait()
    assert status == 0, said.read_text()
    lines = said.read_text().splitlines(True)
    return "".join(line for line in lines if not line.startswith("{"))


@cache
def undisturbed() -> list[Record]:
    return undisturbed_records(LONG)


def points(client: Client, experiment_id: str) -> list[tuple[float, float]]:
    (series,) = client.curves(experiment_id, "score")
    return list(zip(series["x"], series["value"], strict=True))


def starts(settings: Settings, experiment_id: str) -> list[dict[str, Any]]:
    with closing(Database(settings.url)) as database, database.snapshot() as session:
        mine = select(Event.data).where(Event.experiment_id == experiment_id)
        told = session.scalars(mine.order_by(Event.id)).all()
    return [data for data in told if data.get("status") == "running"]


def known_checkpoints(settings: Settings, experiment_id: str) -> int:
    with closing(Database(settings.url)) as database, database.snapshot() as session:
        return len(lease.checkpoints(session, experiment_id))


def running(session: Any) -> lease.Claim:
    """An experiment that was submitted and started."""
    stored.submit(session, 1, Submission.model_validate({"spec": ppca_spec()}))
    claim = start_next(session)
    assert claim is not None
    return claim


def suspend_runs(lab: Lab) -> None:
    """Have none come to its end. A run is the child of a warm parent, which is that of a worker."""
    for process in lab.family():
        for parent in process.children():
            for run in parent.children():
                if not run.children():
                    run.suspend()


@pytest.mark.slow
@pytest.mark.usefixtures("mpt")
def test_all_is_lost_and_restored(place: Settings, elsewhere: Settings, tmp_path: Path) -> None:
    """The run continues from its checkpoint with the records of an undisturbed run; keys, uploads
    and ended experiments are restored."""
    (tmp_path / "rows.csv").write_bytes(ROWS)
    folder = str(tmp_path / "backup")
    with service(place) as (lab, client):
        key = client.add_key("local")["key"]
        ended = client.wait(client.submit(ppca_spec())["id"], timeout_s=150)
        dataset = client.upload(tmp_path / "rows.csv")["id"]
        run = client.submit(LONG)["id"]
        wait_until(lambda: known_checkpoints(place, run) > 0, what="a checkpoint")
        suspend_runs(lab)
        assert run_mpt(place, tmp_path, "backup", folder) == ""
    shutil.rmtree(place.store)

    assert "missing" not in run_mpt(elsewhere, tmp_path, "restore", folder)
    with service(elsewhere) as (_, client):
        again = client.wait(run, timeout_s=150)
        assert (again["status"], again["attempt"]) == ("succeeded", lease.BEYOND + 2)
        assert points(client, run) == [
            (one["x"], one["value"])
            for one in undisturbed()
            if one["record"] == "point" and one["series"] == "score"
        ]
        assert client.get(ended["id"])["metrics"] == ended["metrics"]
        assert client.curves(ended["id"], "score")
        upload = {"source": "upload", "dataset": dataset, "n": 4, "dim": 3}
        model = {"family": "ppca", "latent_dim": 1, "init": "maximum_likelihood"}
        spec = {**ppca_spec(), "data": upload, "model": model}
        assert client.wait(client.submit(spec)["id"], timeout_s=150)["status"] == "succeeded"
        with Client(client.url, key) as other:
            assert other.me()["name"] == "local"
    first, second = starts(elsewhere, run)
    assert "resumed_after" not in first
    assert second["resumed_after"] > 0


def test_the_command_saves_and_restores(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = Settings(store=tmp_path / "new", database_url=None)
    monkeypatch.setattr(backup, "begin", lambda: settings)
    monkeypatch.setattr(backup, "from_environment", lambda: new)
    monkeypatch.setattr(os, "umask", lambda mask: mask)
    monkeypatch.setattr(sys, "argv", ["backup", "save", str(tmp_path / "backup")])
    backup.main()
    monkeypatch.setattr(sys, "argv", ["backup", "restore", str(tmp_path / "backup")])
    with pytest.raises(SystemExit) as end:
        backup.main()
    assert end.value.code == 0
    for name in ("api-key", "session-key"):  # so that browsers stay signed in
        assert (new.store / name).read_bytes() == (settings.store / name).read_bytes()


@pytest.mark.usefixtures("mpt")
def test_running_experiments_are_queued_again_after_a_restore(
    place: Settings, elsewhere: Settings, tmp_path: Path
) -> None:
    """Workers that survived the loss write nothing more; requests of owners are carried out; no
    loss is counted and no slot is in use."""
    with closing(Database(place.url)) as database:
        with database.transaction() as session:
            claims = [running(session) for _ in range(3)]
            for claim, desired in zip(claims, DesiredState, strict=True):
                if desired != DesiredState.RUN:
                    assert states.request(session, claim.experiment_id, desired) == Status.RUNNING
            stored.submit(session, 1, Submission.model_validate({"spec": ppca_spec()}))
        backup.save(place, tmp_path / "backup")
    assert backup.restore(elsewhere, tmp_path / "backup") == []
    with closing(Database(elsewhere.url)) as database:
        with database.transaction() as session:
            found = [session.get_one(Experiment, claim.experiment_id) for claim in claims]
            wanted = dict(zip(DesiredState, (one.status for one in found), strict=True))
            assert wanted == lease.UNFINISHED
            assert [one.lost for one in found] == [0, 0, 0]
            assert session.scalars(select(Attempt).where(Attempt.ended_at.is_(None))).all() == []
            assert all(start_next(session, "v") is not None for _ in range(2))
        for attempt in (1, 2):  # 2 began after the backup
            late = lease.Claim(claims[0].experiment_id, attempt, {})
            with pytest.raises(LeaseLost), database.transaction() as session:
                lease.heartbeat(session, late, 60)


@pytest.mark.usefixtures("mpt", "inspected_here")
def test_projects_and_accounts_are_restored(
    place: Settings, elsewhere: Settings, tmp_path: Path
) -> None:
    """Members go on in their project with what it has used, and their accounts still sign in."""
    body = {"spec": ppca_spec(), "project": "vision"}
    paths = ("/v1/users", "/v1/projects", "/v1/audit")
    with client_of(place) as admin:
        ann, bob = bearer(member(admin)["key"]), bearer(member(admin, "bob")["key"])
        vision = {"name": "vision", "shares": 3, "max_running": 2, "members": ["ann", "bob"]}
        assert admin.post("/v1/projects", json=vision).is_success
        of_ann = admin.post("/v1/experiments", json=body, headers=ann).json()["urls"]["self"]
        with closing(Database(place.url)) as database, database.transaction() as session:
            account = {"oidc_issuer": "https://id.example.org", "oidc_subject": "7"}
            session.execute(update(User).where(User.name == "bob").values(**account))
            used = {"settled_s": 50.0, "charged_s": 60.0, "as_of": time.time()}
            session.add(Usage(owner_id=2, project_id=1, **used))
        before = [admin.get(path).json()["items"] for path in paths]
        backup.save(place, tmp_path / "backup")
    assert backup.restore(elsewhere, tmp_path / "backup") == []
    with client_of(elsewhere) as admin:
        *after, (restored, *audit) = [admin.get(path).json()["items"] for path in paths]
        assert [*after, audit] == before
        assert restored["action"] == "backup.restored"
        assert admin.get(of_ann, headers=bob).json()["project"] == "vision"
        assert admin.post("/v1/experiments", json=body, headers=bob).is_success
    with closing(Database(elsewhere.url)) as database, database.snapshot() as session:
        assert session.scalars(select(Usage.charged_s)).all() == [60.0]
        of_bob = select(User.oidc_issuer).where(User.oidc_subject == "7", User.name == "bob")
        assert session.scalars(of_bob).all() == [account["oidc_issuer"]]


def test_a_backup_of_an_earlier_version_is_migrated(settings: Settings, tmp_path: Path) -> None:
    """Existing files are not copied again; truncated or changed files are."""
    for name in ("artifacts/a/1/kept", "artifacts/a/1/changed", *LEFT_OUT):
        file = settings.store / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("first")
    folder = tmp_path / "backup"
    backup.save(settings, folder)
    kept = folder / "store/artifacts/a/1/kept"
    before = kept.stat()
    (settings.store / "artifacts/a/1/changed").write_text("other")
    backup.save(settings, folder)
    assert (kept.stat().st_ino, kept.stat().st_ctime_ns) == (before.st_ino, before.st_ctime_ns)
    assert (folder / "store/artifacts/a/1/changed").read_text() == "other"
    assert not any((folder / "store" / name).exists() for name in LEFT_OUT)
    assert folder.stat().st_mode & 0o077 == 0


def test_files_are_copied_before_the_database_and_after(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database may refer to files that are added or removed while it is copied. Checkpoints of
    users are saved, too."""
    weights = settings.store / "models" / "mine-1" / "model.safetensors"
    old, new = settings.checkpoints("old") / "file", settings.checkpoints("new") / "file"
    for file in (weights, old, new):
        file.parent.mkdir(parents=True)
    weights.write_bytes(b"weights")
    old.touch()

    def save(*_: object) -> None:
        old.unlink()
        new.touch()

    monkeypatch.setattr(backup, "_save_database", save)
    backup.save(settings, tmp_path / "backup")
    saved = tmp_path / "backup" / "store"
    assert (saved / "checkpoints" / "old" / "file").exists()
    assert (saved / "checkpoints" / "new" / "file").exists()
    assert (saved / "models" / "mine-1" / "model.safetensors").read_bytes() == b"weights"


def test_a_repeated_backup_removes_files_that_the_store_deleted(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its end: a backup that fails, or a hard link of an older one, still has the file."""
    for name in ("gone", "changed"):
        settings.checkpoints(name).mkdir(parents=True)
        (settings.checkpoints(name) / "file").write_text("first")
    folder, older = tmp_path / "backup", tmp_path / "older"
    backup.save(settings, folder)
    older.mkdir()
    saved = folder / "store" / "checkpoints"
    for name in ("gone", "changed"):
        os.link(saved / name / "file", older / name)
    (saved / "gone" / "file.backup-part").touch()
    shutil.rmtree(settings.checkpoints("gone"))
    (settings.checkpoints("changed") / "file").write_text("another")
    with monkeypatch.context() as failing:
        failing.setattr(backup, "_save_database", refuse)
        with pytest.raises(BackupFailed):
            backup.save(settings, folder)
    assert (saved / "gone" / "file").exists()
    backup.save(settings, folder)
    assert sorted(path.name for path in saved.iterdir()) == ["changed"]
    assert (saved / "changed" / "file").read_text() == "another"
    assert {path.read_text() for path in older.iterdir()} == {"first"}
    assert sorted(path.name for path in folder.iterdir()) == ["database.sqlite3", "store"]


def refuse(*_: object) -> None:
    raise BackupFailed("pg_dump failed")


def test_damaged_files_are_reported(api: TestClient, settings: Settings, tmp_path: Path) -> None:
    made = api.post("/v1/datasets", params={"name": "rows.csv"}, content=ROWS).json()["id"]
    folder = tmp_path / "backup"
    backup.save(settings, folder)
    place = f"datasets/{made}/data.csv"
    (folder / "store" / place).write_text("other")
    new = Settings(store=tmp_path / "new", database_url=None)
    assert backup.restore(new, folder) == [place]


@pytest.mark.usefixtures("mpt")
@pytest.mark.parametrize("taken", ["store", "database"])
def test_existing_files_are_not_overwritten(
    place: Settings, elsewhere: Settings, tmp_path: Path, taken: str
) -> None:
    folder = tmp_path / "backup"
    backup.save(place, folder)
    if taken == "store":
        elsewhere.store.mkdir()
        (elsewhere.store / "api-key").touch()
    else:
        if place.database_url is None:
            elsewhere.store.mkdir()
        with closing(Database(elsewhere.url)) as database, database.transaction() as session:
            Experiment.metadata.create_all(session.connection())
    with pytest.raises(BackupFailed, match="empty"):
        backup.restore(elsewhere, folder)


def test_without_the_client_programs(
    lab: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message gives the remedy; the files can be saved alone."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackupFailed, match="pg_dump is not installed here"):
        backup.save(lab, tmp_path / "backup")
    with pytest.raises(BackupFailed, match="first, then dump the database"):
        backup.finish_store(lab, tmp_path / "files")
    backup.save_store(lab, tmp_path / "files")
    assert (tmp_path / "files/store/api-key").read_bytes() == lab.key_file.read_bytes()


def test_a_backup_of_a_newer_version_is_refused(settings: Settings, tmp_path: Path) -> None:
    backup.save(settings, tmp_path / "backup")
    with closing(Database(f"sqlite:///{tmp_path}/backup/database.sqlite3")) as saved:
        with saved.transaction() as session:
            session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(BackupFailed, match="newer version of MPT Lab"):
        backup.restore(Settings(store=tmp_path / "new", database_url=None), tmp_path / "backup")


def test_a_store_without_a_database(tmp_path: Path) -> None:
    empty = Settings(store=tmp_path / "mistyped", database_url=None)
    with pytest.raises(BackupFailed, match="check that MPT_STORE is the store"):
        backup.save(empty, tmp_path / "backup")
    with pytest.raises(BackupFailed, match="the backup is incomplete"):
        backup.restore(empty, tmp_path / "backup")
