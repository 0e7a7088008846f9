"""A run that is interrupted gives the records of one that is not, record for record."""

import random
import signal
import threading
import time
from collections.abc import Callable
from functools import cache

import pytest

from service.db.engine import Database
from service.queue import states
from service.settings import Settings
from service.vocabulary import DesiredState
from tests.support.attempts import submitted
from tests.support.invariants import Record, check
from tests.support.starting import run_next
from tests.support.stored import row
from tests.support.undisturbed import KINDS, undisturbed_records
from worker.slot import Slot


@cache
def expected(kind: str) -> list[Record]:
    return undisturbed_records(KINDS[kind])


def attempt(slot: Slot, is_stopping: Callable[[], bool] = lambda: False) -> None:
    assert run_next(slot, is_stopping)


def interrupt(slot: Slot, experiment_id: str, how: str, further: int) -> None:
    """One attempt that is ended `further` units of progress after it began to report."""
    stopping = threading.Event()

    def act() -> None:
        first = wait_for_progress(slot.database, experiment_id, 0)
        wait_for_progress(slot.database, experiment_id, first + further)
        if how == "hand back":
            stopping.set()
        elif how == "pause":
            with slot.database.transaction() as session:
                states.request(session, experiment_id, DesiredState.PAUSE)
        elif slot.runner is not None:
            slot.runner.signal(signal.SIGKILL)

    beside = threading.Thread(target=act)
    beside.start()
    attempt(slot, stopping.is_set)
    beside.join()
    with slot.database.transaction() as session:
        states.request(session, experiment_id, DesiredState.RUN)


def wait_for_progress(database: Database, experiment_id: str, least: int) -> int:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        experiment = row(database, experiment_id)
        if states.is_terminal(experiment.status):
            return least
        if experiment.progress_done is not None and experiment.progress_done >= least:
            return experiment.progress_done
        time.sleep(0.01)
    raise TimeoutError


@pytest.mark.parametrize(("kind", "times"), [("convergence", 5), ("curve", 3), ("training", 5)])
def test_an_interrupted_run_equals_an_uninterrupted_one(
    database: Database,
    settings: Settings,
    kind: str,
    times: int,
) -> None:
    quick = settings.model_copy(update={"checkpoint_every_s": 0.2, "max_lost": 100})
    chance = random.Random(f"{kind} {times}")
    experiment_id = submitted(database, KINDS[kind])
    slot = Slot(database, quick, "test")
    for _ in range(times):
        if not states.is_terminal(row(database, experiment_id).status):
            how = chance.choice(["hand back", "pause", "kill"])
            interrupt(slot, experiment_id, how, chance.randrange(1, 20))
    if not states.is_terminal(row(database, experiment_id).status):
        attempt(slot)
    slot.close()
    assert row(database, experiment_id).status == "succeeded"
    counts = check(database, {experiment_id: expected(kind)})
    assert counts.clean, str(counts)
    assert not quick.checkpoints(experiment_id).exists()
