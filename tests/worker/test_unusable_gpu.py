"""A GPU worker refuses to start if no GPU can be used; CUDA_VISIBLE_DEVICES hides the GPUs."""

from contextlib import closing

import pytest
from pydantic import SecretStr
from sqlalchemy import select

from service.db.engine import Database
from service.experiments.models import Experiment, Queue
from service.settings import Settings
from service.workers.models import Worker
from tests.service.queue.test_position import submit
from tests.support.forks import fork
from tests.support.processes import environment
from worker.main import Worker as WorkerProcess


def refusal(lab: Settings, *command: str) -> str:
    """Return the message of a command that exits with status 1 if there is no GPU."""
    said = lab.store / "said"
    assert fork(command, environment(lab, CUDA_VISIBLE_DEVICES=""), said).wait(60) == 1
    return said.read_text()


def test_a_gpu_worker_without_a_gpu_refuses_to_start(lab: Settings) -> None:
    told = refusal(lab, "-m", "worker", "gpu")
    assert "this worker can use no GPU" in told
    with closing(Database(lab.url)) as database, database.snapshot() as session:
        assert session.scalar(select(Worker.id)) is None


def test_without_gpus_no_worker_per_gpu_starts(lab: Settings) -> None:
    assert "NVML reports no GPU here" in refusal(lab, "worker", "gpu", "--all")


def test_a_run_that_finds_no_gpu_is_handed_back_and_ends_the_worker(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    broker = SecretStr("redis://127.0.0.1:1/0")  # which nothing here connects to
    alone = {"warm_parent": False, "redis_url": broker}
    worker = WorkerProcess(settings.model_copy(update=alone), Queue.GPU)
    failed: list[bool] = []  # in place of the end of this process
    monkeypatch.setattr(worker.lifetime, "fail", lambda: failed.append(True))
    experiment_id = submit(worker.database, "cuda")
    worker._work()
    assert failed == [True]
    with worker.database.snapshot() as session:
        one = session.get_one(Experiment, experiment_id)
        assert (one.status, one.lost, one.failure_kind) == ("queued", 0, None)
