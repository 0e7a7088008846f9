"""Workers that can run an experiment, its position among the others, and the reason why it
waits."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Connection, select
from sqlalchemy.orm import Session

from service.accounts.models import User
from service.app import create_app
from service.db.engine import Database
from service.experiments.models import DEVICES, Experiment, Queue
from service.experiments.schemas import Submission
from service.queue import snapshot, workers
from service.queue.ledger import Member
from service.queue.position import position_of_next, queue_positions
from service.queue.schemas import QueuePosition
from service.queue.snapshot import QUEUES, QueueSnapshots
from service.queue.workers import Vitals
from service.settings import Settings
from service.vocabulary import Status
from tests.support import stored
from tests.support.ppca_spec import ppca_spec, spec_on
from tests.support.starting import start_next


def submit(database: Database, device: str = "cpu", priority: int = 0) -> str:
    spec = spec_on(device)
    with database.transaction() as session:
        made = stored.submit(
            session, 1, Submission.model_validate({"spec": spec, "priority": priority})
        )
    assert made is not None
    return made.id


def register(database: Database, **counts: int) -> None:
    with database.transaction() as session:
        for name, count in counts.items():
            for i in range(count):
                workers.beat(session, f"{name}{i}", Vitals("host", Queue(name), 1))


def occupy(database: Database, worker: str) -> None:
    """Have a worker run something urgent."""
    for_queue = Queue(worker[:3])
    submit(database, DEVICES[for_queue][0], priority=100)
    with database.transaction() as session:
        assert start_next(session, worker, for_queue) is not None


def found_places(
    database: Database, *ids: str, queue_snapshots: QueueSnapshots | None = None
) -> dict[str, QueuePosition]:
    with database.snapshot() as session:
        query = select(Experiment).where(Experiment.id.in_(ids))
        return queue_positions(
            session, session.scalars(query).all(), queue_snapshots or QueueSnapshots()
        )


def place(database: Database, experiment_id: str) -> tuple[int, str]:
    found = found_places(database, experiment_id)[experiment_id]
    return found.position, found.reason


def is_blocked(database: Database, experiment_id: str) -> bool:
    return found_places(database, experiment_id)[experiment_id].blocked


def test_auto_uses_an_idle_gpu_or_else_a_cpu(lab: Settings) -> None:
    database = Database(lab.url)
    register(database, gpu=2, cpu=2)
    occupy(database, "gpu0")
    ids = [submit(database, device) for device in ("auto", "cuda", "auto", "auto", "cpu")]
    with database.transaction() as session:
        workers_in_turn = ("gpu1", "cpu0", "cpu1")
        began = [start_next(session, worker, Queue(worker[:3])) for worker in workers_in_turn]
        assert [claim and claim.experiment_id for claim in began] == [ids[0], ids[2], ids[3]]
    assert place(database, ids[1]) == (0, "all 2 GPU workers are busy, next in turn")
    assert place(database, ids[4]) == (0, "all 2 CPU workers are busy, next in turn")


def test_experiments_of_a_disabled_user_delay_nobody(either: Database) -> None:
    register(either, cpu=1)
    with either.transaction() as session:
        disabled = User(name="disabled", disabled_at=1.0)
        session.add(disabled)
        session.flush()
        other = stored.submit(
            session, disabled.id, Submission.model_validate({"spec": ppca_spec()})
        ).id
    mine = submit(either)
    assert place(either, mine) == (0, "next in turn")
    reason = "its owner is disabled: it starts once an admin enables the user"
    assert place(either, other)[1] == reason


def test_the_reason_names_the_missing_worker_or_limit(either: Database) -> None:
    on_gpu, anywhere, on_cpu = (submit(either, device) for device in ("cuda", "auto", "cpu"))
    assert place(either, on_gpu) == (0, "no GPU worker is registered")
    assert place(either, anywhere) == (0, "no CPU or GPU worker is registered")
    assert place(either, on_cpu) == (1, "no CPU worker is registered")
    assert is_blocked(either, on_gpu)
    assert is_blocked(either, anywhere)
    register(either, cpu=1)
    assert is_blocked(either, on_gpu)
    assert not is_blocked(either, anywhere)
    assert place(either, on_gpu) == (0, "no GPU worker is registered")
    assert place(either, anywhere) == (0, "next in turn")
    assert place(either, on_cpu) == (1, "1 before it")
    occupy(either, "cpu0")
    assert place(either, anywhere) == (0, "the only CPU worker is busy, next in turn")
    register(either, gpu=2)
    assert place(either, anywhere) == (0, "next in turn")
    assert place(either, on_gpu) == (0, "next in turn")
    occupy(either, "gpu0")
    occupy(either, "gpu1")
    busy = "all 1 CPU and 2 GPU workers are busy, next in turn"
    assert place(either, anywhere) == (0, busy)
    second = submit(either, "cuda")
    assert place(either, second) == (2, "all 2 GPU workers are busy, 2 before it")
    with either.snapshot() as session:
        columns = {"device": "cuda", "family": "ppca", "priority": 1}
        asked = position_of_next(session, 1, columns, QueueSnapshots())
    assert (asked.position, asked.reason) == (0, "all 2 GPU workers are busy, next in turn")


def test_the_reason_names_a_full_disk_of_the_store(either: Database) -> None:
    """Only if it stops all workers that could run the experiment."""
    anywhere, on_gpu = submit(either, "auto"), submit(either, "cuda")
    register(either, cpu=2, gpu=1)
    with either.transaction() as session:
        workers.beat(session, "gpu0", Vitals("host", Queue.GPU, 1, store_full=True))
        workers.beat(session, "cpu0", Vitals("host", Queue.CPU, 1, store_full=True))
    assert "disk is full" in place(either, on_gpu)[1]
    assert place(either, anywhere) == (0, "next in turn")
    with either.transaction() as session:
        workers.beat(session, "cpu1", Vitals("host", Queue.CPU, 1, store_full=True))
    assert "disk is full" in place(either, anywhere)[1]


def test_a_snapshot_is_used_for_the_experiments_that_it_contains(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "MAX_AGE_S", 1000.0)
    mine = submit(database, "cuda")
    kept = QueueSnapshots()
    assert (
        found_places(database, mine, queue_snapshots=kept)[mine].reason
        == "no GPU worker is registered"
    )
    register(database, gpu=1)
    second = submit(database, "cuda")
    old = found_places(database, second, queue_snapshots=kept)[second]
    assert (old.position, old.reason) == (1, "no GPU worker is registered")
    with database.transaction() as session:
        session.add(User(id=2, name="new"))
        session.flush()
        session.get_one(Experiment, second).owner_id = 2
    of_new = found_places(database, second, queue_snapshots=kept)[second]
    assert (of_new.position, of_new.reason) == (1, "1 before it")
    assert found_places(database, mine, queue_snapshots=kept)[mine].reason == "next in turn"


def test_an_experiment_newer_than_the_snapshot_is_placed_last(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "MAX_AGE_S", 1000.0)
    kept = QueueSnapshots()
    first = submit(database)
    urgent = submit(database, priority=5)
    assert found_places(database, first, queue_snapshots=kept)[first].position == 1
    assert found_places(database, urgent, queue_snapshots=kept)[urgent].position == 0
    later = [submit(database), submit(database, priority=5), submit(database, priority=6)]
    found = found_places(database, *later, queue_snapshots=kept)
    assert [found[id].position for id in later] == [2, 1, 0]


def reason_of(database: Database, experiment_id: str, queue_snapshots: QueueSnapshots) -> str:
    return found_places(database, experiment_id, queue_snapshots=queue_snapshots)[
        experiment_id
    ].reason


def test_a_request_without_a_connection_delays_no_other(database: Database) -> None:
    """It waits for its connection before it makes the next snapshot. Those that have a connection
    would wait for that snapshot."""
    waits, has_connection = threading.Event(), threading.Event()

    class WithoutConnection(Session):
        def connection(self, *args: Any, **kwargs: Any) -> Connection:
            waits.set()
            assert has_connection.wait(60)
            return super().connection(*args, **kwargs)

    kept, mine = QueueSnapshots(), submit(database)
    with WithoutConnection(database.engine) as session, ThreadPoolExecutor(1) as pool:
        slow = pool.submit(kept.of, session, {Member(1)})
        assert waits.wait(60)
        assert reason_of(database, mine, kept) == "no CPU worker is registered"
        has_connection.set()
        slow.result()


def test_answers_share_a_snapshot_for_a_while(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "MAX_AGE_S", 1000.0)
    key = settings.key_file.read_text().strip()
    with TestClient(create_app(settings), headers={"Authorization": f"Bearer {key}"}) as api:
        mine = api.post("/v1/experiments", json={"spec": ppca_spec()}).json()["urls"]["self"]
        register(Database(settings.url), cpu=1)
        assert api.get(mine).json()["queue"]["reason"] == "no CPU worker is registered"
        assert api.get("/v1/queue").json()["items"][0]["queue"]["reason"] == (
            "no CPU worker is registered"
        )


def test_many_positions_equal_the_single_ones(either: Database) -> None:
    """The definition: experiments before it in the shorter of the queues in which it waits."""
    generator = random.Random(1)
    register(either, gpu=1, cpu=1)
    ids = [
        submit(either, generator.choice(["cpu", "cuda", "auto"]), generator.randrange(-1, 2))
        for _ in range(12)
    ]
    with either.transaction() as session:
        session.get_one(Experiment, ids.pop()).status = Status.PAUSED
    together = found_places(either, *ids)
    with either.snapshot() as session:
        rows = session.scalars(select(Experiment).where(Experiment.id.in_(ids))).all()
    order = sorted(rows, key=lambda one: (-one.priority, one.id))
    for i, one in enumerate(order):
        waits_in: Any = QUEUES[one.device]  # type: ignore[index]
        counts = [sum(o.device in DEVICES[name] for o in order[:i]) for name in waits_in]
        assert together[one.id].position == min(counts)
        alone = found_places(either, one.id)[one.id]
        assert (alone.position, alone.reason) == (
            together[one.id].position,
            together[one.id].reason,
        )
    assert set(together) == set(ids)


def test_validation_gives_the_queue_position(api: TestClient, database: Database) -> None:
    spec = ppca_spec(compute__device="cuda")
    answer = api.post("/v1/experiments:validate", json={"spec": spec}).json()
    assert (answer["queue_position"], answer["queue_reason"]) == (0, "no GPU worker is registered")
    made = api.post("/v1/experiments", json={"spec": spec}).json()
    reason = "no GPU worker is registered"
    unknown = {"blocked": True, "estimated_start": None, "estimate": reason,
               "latest_start": None, "promise": None}  # fmt: skip
    assert made["queue"] == {"position": 0, "reason": reason, **unknown}
    register(database, cpu=1)
    listed = api.get("/v1/experiments").json()["items"]
    assert [one["queue"]["reason"] for one in listed] == ["no GPU worker is registered"]


@pytest.mark.parametrize("device", ["cpu", "cuda", "auto"])
def test_the_device_is_that_of_the_spec(either: Database, device: str) -> None:
    with either.snapshot() as session:
        one = session.get_one(Experiment, submit(either, device))
        assert (one.device, one.spec["compute"]["device"]) == (device, device)


def test_auto_is_the_cpu_for_a_linear_gaussian(database: Database, settings: Settings) -> None:
    """Its spec is stored as it was sent. A new experiment and a retry wait for a CPU."""
    register(database, gpu=1)
    key = settings.key_file.read_text().strip()
    with TestClient(create_app(settings), headers={"Authorization": f"Bearer {key}"}) as api:
        spec = ppca_spec(compute__device="auto")
        made = api.post("/v1/experiments", json={"spec": spec, "cache": False}).json()
        assert made["spec"]["compute"]["device"] == "auto"
        assert made["queue"]["reason"] == "no CPU worker is registered"
        api.post(f"/v1/experiments/{made['id']}:cancel")
        again = api.post(f"/v1/experiments/{made['id']}:retry").json()
        assert again["queue"]["reason"] == "no CPU worker is registered"


def test_an_experiment_waits_for_a_worker_with_its_family(database: Database) -> None:
    """The reason names the family, until a worker has it."""
    experiment_id = submit(database)
    stored.change(database, experiment_id, family="markov")
    register(database, cpu=1)
    place = found_places(database, experiment_id)[experiment_id]
    assert place.blocked
    assert "markov" in place.reason
    with database.transaction() as session:
        workers.beat(session, "cpu1", Vitals("host", Queue.CPU, 1, families=["markov"]))
    assert not found_places(database, experiment_id)[experiment_id].blocked
