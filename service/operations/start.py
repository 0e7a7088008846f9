"""Common start of every process of the service."""

import ctypes
import logging
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from sqlalchemy import make_url

from mptcore.specs.outside import outside_families
from service.db.engine import Database
from service.db.errors import TRANSIENT_DB_ERRORS
from service.db.revisions import NotMigrated
from service.logs import configure_logs
from service.settings import Settings, from_environment, unknown_variables

log = logging.getLogger(__name__)

OWNER_ONLY = 0o077
"""The umask that denies everything to group and others."""
SOUND_SQLITE = (3, 51, 3)
ORPHAN_GRACE_S = 15.0
"""Time for a worker to hand back its run, and for an API process to finish a slow request."""


def begin() -> Settings:
    """Read the settings, configure logging, restrict access to the store and check the tables. Ends
    the process if the tables do not match this version, or if two packages register a family."""
    settings = from_environment()
    configure_logs()
    if conflicts := outside_families().conflicts:
        log.critical("%s", "; ".join(conflicts))
        raise SystemExit(1)
    for name in unknown_variables(os.environ):
        log.warning("%s is no setting: it has no effect (docs/settings.md lists them)", name)
    os.umask(OWNER_ONLY)
    hide_memory()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, children could not be waited for
    if settings.embedded is not None:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    restrict(settings)
    with closing(Database(settings.url)) as database:
        _log_version(database)
        _require_tables(database)
    return settings


def hide_memory() -> None:
    """Hide this process's memory and environment from other processes of the same user.

    Runs belong to that user, and the environment may hold passwords. Linux only.
    """
    if sys.platform == "linux":
        pr_set_dumpable = 4
        ctypes.CDLL(None).prctl(pr_set_dumpable, 0)


def _end_with_stdin() -> None:
    """End this process after the one at the other end of stdin."""
    while os.read(sys.stdin.fileno(), 1024):
        pass
    log.warning(
        "the parent process is gone: this process ends, because MPT_EMBEDDED is set, which is for "
        "`mpt serve` alone"
    )
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_GRACE_S)
    os._exit(1)


def restrict(settings: Settings) -> None:
    """Remove group and other permissions from the store, its database and its keys."""
    keys = (settings.key_file, settings.session_key_file)
    for path in (settings.store, *keys, *_database_files(settings.url)):
        try:
            mode = path.stat().st_mode
            if mode & OWNER_ONLY:
                path.chmod(mode & ~OWNER_ONLY)
        except FileNotFoundError:
            pass
        except PermissionError:
            log.warning("%s is open to others, and belongs to another user", path)


def _database_files(url: str) -> Iterator[Path]:
    """Yield SQLite's database files; none for a database server."""
    parts = make_url(url)
    if parts.get_backend_name() == "sqlite" and parts.database:
        for suffix in ("", "-wal", "-shm"):
            yield Path(parts.database + suffix)


def _log_version(database: Database) -> None:
    if database.engine.dialect.name != "sqlite":
        return
    log.info("SQLite %s", sqlite3.sqlite_version)
    if sqlite3.sqlite_version_info < SOUND_SQLITE:
        log.warning(
            "SQLite before 3.51.3 has a rare bug: a reset of the write-ahead log while several "
            "processes write can corrupt the database. Keep a backup, or use PostgreSQL"
        )


def _require_tables(database: Database) -> None:
    try:
        database.check_tables()
    except NotMigrated as error:
        log.critical("%s", error)
        raise SystemExit(1) from None
    except TRANSIENT_DB_ERRORS as error:
        log.warning("the database is unreachable: %s", error)
