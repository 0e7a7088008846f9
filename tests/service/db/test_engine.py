"""Transient errors and stored texts of a database, tested with the real ones."""

import resource
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine, event, select, text
from sqlalchemy.exc import DataError, OperationalError, ProgrammingError

from service.app import create_app
from service.db import engine
from service.db.engine import Database
from service.db.errors import (
    CANNOT_OPEN,
    DISK_ERROR,
    DISK_FULL,
    NOT_PERMITTED,
    READ_ONLY,
    TRANSIENT_DB_ERRORS,
    write_trouble,
)
from service.db.revisions import NotMigrated
from service.experiments.models import Event, Experiment
from service.queue import lease, states
from service.queue.lease import FailureCause
from service.settings import Settings
from service.vocabulary import Status
from tests.service.queue.test_queue import running
from tests.support.ppca_spec import ppca_spec

HALF_A_PAIR = "\ud800"


@contextmanager
def read_only(settings: Settings) -> Iterator[None]:
    """A failover: new sessions find a server that refuses to write."""
    name = settings.url.rsplit("/", 1)[1]
    alter = f'ALTER DATABASE "{name}" SET default_transaction_read_only'
    with closing(Database(settings.url)) as other:
        with other.transaction() as session:
            session.execute(text(f"{alter} = on"))
        yield
        with other.transaction() as session:
            session.execute(text("SET LOCAL transaction_read_only = off"))
            session.execute(text(f"{alter} = off"))


def test_an_idle_transaction_timeout_is_transient(lab: Settings) -> None:
    with closing(Database(lab.url)) as database:

        def fall_asleep() -> None:
            with database.transaction() as session:
                session.execute(text("SET idle_in_transaction_session_timeout = 20"))
                time.sleep(0.3)
                session.execute(text("SELECT 1"))

        with pytest.raises(TRANSIENT_DB_ERRORS):
            fall_asleep()
        with database.transaction() as session:
            assert session.scalar(text("SELECT 1")) == 1


def test_a_full_disk_is_reported(
    settings: Settings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests fail, and /readyz reports it, until space is free."""
    key = settings.key_file.read_text().strip()
    app = create_app(settings)
    with TestClient(app, headers={"Authorization": f"Bearer {key}"}) as api:
        assert api.get("/readyz").status_code == 200
        engine = app.state.database.engine
        with full_disk(engine):
            body = {"spec": ppca_spec(), "note": 9000 * "x"}
            answers = [api.post("/v1/experiments", json=body) for _ in range(9)]
            assert [one.status_code for one in answers[-2:]] == [507, 507], "free pages are used"
            assert answers[-1].json()["reason"] == "disk_full"
            assert "the disk of the database is full" in answers[-1].json()["detail"]
            assert "Retry-After" not in answers[-1].headers
            assert "the disk of the database is full" in caplog.text
            ready = api.get("/readyz")
            assert (ready.status_code, ready.json()["reason"]) == (503, "not_writable")
            assert api.get("/v1/experiments").status_code == 200
        assert api.get("/readyz").status_code == 200
        monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
        assert api.get("/readyz").json()["detail"] == "the disk of the database is full"


def test_a_failing_disk_is_reported(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    """Reads of such a disk may still succeed, as where the kernel made it read-only."""
    key = settings.key_file.read_text().strip()
    body = {"spec": ppca_spec(), "note": 9000 * "x"}
    with TestClient(create_app(settings), headers={"Authorization": f"Bearer {key}"}) as api:
        assert api.get("/v1/experiments").status_code == 200
        with failing_writes(settings.store / "mptlab.sqlite3-wal"):
            answer = api.post("/v1/experiments", json=body)
            assert answer.status_code == 503
            assert DISK_ERROR in answer.json()["detail"]
            assert DISK_ERROR in caplog.text
            ready = api.get("/readyz")
            assert (ready.status_code, ready.json()["reason"]) == (503, "not_writable")
            assert api.get("/v1/experiments").status_code == 200
        assert api.get("/readyz").status_code == 200
        assert api.post("/v1/experiments", json=body).status_code == 202


@contextmanager
def failing_writes(file: Path) -> Iterator[None]:
    """Have the kernel refuse each write of this process beyond the end of a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_that_cannot_be_opened_is_reported(settings: Settings) -> None:
    (settings.store / "mptlab.sqlite3").unlink()
    (settings.store / "mptlab.sqlite3").mkdir()
    with TestClient(create_app(settings)) as api:
        ready = api.get("/readyz")
        assert ready.status_code == 503
        assert CANNOT_OPEN in ready.json()["detail"]


@contextmanager
def full_disk(engine: Engine) -> Iterator[None]:
    """Give each connection of an SQLite database no page more than it has."""

    def limit(connection: sqlite3.Connection, *_: object) -> None:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")

    engine.dispose()
    event.listen(engine, "connect", limit)
    yield
    event.remove(engine, "connect", limit)
    engine.dispose()


@pytest.mark.parametrize(
    ("state", "trouble"),
    [("53100", DISK_FULL), ("25006", READ_ONLY), ("42501", NOT_PERMITTED), ("57P03", None)],
)
def test_write_errors_of_postgresql(lab: Settings, state: str, trouble: str | None) -> None:
    """An error of each state, which the server itself raises."""
    with closing(Database(lab.url)) as database:
        raised = f"DO $$ BEGIN RAISE SQLSTATE '{state}'; END $$"
        with pytest.raises(TRANSIENT_DB_ERRORS) as error, database.transaction() as session:
            session.execute(text(raised))
        assert write_trouble(error.value) == trouble
        assert database._trouble == trouble
        assert database.check_writable() is None, "a write that succeeds clears it"


def test_a_read_only_server_is_transient(lab: Settings) -> None:
    key = lab.key_file.read_text().strip()
    headers = {"Authorization": f"Bearer {key}"}
    with read_only(lab), TestClient(create_app(lab), headers=headers) as api:
        answer = api.post("/v1/experiments", json={"spec": ppca_spec()})
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
        assert "can only be read" in answer.json()["detail"]
        assert api.get("/readyz").json()["reason"] == "not_writable"
        assert api.get("/v1/experiments").status_code == 200


def test_a_programming_error_is_not_transient(lab: Settings, settings: Settings) -> None:
    for url, wrong in ((lab.url, "SELECT 1/'a'"), (settings.url, "SELECT nothing('a')")):
        with closing(Database(url)) as database, database.snapshot() as session:
            with pytest.raises((DataError, ProgrammingError)) as raised:
                session.execute(text(wrong))
            assert not isinstance(raised.value, TRANSIENT_DB_ERRORS)


def test_a_locked_file_is_transient(settings: Settings) -> None:
    holder = sqlite3.connect(settings.store / "mptlab.sqlite3", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with closing(Database(settings.url)) as database, database.snapshot() as session:
        session.execute(text("PRAGMA busy_timeout=10"))
        with pytest.raises(TRANSIENT_DB_ERRORS):
            session.execute(text("UPDATE users SET name = 'x'"))
    holder.close()


def test_threads_take_turns_to_write_to_sqlite(settings: Settings) -> None:
    """They would wait for the file by polling, and some of them for very long."""
    update = text("UPDATE alembic_version SET version_num = version_num")
    with closing(Database(settings.url, connections=2)) as database:

        @event.listens_for(database.engine, "connect")
        def wait_for_no_file(connection: sqlite3.Connection, _: object) -> None:
            connection.execute("PRAGMA busy_timeout=0")

        writing = threading.Event()

        def write() -> None:
            with database.transaction() as session:
                session.execute(update)
                writing.set()
                time.sleep(0.1)

        first = threading.Thread(target=write)
        first.start()
        writing.wait(60)
        with database.transaction() as session:
            session.execute(update)
        first.join()


@pytest.mark.parametrize("change", ["DROP TABLE workers", "ALTER TABLE workers RENAME host TO h"])
def test_missing_tables_and_columns_are_named(either: Database, change: str) -> None:
    with either.transaction() as session:
        session.execute(text(change))
    with either.snapshot() as session, pytest.raises(NotMigrated, match="run `mpt migrate`"):
        session.execute(text("SELECT host FROM workers"))


def test_text_that_cannot_be_stored_is_repaired(either: Database) -> None:
    claimed = running(either)
    with either.transaction() as session:
        lease.finish(session, claimed, Status.FAILED, FailureCause("error", f"a\0b{HALF_A_PAIR}"))
        states.note_status(session, claimed.experiment_id, Status.FAILED, why=f"\0{HALF_A_PAIR}😀")
    with either.snapshot() as session:
        found = session.get_one(Experiment, claimed.experiment_id)
        assert found.failure_message == "a\ufffdb\ufffd"
        noted = session.query(Event).order_by(Event.id.desc()).first()
        assert noted is not None
        assert noted.data["why"] == "\ufffd\ufffd😀"


SLOW = text(
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000000) "
    "SELECT max(i) FROM n"
)


def test_a_statement_on_sqlite_has_a_time_limit(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter of one member that reads thousands of large specs kept a processor for minutes."""
    monkeypatch.setattr(engine, "STATEMENT_S", 0.05)
    with database.snapshot() as session:
        with pytest.raises(OperationalError, match="interrupted"):
            session.execute(SLOW).all()
    with database.transaction() as session:  # the connection still serves
        assert session.scalar(select(1)) == 1
