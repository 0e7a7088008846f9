"""Helps of running experiments in the store, and workers that help."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select, update

from service.fair_share import FairShare
from service.queue import division, helper_choice, helping, workers
from service.queue.helper_choice import Rules
from service.queue.helping import HelpClaim
from service.queue.lease import Claim
from service.queue.workers import Vitals
from service.tables.engine import Database, now
from service.tables.experiments import (
    Attempt,
    Queue,
)
from service.tables.helpers import Help
from service.tables.users import User
from tests.support import stored
from tests.support.attempts import claimed

LEASE_S = 60.0
RULES = Rules(FairShare(), within_s=60.0, max_workers=3, after_s=10.0, lease_s=LEASE_S)
ENVIRONMENT = {"core": "a", "cpu": "b", "threads": 1}
BATCH = {"number": 4, "shape": [1, 1, 1], "data": "AAAAAAAA8D8="}
PACKED = division.packed(BATCH)


def add_workers(database: Database, *names: str, queue: Queue = Queue.CPU) -> None:
    with database.transaction() as session:
        for name in names:
            workers.beat(session, name, Vitals("host", queue, 2**30))


def add_user(database: Database, name: str) -> int:
    with database.transaction() as session:
        user = User(name=name)
        session.add(user)
        session.flush()
        return user.id


def long_run(database: Database, owner_id: int = 1, **columns: Any) -> Claim:
    """An attempt that has run for a minute and is expected to run for another one."""
    claim = claimed(database)
    progress = {"progress_eta_s": 60.0, "progress_at": now(), "owner_id": owner_id}
    stored.change(database, claim.experiment_id, **{**progress, **columns})
    with database.transaction() as session:
        of_attempt = Attempt.experiment_id == claim.experiment_id
        session.execute(
            update(Attempt)
            .where(of_attempt)
            .values(started_at=now() - 60, environment=ENVIRONMENT, owner_id=owner_id)
        )
    return claim


def offered(database: Database, rules: Rules = RULES, queue: Queue = Queue.CPU) -> int | None:
    with database.transaction() as session:
        return helper_choice.offer(session, queue, rules)


def begun(database: Database, worker: str = "w1") -> HelpClaim:
    help_id = offered(database)
    assert help_id is not None
    with database.transaction() as session:
        claim = helping.begin(session, help_id, worker, LEASE_S)
    assert claim is not None
    return claim


def ended(database: Database, help_id: int, reason: str = "over") -> None:
    with database.transaction() as session:
        helping.end(session, help_id, reason)


def beat(database: Database, claim: HelpClaim) -> None:
    with database.transaction() as session:
        helping.beat(session, claim, LEASE_S)


def could_help(database: Database, queue: Queue = Queue.CPU) -> bool:
    with database.snapshot() as session:
        return helper_choice.could_help(session, queue, RULES)


def helps(database: Database) -> Sequence[Help]:
    with database.snapshot() as session:
        return session.scalars(select(Help).order_by(Help.id)).all()


def stopped(database: Database) -> list[int]:
    """Let helpers give way, and return those that must stop."""
    with database.transaction() as session:
        helper_choice.give_way(session, Queue.CPU, RULES)
    return [one.id for one in helps(database) if one.must_stop]
