"""Locks of PostgreSQL that transactions wait for."""

from functools import partial

from sqlalchemy import text

from service.db.engine import Database
from tests.support.processes import wait_until

WAITING = text(
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


def wait_for_waiting(database: Database, count: int) -> None:
    """Return when this number of transactions wait for locks of others."""
    wait_until(partial(_are_waiting, database, count), 60, f"{count} waiting transactions")


def _are_waiting(database: Database, count: int) -> bool:
    with database.snapshot() as session:
        return bool(session.scalar(WAITING) == count)
