"""Choice of helpers: which idle workers help which runs."""

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import insert, select, text, update

from service.fair_share import FairShare
from service.queue import helper_choice, helping, ledger, shares, workers
from service.queue.helping import UNLIKE
from service.queue.workers import Vitals
from service.settings import Settings
from service.tables.engine import Database, now
from service.tables.experiments import (
    Attempt,
    DesiredState,
    Experiment,
    Queue,
    Status,
)
from service.tables.helpers import Help
from service.tables.users import User
from tests.support import stored
from tests.support.attempts import submitted
from tests.support.helps import (
    ENVIRONMENT,
    LEASE_S,
    RULES,
    add_user,
    add_workers,
    begun,
    could_help,
    ended,
    helps,
    long_run,
    offered,
)


def test_a_gpu_worker_helps_nobody(database: Database) -> None:
    """It could take memory that the run needs."""
    long_run(database, queue=Queue.GPU)
    add_workers(database, "w", "w1", queue=Queue.GPU)
    assert offered(database, queue=Queue.GPU) is None
    assert not could_help(database, Queue.GPU)
    assert helps(database) == []


def test_a_help_on_its_way_takes_a_worker(either: Database) -> None:
    long_run(either)
    add_workers(either, "w", "w1", "w2")
    assert offered(either) is not None
    with either.snapshot() as session:
        assert workers.slots(session, 60)[Queue.CPU].idle == 1


@pytest.mark.parametrize(
    "columns",
    [
        {"progress_eta_s": 9.0},
        {"progress_eta_s": None},
        {"progress_eta_s": 60.0, "progress_at": now() - 51},
        {"progress_stage": {"name": "training", "done": 1, "total": 2, "unit": "epochs"}},
        {"desired_state": DesiredState.PAUSE},
        {"queue": Queue.GPU},
        {"status": Status.PAUSED},
    ],
)
def test_runs_that_are_not_helped(database: Database, columns: dict[str, Any]) -> None:
    """They end soon or are about to, train, run on other devices or not at all."""
    claim = long_run(database)
    add_workers(database, "w", "w1", "w2")
    assert could_help(database)
    stored.change(database, claim.experiment_id, **columns)
    assert offered(database) is None
    assert not could_help(database)


def test_a_young_run_or_one_without_its_environment_is_not_helped(database: Database) -> None:
    long_run(database)
    add_workers(database, "w", "w1", "w2")
    for columns in ({"started_at": now() - 9}, {"environment": None}):
        with database.transaction() as session:
            session.execute(update(Attempt).values(started_at=now() - 60, environment=ENVIRONMENT))
            session.execute(update(Attempt).values(**columns))
        assert offered(database) is None


def test_a_run_has_at_most_so_many_workers(either: Database) -> None:
    """Itself included, and then another run has its turn."""
    first = long_run(either)
    add_workers(either, *"abcdefg")
    second = long_run(either)
    chosen = [begun(either, name) for name in "abcd"]
    assert offered(either) is None
    runs = [first.experiment_id, second.experiment_id] * 2
    assert [one.experiment_id for one in chosen] == runs


def test_helpers_count_for_the_limit_of_their_user(either: Database) -> None:
    """They do not count against an experiment of the user that could begin."""
    long_run(either)
    add_workers(either, *"abcdefg")
    with either.transaction() as session:
        session.execute(update(User).values(max_running=2))
    assert offered(either) is not None
    assert offered(either) is None
    with either.snapshot() as session:
        (standing,) = shares.standings(session, FairShare())
    assert standing.running == 1
    assert standing.may_begin(Queue.CPU)


def test_helpers_leave_the_spare_slots_of_others(either: Database) -> None:
    long_run(either)
    add_workers(either, "a", "b", "c")
    add_user(either, "other")
    assert offered(either) is not None
    assert offered(either) is None


def test_nobody_helps_while_an_experiment_could_begin(either: Database) -> None:
    long_run(either)
    add_workers(either, *"abc")
    waiting = submitted(either)
    assert offered(either) is None
    stored.change(either, waiting, held="after")
    assert offered(either) is not None


def test_all_helpers_of_a_machine_have_memory(either: Database) -> None:
    """The runs there count, which may still grow, and helps of all runs, also those that have not
    begun: these may begin there."""
    rules = replace(RULES, max_workers=9)
    for _ in range(2):
        long_run(either, memory_bytes=2**28)
    add_workers(either, "w", "w1", "w2", "w3", "w4", "w5", "w6")  # 2^30 bytes are free
    begun(either, "w1")
    assert offered(either, rules) is not None
    assert offered(either, rules) is None
    with either.transaction() as session:
        workers.beat(session, "far", Vitals("elsewhere", Queue.CPU, 2**30))
    for _ in range(3):  # what has begun is not there
        assert offered(either, rules) is not None
    assert offered(either, rules) is None


def test_a_worker_without_the_memory_refuses_a_help(either: Database) -> None:
    """The help was offered for another worker. It is removed and offered again."""
    long_run(either, memory_bytes=2**29)
    add_workers(either, "w", "w1")
    with either.transaction() as session:
        workers.beat(session, "small", Vitals("elsewhere", Queue.CPU, 2**29 - 1))
    for _ in range(2):
        help_id = offered(either)
        assert help_id is not None
        with either.transaction() as session:
            assert helping.begin(session, help_id, "small", LEASE_S) is None
        assert helps(either) == []
    assert begun(either, "w1")
    with either.transaction() as session:
        ledger.fold(session, FairShare())


def test_a_worker_helps_although_it_could_not_help_another_run(either: Database) -> None:
    long_run(either)
    add_workers(either, "w", "w1")
    ended(either, begun(either).id, f"{UNLIKE}threads")
    assert offered(either) is None
    another = long_run(either)
    assert begun(either).experiment_id == another.experiment_id


def test_an_embedded_worker_helps_only_runs_that_it_can_help(database: Database) -> None:
    """Another worker seems to be idle, and may stop for ever."""
    long_run(database)
    add_workers(database, "w", "w1", "w2")
    ended(database, begun(database).id, f"{UNLIKE}threads")
    with database.transaction() as session:
        session.execute(update(Help).values(ended_at=now() - 60))
    assert offered(database, replace(RULES, helper="w1")) is None
    assert offered(database, replace(RULES, helper="w2")) is not None


@pytest.mark.parametrize("reason", [f"{UNLIKE}cpu", f"{helping.FAILED}no such file"])
def test_a_worker_that_cannot_help_is_not_offered_again(either: Database, reason: str) -> None:
    """Its offers go to others, and where there are none, none is made."""
    long_run(either)
    add_workers(either, "w", "w1")
    claim = begun(either)
    ended(either, claim.id, reason)
    with either.transaction() as session:
        session.execute(update(Help).values(ended_at=now() - 60))
    assert offered(either) is None
    add_workers(either, "w2")
    help_id = offered(either)
    assert help_id is not None
    with either.transaction() as session:
        assert helping.begin(session, help_id, "w1", LEASE_S) is None
    assert begun(either, "w2")


@pytest.mark.parametrize("reason", [helping.FINISHED, f"{helping.LITTLE_USE}it draws"])
def test_an_attempt_that_no_worker_would_help_much_is_not_helped(
    either: Database, reason: str
) -> None:
    long_run(either)
    add_workers(either, "w", "w1", "w2")
    ended(either, begun(either).id, reason)
    with either.transaction() as session:
        session.execute(update(Help).values(ended_at=now() - 60))
    assert offered(either) is None


def test_a_run_waits_a_little_for_its_next_helper(database: Database) -> None:
    long_run(database)
    add_workers(database, "w", "w1", "w2")
    ended(database, begun(database).id)
    assert offered(database) is None
    with database.transaction() as session:
        session.execute(update(Help).values(ended_at=now() - helper_choice.MAX_PAUSE_S))
    assert offered(database) is not None


def test_nobody_waits_for_a_transaction_that_ends_a_run(lab: Settings) -> None:
    """It may hang, and the dispatch lock is held."""
    with closing(Database(lab.url)) as database, closing(Database(lab.url)) as other:
        run = long_run(database)
        add_workers(database, "w", "w1", "w2")
        with other.transaction() as hung:
            one = select(Experiment.id).where(Experiment.id == run.experiment_id)
            hung.execute(one.with_for_update())
            with database.transaction() as session:
                session.execute(text("SET LOCAL lock_timeout = '2s'"))
                assert helper_choice.offer(session, Queue.CPU, RULES) is None
        assert offered(database) is not None


def test_a_look_reads_only_the_helps_of_running_experiments(lab: Settings) -> None:
    """Helps of experiments that ended stay in the table. Dispatchers look twice a second."""
    with closing(Database(lab.url)) as database:
        old = [long_run(database).experiment_id for _ in range(3)]
        for one in old:
            stored.change(database, one, status=Status.SUCCEEDED)
        running = [long_run(database) for _ in range(20)]
        add_workers(database, "w")
        columns = {"attempt": 1, "owner_id": 1, "queue": Queue.CPU, "worker": "x",
                   "started_at": 1.0, "ended_at": 2.0, "folded": True}  # fmt: skip
        with database.transaction() as session:
            rows = [{"experiment_id": one, **columns} for one in old for _ in range(10_000)]
            session.execute(insert(Help), rows)
            session.execute(text("ANALYZE"))
            look = helper_choice._candidates(Queue.CPU, RULES, time.time()).compile(
                session.get_bind()
            )
            driver = session.connection().connection.dbapi_connection
            assert driver is not None
            explained = f"EXPLAIN (ANALYZE, FORMAT JSON) {look}"
            ((plan,),) = driver.execute(explained, look.params).fetchone()
        read = sum(rows for name, rows in tables_read(plan["Plan"]) if name == "helps")
        assert len(running) == 20
        assert read < 1000


def tables_read(node: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield each scan of a table with the number of rows that it has read."""
    if "Relation Name" in node:
        rows = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
        yield node["Relation Name"], rows * node["Actual Loops"]
    for part in node.get("Plans", ()):
        yield from tables_read(part)
