"""Held experiments cost a choice nothing and are released at the right time."""

import re
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import delete, event, insert, select, text
from uuid6 import uuid7

from service.db.engine import Database
from service.experiments.models import DesiredState, Experiment, Held, Status, Wait
from service.queue import holds, lease, states
from service.settings import Settings
from service.sweeps.models import Sweep, Turn
from tests.support.attempts import claim_next, submitted
from tests.support.ppca_spec import ppca_spec
from tests.support.starting import start_next
from tests.support.stored import row


def limited_sweeps(database: Database, number: int, *points: dict[str, Any]) -> list[str]:
    """New sweeps with a limit of one run at a time, and these points each; gives the points."""
    common = {"owner_id": 1, "tags": [], "priority": 0, "spec": ppca_spec()}
    with database.transaction() as session:
        first = len(session.scalars(select(Sweep.id)).all())
        sweeps = [f"{first + i:032x}" for i in range(number)]
        ids = [f"{one}{i:x}"[-32:] for one in sweeps for i in range(len(points))]
        beside = {"concurrency": 1, "fields": ["seeds"], "comes_after": []}
        session.execute(insert(Sweep), [{**common, **beside, "id": one} for one in sweeps])
        session.execute(
            insert(Experiment),
            [
                {
                    **common,
                    "id": id,
                    "sweep_id": sweeps[i // len(points)],
                    "held": Held.NOT,
                    **given,
                }
                for i, (id, given) in enumerate(zip(ids, points * number, strict=True))
            ],
        )
        holds.note_turns(session, sweeps)
    return ids


def chosen(database: Database) -> str | None:
    with database.transaction() as session:
        claim = start_next(session)
    return None if claim is None else claim.experiment_id


def statements_of_a_choice(database: Database) -> int:
    statements: list[str] = []

    def note(*arguments: Any) -> None:
        statements.append(arguments[2])

    event.listen(database.engine, "before_cursor_execute", note)
    assert chosen(database) is None
    event.remove(database.engine, "before_cursor_execute", note)
    return len(statements)


IDLE: tuple[tuple[dict[str, Any], ...], ...] = (
    ({"status": Status.PAUSED}, {"status": Status.PAUSED, "held": Held.SWEEP}),
    ({"status": Status.RUNNING}, {"status": Status.QUEUED, "held": Held.SWEEP}),
    ({"status": Status.PAUSED}, {"status": Status.QUEUED, "held": Held.AFTER}),
)
"""Points of sweeps that may not start."""


def test_held_experiments_do_not_slow_a_choice(database: Database) -> None:
    """The cost does not depend on the number of sweeps that are paused, at their limit, or wait for
    others."""
    costs = []
    for _ in range(2):
        for points in IDLE:
            limited_sweeps(database, holds.TURNS_AT_ONCE // 2, *points)
        for _ in range(2):  # each is examined once
            assert chosen(database) is None
        assert _turns(database) == 0
        costs.append(statements_of_a_choice(database))
    assert costs[0] == costs[1]


def _turns(database: Database) -> int:
    with database.snapshot() as session:
        return len(session.scalars(select(Turn)).all())


def test_a_choice_examines_a_limited_number_of_sweeps(database: Database) -> None:
    limited_sweeps(database, 2 * holds.TURNS_AT_ONCE + 1, *IDLE[0])
    left = []
    for _ in range(3):
        assert chosen(database) is None
        left.append(_turns(database))
    assert left == [holds.TURNS_AT_ONCE + 1, 1, 0]


def test_many_turns_of_a_sweep_do_not_delay_others(database: Database) -> None:
    limited_sweeps(database, 1, *IDLE[0])
    with database.transaction() as session:
        sweep_id = session.scalars(select(Sweep.id)).one()
        holds.note_turns(session, [sweep_id] * (2 * holds.TURNS_AT_ONCE))
    limited_sweeps(database, 1, {"status": Status.PAUSED}, {"held": Held.SWEEP})
    assert chosen(database) is None  # it examines only the first sweep
    assert chosen(database) is not None


def test_a_held_experiment_that_was_paused_starts_in_order(either: Database) -> None:
    first, second = limited_sweeps(
        either, 1, {"status": Status.RUNNING}, {"status": Status.PAUSED, "held": Held.SWEEP}
    )
    assert chosen(either) is None
    for one, desired in ((second, DesiredState.RUN), (first, DesiredState.CANCEL)):
        with either.transaction() as session:
            states.request(session, one, desired)
        assert chosen(either) is None
    with either.transaction() as session:
        session.get_one(Experiment, first).status = Status.CANCELLED
        states.note_status(session, first, Status.CANCELLED)
    assert chosen(either) == second


def test_an_experiment_starts_after_its_last_predecessor(either: Database) -> None:
    submitted(either)
    before = claim_next(either)
    waits, _ = limited_sweeps(either, 1, {"held": Held.AFTER}, {"status": Status.SUCCEEDED})
    with either.transaction() as session:
        assert holds.wait_for(session, {waits: [before.experiment_id]}) == {}
        reason = f"it waits for {before.experiment_id} (running) to succeed"
        assert holds.reasons(session, [session.get_one(Experiment, waits)], None) == {waits: reason}
    assert chosen(either) is None
    with either.transaction() as session:
        lease.finish(session, before, Status.SUCCEEDED)
    assert row(either, waits).held == Held.SWEEP
    assert chosen(either) == waits


def test_an_experiment_released_while_the_limit_is_lifted_starts(either: Database) -> None:
    """Two transactions at once: one saw the limit, the other lifted it."""
    (one,) = limited_sweeps(either, 1, {"held": Held.SWEEP})
    with either.transaction() as session:
        session.execute(text("UPDATE sweeps SET concurrency = NULL"))
    assert chosen(either) == one


def test_locked_experiments_are_released_later(lab: Settings) -> None:
    with closing(Database(lab.url)) as database, closing(Database(lab.url)) as other:
        (one,) = limited_sweeps(database, 1, {"held": Held.SWEEP})
        with other.transaction() as session:
            session.execute(text("UPDATE experiments SET note = 'x'"))
            assert chosen(database) is None
        assert chosen(database) == one


def test_turns_of_deleted_sweeps_are_dropped(database: Database) -> None:
    limited_sweeps(database, 1, *IDLE[0])
    with database.transaction() as session:
        for table in (Wait, Experiment, Sweep):
            session.execute(delete(table))
    assert chosen(database) is None
    assert _turns(database) == 0


def test_the_first_of_a_long_chain_is_found_once() -> None:
    """Cancelling an experiment that 4,800 others wait for, one after another, took seconds."""
    looks = 0

    class Counted(dict[str, str]):
        def __getitem__(self, key: str) -> str:
            nonlocal looks
            looks += 1
            return super().__getitem__(key)

    chain = Counted({f"{i + 1}": f"{i}" for i in reversed(range(1000))})
    assert holds._firsts(chain) == dict.fromkeys(chain, "0")
    assert looks <= len(chain)


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


def steps_of_end(database: Database, count: int) -> int:
    """Return SQLite's steps, in hundreds, for the end of an experiment with many successors."""
    steps = 0

    def step() -> bool:
        nonlocal steps
        steps += 1
        return False

    first, ids = successors(database, count, 3)
    with database.transaction() as session:
        connection: Any = session.connection().connection.dbapi_connection
        connection.set_progress_handler(step, 100)
        states.request(session, first, DesiredState.CANCEL)
        connection.set_progress_handler(None, 100)
    with database.snapshot() as session:
        failed = select(Experiment.id).where(Experiment.status == Status.FAILED)
        assert {*ids} <= {*session.scalars(failed)}
    return steps


def test_the_end_of_an_experiment_with_many_successors_is_linear(database: Database) -> None:
    """4,700 of them held up all writers of an SQLite service for 7 s, 14,000 for a minute."""
    few, many = (steps_of_end(database, count) for count in (200, 1600))
    assert many < 12 * few


@pytest.mark.parametrize("how", ["cancelled", "succeeded", "many cancelled"])
def test_any_number_of_experiments_fit_a_statement(either: Database, how: str) -> None:
    """An experiment with 65,536 successors could neither end nor be cancelled on PostgreSQL. On
    SQLite each statement then read all experiments."""
    most, listed = 0, []

    def note(*arguments: Any) -> None:
        nonlocal most
        _, _, statement, parameters, _, is_executemany = arguments
        most = max(most, 0 if is_executemany else len(parameters))
        if "json_each" in statement and not is_executemany:
            listed.append((statement, parameters))

    submitted(either)
    claim = claim_next(either)
    _, ids = successors(either, 50, 2)
    with either.transaction() as session:
        every = {one: [claim.experiment_id] for one in ids}
        assert holds.wait_for(session, every) == {}
        session.execute(delete(Wait).where(Wait.after_id != claim.experiment_id))
    listened = either.engine, "before_cursor_execute", note
    event.listen(*listened)
    with either.transaction() as session:
        if how == "cancelled":
            lease.finish(session, claim, Status.CANCELLED)
        elif how == "succeeded":
            lease.finish(session, claim, Status.SUCCEEDED)
        else:
            states.cancel_all(session, Experiment.held == Held.AFTER)
    event.remove(*listened)
    expected = Status.CANCELLED if how == "many cancelled" else Status.FAILED
    found = {row(either, one).status for one in ids}
    assert found == {Status.QUEUED if how == "succeeded" else expected}
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
    messages = [row(either, one).failure_message for one in ids]
    told = f"it comes after {first}, which was cancelled"
    assert messages == [told, told, f"it comes after {ids[0]}, which failed"]
