"""Delete the remains of uploads that were interrupted by the end of their process."""

import shutil
import time
from pathlib import Path

from service.datasets import store
from service.db.engine import Database
from service.settings import Settings

ABANDONED_S = 6 * 3600.0
"""Maximum time that an active upload goes without a byte."""


def sweep(database: Database, settings: Settings) -> None:
    """Delete abandoned uploads. Each has a folder among the incoming ones until its row is
    committed; other folders are not touched."""
    for folder in settings.all_incoming.glob("*"):
        if not _is_abandoned(folder):
            continue
        with database.snapshot() as session:
            is_kept = store.exists(session, folder.name)
        if not is_kept:
            shutil.rmtree(settings.datasets(folder.name), ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    """Return whether nothing was written to the folder for long. A missing folder was removed by
    its upload or by another process. If only one of its files is missing, the upload is active."""
    try:
        written = max(path.stat().st_mtime for path in (folder, *folder.glob("*")))
    except FileNotFoundError:
        return False
    return time.time() - written >= ABANDONED_S
