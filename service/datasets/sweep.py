"""Removing what an upload left that was cut off by the end of its process."""

import shutil
import time
from pathlib import Path

from service.database import Database
from service.datasets import store
from service.settings import Settings

ABANDONED_S = 6 * 3600.0
"""No upload goes on for so long without a byte."""


def sweep(database: Database, settings: Settings) -> None:
    """Remove uploads that no one will finish. Each has a folder among the incoming until its row
    is committed: what has none there is no concern of ours, whatever the database knows of it."""
    for folder in settings.all_incoming.glob("*"):
        if not _is_abandoned(folder):
            continue
        with database.snapshot() as session:
            is_kept = store.exists(session, folder.name)
        if not is_kept:
            shutil.rmtree(settings.datasets(folder.name), ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    """Whether nothing was written to it for long. One that is gone was ended by its upload, or by
    another sweep; where only a file of it is gone, it is at work."""
    try:
        written = max(path.stat().st_mtime for path in (folder, *folder.glob("*")))
    except FileNotFoundError:
        return False
    return time.time() - written >= ABANDONED_S
