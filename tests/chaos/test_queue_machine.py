"""The state machine, on both databases."""

import os
import shutil
import uuid
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from service.db.engine import Database
from service.queue import workers
from tests.chaos.queue_machine import QueueMachine
from tests.support.servers import PostgreSQL

STEPS = 50
RUNS = {"sqlite": int(os.environ.get("MPT_CHAOS_SQLITE_RUNS", "10")),
        "postgresql": int(os.environ.get("MPT_CHAOS_POSTGRESQL_RUNS", "3"))}  # fmt: skip


def run(machine: type[QueueMachine], runs: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=runs,
            stateful_step_count=STEPS,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.slow
def test_on_sqlite(prepared_store: Path, tmp_path: Path) -> None:
    class OnSqlite(QueueMachine):
        @staticmethod
        def new_database() -> Database:
            file = tmp_path / f"{uuid.uuid4().hex}.sqlite3"
            shutil.copy(prepared_store / "mptlab.sqlite3", file)
            return Database(f"sqlite:///{file}")

    run(OnSqlite, RUNS["sqlite"])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_on_postgresql(postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of 3 s for transactions that hang is lifted: a busy machine may stop the test,
    which is all processes in one, for longer."""
    monkeypatch.setattr(workers, "limit_hanging", lambda session: None)

    class OnPostgresql(QueueMachine):
        @staticmethod
        def new_database() -> Database:
            name = f"machine_{uuid.uuid4().hex}"
            postgresql.create(name, template="prepared")
            return Database(postgresql.url(name))

    run(OnPostgresql, RUNS["postgresql"])
