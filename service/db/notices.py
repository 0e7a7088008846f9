"""Notices between processes: something has happened to an experiment, or experiments may start.

A notice says only that it is worth looking. It may be lost or needless, so that whoever waits for
it looks from time to time anyway."""

import sqlite3
import time
from select import select
from typing import Any

import psycopg
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from service.db.engine import Database

LOOK_S = 0.1
"""Interval of looks on SQLite, which notifies nobody."""


def notify(session: Session) -> None:
    """Send a notice when this transaction is committed. On SQLite each commit is one."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("NOTIFY experiments"))


class Notices:
    """The notices since the last wait. It has a connection of its own. A new connection counts as a
    notice, because what happened before is not known."""

    def __init__(self, database: Database):
        self._database = database
        self._connection: Any = None  # of the driver
        self._version: int | None = None

    def wait(self, timeout_s: float) -> bool:
        """Wait for a notice, at most `timeout_s` seconds. Return whether one came. None comes while
        the database is away."""
        until = time.monotonic() + timeout_s
        try:
            if self._database.engine.dialect.name == "postgresql":
                return self._wait_postgresql(timeout_s)
            return self._wait_sqlite(until)
        except (psycopg.Error, sqlite3.Error, SQLAlchemyError):
            self.close()
            time.sleep(max(0.0, until - time.monotonic()))
            return False

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = self._version = None

    def _wait_postgresql(self, timeout_s: float) -> bool:
        if self._connection is None:
            self._connection = self._detached()
            self._connection.autocommit = True
            self._connection.execute("LISTEN experiments")
            return True
        # While `notifies` waits, it wakes ten times a second.
        if not select([self._connection], [], [], timeout_s)[0]:
            return False
        return any([*self._connection.notifies(timeout=timeout_s, stop_after=1)])

    def _wait_sqlite(self, until: float) -> bool:
        if self._connection is None:
            self._connection = self._detached()
        while True:
            (version,) = self._connection.execute("PRAGMA data_version").fetchone()
            is_new: bool = self._version != version
            self._version = version
            rest_s = until - time.monotonic()
            if is_new or rest_s <= 0:
                return is_new
            time.sleep(min(LOOK_S, rest_s))

    def _detached(self) -> Any:
        """Return a new connection of the driver, which takes no place in the pool."""
        pooled = self._database.engine.raw_connection()
        connection = pooled.driver_connection
        pooled.detach()
        return connection
