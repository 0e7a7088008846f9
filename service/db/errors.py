"""Classify the errors of both databases: which are transient, and which mean that nothing can be
written."""

import re
import sqlite3

from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import (
    DBAPIError,
    InterfaceError,
    OperationalError,
    ProgrammingError,
)
from sqlalchemy.exc import TimeoutError as NoConnectionFree

from service.db.revisions import NotMigrated

TRANSIENT_DB_ERRORS = (OperationalError, InterfaceError, NoConnectionFree)
"""Transient errors: the database does not answer, fails over, is full, locked or overloaded.
Nothing was committed, or it is not known whether it was. Every long-lived loop logs these and
continues; the API answers 503. All other errors are defects. `by_nature` sorts the errors of the
drivers into these two groups."""

PASSING_STATES = ("08", "28", "40", "42501", "53", "55", "57", "58", "25006", "25P03", "25P04")
"""Transient SQLSTATEs and their classes: connection, login, serialization and deadlock, resources,
locks, operator intervention, system; read-only, not permitted, and timeouts of transactions."""
PASSING_CODES = frozenset(
    getattr(sqlite3, f"SQLITE_{name}")
    for name in ("BUSY", "LOCKED", "NOMEM", "READONLY", "INTERRUPT", "IOERR", "FULL", "CANTOPEN",
                 "PROTOCOL")
)  # fmt: skip

DISK_FULL = "the disk of the database is full"
READ_ONLY = "the database can only be read"
DISK_ERROR = "the disk of the database has errors or is read-only"
NOT_PERMITTED = "the database may not write: its disk is read-only, or a permission is missing"
CANNOT_OPEN = "the file of the database cannot be opened: its disk may be read-only or missing"
TROUBLES = {
    sqlite3.SQLITE_FULL: DISK_FULL,
    "53100": DISK_FULL,
    sqlite3.SQLITE_READONLY: READ_ONLY,
    "25006": READ_ONLY,
    sqlite3.SQLITE_IOERR: DISK_ERROR,
    "58030": DISK_ERROR,
    "42501": NOT_PERMITTED,
    sqlite3.SQLITE_CANTOPEN: CANNOT_OPEN,
}
"""Reason why a database refuses to write, by SQLite's code or PostgreSQL's SQLSTATE."""


def write_trouble(error: BaseException) -> str | None:
    """Return why a database refused to write, if its disk or a permission is the cause."""
    cause = getattr(error, "orig", None)
    state = getattr(cause, "sqlstate", None)
    return TROUBLES.get(state or getattr(cause, "sqlite_errorcode", 0) & 0xFF)


def is_over_time(error: BaseException) -> bool:
    """Return whether the database has ended a statement because it took too long."""
    cause = getattr(error, "orig", None)
    code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
    return getattr(cause, "sqlstate", None) == "57014" or code == sqlite3.SQLITE_INTERRUPT


def by_nature(context: ExceptionContext) -> Exception | None:
    """Return the error to raise instead of the driver's. The driver's classes do not separate
    transient errors from defects: PostgreSQL reports a read-only server as InternalError, SQLite a
    missing table as OperationalError."""
    error = context.sqlalchemy_exception
    if not isinstance(error, DBAPIError) or error.orig is None:
        return None
    if _lacks_a_table(error.orig):
        return NotMigrated()
    parts = (error.statement, error.params, error.orig)
    passing = _is_passing(error)
    if passing and not isinstance(error, TRANSIENT_DB_ERRORS):
        return OperationalError(*parts, connection_invalidated=error.connection_invalidated)
    if not passing and isinstance(error, TRANSIENT_DB_ERRORS):
        return ProgrammingError(*parts)
    return None


def _is_passing(error: DBAPIError) -> bool:
    if isinstance(error.orig, sqlite3.Error):
        return getattr(error.orig, "sqlite_errorcode", 0) & 0xFF in PASSING_CODES
    state = getattr(error.orig, "sqlstate", None)
    if state is None:  # said by the driver: it has no connection, or lost it
        return isinstance(error, TRANSIENT_DB_ERRORS)
    return str(state).startswith(PASSING_STATES)


def _lacks_a_table(error: BaseException) -> bool:
    if isinstance(error, sqlite3.OperationalError):
        return re.search("no such (table|column)|has no column", str(error)) is not None
    return getattr(error, "sqlstate", None) in ("42P01", "42703")
