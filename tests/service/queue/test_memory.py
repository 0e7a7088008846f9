"""Memory of devices: estimates, measured peaks, and GPUs that others use too. No GPU is needed: the
heartbeats of workers contain the values that NVML would report.
"""

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event, insert, select, text, update

from mptcore.specs import validate_spec
from service.db.engine import Database
from service.experiments.models import TELLING_BYTES, Attempt, Experiment, Queue
from service.experiments.schemas import AttemptOut, Submission
from service.fair_share import FairShare
from service.queue import lease, ledger, rooms, workers
from service.queue.memory import MIN_RUNS, RUNTIME_BYTES, Memory, MemoryModel, learned_ratio
from service.queue.position import queue_positions
from service.queue.rooms import Place
from service.queue.snapshot import QueueSnapshots
from service.queue.workers import Vitals
from service.settings import Settings
from service.vocabulary import Status
from service.workers.models import Worker
from tests.support import lm_specs, stored
from tests.support.attempts import submitted
from tests.support.nvml import Card, Nvml
from tests.support.ppca_spec import ppca_spec
from tests.support.starting import run_next, start_next
from worker import gpus, presence
from worker.slot import Slot

GIB = 2**30


def register(
    database: Database,
    name: str,
    free: float,
    ours: float = 0,
    uuid: str = "GPU-0",
    total: float = 80,
) -> None:
    """A worker's heartbeat; sizes in GiB."""
    vitals = Vitals(
        "host",
        Queue.GPU,
        1,
        gpu_memory_total=int(total * GIB),
        gpu_memory_free=int(free * GIB),
        gpu_number=0,
        gpu_uuid=uuid,
        gpu_memory_ours=int(ours * GIB),
    )
    with database.transaction() as session:
        workers.beat(session, name, vitals)


def submit(database: Database, gib: float, priority: int = 0) -> str:
    value = {"spec": ppca_spec(compute__device="cuda"), "priority": priority}
    submission = Submission.model_validate(value)
    memory = Memory(int(gib * GIB), int(gib * GIB))
    with database.transaction() as session:
        return stored.submit(session, 1, submission, memory=memory).id


def start(database: Database, worker: str) -> str | None:
    """Start a run as a slot does, with the GPU of its worker's last heartbeat."""
    with database.transaction() as session:
        claim = start_next(session, worker, Queue.GPU)
        return None if claim is None else claim.experiment_id


def end(database: Database, experiment_id: str) -> None:
    with database.transaction() as session:
        found = session.get_one(Experiment, experiment_id)
        begun = lease.Claim(found.id, found.attempt, found.spec)
        lease.finish(session, begun, Status.SUCCEEDED)


def place_of(database: Database, worker: str) -> Place:
    with database.transaction() as session:
        places = rooms.places(session, 60)
    return next(place for place in places if place.worker_id == worker)


def reason(database: Database, experiment_id: str) -> str:
    with database.snapshot() as session:
        one = session.get_one(Experiment, experiment_id)
        return queue_positions(session, [one], QueueSnapshots())[experiment_id].reason


def test_gpu_memory_used_by_others_delays_a_run_with_a_reason(either: Database) -> None:
    register(either, "g", free=49)
    large, small = submit(either, 60), submit(either, 40)
    used = "GPU 0 is used by a process outside this service (31 GiB)"
    assert reason(either, large) == f"{used}; the run takes about 60 GiB"
    assert start(either, "g") == small
    assert start(either, "g") is None
    end(either, small)
    register(either, "g", free=80)
    assert start(either, "g") == large


def test_a_claim_without_gpu_memory_is_queued_again(either: Database) -> None:
    """The wrong one of two workers looked for work: no attempt is counted."""
    register(either, "full", free=10, uuid="GPU-a")
    register(either, "free", free=80, uuid="GPU-b")
    large = submit(either, 60)
    assert start(either, "full") is None
    with either.snapshot() as session:
        one = session.get_one(Experiment, large)
        assert (one.status, one.attempt, one.lost) == (Status.QUEUED, 0, 0)
    assert start(either, "free") == large


def test_two_workers_of_a_gpu_do_not_use_its_memory_twice(either: Database) -> None:
    register(either, "b", free=80)
    register(either, "a", free=80)
    first, second = submit(either, 50), submit(either, 50)
    assert start(either, "a") == first  # and has taken nothing of its memory yet
    assert start(either, "b") is None
    assert place_of(either, "b").room == 30 * GIB
    with either.transaction() as session:
        running = [(worker.id, run) for worker, run, _ in workers.alive(session, 60)]
    assert running == [("a", first), ("b", None)]
    register(either, "a", free=30, ours=50)
    assert start(either, "b") is None
    assert reason(either, second) == (
        "it waits for the memory of GPU 0: the run takes about 50 GiB, 30 GiB are left beside "
        "current runs"
    )


@pytest.mark.parametrize(("total", "parts"), [(80, 23), (20, 6)])
def test_a_language_model_keeps_the_memory_of_its_parts(
    either: Database, total: float, parts: float
) -> None:
    """Until it uses it. On a small GPU it keeps three tenths of the memory. It starts with less,
    because it then computes smaller parts."""
    register(either, "a", free=total, total=total)
    register(either, "b", free=total, total=total)
    first, second = submit(either, 1), submit(either, 1)
    own = GIB - workers.GPU_RUNTIME_BYTES
    for one in (first, second):
        stored.change(either, one, estimated_bytes=own, gpu_part_bytes=23 * GIB)
    assert start(either, "a") == first

    def room() -> float:
        return place_of(either, "b").room / GIB

    assert room() == pytest.approx(total - 1 - parts)
    register(either, "a", free=total - 3, ours=3, total=total)
    register(either, "b", free=total - 3, total=total)
    assert room() == pytest.approx(total - 1 - parts)
    register(either, "a", free=total - 2 - parts, ours=2 + parts, total=total)
    register(either, "b", free=2, total=total)
    assert room() == 2
    assert start(either, "b") == second


@pytest.mark.parametrize(("expected", "room"), [(20, 80 - 24), (30, 80 - 30)])
def test_parts_are_not_counted_twice_if_earlier_runs_told_the_peak(
    either: Database, expected: float, room: float
) -> None:
    register(either, "a", free=80)
    own = GIB - workers.GPU_RUNTIME_BYTES
    run = submit(either, expected)
    stored.change(either, run, estimated_bytes=own, gpu_part_bytes=23 * GIB)
    assert start(either, "a") == run
    assert place_of(either, "a").room == room * GIB


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"compute": {}}, 6.5),
        ({"compute": {}, "train": {"steps": 1}}, 23),
        ({"compute": {"memory_mib": 100}}, 0),
    ],
)
def test_parts_of_a_language_model_of_the_spec(
    either: Database, given: dict[str, Any], expected: float
) -> None:
    """With memory_mib the estimate includes them."""
    run = stored.row(either, submitted(either, {**lm_specs.BASE, **given}))
    assert run.gpu_part_bytes == expected * GIB
    assert stored.row(either, submitted(either)).gpu_part_bytes == 0


def test_small_runs_do_not_keep_a_large_one_from_a_gpu_that_they_share(either: Database) -> None:
    register(either, "a", free=80)
    register(either, "b", free=80)
    small = submit(either, 20)
    assert start(either, "a") == small
    register(either, "a", free=60, ours=20)
    large = submit(either, 70)
    submit(either, 20)
    assert start(either, "b") is None  # the large one waits for our own run to end
    end(either, small)
    register(either, "a", free=80)
    assert start(either, "a") == large


def test_experiments_too_large_for_every_worker_are_refused(
    api: TestClient, database: Database
) -> None:
    body = {"spec": ppca_spec(compute__device="cuda", data__n=100_000, data__dim=1000)}
    body["spec"]["evaluate"] = {"masks": {"schedule": "fixed", "size": 1, "per_size": 1}}
    assert api.post("/v1/experiments:validate", json=body).status_code == 200
    register(database, "g", free=1)
    assert api.post("/v1/experiments:validate", json=body).status_code == 200  # 80 GiB in all
    with database.transaction() as session:
        session.execute(update(Worker).values(gpu_memory_total=GIB))
    for path in ("/v1/experiments", "/v1/experiments:validate"):
        refused = api.post(path, json=body)
        assert refused.status_code == 422
        (error,) = refused.json()["errors"]
        assert error["pointer"] == "/spec/data"
        assert error["detail"] == (
            "a run takes about 3.68 GiB; the workers hold at most 1 GiB on a GPU"
        )
    body["spec"]["compute"]["device"] = "cpu"  # of whose workers there is none yet
    assert api.post("/v1/experiments", json=body).status_code == 202


def test_memory_estimates_use_the_peaks_of_earlier_runs(either: Database) -> None:
    spec = validate_spec(ppca_spec(data__n=200_000, data__dim=100))
    with either.snapshot() as session:
        plain = MemoryModel(session).expected(spec)
    assert plain.expected == RUNTIME_BYTES[Queue.CPU] + plain.by_spec
    for i in range(MIN_RUNS):
        with either.snapshot() as session:
            assert learned_ratio(session, "ppca", Queue.CPU) == 1.0, i
        peak = RUNTIME_BYTES[Queue.CPU] + 3 * plain.by_spec
        _finish(either, plain.by_spec, peak)
    with either.snapshot() as session:
        assert learned_ratio(session, "ppca", Queue.CPU) == pytest.approx(3)
        assert learned_ratio(session, "ppca", Queue.GPU) == 1.0
        assert learned_ratio(session, "vae", Queue.CPU) == 1.0
        found = MemoryModel(session).expected(spec)
    assert found.expected == RUNTIME_BYTES[Queue.CPU] + 3 * plain.by_spec


def test_memory_estimates_read_only_informative_attempts(either: Database) -> None:
    """There may be a million of them, and each submission learns."""
    submitted(either)
    statements: list[tuple[str, Any]] = []
    with either.transaction() as session:
        experiment_id = session.scalars(select(Experiment.id)).one()
        columns = {"experiment_id": experiment_id, "owner_id": 1, "worker": "w", "queue": "cpu",
                   "started_at": 0.0, "ended_at": 1.0, "folded": True, "family": "ppca",
                   "estimated_bytes": 1000, "peak_bytes": 2000}  # fmt: skip
        session.execute(insert(Attempt), [{**columns, "attempt": i} for i in range(1, 3000)])
    with either.transaction() as session:
        session.execute(text("ANALYZE"))
    event.listen(either.engine, "before_cursor_execute", lambda *a: statements.append((a[2], a[3])))
    with either.snapshot() as session:
        assert learned_ratio(session, "ppca", Queue.CPU) == 1.0
    explain = "EXPLAIN QUERY PLAN" if either.engine.dialect.name == "sqlite" else "EXPLAIN"
    with either.engine.connect() as connection:
        (read,) = (one for one in statements if "attempts" in one[0])
        plan = connection.exec_driver_sql(f"{explain} {read[0]}", read[1]).fetchall()
    assert "ix_attempts_telling" in str(plan)
    assert str(TELLING_BYTES) in read[0], "a plan for any value of a parameter cannot use the index"


def _finish(database: Database, by_spec: int, peak: int) -> None:
    with database.transaction() as session:
        submission = Submission.model_validate({"spec": ppca_spec()})
        made = stored.submit(session, 1, submission, memory=Memory(by_spec, by_spec))
        begun = start_next(session)
        assert begun is not None
        assert begun.experiment_id == made.id
        lease.finish(session, begun, Status.SUCCEEDED, peak_bytes=peak)
        ledger.fold(session, FairShare())


def test_a_run_leaves_its_peak(settings: Settings, database: Database, tmp_path: Path) -> None:
    """For a CPU run it is the resident size in main memory, including torch, and all modules that
    the parent of runs in tests has imported."""
    with database.transaction() as session:
        spec = ppca_spec(data__dim=60, evaluate__masks__per_size=1500)
        stored.submit(session, 1, Submission.model_validate({"spec": spec}))
    assert run_next(Slot(database, settings, "w"))
    with database.snapshot() as session:
        (line,) = session.scalars(select(Attempt)).all()
        assert AttemptOut.of(line).peak_bytes == line.peak_bytes
    assert line.peak_bytes is not None
    assert 50 * 2**20 < line.peak_bytes < GIB  # the virtual size is several GiB
    assert line.ended_at is not None


def test_gpu_figures_reported_by_a_worker(
    either: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the fourth GPU, 31 GiB belong to another process and 5 GiB to run 42."""
    cards = [Card(f"GPU-{i}", 44 * GIB, {7: 31 * GIB, 42: 5 * GIB}) for i in range(4)]
    monkeypatch.setattr(gpus, "pynvml", Nvml(*cards))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    found = presence.vitals(Queue.GPU, run_memory=GIB, run_pid=42)
    assert (found.gpu_number, found.gpu_uuid, found.run_memory) == (3, "GPU-3", GIB)
    assert found.gpu_memory_ours == 5 * GIB
    with either.transaction() as session:
        workers.beat(session, "w", found)
    (gpu,) = place_of(either, "w").memories
    assert (gpu.foreign, gpu.room, gpu.room_without_ours) == (31 * GIB, 44 * GIB, 49 * GIB)
