"""The next experiment, and those that are skipped."""

import time
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from sqlalchemy import event, insert, select, text, update

from service.accounts.models import User
from service.db.engine import Database
from service.experiments.models import Experiment, Held, Queue, Usage
from service.fair_share import FairShare
from service.queue import claims, workers
from service.queue.workers import Vitals
from service.workers.models import Worker
from tests.support.attempts import submitted
from tests.support.fake_clock import FakeClock
from tests.support.ppca_spec import ppca_spec, spec_on
from tests.support.shared_lab import SharedLab
from tests.support.starting import start_next
from tests.support.stored import change

GIB = 2**30


def waiting(database: Database, device: str, gib: float | None = None, priority: int = 0) -> str:
    experiment_id = submitted(database, spec_on(device), priority=priority)
    change(database, experiment_id, memory_bytes=None if gib is None else int(gib * GIB))
    return experiment_id


def chosen(database: Database, queue: Queue = Queue.CPU, worker: str | None = None) -> str | None:
    """Start a run on the worker "c" or "g", or on another one."""
    with database.transaction() as session:
        claim = start_next(session, worker or queue[0], queue)
    return None if claim is None else claim.experiment_id


def idle_gpu(database: Database, free: float, ours: float = 0.0, name: str = "g") -> None:
    """A GPU on which runs of another worker use `ours`; sizes in GiB."""
    vitals = Vitals(
        "host",
        Queue.GPU,
        1,
        gpu_uuid=name,
        gpu_memory_free=int(free * GIB),
        gpu_memory_ours=int(ours * GIB),
    )
    with database.transaction() as session:
        workers.beat(session, name, vitals)


@pytest.mark.parametrize(
    ("queue", "own", "others"), [(Queue.CPU, "cpu", "cuda"), (Queue.GPU, "cuda", "cpu")]
)
def test_the_oldest_of_the_highest_priority_of_both_devices(
    database: Database, queue: Queue, own: str, others: str
) -> None:
    """A worker runs experiments for its device and for any device, in one order."""
    low = waiting(database, own, priority=-1)
    first, second = waiting(database, "auto"), waiting(database, own)
    third, fourth = waiting(database, own), waiting(database, "auto")
    urgent = waiting(database, "auto", priority=1)
    most_urgent = waiting(database, own, priority=2)
    waiting(database, others, priority=3)
    order = [most_urgent, urgent, first, second, third, fourth, low, None]
    assert [chosen(database, queue) for _ in order] == order


def worker_with(database: Database, name: str, *families: str) -> None:
    with database.transaction() as session:
        workers.beat(session, name, Vitals("host", Queue.CPU, 1, families=families))


def test_a_worker_claims_only_its_families(either: Database) -> None:
    """Experiments that it cannot run come first, and wait for another worker."""
    ours, others = waiting(either, "cpu"), waiting(either, "cpu", priority=1)
    change(either, others, family="markov")
    worker_with(either, "plain", "ppca", "vae")
    worker_with(either, "with package", "ppca", "markov")
    worker_with(either, "without any")
    assert chosen(either, worker="without any") is None
    assert [chosen(either, worker="plain") for _ in range(2)] == [ours, None]
    assert chosen(either, worker="with package") == others


def test_nothing_is_left_to_an_idle_gpu_without_its_family(either: Database) -> None:
    """Experiments for any device are left to a GPU with room that runs their family."""
    idle_gpu(either, 80)
    ours, others = (waiting(either, "auto", priority=priority) for priority in (1, 0))
    last = waiting(either, "cpu", priority=-1)
    change(either, others, family="markov")
    worker_with(either, "cpu", "linear_vae", "markov", "ppca")
    assert [chosen(either, worker="cpu") for _ in range(3)] == [others, last, None]
    assert chosen(either, Queue.GPU) == ours


def test_the_last_place_is_not_kept_for_a_run_that_no_gpu_can_start(database: Database) -> None:
    """A GPU run before the CPU run has the last place under the limit only if a GPU has its
    family."""
    gpu_run, cpu_run = waiting(database, "cuda", priority=1), waiting(database, "cpu")
    idle_gpu(database, 80)
    change(database, gpu_run, family="markov")
    limit = FairShare(max_running=1)
    with database.transaction() as session:
        claim = start_next(session, "c", Queue.CPU, fair_share=limit)
    assert claim is not None
    assert claim.experiment_id == cpu_run


def test_experiments_of_other_families_do_not_count_as_startable(either: Database) -> None:
    change(either, waiting(either, "cpu"), family="markov")
    with either.snapshot() as session:
        assert claims.count_startable(session, Queue.CPU, ["ppca"]) == 0
        assert claims.count_startable(session, Queue.CPU, ["ppca", "markov"]) == 1


@pytest.mark.parametrize("held", [held for held in Held if held != Held.NOT])
def test_held_experiments_are_not_claimed(database: Database, held: Held) -> None:
    """It is skipped at any priority."""
    first, second = waiting(database, "cpu", priority=1), waiting(database, "cpu")
    change(database, first, held=held)
    assert chosen(database) == second


@pytest.mark.parametrize("status", ["paused", "running", "succeeded"])
def test_only_queued_experiments_are_claimed(database: Database, status: str) -> None:
    change(database, waiting(database, "cpu", priority=1), status=status)
    queued = waiting(database, "cpu")
    assert [chosen(database), chosen(database)] == [queued, None]


@pytest.mark.parametrize(
    ("free", "takes", "may"), [(60, 60, True), (60, 61, False), (0, None, True), (0, 1, False)]
)
def test_no_run_on_a_gpu_without_the_memory_for_it(
    database: Database, free: float, takes: float | None, may: bool
) -> None:
    """Use the idle GPU with the most free memory. The need of a run without an estimate is
    unknown."""
    idle_gpu(database, free)
    if free:
        idle_gpu(database, free - 1, name="smaller")
    run = waiting(database, "cuda", takes)
    assert chosen(database, Queue.GPU) == (run if may else None)


@pytest.mark.parametrize("away", [{"store_full": True}, {"looked_ago_s": 60.0}])
def test_a_cpu_takes_what_an_idle_gpu_does_not(database: Database, away: dict[str, Any]) -> None:
    """An experiment for any device is left to a GPU that looks for runs, and to no other."""
    run = waiting(database, "auto", gib=40)
    vitals = Vitals("host", Queue.GPU, 1, gpu_uuid="g", gpu_memory_free=80 * GIB)
    with database.transaction() as session:
        workers.beat(session, "g", vitals)
    assert chosen(database) is None
    with database.transaction() as session:
        workers.beat(session, "g", replace(vitals, **away))
    assert chosen(database) == run


@pytest.mark.parametrize(("large", "waits"), [(60, False), (60.1, True), (80, True), (80.1, False)])
@pytest.mark.parametrize("gib", [1, None])
def test_a_gpu_waits_for_a_run_that_fits_after_our_own_runs(
    database: Database, large: float, waits: bool, gib: float | None
) -> None:
    """60 GiB are free and ours have 20: an experiment that fits into 80 waits for these to end, and
    nothing overtakes it; a larger one delays nobody."""
    idle_gpu(database, 60, ours=20)
    first, behind = waiting(database, "cuda", large), waiting(database, "cuda", gib)
    expected = None if waits else first if large == 60 else behind
    assert chosen(database, Queue.GPU) == expected


def test_a_run_with_unknown_memory_is_not_delayed(database: Database) -> None:
    idle_gpu(database, 0, ours=20)
    run = waiting(database, "cuda")
    assert chosen(database, Queue.GPU) == run


def test_a_linear_gaussian_for_any_device_is_left_to_the_cpus(database: Database) -> None:
    one = submitted(database, ppca_spec(compute__device="auto"))
    idle_gpu(database, 60)
    assert chosen(database, Queue.GPU) is None
    assert chosen(database, Queue.CPU) == one


@pytest.mark.parametrize("queue", Queue)
def test_a_choice_reads_the_index_of_its_queue(either: Database, queue: Queue) -> None:
    """The cost does not depend on the number of waiting or ended experiments."""
    waiting(either, "auto")
    with either.transaction() as session:
        one = session.scalars(select(Experiment)).one()
        values = {name: getattr(one, name) for name in ("owner_id", "tags", "spec", "device")}
        for status in ("queued", "succeeded"):
            rows = [
                {**values, "id": f"{status}{i}", "status": status, "priority": i % 3}
                for i in range(3000)
            ]
            session.execute(insert(Experiment), rows)
        session.execute(text("ANALYZE"))
    statements: list[tuple[str, Any]] = []
    event.listen(either.engine, "before_cursor_execute", lambda *a: statements.append((a[2], a[3])))
    assert chosen(either, queue) is not None
    explain = "EXPLAIN QUERY PLAN" if either.engine.dialect.name == "sqlite" else "EXPLAIN"
    read = [each for each in statements if "device <>" in each[0]]
    assert len(read) == 2
    with either.engine.connect() as connection:
        for statement, parameters in read:
            plan = connection.exec_driver_sql(f"{explain} {statement}", parameters).fetchall()
            assert f"ix_experiments_startable_{queue}" in str(plan)


def test_slots_that_become_free_together_go_to_several_users(either: Database) -> None:
    """Each claim charges its user at once."""
    lab = SharedLab(either, FairShare(spare_slots=0), cpus=4)
    users = [lab.user(name) for name in "abcd"]
    for user in users:
        lab.submit(user, 4, 100.0)
    lab.run(1)
    assert sorted(owner for _, owner, _ in lab.starts) == users


def test_a_claim_charges_usage_that_has_decayed_since(either: Database) -> None:
    lab = SharedLab(either, FairShare(half_life_s=100, advance_s=10))
    lab.submit(1, 2, 50.0)
    lab.run()
    lab.clock.now += 1000
    lab.submit(1, 1, 50.0)
    lab.run(1)
    with either.snapshot() as session:
        usage = session.scalars(select(Usage)).one()
    assert usage.settled_s < 1
    assert usage.charged_s == pytest.approx(usage.settled_s + 10)


def test_claims_settle_no_usage(either: Database) -> None:
    """Else errors of a claim's duration would add up."""
    share = FairShare(half_life_s=100)
    submitted(either)
    with either.transaction() as session:
        before = Usage(owner_id=1, settled_s=1000.0, charged_s=1000.0, as_of=time.time() - 50)
        session.add(before)
    with either.transaction() as session:
        start_next(session, fair_share=share)
    with either.snapshot() as session:
        usage = session.scalars(select(Usage)).one()
    expected = share.decayed(1000.0, usage.as_of - before.as_of)
    assert usage.settled_s == pytest.approx(expected, rel=1e-9)


def test_the_last_place_is_kept_for_a_gpu_run_that_comes_first(either: Database) -> None:
    with either.transaction() as session:
        session.execute(update(User).values(max_running=1))
    on_cpu = waiting(either, "cpu")
    on_gpu = waiting(either, "cuda", priority=1)
    assert chosen(either) == on_cpu, "no GPU worker is there"
    with either.transaction() as session:
        session.execute(update(Experiment).values(status="queued"))
    idle_gpu(either, 60)
    assert chosen(either) is None
    change(either, on_gpu, memory_bytes=61 * GIB)
    assert chosen(either) == on_cpu, "no GPU will ever have the memory"
    with either.transaction() as session:
        session.execute(update(Experiment).values(status="queued", memory_bytes=GIB))
    assert chosen(either, Queue.GPU) == on_gpu


def test_no_memory_is_kept_for_a_run_that_is_left_to_a_gpu(either: Database) -> None:
    """It would need memory that current runs have, but does not start on a CPU."""
    pool = {"id": "m", "total": 8 * GIB, "free": 4 * GIB}
    vitals = Vitals("host", Queue.CPU, 4 * GIB, memory_pools=[pool], memory_ours=3 * GIB)
    with either.transaction() as session:
        workers.beat(session, "c", vitals)
        workers.beat(session, "busy", vitals)
    waiting(either, "cpu", gib=3)
    assert chosen(either, worker="busy") is not None
    idle_gpu(either, 60)
    waiting(either, "auto", gib=7)
    small = waiting(either, "cpu", gib=1)
    assert chosen(either) == small


def test_memory_that_a_dead_worker_used_is_free(either: Database) -> None:
    """No large run waits for it, and small ones start."""
    idle_gpu(either, 10, ours=70, name="dead")
    with either.transaction() as session:
        session.execute(update(Worker).values(heartbeat_at=0.0))
    idle_gpu(either, 10)
    with either.transaction() as session:
        session.execute(update(Worker).values(gpu_uuid="one"))
    waiting(either, "cuda", gib=40)
    small = waiting(either, "cuda", gib=5)
    assert chosen(either, Queue.GPU) == small


@pytest.mark.parametrize("few", [1, 5, 20, 1000])
def test_the_turns_of_many_users(
    either: Database, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    """The order is the same however many users a claim asks for first. Any usage has its turn."""
    monkeypatch.setattr(claims, "FEW", few)
    share, random, clock = FairShare(), Random(3), FakeClock(either.engine).now
    turns: list[tuple[bool, float, str]] = []
    for id in random.sample(range(100, 140), 40):
        shares, may_jump = random.choice([1, 3]), random.random() < 0.2
        charged_s = random.choice([None, 0.0, 5.0, 5.0, 1e-310, random.uniform(0, 1e3)])
        age_s = random.choice([0.0, 1e5, 1e9])
        with either.transaction() as session:
            session.add(User(id=id, name=str(id), shares=shares, may_jump=may_jump))
            session.flush()
            if charged_s is not None:
                used = {"settled_s": charged_s, "charged_s": charged_s, "as_of": clock - age_s}
                session.add(Usage(owner_id=id, **used))
        priority = random.choice([0, 7, 101])
        first = waiting(either, "cpu")
        change(either, first, owner_id=id, priority=priority)
        usage_s = share.decayed(charged_s or 0.0, age_s) if (charged_s or 0.0) > 1e-9 else 0.0
        turn = usage_s / shares if usage_s > 1e-20 else 0.0
        turns.append((priority <= 100 or not may_jump, turn, first))
    assert len({turn for _, turn, _ in turns}) < len(turns) / 2, "many are equal"
    assert [chosen(either) for _ in turns] == [first for *_, first in sorted(turns)]
