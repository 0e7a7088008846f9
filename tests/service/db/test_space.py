"""SQLite's file shrinks after rows were deleted; a file of an earlier version is rewritten once."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from service.db import space
from service.db.engine import Database
from service.db.space import make_shrinkable, shrink
from service.operations.prepare import migrate
from service.settings import Settings

MIB = 2**20


@pytest.fixture
def earlier(settings: Settings) -> Iterator[Database]:
    """A store whose file cannot shrink, as before this version."""
    with closing(sqlite3.connect(path_of(settings))) as connection:
        connection.executescript("PRAGMA auto_vacuum = NONE; VACUUM")
    with closing(Database(settings.url)) as database:
        yield database


@contextmanager
def impatient(snapshot: Callable[[], AbstractContextManager[Session]]) -> Iterator[Session]:
    """A session that does not wait for locks."""
    with snapshot() as session:
        session.execute(text("PRAGMA busy_timeout = 1"))
        yield session


def path_of(settings: Settings) -> Path:
    return Path(settings.url.removeprefix("sqlite:///"))


def size(database: Database) -> int:
    """Return the size of the file once all transactions are in it."""
    path = str(database.engine.url.database)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return Path(path).stat().st_size


def fill(database: Database, rows: int) -> None:
    """Store rows of 10 kB."""
    with database.transaction() as session:
        session.execute(
            text("CREATE TABLE IF NOT EXISTS filling (id INTEGER PRIMARY KEY, content)")
        )
        content = [{"content": "x" * 10_000}] * rows
        session.execute(text("INSERT INTO filling (content) VALUES (:content)"), content)


def empty(database: Database, kept: int = 0) -> None:
    with database.transaction() as session:
        session.execute(text("DELETE FROM filling WHERE id > :kept"), {"kept": kept})


def test_a_file_shrinks_after_a_purge(database: Database) -> None:
    first = size(database)
    fill(database, 2000)
    full = size(database)
    assert full > first + 15 * MIB
    empty(database)
    assert size(database) == full
    shrink(database)
    assert size(database) < first + 5 * MIB
    database.close()


def test_a_file_keeps_some_free_pages_for_new_rows(database: Database) -> None:
    fill(database, 300)
    empty(database)
    full = size(database)
    shrink(database)
    assert size(database) == full
    database.close()


def test_a_file_of_an_earlier_version_shrinks_after_its_migration(
    settings: Settings, earlier: Database
) -> None:
    fill(earlier, 2000)
    full = size(earlier)
    empty(earlier, kept=100)
    shrink(earlier)
    assert size(earlier) == full
    earlier.close()
    migrate(settings.url)
    assert size(earlier) < full / 2
    fill(earlier, 2000)
    empty(earlier)
    shrink(earlier)
    assert size(earlier) < full / 2


@pytest.mark.parametrize("trouble", ["full", "busy"])
def test_a_file_that_cannot_be_rewritten_stays_as_it_is(
    earlier: Database, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """The service starts all the same."""
    fill(earlier, 1)
    with closing(sqlite3.connect(str(earlier.engine.url.database))) as other:
        if trouble == "full":
            nothing = SimpleNamespace(disk_usage=lambda _: SimpleNamespace(free=100_000))
            monkeypatch.setattr(space, "shutil", nothing)
        else:
            other.execute("BEGIN IMMEDIATE")
            monkeypatch.setattr(earlier, "snapshot", partial(impatient, earlier.snapshot))
        make_shrinkable(earlier)
    with earlier.snapshot() as session:
        assert session.scalar(text("PRAGMA auto_vacuum")) == 0
        assert session.scalar(text("SELECT count(*) FROM filling")) == 1
