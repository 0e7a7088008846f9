"""Workers that can run an experiment, its position among the others, and the reason why it
waits."""

import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from service.accounts.models import User
from service.app import create_app
from service.db.engine import Database
from service.experiments.models import DEVICES, Experiment, Queue, Status
from service.experiments.schemas import Submission
from service.fair_share import FairShare
from service.queue import shares, snapshot, workers
from service.queue.position import position_of_next, queue_positions
from service.queue.schemas import QueuePosition
from service.queue.shares import Standing
from service.queue.snapshot import QUEUES, QueueSnapshots
from service.queue.starts import Starts
from service.queue.workers import Vitals
from service.settings import Settings
from tests.support import stored
from tests.support.ppca_spec import ppca_spec, spec_on
from tests.support.processes import wait_until
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
    register(either, cpu=1)
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
        asked = position_of_next(session, 1, {"device": "cuda", "priority": 1}, QueueSnapshots())
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


def test_a_snapshot_is_used_for_the_experiments_that_it_contains(database: Database) -> None:
    mine = submit(database, "cuda")
    kept = QueueSnapshots(for_s=1000.0)
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


def test_an_experiment_newer_than_the_snapshot_is_placed_last(database: Database) -> None:
    kept = QueueSnapshots(for_s=1000.0)
    first = submit(database)
    urgent = submit(database, priority=5)
    assert found_places(database, first, queue_snapshots=kept)[first].position == 1
    assert found_places(database, urgent, queue_snapshots=kept)[urgent].position == 0
    later = [submit(database), submit(database, priority=5), submit(database, priority=6)]
    found = found_places(database, *later, queue_snapshots=kept)
    assert [found[id].position for id in later] == [2, 1, 0]


@dataclass
class Clock:
    """Time that passes only where a test says so."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the queue snapshots."""
    made = Clock()
    monkeypatch.setattr(snapshot, "time", made)
    return made


def reason_of(database: Database, experiment_id: str, queue_snapshots: QueueSnapshots) -> str:
    return found_places(database, experiment_id, queue_snapshots=queue_snapshots)[
        experiment_id
    ].reason


def test_the_old_snapshot_is_used_while_the_next_is_made(
    database: Database, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, mine = QueueSnapshots(for_s=1.0), submit(database)
    began, go_on, standings = threading.Event(), threading.Event(), shares.standings

    def held_up(session: Session, fair_share: FairShare) -> Sequence[Standing]:
        began.set()
        assert go_on.wait(30)
        return standings(session, fair_share)

    reason = partial(reason_of, database, mine, kept)
    assert reason() == "no CPU worker is registered"
    register(database, cpu=1)
    monkeypatch.setattr(shares, "standings", held_up)
    with ThreadPoolExecutor(2) as pool:
        clock.now = 1.5
        first = pool.submit(reason)
        assert began.wait(30)
        assert reason() == "no CPU worker is registered"
        clock.now = 2.0
        second = pool.submit(reason)
        with suppress(TimeoutError):
            pytest.fail(f"too old, and still told: {second.result(timeout=0.2)}")
        go_on.set()
        assert first.result() == second.result() == "next in turn"


def test_the_next_snapshot_is_made_in_the_background(
    database: Database, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, mine = QueueSnapshots(for_s=1.0, database=database), submit(database)
    standings, makers = shares.standings, list[str]()

    def noted(session: Session, fair_share: FairShare) -> Sequence[Standing]:
        makers.append(threading.current_thread().name)
        return standings(session, fair_share)

    reason = partial(reason_of, database, mine, kept)
    assert reason() == "no CPU worker is registered"
    register(database, cpu=1)
    monkeypatch.setattr(shares, "standings", noted)
    clock.now = 1.5
    assert reason() == "no CPU worker is registered"
    wait_until(lambda: reason() == "next in turn")
    assert makers == ["queue-snapshot_0"]
    clock.now = 3.5  # nobody asked for so long that it is too old
    assert reason() == "next in turn"
    assert makers == ["queue-snapshot_0", threading.current_thread().name]


def test_requests_do_not_wait_for_a_snapshot_without_a_connection(
    settings: Settings, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Database(settings.url, connections=1)) as database:
        monkeypatch.setattr(database._reader.pool, "_timeout", 60.0)
        kept = QueueSnapshots(for_s=1.0, database=database)
        with database.snapshot() as session:
            first = kept.of(session, {1})
            clock.now = 1.5
            assert kept.of(session, {1}) is first
            wait_until(lambda: kept._beside._work_queue.empty())
            clock.now = 2.5
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(kept.of, session, {1}).result(timeout=20) is not first


def test_answers_share_a_snapshot_for_the_configured_time(settings: Settings) -> None:
    given = settings.model_copy(update={"places_for_s": 1000.0})
    key = settings.key_file.read_text().strip()
    with TestClient(create_app(given), headers={"Authorization": f"Bearer {key}"}) as api:
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


def test_requests_that_share_a_snapshot_simulate_one_at_a_time(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second request comes while the first one is in the middle of a step."""
    with database.transaction() as session:
        session.add(User(id=2, name="ann"))
    mine = [submit(database) for _ in range(3)]
    with database.transaction() as session:
        session.add(Experiment(id="ann", owner_id=2, **copied(session, mine[0])))
    with database.snapshot() as session:
        shared = QueueSnapshots().of(session, {1})
    simulated = shared.starts(1, Queue.CPU, 0)
    begun, may_end = threading.Event(), threading.Event()
    choose = Starts._chosen

    def chosen(starts: Starts) -> Any:
        begun.set()
        assert may_end.wait(60)
        return choose(starts)

    monkeypatch.setattr(Starts, "_chosen", chosen)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(simulated.place, 0)
        assert begun.wait(60)
        second = pool.submit(simulated.place, 1)
        done, _ = wait([second], timeout=0.3)
        may_end.set()
        assert not done
        assert first.result() < second.result()


def copied(session: Session, experiment_id: str) -> dict[str, Any]:
    one = session.get_one(Experiment, experiment_id)
    return {name: getattr(one, name) for name in ("tags", "priority", "spec", "device")}


def test_validation_gives_the_queue_position(api: TestClient, database: Database) -> None:
    spec = ppca_spec(compute__device="cuda")
    answer = api.post("/v1/experiments:validate", json={"spec": spec}).json()
    assert (answer["queue_position"], answer["queue_reason"]) == (0, "no GPU worker is registered")
    made = api.post("/v1/experiments", json={"spec": spec}).json()
    reason = "no GPU worker is registered"
    unknown = {"estimated_start": None, "estimate": reason}
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
