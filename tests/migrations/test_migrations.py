"""Migrations produce the schema of the models, and keep what version 0.1 stored."""

import json
import uuid
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import inspect, select, text
from sqlalchemy.orm import Session

import migrations
import service.app  # noqa: F401  # knows all tables
from service.accounts.models import ApiKey, User
from service.db.engine import Base, Database
from service.experiments.models import Attempt, Checkpoint, Usage
from service.fair_share import FairShare
from service.queue import ledger
from service.queue.statistics import Statistics, statistics
from service.submission.models import KeptRequest
from service.vocabulary import ROLE_SCOPES, TERMINAL, Role, Scope, Status

DESCENDING = ("ix_experiments_startable_cpu", "ix_experiments_startable_gpu")
VERSION_0_1, VERSION_0_2 = "0008", "0029"


@pytest.fixture(params=["sqlite", "postgresql"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Config:
    """Configuration of an empty database."""
    url = f"sqlite:///{tmp_path / 'db.sqlite3'}"
    if request.param == "postgresql":
        server = request.getfixturevalue("postgresql")
        name = f"empty_{uuid.uuid4().hex}"
        server.create(name)
        url = server.url(name)
    made = Config()
    made.set_main_option("script_location", str(Path(migrations.__file__).parent))
    made.attributes["url"] = url
    return made


def test_up_finds_no_difference_and_down_ends_at_version_0_2(config: Config) -> None:
    database = Database(config.attributes["url"])
    for _ in range(2):
        command.upgrade(config, "head")
        with database.engine.connect() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            differences = compare_metadata(context, Base.metadata)
            if connection.dialect.name == "sqlite":  # which does not report the order of columns
                differences = [one for one in differences if one[1].name not in DESCENDING]
            assert differences == []
            for table in Base.metadata.sorted_tables:  # which autogenerate does not compare
                key = inspect(connection).get_pk_constraint(table.name)["constrained_columns"]
                assert set(key) == {column.name for column in table.primary_key}
        command.downgrade(config, VERSION_0_2)
    with pytest.raises(NotImplementedError, match="restore its backup"):
        command.downgrade(config, VERSION_0_1)


def upgraded(config: Config, *statements: str) -> Database:
    """Insert rows into tables of version 0.1, and upgrade them."""
    database = Database(config.attributes["url"])
    command.upgrade(config, VERSION_0_1)
    with database.transaction() as session:
        for one in ("INSERT INTO users (id, name, created_at) VALUES (1, 'local', 0)", *statements):
            session.execute(text(one))
    command.upgrade(config, "head")
    return database


def experiment(name: str, spec: str = "{}", **columns: object) -> str:
    """Return the statement that inserts an experiment of version 0.1; its id is the letter."""
    values = {
        "id": name * 32, "owner_id": 1, "tags": "[]", "priority": 0, "spec": spec,
        "status": "queued", "desired_state": "run", "dispatch_no": 0, "attempt": 0, "lost": 0,
        "created_at": 100.0, "last_seq": 0,
    } | columns  # fmt: skip
    literals = ", ".join(str(one) if isinstance(one, int | float) else f"'{one}'"
                         for one in values.values())  # fmt: skip
    return f"INSERT INTO experiments ({', '.join(values)}) VALUES ({literals})"


def test_the_device_and_the_family_of_before_are_read_from_specs(config: Config) -> None:
    specs = ('{"compute": {"device": "cuda"}, "model": {"family": "vae"}}', "{}")
    database = upgraded(
        config, *(experiment(name, spec) for name, spec in zip("ab", specs, strict=True))
    )
    with database.snapshot() as session:
        found = session.execute(text("SELECT device, family FROM experiments ORDER BY id"))
        assert [tuple(row) for row in found] == [("cuda", "vae"), ("cpu", "ppca")]


def test_auto_of_linear_gaussians_that_have_not_ended_is_the_cpu(config: Config) -> None:
    """The estimate of their memory, which was that of a GPU, is dropped."""
    families = {"a": "ppca", "b": "factor_analysis", "c": "vae", "d": "ppca"}
    statuses = {"a": "paused", "b": "queued", "c": "queued", "d": "succeeded"}
    database = Database(config.attributes["url"])
    command.upgrade(config, VERSION_0_1)
    with database.transaction() as session:
        session.execute(text("INSERT INTO users (id, name, created_at) VALUES (1, 'local', 0)"))
        for name, family in families.items():
            spec = f'{{"model": {{"family": "{family}"}}}}'
            session.execute(text(experiment(name, spec, status=statuses[name])))
    command.upgrade(config, "0039")
    with database.transaction() as session:
        session.execute(text("UPDATE experiments SET memory_bytes = 9"))
    command.upgrade(config, "head")
    with database.snapshot() as session:
        found = session.execute(text("SELECT device, memory_bytes FROM experiments ORDER BY id"))
        on_cpu, kept = ("cpu", None), ("auto", 9)
        assert [tuple(row) for row in found] == [on_cpu, on_cpu, kept, kept]


def test_users_and_keys_of_before_may_do_what_they_could(config: Config) -> None:
    """The local user becomes the first admin, and its keys may do everything."""
    key = "INSERT INTO api_keys (id, user_id, secret_sha256, created_at) VALUES"
    database = upgraded(
        config,
        "INSERT INTO users (id, name, created_at) VALUES (2, 'ann', 0)",
        f"{key} ('local', 1, '', 0)",
        f"{key} ('ann', 2, '', 0)",
    )
    with database.snapshot() as session:
        roles = {user.name: user.role for user in session.scalars(select(User))}
        assert roles == {"local": Role.ADMIN, "ann": Role.MEMBER}
        keys = {key.id: set(key.scopes) for key in session.scalars(select(ApiKey))}
        assert keys == {"local": {*Scope}, "ann": {*ROLE_SCOPES[Role.MEMBER]}}


def test_counters_are_filled_from_experiments_of_before(config: Config) -> None:
    ended: dict[str, Any] = {"finished_at": 200.0}
    database = upgraded(
        config,
        experiment("a", status="succeeded", started_at=110.0, lost=0, **ended),
        experiment("b", status="failed", failure_kind="oom", started_at=120.0, lost=1, **ended),
        experiment("c", status="failed", failure_kind="error", started_at=140.0, lost=2, **ended),
        experiment("d", status="cancelled", lost=3, **ended),
        experiment("e", status="queued", lost=4),
    )
    there = {Status.SUCCEEDED: 1, Status.FAILED: 2, Status.CANCELLED: 1, Status.QUEUED: 1}
    with database.snapshot() as session:
        assert statistics(session) == Statistics(
            by_status=Counter(dict.fromkeys(Status, 0) | there),
            failures=Counter({"oom": 1, "error": 1}),
            lost=0 + 1 + 2 + 3 + 4, waits=3, waits_s=10.0 + 20.0 + 40.0, runs=3,
            runs_s=90.0 + 80.0 + 60.0,
        )  # fmt: skip


class Past(NamedTuple):
    """An experiment of before `totals`, and its attempts: the outcome that they get, the event of
    their end, and whether they are folded. Without an event they have not ended."""

    columns: dict[str, Any]
    attempts: Sequence[tuple[str | None, dict[str, Any] | None, bool]] = ()


def end(outcome: str, folded: bool, **event: Any) -> tuple[str, dict[str, Any], bool]:
    return outcome, event, folded


RUNS = (None, None, False)
PAST = {
    "a": Past({"status": "succeeded"}, [end("succeeded", True, status="succeeded", attempt=1)]),
    "b": Past(
        {"status": "failed", "failure_kind": "oom", "lost": 1},
        [
            end("lost", True, status="queued", lost_attempt=1),
            end("oom", False, status="failed", attempt=2),
        ],
    ),
    "c": Past({"status": "succeeded"}, [end("succeeded", False, status="succeeded", attempt=1)]),
    "d": Past(
        {"status": "running", "lost": 1},
        [end("lost", True, status="queued", lost_attempt=1), RUNS],
    ),
    "e": Past({"status": "running"}, [RUNS]),
    "f": Past(
        {"status": "queued", "lost": 1}, [end("lost", False, status="queued", lost_attempt=1)]
    ),
    "0": Past(
        {"status": "paused"},
        [
            end("disk_full", True, status="queued", attempt=1, reason="disk_full"),
            end("paused", True, status="paused", attempt=2),
        ],
    ),
    "1": Past({"status": "cancelled", "started_at": None}),
    "2": Past(
        {"status": "failed", "failure_kind": "lost", "lost": 2},
        [
            end("lost", True, status="queued", lost_attempt=1),
            end("lost", False, status="failed", lost_attempt=2),
        ],
    ),
    "3": Past({"status": "cancelled"}, [end("paused", False, status="paused", attempt=1)]),
    "4": Past({"status": "queued"}, [end("queued", True, status="queued", restored=True)]),
    "5": Past(
        {"status": "failed", "failure_kind": "error"},
        [end("error", True, status="failed", attempt=1)],
    ),
}
PURGED = "5"
"""An experiment that is purged before the migration."""


def test_no_counter_changes_when_totals_replace_tallies(config: Config) -> None:
    """Nor by the fold that follows: each attempt is counted once."""
    rows: dict[str, dict[str, Any]] = {
        name: {"started_at": 110.0 + i, "finished_at": 1024.0 * 2**i, "attempt": len(past.attempts)}
        | past.columns
        for i, (name, past) in enumerate(PAST.items())
    }
    begun = [row for row in rows.values() if row["started_at"] is not None]
    ended = [row for row in begun if row["status"] in TERMINAL]
    expected = Statistics(
        Counter(row["status"] for name, row in rows.items() if name != PURGED),
        Counter(row["failure_kind"] for row in ended if "failure_kind" in row),
        lost=sum(row.get("lost", 0) for row in begun),
        waits=len(begun), waits_s=sum(row["started_at"] - 100 for row in begun),
        runs=len(ended), runs_s=sum(row["finished_at"] - row["started_at"] for row in ended),
    )  # fmt: skip
    database = Database(config.attributes["url"])
    command.upgrade(config, VERSION_0_1)
    with database.transaction() as session:
        session.execute(text("INSERT INTO users (id, name, created_at) VALUES (1, 'local', 0)"))
        for name in PAST:
            session.execute(text(experiment(name)))
    command.upgrade(config, "0040")
    with database.transaction() as session:
        for name, row in rows.items():
            _add_past(session, name * 32, row, PAST[name])
        for table, key in {"events": "experiment_id", "attempts": "experiment_id",
                           "experiments": "id"}.items():  # fmt: skip
            session.execute(text(f"DELETE FROM {table} WHERE {key} = '{PURGED * 32}'"))
    command.upgrade(config, "head")
    outcomes = defaultdict[str, list[str | None]](list)
    with database.transaction() as session:
        assert statistics(session) == expected
        for line in session.scalars(select(Attempt).order_by(Attempt.attempt)):
            outcomes[line.experiment_id[0]].append(line.outcome)
        ledger.fold(session, FairShare())
        assert statistics(session) == expected
    assert outcomes == {
        name: [outcome for outcome, *_ in past.attempts]
        for name, past in PAST.items()
        if past.attempts and name != PURGED
    }


def _add_past(session: Session, experiment_id: str, columns: dict[str, Any], past: Past) -> None:
    """Bring a queued experiment where it was, with its attempts and their events."""
    changes = ", ".join(f"{column} = :{column}" for column in columns)
    change = text(f"UPDATE experiments SET {changes} WHERE id = '{experiment_id}'")
    session.execute(change, columns)
    for attempt, (_, event, folded) in enumerate(past.attempts, start=1):
        session.execute(
            text(
                "INSERT INTO attempts (experiment_id, attempt, owner_id, queue, worker, family, "
                f"started_at, ended_at, folded, handed_back) VALUES ('{experiment_id}', {attempt}, "
                "1, 'cpu', 'w', 'ppca', 110, :ended_at, :folded, :handed_back)"
            ),
            {
                "ended_at": 120.0 if event else None,
                "folded": folded,
                "handed_back": event and event.get("reason"),
            },
        )
        for data in ({"status": "running", "attempt": attempt}, event):
            if data:
                session.execute(
                    text(
                        "INSERT INTO events (experiment_id, at, kind, data) "
                        f"VALUES ('{experiment_id}', 0, 'status', :data)"
                    ),
                    {"data": json.dumps(data)},
                )


def test_idempotency_keys_of_experiments_and_retries_are_moved(config: Config) -> None:
    one, again = "a" * 32, "b" * 32
    database = upgraded(
        config,
        experiment("a", idempotency_key="k1", submission_sha256="x", created_at=7.0),
        experiment("b", idempotency_key="k2", submission_sha256="x", retry_of=one),
        experiment("c"),
    )
    with database.snapshot() as session:
        found = {row.idempotency_key: row for row in session.scalars(select(KeptRequest))}
    assert {key: (row.sha256, row.made) for key, row in found.items()} == {
        "k1": ("POST /v1/experiments", [{"id": one, "cached_from": None}]),
        "k2": (f"POST /v1/experiments/{one}:retry", [{"id": again, "cached_from": None}]),
    }
    assert found["k1"].created_at == 7.0


def test_current_runs_are_in_the_ledger_from_their_dispatch(config: Config) -> None:
    times: dict[str, Any] = {"dispatched_at": 5.0, "started_at": 7.0}
    database = upgraded(
        config, experiment("a", status="running", attempt=2, worker="w", **times), experiment("b")
    )
    with database.snapshot() as session:
        (line,) = session.scalars(select(Attempt)).all()
    assert (line.experiment_id, line.attempt, line.owner_id) == ("a" * 32, 2, 1)
    assert (line.queue, line.worker, line.family) == ("cpu", "w", "ppca")
    assert (line.started_at, line.ended_at, line.folded) == (5.0, None, False)


def test_time_of_helpers_that_is_not_charged_stays_in_the_usage_of_its_owner(
    config: Config,
) -> None:
    """Each help is (owner, start, end, end of its lease, charged)."""
    helps = [
        (1, 100.0, 130.0, 140.0, "true"),
        (1, 100.0, 104.0, 140.0, "false"),
        (1, 200.0, None, 208.0, "false"),
        (1, None, None, None, "false"),
        (2, 50.0, 66.0, 70.0, "false"),
        (2, 60.0, 92.0, 95.0, "false"),
    ]
    database = Database(config.attributes["url"])
    command.upgrade(config, VERSION_0_1)
    with database.transaction() as session:
        for number, name in ((1, "ann"), (2, "ben"), (3, "eve")):
            values = f"({number}, '{name}', 0)"
            session.execute(text(f"INSERT INTO users (id, name, created_at) VALUES {values}"))
        session.execute(text(experiment("a")))
    command.upgrade(config, "0035")
    with database.transaction() as session:
        session.execute(text("INSERT INTO usage VALUES (1, 1000.0, 90.0), (3, 7.0, 90.0)"))
        for number, row in enumerate(helps):
            owner, start, end, lease_end, charged = (
                "NULL" if one is None else str(one) for one in row
            )
            session.execute(
                text(
                    "INSERT INTO helps (id, experiment_id, attempt, owner_id, queue, worker, "
                    "dispatched_at, started_at, ended_at, lease_expires_at, must_stop, batches, "
                    f"folded) VALUES ({number}, '{'a' * 32}', 1, {owner}, 'cpu', 'w', 0, {start}, "
                    f"{end}, {lease_end}, false, 0, {charged})"
                )
            )
    command.upgrade(config, "head")
    with database.snapshot() as session:
        found = {one.owner_id: (one.settled_s, one.as_of) for one in session.scalars(select(Usage))}
    assert found == {1: (1000.0 + 4 + 8, 90.0), 2: (16.0 + 32, 92.0), 3: (7.0, 90.0)}


def test_no_id_of_an_event_is_given_twice(config: Config) -> None:
    database = upgraded(config, experiment("a"))
    insert = (
        "INSERT INTO events (experiment_id, at, kind, data)"
        f" VALUES ('{'a' * 32}', 0, 'status', '{{}}') RETURNING id"
    )
    with database.transaction() as session:
        first = session.scalar(text(insert))
        session.execute(text("DELETE FROM events"))
        assert session.scalar(text(insert)) > first


def test_only_the_audit_has_triggers(config: Config) -> None:
    database = upgraded(config)
    names = {
        "sqlite": "SELECT DISTINCT tbl_name FROM sqlite_master WHERE type = 'trigger'",
        "postgresql": "SELECT DISTINCT event_object_table FROM information_schema.triggers",
    }[database.engine.dialect.name]
    with database.snapshot() as session:
        assert session.scalars(text(names)).all() == ["audit"]


def test_no_run_resumes_within_a_block(config: Config) -> None:
    """Earlier versions cut it there."""
    database = Database(config.attributes["url"])
    command.upgrade(config, VERSION_0_1)
    with database.transaction() as session:
        session.execute(text("INSERT INTO users (id, name, created_at) VALUES (1, 'ann', 0)"))
        session.execute(text(experiment("a")))
    command.upgrade(config, "0045")
    with database.transaction() as session:
        session.execute(text(f"INSERT INTO series VALUES (1, '{'a' * 32}', 's', '{{}}')"))
        block = (
            "INSERT INTO blocks (series_id, first_seq, last_seq, count, x, value, std_err, n,"
            " reason, reasons) VALUES (1, :first, :last, 1, :x, :x, :x, :x, :x, '[]')"
        )
        for first, last in ((1, 4), (5, 9)):
            session.execute(text(block), {"first": first, "last": last, "x": b""})
        for after in (4, 6, 9):
            columns = {"experiment_id": "a" * 32, "attempt": 1, "file": f"{after}", "sha256": "0"}
            session.add(Checkpoint(after_seq=after, created_at=0.0, **columns))
    command.upgrade(config, "head")
    with database.snapshot() as session:
        assert sorted(session.scalars(select(Checkpoint.after_seq))) == [4, 9]
