"""Machines that are emptied: no run starts there, and runs are handed back after a time."""

import math
from dataclasses import dataclass

import pytest
from sqlalchemy import update

from service.db.engine import Database, now
from service.experiments.models import Attempt, Experiment, Queue
from service.fair_share import FairShare
from service.queue import drains, lease, rooms, workers
from service.queue.drains import HAND_BACK_AFTER_S
from service.queue.lease import Claim
from service.queue.rooms import UNKNOWN_RUN_S
from service.queue.runtime import MIN_RUNS
from service.queue.workers import Vitals
from service.vocabulary import Status
from service.workers.models import Worker
from tests.service.queue.test_position import found_places, place, submit
from tests.support.fake_clock import FakeClock
from tests.support.shared_lab import SharedLab
from tests.support.starting import start_next
from tests.support.stored import change

GIB = 2**30
WITHIN_S = 1e12


@dataclass
class Machines:
    """Machines with one CPU worker each, on a clock that a test sets."""

    database: Database
    clock: FakeClock

    def beat(self, host: str, queue: Queue = Queue.CPU, gib: float = 1.0) -> bool:
        """Send a heartbeat of its worker. Return whether it has to hand back its run."""
        size = int(gib * GIB)
        memory = {"id": host, "total": size, "free": size}
        vitals = Vitals(host, queue, size, run_memory=size, memory_pools=[memory])
        if queue == Queue.GPU:
            vitals = Vitals(host, queue, size, gpu_memory_total=size, gpu_memory_free=size)
        with self.database.transaction() as session:
            return workers.beat(session, f"{host}:1", vitals)

    def drain(
        self,
        host: str,
        after_s: float | None = None,
        lasts_s: float | None = None,
        starts_in_s: float | None = None,
    ) -> None:
        with self.database.transaction() as session:
            drains.drain(session, host, "ann", after_s, lasts_s, starts_in_s)

    def undrain(self, host: str) -> bool:
        with self.database.transaction() as session:
            return drains.undrain(session, host)

    def start(self, host: str) -> Claim | None:
        with self.database.transaction() as session:
            session.execute(update(Worker).values(looked_at=now()))
            return start_next(session, f"{host}:1", lease_s=1e9, within_s=WITHIN_S)

    def run(self, took_s: float, times: int = MIN_RUNS, parts: int = 1) -> None:
        """Run experiments one after the other on "b", each in some attempts."""
        for _ in range(times):
            submit(self.database)
            for part in range(1, parts + 1):
                claim = self.start("b")
                assert claim is not None
                self.clock.now += took_s / parts
                with self.database.transaction() as session:
                    if part < parts:
                        lease.release(session, claim)
                    else:
                        lease.finish(session, claim, Status.SUCCEEDED)

    def in_service(self, queue: Queue = Queue.CPU) -> set[str]:
        """Return the machines on which a run may start, which all that counts workers must agree
        on."""
        with self.database.transaction() as session:
            session.execute(update(Worker).values(looked_at=now()))
            places = [one for one in rooms.places(session, WITHIN_S) if one.queue == queue]
            slots = workers.slots(session, WITHIN_S)[queue]
            hosts = workers.hosts(session, WITHIN_S)[queue]
        idle = {place.worker_id.partition(":")[0] for place in places if place.is_idle}
        assert {place.worker_id for place in places if place.drained_until is None} == {
            f"{host}:1" for host in idle
        }
        assert (slots.workers, slots.idle, hosts) == (len(idle), len(idle), idle)
        assert not slots.store_full
        return idle


@pytest.fixture
def machines(either: Database) -> Machines:
    made = Machines(either, FakeClock(either.engine))
    for host in ("a", "b"):
        made.beat(host)
    return made


def test_a_drained_machine_starts_no_run_until_its_drain_ends(machines: Machines) -> None:
    assert machines.in_service() == {"a", "b"}
    machines.drain("a")
    machines.drain("b", lasts_s=100)
    assert machines.in_service() == set()
    machines.clock.now += 99
    assert machines.in_service() == set()
    machines.clock.now += 2
    assert machines.in_service() == {"b"}
    assert not machines.undrain("b"), "it has ended"
    machines.clock.now += 10 * HAND_BACK_AFTER_S
    assert machines.in_service() == {"b"}
    assert machines.undrain("a")
    assert machines.in_service() == {"a", "b"}


def test_a_worker_that_restarts_is_still_drained(machines: Machines) -> None:
    machines.drain("a")
    with machines.database.transaction() as session:
        workers.leave(session, "a:1")
        workers.beat(session, "a:2", Vitals("a", Queue.CPU, GIB))
        places = {one.worker_id: one.is_idle for one in rooms.places(session, WITHIN_S)}
    assert places == {"a:2": False, "b:1": True}


@pytest.mark.parametrize(
    ("after_s", "lasts_s", "times"),
    [
        (None, None, (HAND_BACK_AFTER_S, math.inf)),
        (None, 10 * HAND_BACK_AFTER_S, (HAND_BACK_AFTER_S, 10 * HAND_BACK_AFTER_S)),
        (None, 100.0, (50.0, 100.0)),
        (0.0, None, (0.0, math.inf)),
        (30.0, 100.0, (30.0, 100.0)),
    ],
)
def test_runs_are_handed_back_after_a_time_until_the_drain_ends(
    machines: Machines, after_s: float | None, lasts_s: float | None, times: tuple[float, float]
) -> None:
    began = machines.clock.now
    assert not machines.beat("a")
    machines.drain("a", after_s, lasts_s)
    begin_s, end_s = times
    for passed_s in (0.0, begin_s - 1, begin_s + 1, 10 * begin_s, end_s + 1):
        if 0 <= passed_s < math.inf:
            machines.clock.now = began + passed_s
            assert machines.beat("a") == (begin_s <= passed_s < end_s)
            assert not machines.beat("b")


def test_a_drain_is_changed_by_another(machines: Machines) -> None:
    machines.drain("a", lasts_s=100)
    machines.drain("a", 0.0)
    assert machines.beat("a")
    machines.clock.now += 200
    assert machines.in_service() == {"b"}


@pytest.mark.parametrize("after_s", [None, 2000.0])
def test_a_planned_drain_begins_at_its_time(machines: Machines, after_s: float | None) -> None:
    """Runs are handed back then, or later if an admin wants it."""
    began = machines.clock.now
    machines.drain("a", after_s, lasts_s=3000.0, starts_in_s=1000.0)
    for passed_s in (0.0, 999.0, 1001.0, 1999.0, 2001.0, 2999.0, 3001.0):
        machines.clock.now = began + passed_s
        is_active = 1000.0 < passed_s < 3000.0
        assert machines.in_service() == ({"b"} if is_active else {"a", "b"})
        assert machines.beat("a") == ((after_s or 1000.0) < passed_s < 3000.0)
        assert not machines.beat("b")


def test_a_planned_drain_can_be_ended_before_it_begins(machines: Machines) -> None:
    machines.drain("a", starts_in_s=60.0)
    submit(machines.database)
    assert machines.start("a") is None
    assert machines.undrain("a")
    assert not machines.undrain("a")
    assert machines.start("a") is not None
    machines.clock.now += 61
    assert not machines.beat("a")


@pytest.mark.parametrize("parts", [1, 3])
def test_runs_that_end_before_a_planned_drain_start(machines: Machines, parts: int) -> None:
    """Expected is the time that recent runs of the family took in all their attempts."""
    machines.run(90.0, MIN_RUNS, parts)
    waits = submit(machines.database)
    machines.drain("a", starts_in_s=1000.0)
    machines.clock.now += 920
    assert machines.start("a") is None
    machines.clock.now -= 20
    claim = machines.start("a")
    assert claim is not None
    assert claim.experiment_id == waits


def test_a_family_without_recent_runs_starts_an_hour_before_a_planned_drain(
    machines: Machines,
) -> None:
    machines.run(10.0)
    machines.drain("a", starts_in_s=2 * UNKNOWN_RUN_S)
    unknown, known = (submit(machines.database, priority=priority) for priority in (1, 0))
    change(machines.database, unknown, family="vae")
    machines.clock.now += UNKNOWN_RUN_S + 1
    claim = machines.start("a")
    assert claim is not None
    assert claim.experiment_id == known
    machines.clock.now -= 2
    with machines.database.transaction() as session:
        lease.release(session, claim)
    claim = machines.start("a")
    assert claim is not None
    assert claim.experiment_id == unknown


def test_the_reason_of_a_run_that_would_not_end_before_a_planned_drain(
    machines: Machines,
) -> None:
    machines.run(5 * 3600.0)
    machines.clock.now = 1_769_882_400.0  # 2026-01-31 18:00 UTC, a Saturday
    for host in ("a", "b"):
        machines.beat(host)
    waits = submit(machines.database)
    machines.drain("a", starts_in_s=3600.0)
    assert place(machines.database, waits) == (0, "next in turn"), "on b"
    submit(machines.database, priority=1)
    assert machines.start("b") is not None
    of_a = "a is drained from Sat 2026-01-31 19:00 UTC on, and runs of this family take up to 5 h"
    found = found_places(machines.database, waits)[waits]
    assert found.reason == f"{of_a}; the other workers are busy, next in turn"
    assert not found.blocked
    assert found.estimated_start is not None
    in_s = found.estimated_start.timestamp() - machines.clock.now
    assert in_s == pytest.approx(5 * 3600, abs=600), "on b"
    machines.drain("b")
    found = found_places(machines.database, waits)[waits]
    assert (found.reason, found.blocked) == (of_a, True)
    change(machines.database, waits, family="vae")
    machines.clock.now += 30
    machines.drain("b", starts_in_s=UNKNOWN_RUN_S - 90)
    assert place(machines.database, waits)[1] == (
        "b is drained from Sat 2026-01-31 18:59 UTC on and a is drained from "
        "Sat 2026-01-31 19:00 UTC on, and it is not known how long runs of this family take"
    )


def test_runs_on_gpus_do_not_tell_how_long_runs_on_cpus_take(machines: Machines) -> None:
    machines.run(10.0)
    with machines.database.transaction() as session:
        session.execute(update(Attempt).values(queue=Queue.GPU))
    submit(machines.database)
    machines.drain("a", starts_in_s=1000.0)
    assert machines.start("a") is None


def test_the_reason_does_not_name_a_planned_drain_of_a_busy_or_small_machine(
    machines: Machines,
) -> None:
    for host in ("a", "b"):
        submit(machines.database)
        assert machines.start(host) is not None
    machines.beat("small", gib=0.5)
    waits = submit(machines.database)
    with machines.database.transaction() as session:
        session.get_one(Experiment, waits).memory_bytes = GIB
    for host in ("a", "small"):
        machines.drain(host, starts_in_s=60.0)
    assert "drained" not in place(machines.database, waits)[1]


def test_the_reason_of_a_run_whose_only_large_machine_has_a_planned_drain(
    machines: Machines,
) -> None:
    machines.beat("large", gib=64)
    large = submit(machines.database)
    with machines.database.transaction() as session:
        session.get_one(Experiment, large).memory_bytes = 32 * GIB
    for host in ("large", "a"):
        machines.drain(host, starts_in_s=60.0)
    found = found_places(machines.database, large)[large]
    assert found.blocked
    assert found.reason.startswith("large is drained from ")
    with machines.database.transaction() as session:
        session.get_one(Experiment, large).memory_bytes = 100 * GIB
    assert "hold at most 1 GiB" in place(machines.database, large)[1]


def test_a_drained_worker_is_no_spare_slot(either: Database) -> None:
    """A user may have two of three workers, and one of two."""
    lab = SharedLab(either, FairShare(spare_slots=1), cpus=3)
    lab.user("other")
    with either.transaction() as session:
        workers.beat(session, lab.idle[Queue.CPU].pop(0), Vitals("drained", Queue.CPU, 1))
        drains.drain(session, "drained", "ann")
    lab.submit(1, 5, 100.0)
    lab.run(1)
    assert len(lab.starts) == 1


def test_a_run_for_which_only_a_drained_machine_has_the_memory_is_not_chosen(
    machines: Machines,
) -> None:
    machines.beat("large", gib=64)
    large, small = submit(machines.database, priority=1), submit(machines.database)
    with machines.database.transaction() as session:
        session.get_one(Experiment, large).memory_bytes = 32 * GIB
    machines.drain("large")

    def chosen(worker: str) -> str | None:
        with machines.database.transaction() as session:
            claim = start_next(session, worker)
        return None if claim is None else claim.experiment_id

    assert [chosen("a:1"), chosen("b:1")] == [small, None]
    assert machines.undrain("large")
    assert chosen("large:1") == large


def test_the_reason_of_a_run_that_waits_for_drained_machines(machines: Machines) -> None:
    machines.clock.now = 1_769_882_400.0  # 2026-01-31 18:00 UTC
    for host in ("a", "b"):
        machines.beat(host)
    machines.beat("gpu", Queue.GPU, gib=24)
    devices = ("cuda", "auto", "cpu")
    on_gpu, anywhere, on_cpu = (submit(machines.database, device) for device in devices)
    machines.drain("gpu", lasts_s=3600)
    assert place(machines.database, on_gpu)[1] == (
        "all GPU workers are drained until 2026-01-31 19:00 UTC"
    )
    assert place(machines.database, anywhere) == (0, "next in turn")
    machines.drain("a", lasts_s=7200)
    assert "drained" not in place(machines.database, on_cpu)[1]
    machines.drain("b")
    assert place(machines.database, anywhere)[1] == (
        "all CPU and GPU workers are drained until 2026-01-31 19:00 UTC"
    )
    machines.drain("a")
    assert place(machines.database, on_cpu)[1] == "all CPU workers are drained"


def test_drained_workers_are_not_counted_among_the_busy_ones(machines: Machines) -> None:
    machines.beat("gpu", Queue.GPU, gib=24)
    for host in ("a", "b"):
        submit(machines.database, priority=1)
        with machines.database.transaction() as session:
            assert start_next(session, f"{host}:1") is not None
    waiting = submit(machines.database, "auto")
    machines.drain("gpu")
    reason = "all 2 CPU workers are busy, next in turn"
    assert place(machines.database, waiting) == (0, reason)


def test_the_reason_of_a_run_whose_only_large_machine_is_drained(machines: Machines) -> None:
    machines.beat("large", gib=64)
    large, small = submit(machines.database), submit(machines.database)
    with machines.database.transaction() as session:
        session.get_one(Experiment, large).memory_bytes = 32 * GIB
    machines.drain("large")
    reason = "all CPU workers with enough memory for it are drained"
    assert place(machines.database, large)[1] == reason
    assert place(machines.database, small)[1] == "1 before it"
    with machines.database.transaction() as session:
        session.get_one(Experiment, large).memory_bytes = 100 * GIB
    assert "hold at most 1 GiB" in place(machines.database, large)[1]


def test_positions_while_all_machines_are_drained(machines: Machines) -> None:
    ids = [submit(machines.database) for _ in range(2)]
    machines.drain("a")
    machines.drain("b")
    assert [place(machines.database, id)[0] for id in ids] == [0, 1]
