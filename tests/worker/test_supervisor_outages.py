"""Decisions of a supervisor while the database is away."""

import math
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from service.db.engine import Database
from service.records.curves import read_series
from service.vocabulary import DesiredState
from tests.support.scripted import (
    BEGAN,
    GRACE_S,
    HEARTBEAT_S,
    LIMIT_S,
    LOOK_S,
    STALL_S,
    Watch,
    checkpoint,
    desire,
    heard_s,
    points,
)
from worker import supervisor


@contextmanager
def away(monkeypatch: pytest.MonkeyPatch, is_over: Callable[[], bool]) -> Iterator[None]:
    begin = Database.transaction

    def transaction(self: Database) -> Any:
        if not is_over():
            raise OperationalError("away", None, Exception())
        return begin(self)

    with monkeypatch.context() as patched:
        patched.setattr(Database, "transaction", transaction)
        yield


@pytest.mark.parametrize("error", [OperationalError("away", None, Exception()), ValueError("no")])
def test_a_failure_to_merge_blocks_costs_no_run(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(supervisor, "compact", fail)
    looks = [[*points(seq), checkpoint(seq, str(seq))] for seq in range(1, 10)]
    outcome, runner = watch.run(*looks)
    assert (outcome, watch.found.last_seq) == ("succeeded", 9)
    assert len(runner.checkpoints) == 9


def test_a_worker_stops_although_the_database_is_away_before_its_run(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def snapshot(self: Database) -> Any:
        raise OperationalError("away", None, Exception())

    monkeypatch.setattr(Database, "snapshot", snapshot)
    outcome, _ = watch.run(is_stopping=lambda: watch.clock.now >= BEGAN + 3)
    assert outcome == "lease lost"


def test_the_run_continues_during_a_database_outage(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Afterwards its records are stored, each once, and soon."""
    outage_s = 3.0
    tried: list[float] = []

    def is_over() -> bool:
        tried.append(watch.clock.now - BEGAN)
        return tried[-1] >= outage_s

    with away(monkeypatch, is_over):
        ended, runner = watch.run(*(points(seq) for seq in range(1, 65)))
    assert (ended, watch.found.status) == ("succeeded", "succeeded")
    assert max(later - earlier for earlier, later in pairwise(tried)) < 2 * HEARTBEAT_S
    assert watch.commits[0][0] <= outage_s + 2 * HEARTBEAT_S
    assert sum(size for _, size in watch.commits) == watch.found.last_seq == 64
    assert heard_s(runner, signal.SIGKILL) == math.inf


def test_an_outage_is_no_silence_of_the_run(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    silence: list[Any] = [[]] * round(2 * STALL_S / LOOK_S)
    with away(monkeypatch, lambda: not 0.5 < watch.clock.now - BEGAN < 3 * STALL_S):
        ended, _ = watch.run(points(1), *silence, points(2), [], points(3))
    assert (ended, watch.found.last_seq) == ("succeeded", 3)


def test_records_are_stored_once_if_the_answer_to_their_commit_is_lost(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Database.transaction

    @contextmanager
    def transaction(self: Database) -> Iterator[Session]:
        with begin(self) as session:
            yield session
        if watch.clock.now < BEGAN + 3:
            raise OperationalError("away", None, Exception())

    with monkeypatch.context() as patched:
        patched.setattr(Database, "transaction", transaction)
        ended, _ = watch.run(*(points(seq) for seq in range(1, 65)))
    assert (ended, watch.found.last_seq) == ("succeeded", 64)
    with watch.database.snapshot() as session:
        series = read_series(session, watch.claim.experiment_id, max_points=1000)
    assert sorted(x for one in series for x in one.x) == [
        point["x"] for point in points(*range(1, 65))
    ]


def test_the_outcome_waits_for_the_database(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    with away(monkeypatch, lambda: watch.clock.now >= BEGAN + 5):
        ended, runner = watch.run(points(1))
    assert (ended, watch.found.status, watch.found.last_seq) == ("succeeded", "succeeded", 1)
    assert heard_s(runner, signal.SIGKILL) == math.inf
    assert watch.clock.now <= BEGAN + 5 + 2 * HEARTBEAT_S


def test_a_run_whose_spool_grows_without_end_fails(watch: Watch) -> None:
    spool = SimpleNamespace(size=2**40, check_space=lambda: None)
    ended, _ = watch.run(points(1), status=None, spool=spool)
    assert (ended, watch.failure[0]) == ("failed", "error")


@pytest.mark.parametrize("disturbance", ["time limit", "stop", "pause", "kill"])
def test_a_run_that_ended_while_the_database_was_away_keeps_its_end(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, disturbance: str
) -> None:
    """Its records wait longer than its time limit, or than the grace of a stopping worker. If it
    runs on, it is killed, and its records are stored all the same."""
    if disturbance == "pause":
        desire(watch, DesiredState.PAUSE)
    is_killed = disturbance == "kill"
    outage_s = 2.0 * LIMIT_S + GRACE_S + supervisor.UNHEARD_S
    with away(monkeypatch, lambda: not 0.5 < watch.clock.now - BEGAN < outage_s):
        ended, _ = watch.run(
            *[points(seq) for seq in range(1, 20)],
            status=None if is_killed else 0,
            heeds_sigkill=not is_killed,
            is_stopping=lambda: disturbance == "stop" and watch.clock.now > BEGAN + 1,
        )
    assert watch.clock.now - BEGAN > outage_s
    assert (ended, watch.found.last_seq) == ("failed" if is_killed else "succeeded", 19)
