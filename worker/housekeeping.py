"""Delete files that nobody will read. It runs beside the controller, so that a slow disk delays no
recovery."""

import logging
import shutil
import threading
import time
from itertools import islice

from service.datasets.hub import trim_hub_cache
from service.datasets.retention import sweep as clean_uploads
from service.db.engine import Database
from service.db.errors import TRANSIENT_DB_ERRORS
from service.db.space import shrink
from service.operations import retention
from service.queue import lease, worker_samples, workers
from service.settings import Settings

log = logging.getLogger(__name__)

CLEAN_S = 60.0
RETENTION_S = 3600.0
"""Interval of the retention check, which reads the size of every file."""
FORGET_S = 3600.0
"""Silence after which a worker is forgotten."""
TOGETHER = 500


class Housekeeping:
    """Several may run at once: they tolerate that another one has deleted a file."""

    def __init__(self, database: Database, settings: Settings):
        self.database = database
        self.settings = settings
        self._retention_due = time.monotonic()

    def run(self, stopping: threading.Event) -> None:
        while not stopping.wait(CLEAN_S):
            self.clean()

    def clean(self) -> None:
        """Delete the remains of interrupted uploads, the excess of the hub's cache, checkpoints of
        experiments that ended without a worker (cancelled while paused, or lost), experiments that
        were deleted or have been kept long enough, silent workers and old samples of workers. Their
        space returns to the disk."""
        try:
            clean_uploads(self.database, self.settings)
            trim_hub_cache(self.settings)
            self._clean_checkpoints()
            self._purge_experiments()
            with self.database.transaction() as session:
                worker_samples.forget(session)
                workers.forget_silent(session, FORGET_S)
            shrink(self.database)
        except TRANSIENT_DB_ERRORS as error:
            log.warning("the database is unreachable: %s", error)
        except OSError as error:
            log.warning("the store cannot be cleaned up: %s", error)

    def _purge_experiments(self) -> None:
        if time.monotonic() >= self._retention_due:
            self._retention_due = time.monotonic() + RETENTION_S
            retention.delete(self.database, retention.planned(self.database, self.settings))
            retention.measure_artifacts(self.database, self.settings)
            retention.purge_never_started(self.database, retention.never_started(self.database))
        deleted = retention.purgeable(self.database, self.settings)
        retention.purge(self.database, self.settings, islice(deleted, TOGETHER))

    def _clean_checkpoints(self) -> None:
        folders = list(self.settings.all_checkpoints.glob("*"))
        after_s = 2 * self.settings.lease_s  # a worker that is about to end may still write
        for start in range(0, len(folders), TOGETHER):
            part = {folder.name: folder for folder in folders[start : start + TOGETHER]}
            with self.database.transaction() as session:
                ended = lease.forget_checkpoints(session, list(part), after_s)
            for experiment_id in ended:
                shutil.rmtree(part[experiment_id], ignore_errors=True)
