"""Starting point of a claim, and the end of runs whose runner does not stop."""

import hashlib
import os
import socket
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache

import pytest
from sqlalchemy import select, update

from service.datasets.models import Dataset
from service.db.engine import Database
from service.experiments.models import Event, Queue
from service.queue import drains, lease, workers
from service.queue.workers import Vitals
from service.settings import Settings
from service.workers.models import Worker
from tests.support.attempts import submitted
from tests.support.invariants import Record, check
from tests.support.ppca_spec import ppca_spec, spec_on
from tests.support.records import CHECKPOINT_AFTER, RECORDS
from tests.support.starting import run_next
from tests.support.stored import row
from tests.support.stub import started, stub
from tests.support.undisturbed import undisturbed_records
from worker import presence
from worker.fitness import UnfitWorker
from worker.runner import Runner
from worker.slot import Slot
from worker.supervisor import Supervision

TRAINING = {
    "model": {"family": "ppca", "latent_dim": 2, "noise_precision": 5.0, "init": "random"},
    "data__n": 200,
    "data__dim": 12,
    "train": {
        "objective": "mpt",
        "epochs": 5000,
        "evaluate_every": 10,
        "masks": {"schedule": "all", "per_size": 20},
    },
}
"""It takes seconds, and saves every twentieth of a second."""


def attempt(slot: Slot, is_stopping: Callable[[], bool] = lambda: False) -> None:
    assert run_next(slot, is_stopping)


def resumed_after(database: Database, experiment_id: str) -> list[int | None]:
    """For each attempt, the record it went on from."""
    with database.snapshot() as session:
        events = session.scalars(
            select(Event.data).where(Event.experiment_id == experiment_id).order_by(Event.id)
        )
        return [e.get("resumed_after") for e in events if e.get("status") == "running"]


def test_a_claim_reads_no_checkpoint(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that takes longer to read than a lease would never be finished."""
    monkeypatch.setattr(Slot, "new_runner", lambda self: stub("--die"))
    experiment_id = submitted(database)
    slot = Slot(database, settings, "test")
    attempt(slot)
    slot.close()
    (file,) = settings.checkpoints(experiment_id).rglob(str(CHECKPOINT_AFTER))
    file.unlink()
    os.mkfifo(file)  # a reader waits for ever
    monkeypatch.setattr(Slot, "new_runner", lambda self: stub())
    slot = Slot(database, settings, "test")
    attempt(slot)
    slot.close()
    assert resumed_after(database, experiment_id) == [None, CHECKPOINT_AFTER]
    counts = check(database, {experiment_id: RECORDS})
    assert counts.clean, str(counts)


def test_a_queue_waits_while_the_store_is_full(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reserve larger than any disk stands for a full one. No run starts, and the worker does not
    count as idle."""
    monkeypatch.setattr(Slot, "new_runner", lambda self: stub())
    ids = [submitted(database) for _ in range(3)]
    full = settings.model_copy(update={"reserve_bytes": 2**60})
    slot = Slot(database, full, "w")
    slot.work(lambda: False)
    with database.transaction() as session:
        workers.beat(session, "w", slot.presence.vitals())
        assert workers.slots(session, 60)[Queue.CPU].idle == 0
    assert {row(database, one).status for one in ids} == {"queued"}
    slot.settings = slot.presence.settings = settings
    slot.work(lambda: False)
    slot.close()
    assert {row(database, one).status for one in ids} == {"succeeded"}
    assert {row(database, one).attempt for one in ids} == {1}


@pytest.mark.parametrize("ending", ["stopping", "retiring"])
def test_an_ending_worker_starts_no_further_run(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setattr(Slot, "new_runner", lambda self: stub())
    ids = [submitted(database) for _ in range(3)]
    slot = Slot(database, settings, "w")

    def is_over() -> bool:
        return row(database, ids[0]).status == "succeeded"

    slot.work(is_over if ending == "stopping" else lambda: False, is_over)
    slot.close()
    assert [row(database, one).status for one in ids] == ["succeeded", "queued", "queued"]


def test_no_run_starts_on_a_drained_machine(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Slot, "new_runner", lambda self: stub())
    experiment_id = submitted(database)
    slot = Slot(database, settings, "w")
    with database.transaction() as session:
        drains.drain(session, socket.gethostname(), "ann")
    slot.work(lambda: False)
    assert row(database, experiment_id).status == "queued"
    with database.transaction() as session:
        assert drains.undrain(session, socket.gethostname())
    slot.work(lambda: False)
    slot.close()
    ended = row(database, experiment_id)
    assert (ended.status, ended.attempt) == ("succeeded", 1)


@cache
def undisturbed() -> list[Record]:
    return undisturbed_records(ppca_spec(**TRAINING))


@pytest.mark.parametrize("broken", [1, 2])
def test_a_broken_checkpoint_is_not_used(
    database: Database, settings: Settings, broken: int
) -> None:
    """The runner resumes from the previous one, or restarts, and gives the same records."""
    quick = settings.model_copy(update={"checkpoint_every_s": 0.05})
    experiment_id = submitted(database, ppca_spec(**TRAINING))
    slot = Slot(database, quick, "test")

    def has_saved_twice() -> bool:
        with database.snapshot() as session:
            return len(lease.checkpoints(session, experiment_id)) == 2

    attempt(slot, has_saved_twice)
    with database.snapshot() as session:
        latest, before = lease.checkpoints(session, experiment_id)
    for one in (latest, before)[:broken]:
        file = settings.checkpoints(experiment_id) / one.file
        file.write_bytes(file.read_bytes()[:-1])
    attempt(slot)
    slot.close()
    assert resumed_after(database, experiment_id) == [None, latest.after_seq]
    counts = check(database, {experiment_id: undisturbed()})
    assert counts.clean, str(counts)


def test_an_upload_that_was_changed_since_is_not_read(
    database: Database, settings: Settings
) -> None:
    """The changed file has the same shape and other numbers."""
    content = "a,b,c\n1,2,3\n4,5,7\n2,1,2\n0,3,1\n5,5,4\n2,6,0\n1,1,1\n3,0,2\n"
    folder = settings.datasets("b" * 32)
    folder.mkdir(parents=True)
    (folder / "data.csv").write_text(content)
    with database.transaction() as session:
        digest = hashlib.sha256(content.encode()).hexdigest()
        session.add(
            Dataset(id="b" * 32, owner_id=1, name="x.csv", format="csv", bytes=len(content),
                    sha256=digest, n=8, dim=3)
        )  # fmt: skip
    data = {"source": "upload", "dataset": "b" * 32, "n": 8, "dim": 3}
    model = {"family": "ppca", "latent_dim": 1, "init": "maximum_likelihood"}
    whole = submitted(database, ppca_spec(data=data, model=model))
    slot = Slot(database, settings, "test")
    attempt(slot)
    (folder / "data.csv").write_text(content.replace("7", "6", 1))
    changed = submitted(database, ppca_spec(data=data, model=model))
    attempt(slot)
    slot.close()
    assert row(database, whole).status == "succeeded"
    failed = row(database, changed)
    assert (failed.status, failed.failure_kind) == ("failed", "invalid")
    assert "was changed or truncated" in (failed.failure_message or "")


def test_a_run_over_its_memory_is_ended(database: Database, settings: Settings) -> None:
    """Two gigabytes of data where half of one is allowed: the run is ended, with its peak, and the
    slot continues."""
    limited = settings.model_copy(update={"run_memory_bytes": 700 * 2**20})
    slot = Slot(database, limited, "test")
    big = submitted(database, ppca_spec(data__n=1_200_000, data__dim=100))
    attempt(slot)
    after = submitted(database)
    attempt(slot)
    slot.close()
    failed = row(database, big)
    assert (failed.status, failed.failure_kind) == ("failed", "oom")
    assert "peak" in (failed.failure_message or "")
    assert "limit 0.68 GiB" in (failed.failure_message or "")
    assert row(database, after).status == "succeeded"


FAILED_GPU = """
print('{"seq": null, "record": "ready"}', flush=True)
input()
print('{"seq": null, "record": "failure", "cause": "device", "message": "CUDA error"}')
raise SystemExit(1)
"""


@pytest.mark.parametrize("defect", [None, "the card has fallen off the bus"])
def test_after_a_failure_of_its_gpu_a_worker_continues_only_if_the_gpu_computes(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch, defect: str | None
) -> None:
    failing = (sys.executable, "-c", FAILED_GPU)
    monkeypatch.setattr(Slot, "new_runner", lambda self: started(*failing))
    monkeypatch.setattr("worker.slot.gpu_defect", lambda: defect)
    experiment_id = submitted(database)
    slot = Slot(database, settings, "test")
    with nullcontext() if defect is None else pytest.raises(UnfitWorker, match="fallen off"):
        attempt(slot)
    slot.close()
    waiting = row(database, experiment_id)
    assert (waiting.status, waiting.lost, waiting.failure_kind) == ("queued", 1, None)


def test_a_run_that_cannot_be_started_is_handed_back(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that takes no file. The run is not lost, and the worker ends."""

    def refuse(folder: object) -> Runner:
        raise OSError("Read-only file system")

    monkeypatch.setattr(Slot, "new_runner", refuse)
    experiment_id = submitted(database)
    slot = Slot(database, settings, "test")
    with pytest.raises(UnfitWorker, match="Read-only"):
        attempt(slot)
    slot.close()
    waiting = row(database, experiment_id)
    assert (waiting.status, waiting.lost) == ("queued", 0)


def test_a_worker_knows_the_process_and_the_gpu_memory_of_its_run(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process distinguishes the run's memory from that of others."""
    submitted(database)
    slot = Slot(database, settings, "w")
    reports: list[tuple[int | None, int]] = []

    def run(self: Supervision, _: object) -> str:
        with monkeypatch.context() as patched:
            patched.setattr(presence, "vitals", lambda *given: reports.append(given[2:4]))
            self._take({"record": "memory", "device_bytes": 7})
            slot.presence.vitals()
        reports.append((self.runner.child.pid, 7))
        return "succeeded"

    monkeypatch.setattr(Supervision, "run", run)
    attempt(slot)
    slot.close()
    (reported, expected) = reports
    assert reported == expected
    assert slot.run_device_bytes == 0


@pytest.mark.parametrize("queue", Queue)
def test_runs_on_a_gpu_begin_with_transformers_imported(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch, queue: Queue
) -> None:
    made: list[bool] = []
    monkeypatch.setattr("worker.slot.WarmParent", lambda *, transformers: made.append(transformers))
    Slot(database, settings, "w", queue).warm_up()
    assert made == [queue == Queue.GPU]


def test_no_run_is_left_to_a_gpu_worker_that_is_silent(
    database: Database, settings: Settings
) -> None:
    """A CPU worker starts what an idle GPU worker could run as well, once that one is silent for
    too long."""
    submitted(database, spec_on("auto"))
    with database.transaction() as session:
        vitals = Vitals("other", Queue.GPU, 2**40, gpu_uuid="a", looked_ago_s=0.0)
        workers.beat(session, "silent", vitals)
    slot = Slot(database, settings, "w")
    assert slot.claim() is None
    with database.transaction() as session:
        heartbeat_at = Worker.heartbeat_at - settings.worker_silent_s
        session.execute(
            update(Worker).where(Worker.id == "silent").values(heartbeat_at=heartbeat_at)
        )
    assert slot.claim() is not None


def test_heartbeats_contain_the_gpu_memory_that_a_run_reports(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[int] = []
    monkeypatch.setattr(presence, "vitals", lambda *figures: reported.append(figures[3]))
    monkeypatch.setattr(Slot, "run_device_bytes", 7)
    Slot(database, settings, "w").presence.vitals()
    assert reported == [7]
