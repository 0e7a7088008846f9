"""Held experiments are released at the right time, by a look or by the end of a run."""

import itertools
import re
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import delete, event, insert, select, update
from uuid6 import uuid7

from service.db.engine import Database
from service.experiments.models import Experiment, Held, Wait
from service.fair_share import FairShare
from service.queue import holds, lease, states
from service.settings import Settings
from service.sweeps import store as sweeps
from service.sweeps.models import Sweep
from service.vocabulary import DesiredState, Status
from tests.support.attempts import claim_next, submitted
from tests.support.ppca_spec import ppca_spec
from tests.support.starting import release_held, start_next
from tests.support.stored import change, row


def limited_sweeps(
    database: Database, number: int, *points: dict[str, Any], concurrency: int | None = 1
) -> list[str]:
    """Store new sweeps with these points each, and return the points."""
    common = {"owner_id": 1, "tags": [], "priority": 0, "spec": ppca_spec()}
    with database.transaction() as session:
        first = len(session.scalars(select(Sweep.id)).all())
        names = [f"{first + i:032x}" for i in range(number)]
        ids = [f"{one}{i:x}"[-32:] for one in names for i in range(len(points))]
        beside = {"concurrency": concurrency, "fields": ["seeds"], "comes_after": []}
        session.execute(insert(Sweep), [{**common, **beside, "id": one} for one in names])
        session.execute(
            insert(Experiment),
            [
                {
                    **common,
                    "id": id,
                    "sweep_id": names[i // len(points)],
                    "held": Held.NOT,
                    **given,
                }
                for i, (id, given) in enumerate(zip(ids, points * number, strict=True))
            ],
        )
    return ids


def chosen(database: Database) -> str | None:
    with database.transaction() as session:
        claim = start_next(session)
    return None if claim is None else claim.experiment_id


def statements_of_a_look(database: Database) -> int:
    statements: list[str] = []

    def note(*arguments: Any) -> None:
        statements.append(arguments[2])

    event.listen(database.engine, "before_cursor_execute", note)
    release_held(database)
    event.remove(database.engine, "before_cursor_execute", note)
    return len(statements)


RUNNING: dict[str, Any] = {"status": Status.RUNNING}
PAUSED: dict[str, Any] = {"status": Status.PAUSED}
HELD: dict[str, Any] = {"held": Held.SWEEP}
IDLE = ((PAUSED, {**PAUSED, **HELD}), (RUNNING, HELD), (PAUSED, {"held": Held.AFTER}))
"""Points of sweeps that may not start."""


def test_sweeps_without_room_do_not_slow_a_look(database: Database) -> None:
    """Its statements do not depend on the number of sweeps that are paused, at their limit, or wait
    for others."""
    costs = []
    for _ in range(2):
        for points in IDLE:
            limited_sweeps(database, 10, *points)
        release_held(database)
        costs.append(statements_of_a_look(database))
        assert chosen(database) is None
    assert costs[0] == costs[1]


def test_a_held_experiment_that_was_paused_starts_when_a_run_ends(either: Database) -> None:
    """The end of the run releases it, without a look."""
    first, second = limited_sweeps(either, 1, RUNNING, {**PAUSED, **HELD})
    for one, desired in ((second, DesiredState.RUN), (first, DesiredState.CANCEL)):
        with either.transaction() as session:
            states.request(session, one, desired)
        assert chosen(either) is None
    with either.transaction() as session:
        session.get_one(Experiment, first).status = Status.CANCELLED
        states.note_status(session, first, Status.CANCELLED)
    assert chosen(either) == second


def wait(database: Database, experiment_id: str, *predecessors: str) -> None:
    """Let an experiment wait for others."""
    rows = [{"experiment_id": experiment_id, "after_id": one} for one in predecessors]
    with database.transaction() as session:
        session.execute(insert(Wait), rows)
        session.get_one(Experiment, experiment_id).held = Held.AFTER


def reason(database: Database, experiment_id: str, reader_id: int | None = None) -> str:
    with database.snapshot() as session:
        experiment = session.get_one(Experiment, experiment_id)
        return holds.reasons(session, [experiment], reader_id)[experiment_id]


def test_an_experiment_starts_after_its_last_predecessor(either: Database) -> None:
    submitted(either)
    before = claim_next(either)
    waits, ended = limited_sweeps(either, 1, {}, {"status": Status.SUCCEEDED})
    wait(either, waits, ended, before.experiment_id)
    release_held(either)
    assert reason(either, waits) == f"it waits for {before.experiment_id} (running) to succeed"
    assert chosen(either) is None
    with either.transaction() as session:
        lease.finish(session, before, Status.SUCCEEDED)
    assert "starts or fails" in reason(either, waits)
    release_held(either)
    assert chosen(either) == waits


@pytest.mark.parametrize("ended", [Status.SUCCEEDED, Status.FAILED])
def test_a_locked_experiment_delays_no_other(lab: Settings, ended: Status) -> None:
    """A transaction that hangs has locked one of the experiments that wait for another."""
    with closing(Database(lab.url)) as database, closing(Database(lab.url)) as other:
        first, (free, locked, last) = successors(database, 3, 1)
        wait(database, last, locked)
        change(database, first, status=ended)
        with other.transaction() as session:
            session.execute(update(Experiment).where(Experiment.id == locked).values(note="x"))
            release_held(database)
            waiting = {one for one in (free, locked, last) if is_waiting(database, one)}
            assert waiting == ({locked} if ended == Status.FAILED else {locked, last})
        release_held(database)
        assert not is_waiting(database, locked)


def is_waiting(database: Database, experiment_id: str) -> bool:
    experiment = row(database, experiment_id)
    return (experiment.status, experiment.held) == (Status.QUEUED, Held.AFTER)


def test_a_lifted_limit_releases_points_that_were_held_meanwhile(either: Database) -> None:
    (one,) = limited_sweeps(either, 1, HELD, concurrency=None)
    release_held(either)
    assert chosen(either) == one


def test_locked_points_are_released_later(lab: Settings) -> None:
    with closing(Database(lab.url)) as database, closing(Database(lab.url)) as other:
        (one,) = limited_sweeps(database, 1, HELD)
        with other.transaction() as session:
            session.execute(update(Experiment).values(note="x"))
            release_held(database)
            assert chosen(database) is None
        release_held(database)
        assert chosen(database) == one


def under_way(database: Database) -> int:
    """Return the number of experiments that run or may start."""
    with database.snapshot() as session:
        may_start = select(Experiment.id).where(
            Experiment.status.in_(holds.OPEN), Experiment.held == Held.NOT
        )
        return len(session.scalars(may_start).all())


LOOK, END = "look", "end"


@pytest.mark.parametrize(
    "steps", [(LOOK, LOOK), (LOOK, END), (END, LOOK), (END, END)], ids=" and ".join
)
def test_two_transactions_do_not_release_the_same_place(
    lab: Settings, steps: tuple[str, str]
) -> None:
    """A place is free when both begin. None of them waits for the other."""
    with closing(Database(lab.url)) as database, closing(Database(lab.url)) as other:
        limited_sweeps(database, 1, {}, {}, *[HELD] * 6, concurrency=3)
        claims = [claim_next(database) for _ in range(2)]
        with database.transaction() as first, other.transaction() as second:
            for session, step, claim in zip((first, second), steps, claims, strict=True):
                if step == LOOK:
                    holds.fill_sweeps(session)
                else:
                    lease.finish(session, claim, Status.SUCCEEDED)
                session.flush()
        assert under_way(database) <= 3
        release_held(database)
        assert under_way(database) == 3


def test_an_experiment_resumed_while_its_sweep_gets_a_limit_keeps_it(lab: Settings) -> None:
    with closing(Database(lab.url)) as database, closing(Database(lab.url)) as other:
        paused, _ = limited_sweeps(database, 1, PAUSED, RUNNING, concurrency=None)
        with database.transaction() as first, other.transaction() as second:
            sweep = first.scalars(select(Sweep)).one()
            sweeps.change(first, sweep, {"concurrency": 1}, FairShare())
            holds.change_limit(first, sweep)
            assert states.request(second, paused, DesiredState.RUN) == Status.QUEUED
        release_held(database)
        assert under_way(database) == 1


def successors(database: Database, count: int, predecessors: int) -> tuple[str, list[str]]:
    """Store experiments that wait for the same others. Return the first of these, and them."""
    others = [submitted(database) for _ in range(predecessors)]
    columns = {one.name for one in Experiment.__table__.columns} - {"id", "held"}
    with database.transaction() as session:
        first = session.get_one(Experiment, others[0])
        same = {name: getattr(first, name) for name in columns}
        ids = [uuid7().hex for _ in range(count)]
        rows = [{**same, "id": one, "held": Held.AFTER} for one in ids]
        session.execute(insert(Experiment), rows)
        waits = [{"experiment_id": one, "after_id": other} for one in ids for other in others]
        session.execute(insert(Wait), waits)
    return others[0], ids


def steps_of_a_look(database: Database, count: int, ended: Status) -> int:
    """Return SQLite's steps, in hundreds, for a look after the end of an experiment with many
    successors, half of them in a chain."""
    steps = 0

    def step() -> bool:
        nonlocal steps
        steps += 1
        return False

    first, ids = successors(database, count, 1)
    chain = ids[: count // 2]
    with database.transaction() as session:
        session.execute(delete(Wait).where(Wait.experiment_id.in_(chain[1:])))
        pairs = itertools.pairwise(chain)
        rows = [{"experiment_id": one, "after_id": before} for before, one in pairs]
        session.execute(insert(Wait), rows)
    change(database, first, status=ended)
    with database.transaction() as session:
        connection: Any = session.connection().connection.dbapi_connection
        connection.set_progress_handler(step, 100)
        holds.release_waits(session)
        connection.set_progress_handler(None, 100)
    with database.snapshot() as session:
        waiting = {*session.scalars(select(Wait.experiment_id))}
    assert waiting == (set() if ended == Status.FAILED else {*chain[1:]})
    change(database, chain[0], status=Status.CANCELLED)
    release_held(database)
    return steps


@pytest.mark.parametrize("ended", [Status.SUCCEEDED, Status.FAILED])
def test_a_look_at_many_successors_is_linear(database: Database, ended: Status) -> None:
    """4,700 of them held up all writers of an SQLite service for 7 s, 14,000 for a minute."""
    few, many = (steps_of_a_look(database, count, ended) for count in (200, 1600))
    assert many < 12 * few


@pytest.mark.parametrize("ended", [Status.CANCELLED, Status.SUCCEEDED])
def test_any_number_of_experiments_fit_a_statement(either: Database, ended: Status) -> None:
    """An experiment may have 65,536 successors, more than a statement of PostgreSQL has parameters.
    On SQLite no statement reads all experiments."""
    most, listed = 0, []

    def note(*arguments: Any) -> None:
        nonlocal most
        _, _, statement, parameters, _, is_executemany = arguments
        most = max(most, 0 if is_executemany else len(parameters))
        if "json_each" in statement and not is_executemany:
            listed.append((statement, parameters))

    first, ids = successors(either, 50, 2)
    change(either, first, status=ended)
    listened = either.engine, "before_cursor_execute", note
    event.listen(*listened)
    release_held(either)
    event.remove(*listened)
    with either.snapshot() as session:
        waiting = {*session.scalars(select(Wait.experiment_id))}
    assert waiting == ({*ids} if ended == Status.SUCCEEDED else set())
    assert 0 < most < 25
    with either.snapshot() as session:
        plans = [
            line.detail
            for statement, parameters in listed
            for line in session.connection().exec_driver_sql(
                f"EXPLAIN QUERY PLAN {statement}", parameters
            )
        ]
    assert not [line for line in plans if re.match(r"SCAN (experiments|waits)", line)]
    assert either.engine.dialect.name == "postgresql" or plans


def test_each_successor_names_the_one_that_it_came_after(either: Database) -> None:
    first, ids = successors(either, 3, 2)
    with either.transaction() as session:
        last = ids[2]
        session.execute(insert(Wait).values(experiment_id=last, after_id=ids[0]))
        session.execute(delete(Wait).where(Wait.experiment_id == last, Wait.after_id == first))
        states.request(session, first, DesiredState.CANCEL)
    release_held(either)
    messages = [row(either, one).failure_message for one in ids]
    told = f"it comes after {first}, which was cancelled"
    assert messages == [told, told, f"it comes after {ids[0]}, which failed"]


def test_a_chain_against_the_order_of_ids_fails(either: Database) -> None:
    """The clocks of the machines that made the ids differed."""
    first, (young, old) = successors(either, 2, 1)
    with either.transaction() as session:
        session.execute(delete(Wait).where(Wait.experiment_id == young))
    wait(either, young, old)
    change(either, first, status=Status.FAILED)
    for _ in range(2):
        release_held(either)
    assert row(either, young).status == Status.FAILED
