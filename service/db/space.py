"""Return the space of deleted rows from an SQLite file to the disk. On PostgreSQL, autovacuum keeps
it for new rows."""

import logging
import os
import shutil
import sqlite3

from sqlalchemy import text
from sqlalchemy.orm import Session

from service.db.engine import Database

log = logging.getLogger(__name__)

FREE_SHARE = 0.1
"""Share of a file's pages that stays free. New rows use these pages, and moving pages for every
small deletion would cost more than it gains."""
PAGES_AT_ONCE = 1000
"""Pages that one transaction removes, 4 MB. Writers wait for it for a tenth of a second."""
MAX_STEPS = 100
INCREMENTAL = 2
"""The mode of a file from which free pages can be removed step by step."""


def make_shrinkable(database: Database) -> None:
    """Rewrite an SQLite file once, so that it can shrink later. It takes half a minute for each GB,
    and needs space for two copies on the disk; without it the file stays as it is."""
    path = database.engine.url.database
    if database.engine.dialect.name != "sqlite" or not path:
        return
    with database.snapshot() as session:
        if session.scalar(text("PRAGMA auto_vacuum")) == INCREMENTAL:
            return
        size = os.path.getsize(path)
        if shutil.disk_usage(os.path.dirname(path)).free < 2 * size:
            log.warning("%s does not shrink: its disk has less than %d bytes free", path, 2 * size)
            return
        log.info("%s, %d bytes, is rewritten once so that it can shrink", path, size)
        _run(session, "PRAGMA auto_vacuum = INCREMENTAL; VACUUM")


def shrink(database: Database) -> None:
    """Remove free pages from an SQLite file until FREE_SHARE of it is free, MAX_STEPS times
    PAGES_AT_ONCE at most."""
    if database.engine.dialect.name != "sqlite":
        return
    for _ in range(MAX_STEPS):
        with database.snapshot() as session:
            if session.scalar(text("PRAGMA auto_vacuum")) != INCREMENTAL:
                return
            free = session.scalar(text("PRAGMA freelist_count")) or 0
            pages = session.scalar(text("PRAGMA page_count")) or 0
            if free <= max(FREE_SHARE * pages, PAGES_AT_ONCE):
                return
            # `execute` would remove one page only: it takes a single step of this statement.
            _run(session, f"PRAGMA incremental_vacuum({PAGES_AT_ONCE})")


def _run(session: Session, script: str) -> None:
    """Run statements outside a transaction. The session must not have changed anything."""
    connection = session.connection().connection.driver_connection
    assert isinstance(connection, sqlite3.Connection)
    try:
        connection.executescript(script)
    except sqlite3.OperationalError as error:
        log.warning("the database's file does not shrink now: %s", error)
