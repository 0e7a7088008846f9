"""A worker's heartbeats: its identity, its resources, and when it last looked for a run."""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from service import store_space
from service.db.engine import Database
from service.db.errors import TRANSIENT_DB_ERRORS
from service.experiments.models import Queue
from service.queue import worker_samples, workers
from service.queue.workers import Vitals
from service.settings import Settings
from worker import gpus
from worker.memory import memory_limit, memory_pools, resident_memory

log = logging.getLogger(__name__)

SAMPLED_EVERY_S = worker_samples.MINUTE_S / 2
"""Interval of samples: one for each minute, even if a heartbeat is late."""
LOOK_S = 0.05
"""Interval between looks for the end of the run of a worker that stops."""


def worker_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def vitals(
    queue: Queue,
    run_memory: int | None = None,
    run_pid: int | None = None,
    run_device_bytes: int = 0,
    store_full: bool = False,
    looked_ago_s: float | None = None,
) -> Vitals:
    """Return the current resources of this machine, and of its first visible GPU. `run_pid` is the
    process of the current run, if there is one, and `run_device_bytes` the GPU memory that it has
    reported."""
    pools = memory_pools()
    common: dict[str, Any] = {
        "host": socket.gethostname(),
        "queue": queue,
        "memory_free": min(pool["free"] for pool in pools),
        "run_memory": memory_limit(run_memory, pools),
        "memory_pools": pools,
        "memory_ours": resident_memory(run_pid),
        "store_full": store_full,
        "looked_ago_s": looked_ago_s,
    }
    if queue == Queue.CPU:
        return Vitals(**common)
    seen = gpus.visible()
    return Vitals(**common, **(gpus.figures(seen[0], run_pid, run_device_bytes) if seen else {}))


class Presence:
    """Sends heartbeats from its own thread while the main thread executes a run."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        name: str,
        queue: Queue,
        run_pid: Callable[[], int | None] = lambda: None,
        run_device_bytes: Callable[[], int] = lambda: 0,
    ):
        self.database = database
        self.settings = settings
        self.name = name
        self.queue = queue
        self._run_pid, self._run_device_bytes = run_pid, run_device_bytes
        self.must_hand_back = False
        """True if the machine is drained and the time of its runs is over."""
        self._store_full = False
        """True after it was logged that the store's disk is full."""
        self._looked: float | None = None
        self._sample_due = 0.0  # both on the monotonic clock

    def look(self) -> None:
        """Note that the worker looks for a run. Without this for some time it does not count as
        idle, although heartbeats come."""
        self._looked = time.monotonic()

    def vitals(self) -> Vitals:
        """Return the current resources."""
        store_full = store_space.shortage(self.settings) is not None
        given = self.settings.run_memory_bytes, self._run_pid(), self._run_device_bytes()
        ago_s = None if self._looked is None else time.monotonic() - self._looked
        return vitals(self.queue, *given, store_full, ago_s)

    def run(self, stopping: threading.Event) -> None:
        """Send heartbeats until stopping and the end of the current run, then sign off: the memory
        of a run that saves its state is not free."""
        while True:
            self._beat()
            if stopping.wait(self.settings.heartbeat_s):
                break
        beat_at = time.monotonic()
        while self._run_pid() is not None:
            time.sleep(LOOK_S)
            if time.monotonic() >= beat_at + self.settings.heartbeat_s:
                beat_at = time.monotonic()
                self._beat()
        self._leave()

    def _beat(self) -> None:
        try:
            vitals = self.vitals()
            self._log_space(vitals.store_full)
            with self.database.transaction() as session:
                self.must_hand_back = workers.beat(session, self.name, vitals)
                if time.monotonic() >= self._sample_due:
                    worker_samples.take(session, self.name, vitals)
                    self._sample_due = time.monotonic() + SAMPLED_EVERY_S
        except TRANSIENT_DB_ERRORS as error:
            log.warning("the database is unreachable: %s", error)

    def _log_space(self, store_full: bool) -> None:
        if store_full and not self._store_full:
            log.warning("%s", store_space.shortage(self.settings))
        elif self._store_full and not store_full:
            log.info("the store's disk has space again: runs start")
        self._store_full = store_full

    def _leave(self) -> None:
        try:
            with self.database.transaction() as session:
                workers.leave(session, self.name)
        except TRANSIENT_DB_ERRORS:
            pass
