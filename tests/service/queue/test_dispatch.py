"""Choice of the next experiment, and skipped experiments."""

from dataclasses import replace

import pytest

from service.db.engine import Database
from service.experiments.models import Held, Queue
from service.queue import workers
from service.queue.dispatch import _dispatch
from service.queue.workers import Vitals
from tests.support.attempts import submitted
from tests.support.ppca_spec import ppca_spec, spec_on
from tests.support.starting import start_next
from tests.support.stored import change

GIB = 2**30


@pytest.fixture(autouse=True)
def _the_statement_is_made_anew() -> None:
    """For each test, so that `make mutants` knows them all to reach it."""
    _dispatch.cache_clear()


def waiting(database: Database, device: str, gib: float | None = None, priority: int = 0) -> str:
    experiment_id = submitted(database, spec_on(device), priority=priority)
    change(database, experiment_id, memory_bytes=None if gib is None else int(gib * GIB))
    return experiment_id


def chosen(database: Database, queue: Queue = Queue.CPU) -> str | None:
    """Start a run on the worker "c" or "g"."""
    with database.transaction() as session:
        claim = start_next(session, queue[0], queue)
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


@pytest.mark.parametrize("held", [held for held in Held if held != Held.NOT])
def test_held_experiments_are_not_dispatched(database: Database, held: Held) -> None:
    """It is skipped at any priority."""
    first, second = waiting(database, "cpu", priority=1), waiting(database, "cpu")
    change(database, first, held=held)
    assert chosen(database) == second


@pytest.mark.parametrize("status", ["paused", "running", "dispatched", "succeeded"])
def test_only_queued_experiments_are_dispatched(database: Database, status: str) -> None:
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


def test_a_gpu_whose_worker_sees_a_full_store_gives_no_room(database: Database) -> None:
    waiting(database, "cuda", gib=40)
    idle_gpu(database, free=10)
    vitals = Vitals("host", Queue.GPU, 1, gpu_uuid="full", gpu_memory_free=80 * GIB)
    with database.transaction() as session:
        workers.beat(session, "full", replace(vitals, store_full=True))
    assert chosen(database, Queue.GPU) is None
    with database.transaction() as session:
        workers.beat(session, "full", vitals)
    assert chosen(database, Queue.GPU) is not None


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
