"""State that a process finds at its start, and its reaction."""

import json
import os
import re
import sqlite3
import subprocess
import sys
import uuid
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from docs.reference import pages
from service.app import create_app
from service.db.engine import Database
from service.db.errors import TRANSIENT_DB_ERRORS
from service.operations import start
from service.operations.prepare import migrate, prepare
from service.settings import Settings, from_environment, unknown_variables
from tests.support.forks import fork
from tests.support.processes import environment
from tests.support.servers import PostgreSQL


def modes(store: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in (store, *store.iterdir())}


def test_a_store_made_beforehand_is_closed_to_others(settings: Settings) -> None:
    settings.store.chmod(0o755)
    with closing(Database(settings.url)) as held, held.transaction() as session:
        session.execute(text("UPDATE users SET name = name"))  # the log and its index exist
        for path in settings.store.iterdir():
            path.chmod(0o644)
        start.restrict(settings)
        found = modes(settings.store)
    assert found.pop(settings.store.name) == 0o700
    assert {"mptlab.sqlite3", "mptlab.sqlite3-wal", "mptlab.sqlite3-shm"} <= set(found)
    assert {"api-key", "session-key"} <= set(found)
    assert set(found.values()) == {0o600}


def test_a_process_makes_its_files_for_its_owner_alone(tmp_path: Path) -> None:
    settings = Settings(store=tmp_path / "store", database_url=None)
    settings.store.mkdir(mode=0o755)
    settings.store.chmod(0o755)
    get_dumpable = "assert ctypes.CDLL(None).prctl(3) == 0"  # see `hide_memory`
    begin = "import ctypes, service.operations.start as s; s.begin()"
    script = f"{begin}; {get_dumpable}; open('made', 'w').close()"
    for command in (["-m", "service.operations.prepare"], ["-c", script]):
        subprocess.run(
            [sys.executable, *command],
            env={**environment(settings), "PYTHONPATH": str(Path.cwd())},
            cwd=settings.store,
            check=True,
        )
        found = modes(settings.store)
        assert found.pop("store") == 0o700
        assert set(found.values()) == {0o600}, found
        settings.store.chmod(0o755)
        settings.key_file.chmod(0o644)
        settings.session_key_file.chmod(0o644)


def test_a_key_is_on_the_disk_before_it_has_its_name(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash at any call leaves no file, or a complete one."""
    settings.key_file.unlink()

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", crash)
        with pytest.raises(KeyboardInterrupt):
            prepare(settings)
    assert not settings.key_file.exists()


@pytest.mark.parametrize("module", ["service", "worker", "worker.controller"])
def test_a_process_refuses_tables_of_another_version(settings: Settings, module: str) -> None:
    with closing(Database(settings.url)) as database, database.transaction() as session:
        session.execute(text("ALTER TABLE experiments RENAME COLUMN note TO remark"))
    said = settings.store / "said"
    words = ["cpu", "--local"] if module == "worker" else []
    assert fork(["-m", module, *words], environment(settings), said).wait(30) == 1
    assert "run `mpt migrate`" in said.read_text()


@pytest.mark.parametrize("revision", ["0018", "9999"])
def test_an_api_is_not_ready_after_another_migration(settings: Settings, revision: str) -> None:
    with TestClient(create_app(settings)) as api:
        assert api.get("/readyz").status_code == 200
        with closing(Database(settings.url)) as database, database.transaction() as session:
            session.execute(text(f"UPDATE alembic_version SET version_num = '{revision}'"))
        answer = api.get("/readyz")
        assert (answer.status_code, answer.json()["reason"]) == (503, "database_not_migrated")


def test_a_database_of_another_encoding_is_refused(postgresql: PostgreSQL, tmp_path: Path) -> None:
    name = f"ascii_{uuid.uuid4().hex}"
    made = f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE"
    with psycopg.connect(postgresql.address("postgres"), autocommit=True) as connection:
        connection.execute(f"{made} 'C'".encode())
    settings = Settings(store=tmp_path / "store", database_url=postgresql.url(name))
    said = tmp_path / "said"
    prepared = fork(["-m", "service.operations.prepare"], environment(settings), said)
    command = f"CREATE DATABASE {name}_utf8 ENCODING 'UTF8' TEMPLATE template0"
    assert prepared.wait(30) == 1
    line = json.loads(said.read_text().splitlines()[-1])
    assert f"the database {name!r} has the encoding SQL_ASCII" in line["event"]
    assert line["event"].endswith(command)
    with psycopg.connect(postgresql.address("postgres"), autocommit=True) as connection:
        connection.execute(command.encode())
    prepare(settings.model_copy(update={"database_url": postgresql.url(f"{name}_utf8")}))


def test_the_api_says_what_to_do_about_an_unmigrated_database(tmp_path: Path) -> None:
    store = tmp_path / "empty"
    store.mkdir()
    with TestClient(create_app(Settings(store=store, database_url=None))) as api:
        for path in ("/readyz", "/v1/experiments"):
            answer = api.get(path, headers={"Authorization": "Bearer mpt_0_0"})
            assert answer.status_code == 503
            assert answer.headers["Retry-After"] == "60"
            assert answer.json()["reason"] == "database_not_migrated"
            assert "run `mpt migrate`" in answer.json()["detail"]


def test_every_other_process_has_a_statement_timeout(lab: Settings) -> None:
    database = create_app(lab).state.database
    with closing(database), database.transaction() as session:
        for name, limit in (
            ("statement_timeout", "1min"),
            ("lock_timeout", "20s"),
            ("idle_in_transaction_session_timeout", "1min"),
        ):
            assert session.scalar(text(f"SHOW {name}")) == limit


def test_migrations_have_no_time_limit(
    postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"slow_{uuid.uuid4().hex}"
    postgresql.create(name)
    url = postgresql.url(name)
    with closing(Database(url, timeouts="-c statement_timeout=1")) as hurried:
        with pytest.raises(TRANSIENT_DB_ERRORS), hurried.snapshot() as session:
            session.execute(text("SELECT pg_sleep(0.1)"))
    with monkeypatch.context() as patched:
        patched.setattr(Database.__init__, "__defaults__", (2, "-c statement_timeout=1"))
        migrate(url)
    with closing(Database(url)) as database:
        database.check_tables()


def test_committed_data_are_on_the_disk(settings: Settings) -> None:
    """SQLite syncs its log at each commit only where synchronous is FULL (2)."""
    with closing(Database(settings.url)) as database:
        for kind in (database.transaction, database.snapshot):
            with kind() as session:
                assert session.scalar(text("PRAGMA synchronous")) == 2
                assert session.scalar(text("PRAGMA journal_mode")) == "wal"


def test_variables_that_are_no_settings_are_found() -> None:
    """An old unit file may name settings that are gone; a name may be mistyped."""
    known = {*re.findall(r"`(MPT_\w+)`", pages()["settings.md"]), "MPT_DATABASE_URL_FILE"}
    others = {"MPT_MAX_WAIT_S", "MPT_SHARE__SLOTS", "MPT_TEST_REQUIRE_ALL", "PATH", "HF_HOME"}
    assert unknown_variables(known | others) == ["MPT_MAX_WAIT_S", "MPT_SHARE__SLOTS"]


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        ("MPT_SHARE__SLICE_S", "four hours", "valid number"),
        ("MPT_OIDC_ROLES", "staff: member", "not JSON"),
        ("MPT_OIDC_ROLES", '{"staff": "owner"}', "'admin', 'member' or 'viewer'"),
        ("MPT_OIDC_ISSUER", "ftp://id.example.org", "https"),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_allowed(
    variable: str, value: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit, match=f"^{variable}[^;]*{why}"):
        from_environment()


def test_the_version_of_sqlite_is_logged(
    settings: Settings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Database(settings.url)) as database:
        caplog.set_level("INFO")
        for version, warns in (((3, 51, 2), True), ((3, 51, 3), False)):
            caplog.clear()
            monkeypatch.setattr(sqlite3, "sqlite_version_info", version)
            start._log_version(database)
            assert "SQLite 3." in caplog.text
            assert ("can corrupt the database" in caplog.text) == warns
