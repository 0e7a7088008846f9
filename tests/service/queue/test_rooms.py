"""Main memory that several workers share: what starts beside what. The heartbeats of workers
contain the values that a machine would report."""

import threading
from collections.abc import Sequence
from typing import Any

from fastapi.testclient import TestClient
from sqlalchemy import update

from service.db.engine import Database, now
from service.experiments.models import Attempt, Experiment, Queue
from service.experiments.schemas import Submission
from service.queue import lease, rooms, workers
from service.queue.lease import Claim
from service.queue.memory import Memory
from service.queue.position import queue_positions
from service.queue.schemas import QueuePosition
from service.queue.snapshot import QueueSnapshots
from service.queue.workers import Vitals
from service.vocabulary import Status
from tests.support import stored
from tests.support.ppca_spec import ppca_spec
from tests.support.starting import start_next

GIB = 2**30


def pool(id: str, total: float, free: float) -> dict[str, Any]:
    return {"id": id, "total": int(total * GIB), "free": int(free * GIB)}


def register(
    database: Database,
    name: str,
    *pools: dict[str, Any],
    ours: float = 0,
    max_run: float = 1000,
    queue: Queue = Queue.CPU,
) -> None:
    """A heartbeat of a worker with these main memories; sizes in GiB."""
    vitals = Vitals(
        name,  # each container has its own host name
        queue,
        min(one["free"] for one in pools),
        run_memory=int(max_run * GIB),
        memory_pools=list(pools),
        memory_ours=int(ours * GIB),
    )
    with database.transaction() as session:
        workers.beat(session, name, vitals)


def submit(database: Database, gib: float) -> str:
    memory = Memory(int(gib * GIB), int(gib * GIB))
    with database.transaction() as session:
        submission = Submission.model_validate({"spec": ppca_spec()})
        return stored.submit(session, 1, submission, memory=memory).id


def start(database: Database, worker: str) -> Claim | None:
    """Start the next run on a worker, or return None if none may start there."""
    with database.transaction() as session:
        return start_next(session, worker)


def finish(database: Database, claim: Claim) -> None:
    with database.transaction() as session:
        lease.finish(session, claim, Status.SUCCEEDED)


def position(database: Database, experiment_id: str) -> QueuePosition:
    with database.snapshot() as session:
        experiment = session.get_one(Experiment, experiment_id)
        return queue_positions(session, [experiment], QueueSnapshots())[experiment_id]


def started(claims: Sequence[Claim | None]) -> list[str]:
    return [claim.experiment_id for claim in claims if claim is not None]


def test_two_runs_that_exceed_a_memory_together_run_one_after_the_other(either: Database) -> None:
    register(either, "a", pool("m", 4, 3.5))
    register(either, "b", pool("m", 4, 3.5))
    first, second = submit(either, 1.8), submit(either, 2.2)
    running = start(either, "a")
    assert running is not None
    assert running.experiment_id == first
    assert start(either, "b") is None, "the first one has allocated nothing yet"
    register(either, "a", pool("m", 4, 2.5), ours=1)
    register(either, "b", pool("m", 4, 2.5))
    assert start(either, "b") is None
    waiting = position(either, second)
    assert waiting.reason == (
        "it waits for main memory: the run takes about 2.2 GiB, 1.7 GiB are left beside current "
        "runs, and 0.5 GiB are used by other programs"
    )
    finish(either, running)
    assert started([start(either, "b")]) == [second]


def test_runs_that_fit_together_run_together(either: Database) -> None:
    for name in "abc":
        register(either, name, pool("m", 8, 7.5))
    ids = [submit(either, 3), submit(either, 3), submit(either, 1)]
    assert started([start(either, name) for name in "abc"]) == ids


def test_workers_of_other_memories_are_not_affected(either: Database) -> None:
    """Two machines, or two containers with a limit each."""
    register(either, "a", pool("m", 4, 3.5))
    register(either, "b", pool("n", 4, 3.5))
    ids = [submit(either, 3), submit(either, 3)]
    assert started([start(either, "a"), start(either, "b")]) == ids


def test_containers_with_limits_share_the_memory_of_their_machine(either: Database) -> None:
    """Their limits together may exceed it."""
    for name in "abc":
        register(either, name, pool("m", 16, 15), pool(f"m/{name}", 8, 7.5))
    ids = [submit(either, 7) for _ in "abc"]
    running = [start(either, name) for name in "abc"]
    assert started(running) == ids[:2]
    assert "it waits for main memory" in position(either, ids[2]).reason


def test_a_run_in_a_container_fits_its_limit(either: Database) -> None:
    register(either, "a", pool("m", 16, 15), pool("m/a", 4, 3.5))
    register(either, "b", pool("m", 16, 15), max_run=14)
    large = submit(either, 6)
    assert start(either, "a") is None
    assert started([start(either, "b")]) == [large]


def test_a_memory_without_our_runs_takes_any_run_that_fits_into_all_of_it(
    either: Database,
) -> None:
    """Seven of eight gibibytes are used by other programs, perhaps for ever. Beside it nothing
    else starts, and the reason says why."""
    register(either, "a", pool("m", 8, 1))
    register(either, "b", pool("m", 8, 1))
    first, second = submit(either, 2), submit(either, 0.5)
    running = start(either, "a")
    assert started([running]) == [first]
    assert start(either, "b") is None
    assert position(either, second).reason == (
        "it waits for main memory: the run takes about 0.5 GiB, 0 GiB are left beside current "
        "runs, and 7 GiB are used by other programs"
    )
    assert running is not None
    finish(either, running)
    assert started([start(either, "b")]) == [second]


def test_main_memory_that_a_run_on_a_gpu_uses_has_no_room(either: Database) -> None:
    """It is not kept for a large run either: runs on the GPU may follow each other."""
    register(either, "gpu", pool("machine", 64, 40), ours=20, queue=Queue.GPU)
    register(either, "cpu", pool("machine", 64, 40))
    large, small = submit(either, 50), submit(either, 30)
    begun = start(either, "cpu")
    assert begun is not None
    assert begun.experiment_id == small
    with either.transaction() as session:
        lease.finish(session, begun, Status.SUCCEEDED)
    register(either, "gpu", pool("machine", 64, 60), queue=Queue.GPU)
    begun = start(either, "cpu")
    assert begun is not None
    assert begun.experiment_id == large


def test_small_runs_do_not_keep_a_large_one_from_a_memory(either: Database) -> None:
    """They wait behind it, but start where there is another memory."""
    register(either, "a", pool("m", 8, 7.5), max_run=7)
    register(either, "b", pool("m", 8, 7.5), max_run=7)
    submit(either, 2)
    running = start(either, "a")
    assert running is not None
    large, small = submit(either, 7), submit(either, 1)
    assert start(either, "b") is None, "this memory is kept for the large run"
    register(either, "c", pool("n", 4, 3.5))
    assert start(either, "b") is None, "and smaller runs start elsewhere"
    assert started([start(either, "c")]) == [small]
    finish(either, running)
    assert started([start(either, "b")]) == [large]


def test_a_run_that_no_present_worker_can_hold_lets_others_pass(either: Database) -> None:
    register(either, "a", pool("m", 8, 7.5), max_run=7)
    large, small = submit(either, 9), submit(either, 1)
    assert position(either, large).reason == (
        "the CPU workers hold at most 7 GiB; the run takes about 9 GiB"
    )
    assert started([start(either, "a")]) == [small]


def test_an_expected_start_waits_for_the_memory(either: Database) -> None:
    """It is the end of the run that has the memory, although a worker is idle."""
    for name in "ab":
        register(either, name, pool("m", 4, 3.5))
    submit(either, 3)
    running = start(either, "a")
    assert running is not None
    waiting = submit(either, 3)
    assert position(either, waiting).estimated_start is None
    stored.change(either, running.experiment_id, progress_at=2.0**31, progress_eta_s=0.0)
    expected = position(either, waiting).estimated_start
    assert expected is not None
    assert expected.year == 2038


def test_two_claims_at_the_same_moment_do_not_use_the_same_room(either: Database) -> None:
    for name in "ab":
        register(either, name, pool("m", 4, 3.5))
    submit(either, 3), submit(either, 3)
    ready, claims = threading.Barrier(2), []

    def run(worker: str) -> None:
        ready.wait()
        claims.append(start(either, worker))

    threads = [threading.Thread(target=run, args=worker) for worker in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(started(claims)) == 1


def test_runs_beside_a_run(either: Database) -> None:
    """Also those that ended a moment ago, since the kernel may kill several at once."""
    for name in "ab":
        register(either, name, pool("m", 8, 7))
    register(either, "c", pool("n", 8, 7))
    for _ in "abc":
        submit(either, 1)
    runs = [claim for name in "abc" if (claim := start(either, name)) is not None]

    def beside() -> list[int]:
        with either.snapshot() as session:
            return [rooms.runs_beside(session, id) for id in started(runs)]

    assert beside() == [1, 1, 0]
    finish(either, runs[0])
    assert beside() == [1, 1, 0]
    with either.transaction() as session:
        ended = update(Attempt).where(Attempt.ended_at.is_not(None))
        session.execute(ended.values(ended_at=now() - 60))
    assert beside() == [1, 0, 0]


def test_a_run_too_large_for_every_worker_is_refused(api: TestClient, database: Database) -> None:
    body = {"spec": ppca_spec(data__n=620_000, data__dim=100)}
    assert api.post("/v1/experiments:validate", json=body).status_code == 200
    register(database, "a", pool("m", 16, 15), pool("m/a", 1, 0.9), max_run=0.9)
    register(database, "b", pool("m", 16, 15), pool("m/b", 2, 1.9), max_run=1.8)
    for path in ("/v1/experiments", "/v1/experiments:validate"):
        refused = api.post(path, json=body)
        assert refused.status_code == 422
        (error,) = refused.json()["errors"]
        assert error["pointer"] == "/spec/data"
        assert "the workers hold at most 1.8 GiB on a CPU" in error["detail"]
