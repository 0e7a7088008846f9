"""A run of many points through kills and outages of the database."""

import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pytest
from sqlalchemy import select

from service.db.engine import Database
from service.db.errors import TRANSIENT_DB_ERRORS
from service.experiments.models import Block, Experiment, Queue, Series
from service.operations.prepare import prepare
from service.settings import Settings
from tests.support.attempts import submitted
from tests.support.processes import wait_until
from tests.support.servers import PostgreSQL, cluster_folder
from worker.children import Spawned
from worker.main import Worker
from worker.runner import Runner
from worker.slot import Slot

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

POINTS = int(os.environ.get("MPT_CHAOS_POINTS", "200000"))
"""`make chaos` runs a million."""
KILLS = 10
OUTAGES = (3, 7)
"""Kills after which the database is away for a while."""
AWAY_S = 3.0
COMMAND = (sys.executable, "-m", "tests.support.long_runner", str(POINTS))
PROCESSES = multiprocessing.get_context("forkserver")


def be_worker(settings: Settings) -> None:
    start = partial(Spawned, command=COMMAND)
    Slot.new_runner = lambda self: Runner(start, settings.store)  # type: ignore[method-assign]
    Worker(settings, Queue.CPU).run_locally()


@pytest.fixture
def postgresql_server() -> Iterator[PostgreSQL]:
    """Not in pytest's folder, which other runs of pytest close to the user of the server."""
    with tempfile.TemporaryDirectory(dir=cluster_folder(), ignore_cleanup_errors=True) as folder:
        server = PostgreSQL(Path(folder))
        server.start()
        server.create("lab")
        yield server
        server.stop()


class Run:
    """An experiment, and the worker that computes it."""

    def __init__(self, settings: Settings, database: Database):
        self.settings, self.database = settings, database
        self.id = submitted(database)
        self.worker = self._start()

    def _start(self) -> BaseProcess:
        process = PROCESSES.Process(target=be_worker, args=(self.settings,))
        process.start()
        return process

    @property
    def state(self) -> tuple[str, int]:
        """Status and last stored record; unknown while the database is away."""
        with suppress(*TRANSIENT_DB_ERRORS), self.database.snapshot() as session:
            experiment = session.get_one(Experiment, self.id)
            return experiment.status, experiment.last_seq
        return "", 0

    def kill_worker(self) -> None:
        self.worker.kill()
        self.worker.join()
        self.worker = self._start()

    def kill_runner(self) -> None:
        for process in psutil.Process(self.worker.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if "tests.support.long_runner" in process.cmdline():
                    process.kill()

    def end(self) -> None:
        wait_until(lambda: self.state[0] not in ("", "queued", "running"), 900, "the run's end")
        self.worker.terminate()
        self.worker.join()

    def columns(self) -> dict[tuple[str, str], list[bytes]]:
        """The bytes of each series, as they are stored."""
        with self.database.snapshot() as session:
            query = select(Series.name, Series.labels, Block).join(
                Block, Block.series_id == Series.id
            )
            rows = session.execute(
                query.where(Series.experiment_id == self.id).order_by(Block.first_seq)
            ).all()
        names = ("seq", "x", "value", "std_err", "n", "reason")
        series: dict[tuple[str, str], list[bytes]] = {}
        for name, labels, block in rows:
            parts = [getattr(block, column) for column in names]
            before = series.get((name, labels), [b""] * len(names))
            series[name, labels] = [a + b for a, b in zip(before, parts, strict=True)]
        return series


def test_many_points_through_kills_and_outages(
    tmp_path: Path, postgresql_server: PostgreSQL
) -> None:
    """It has the points of an undisturbed run, bit for bit."""
    settings = Settings(
        store=tmp_path / "store",
        database_url=postgresql_server.url("lab"),
        lease_s=2.0,
        max_lost=1000,
        warm_parent=False,
    )
    prepare(settings)
    chance = random.Random(4)
    with closing(Database(settings.url)) as database:
        undisturbed = Run(settings, database)
        undisturbed.end()
        run = Run(settings, database)
        for kill in range(KILLS):
            goal = (kill + chance.random()) * POINTS / KILLS
            wait_until(lambda: run.state[1] > goal, 300, "points")  # noqa: B023
            if kill % 2:
                run.kill_runner()
            else:
                run.kill_worker()
            if kill in OUTAGES:
                postgresql_server.stop()
                time.sleep(AWAY_S)
                postgresql_server.start()
        run.end()
        assert run.state == undisturbed.state == ("succeeded", POINTS)
        assert sum(len(columns[0]) for columns in run.columns().values()) == 4 * POINTS
        assert run.columns() == undisturbed.columns()
        with database.snapshot() as session:
            assert session.get_one(Experiment, run.id).attempt > KILLS // 2
