"""The local worker as a process that is killed, and a worker whose run is cancelled."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest
from sqlalchemy import select

from service.db.engine import Database
from service.experiments.models import Event, Experiment
from service.experiments.schemas import Submission
from service.queue import drains, states
from service.records import results
from service.records.curves import read_series
from service.settings import Settings
from tests.support import stored
from tests.support.forks import fork
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import Process, Start, start_fresh

SHORT_LEASE = {"MPT_LEASE_S": "2"}


@contextmanager
def local_worker(settings: Settings, start: Start = fork, host: str = "here") -> Iterator[Process]:
    """A worker while the block runs. If it is forked, it sees the name of a machine."""
    one_gpu = {"CUDA_VISIBLE_DEVICES": "0"}  # which does not belong to the local worker
    environment = {**os.environ, **SHORT_LEASE, **one_gpu, "MPT_STORE": str(settings.store),
                   "PRETENDED_HOST": host}  # fmt: skip
    process = start(["-m", "worker", "cpu", "--local"], environment, settings.store / "log")
    try:
        yield process
    finally:
        if process.is_running():
            process.terminate()
            process.wait(300)


def submit(database: Database, **changes: object) -> str:
    submission = Submission.model_validate({"spec": ppca_spec(**changes)})
    with database.transaction() as session:
        made = stored.submit(session, 1, submission)
    assert made is not None
    return made.id


def wait_for(
    database: Database, experiment_id: str, holds: Callable[[Experiment], bool]
) -> Experiment:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        with database.snapshot() as session:
            experiment = session.get_one(Experiment, experiment_id)
        if holds(experiment):
            return experiment
        time.sleep(0.02)
    raise TimeoutError(experiment.status)


def test_a_killed_worker_resumes_its_run(database: Database, settings: Settings) -> None:
    experiment_id = submit(database, data__dim=60, evaluate__masks__per_size=25_000)
    with local_worker(settings) as worker:
        wait_for(database, experiment_id, lambda e: (e.progress_done or 0) > 0)
        family = [worker, *worker.children(recursive=True)]
        worker.send_signal(signal.SIGKILL)
        _, orphans = psutil.wait_procs(family, timeout=10)
        assert not orphans
    with local_worker(settings):
        ended = wait_for(database, experiment_id, lambda e: states.is_terminal(e.status))
    assert (ended.status, ended.attempt, ended.lost) == ("succeeded", 2, 1)
    with database.snapshot() as session:
        (series,) = read_series(session, experiment_id, max_points=1000)
        names = [metric.name for metric in results.metrics(session, experiment_id)]
    assert series.x == list(range(1, 61))
    assert names == ["lml", "mpt", "difference"]


@pytest.mark.slow
def test_a_stopped_worker_hands_back_its_run(database: Database, settings: Settings) -> None:
    experiment_id = submit(database, data__dim=150, evaluate__masks__per_size=200_000)
    with local_worker(settings, start_fresh) as worker:
        wait_for(database, experiment_id, lambda e: (e.progress_done or 0) > 0)
        runners = [child.environ()["CUDA_VISIBLE_DEVICES"] for child in worker.children()]
        assert set(runners) == {""}
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(300) == 0
    with database.snapshot() as session:
        experiment = session.get_one(Experiment, experiment_id)
        assert (experiment.status, experiment.lost) == ("queued", 0)


@pytest.mark.slow  # two workers; the rules of a drain have quick tests
def test_a_drained_machine_hands_its_run_back_to_another(
    database: Database, settings: Settings
) -> None:
    """It continues from a checkpoint when a planned drain begins, and no attempt is lost. The
    worker of the drained machine stays alive, and starts no run before the end of the drain."""
    experiment_id = submit(database, data__dim=60, evaluate__masks__per_size=25_000)
    with local_worker(settings, host="first"):
        began = wait_for(database, experiment_id, lambda e: (e.progress_done or 0) > 0)
        assert (began.worker or "").startswith("first:")
        with local_worker(settings, host="second"):
            with database.transaction() as session:
                drain = drains.drain(session, "first", "ann", starts_in_s=0.5)
            ended = wait_for(database, experiment_id, lambda e: states.is_terminal(e.status))
        assert (ended.status, ended.attempt, ended.lost) == ("succeeded", 2, 0)
        assert (ended.worker or "").startswith("second:")
        assert drain.hand_back_at == drain.starts_at
        with database.transaction() as session:
            starts = select(Event.data).where(Event.experiment_id == experiment_id)
            resumed = ["resumed_after" in one for one in session.scalars(starts.order_by(Event.id))
                       if one.get("status") == "running"]  # fmt: skip
            drain = drains.drain(session, "first", "ann", lasts_s=1.0)
        assert resumed == [False, True]
        after = wait_for(database, submit(database), lambda e: states.is_terminal(e.status))
    assert (after.status, after.worker) == ("succeeded", began.worker)
    assert drain.until is not None
    assert drain.until <= (after.started_at or 0)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_serve_ends_all_its_child_processes(
    tmp_path_factory: pytest.TempPathFactory, number: signal.Signals
) -> None:
    store_ = tmp_path_factory.mktemp("serve")
    environment = {**os.environ, "MPT_STORE": str(store_)}
    code = "from mptlab.cli import main; main()"
    with psutil.Popen(
        [sys.executable, "-c", code, "serve", "--port", "0"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        starts = (b"serving http://127.0.0.1:", b"open http://127.0.0.1:", b"log: ")
        assert all(process.stdout.readline().startswith(start) for start in starts)
        assert (store_ / "serve.log").read_text().count("Uvicorn running") == 1
        family = process.children(recursive=True)
        assert len(family) >= 3  # API, worker, spare runner
        process.send_signal(number)
        assert process.wait(20) == (0 if number == signal.SIGTERM else -number)
        _, orphans = psutil.wait_procs(family, timeout=10)
        for orphan in orphans:
            orphan.kill()
        assert not orphans
