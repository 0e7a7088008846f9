"""Migrations produce the schema of the models, and can be reverted."""

import json
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import inspect, select, text, update

import migrations
import service.web.main  # noqa: F401  # knows all tables
from service.accounts.keys import new_key, parse
from service.accounts.users import store_key
from service.experiments import deletion
from service.queue import quota
from service.records.recording import Batch, record
from service.records.statistics import Statistics, statistics
from service.sweeps import store as sweeps
from service.sweeps.schemas import SweepSubmission
from service.tables.datasets import Dataset
from service.tables.engine import Base, Database
from service.tables.experiments import Experiment, Status
from service.tables.requests import KeptRequest
from service.tables.sweeps import Sweep
from service.tables.users import ROLE_SCOPES, ApiKey, Role, Scope, User
from tests.support.attempts import claimed, submitted
from tests.support.invariants import bytes_agree
from tests.support.ppca_spec import ppca_spec
from tests.support.records import RECORDS


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


def test_upgrade_matches_the_models_and_downgrade_leaves_nothing(config: Config) -> None:
    database = Database(config.attributes["url"])
    for _ in range(2):
        command.upgrade(config, "head")
        with database.engine.connect() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            assert compare_metadata(context, Base.metadata) == []
        command.downgrade(config, "base")
        assert set(inspect(database.engine).get_table_names()) <= {"alembic_version"}


def test_stored_data_survive_the_migrations(config: Config) -> None:
    database = Database(config.attributes["url"])
    command.upgrade(config, "0001")
    rows = [
        "INSERT INTO users (id, name, created_at) VALUES (1, 'u', 0)",
        "INSERT INTO experiments (id, owner_id, tags, priority, spec, status, desired_state,"
        " dispatch_no, attempt, lost, created_at, last_seq)"
        " VALUES ('a', 1, '[]', 0, '{\"compute\": {\"device\": \"cuda\"}}', 'queued', 'run',"
        " 0, 0, 0, 0, 0)",
        "INSERT INTO series (id, experiment_id, name, labels) VALUES (1, 'a', 'score', '{}')",
    ]
    with database.transaction() as session:
        for row in rows:
            session.execute(text(row))
    for revision in ("head", "0001", "head"):
        move = command.upgrade if revision == "head" else command.downgrade
        move(config, revision)
        with database.snapshot() as session:
            joined = "SELECT count(*) FROM series JOIN experiments e ON e.id = experiment_id"
            assert session.scalar(text(joined)) == 1
            if revision == "head":
                assert session.scalar(text("SELECT device FROM experiments")) == "cuda"


def test_uploads_of_the_same_bytes_stay_apart(config: Config) -> None:
    """Made before they were one: specs name each of them."""
    database = Database(config.attributes["url"])
    command.upgrade(config, "0007")
    with database.transaction() as session:
        session.execute(text("INSERT INTO users (id, name, created_at) VALUES (1, 'u', 0)"))
        for name, sha256 in (("a", "x"), ("b", "x"), ("c", "y"), ("d", "x")):
            columns = "id, owner_id, name, format, bytes, sha256, n, created_at"
            values = f"'{name}', 1, 'x', 'npy', 1, '{sha256}', 1, 0"
            session.execute(text(f"INSERT INTO datasets ({columns}) VALUES ({values})"))
    command.upgrade(config, "head")
    with database.snapshot() as session:
        found = session.execute(text("SELECT id, copy FROM datasets ORDER BY id"))
        assert [tuple(row) for row in found] == [("a", 0), ("b", 1), ("c", 0), ("d", 2)]
    command.downgrade(config, "0007")


def test_existing_users_and_keys_keep_their_permissions(config: Config) -> None:
    """The local user's all, as the first admin; and back, no key does more than it may."""
    database = Database(config.attributes["url"])
    command.upgrade(config, "0010")
    with database.transaction() as session:
        for number, name in ((1, "local"), (2, "ann")):
            user = f"({number}, '{name}', 0)"
            session.execute(text(f"INSERT INTO users (id, name, created_at) VALUES {user}"))
            key = "INSERT INTO api_keys (id, user_id, secret_sha256, created_at) VALUES"
            session.execute(text(f"{key} ('{name}', {number}, '', 0)"))
    command.upgrade(config, "head")
    with database.transaction() as session:
        roles = {user.name: user.role for user in session.scalars(select(User))}
        assert roles == {"local": Role.ADMIN, "ann": Role.MEMBER}
        keys = {key.id: set(key.scopes) for key in session.scalars(select(ApiKey))}
        assert keys == {"local": {*Scope}, "ann": {*ROLE_SCOPES[Role.MEMBER]}}
        local = session.scalars(select(User).where(User.name == "local")).one()
        store_key(session, local, (limited := new_key()), [Scope.READ])
        store_key(session, local, (brief := new_key()), ROLE_SCOPES[Role.MEMBER], lasts_s=60.0)
    command.downgrade(config, "0010")
    with database.snapshot() as session:
        revoked = session.scalars(text("SELECT id FROM api_keys WHERE revoked_at IS NOT NULL"))
        assert set(revoked) == {parse(limited)[0], parse(brief)[0]}


def test_existing_bytes_are_counted(config: Config) -> None:
    """The bytes count like records that the experiment gets later."""
    database = Database(config.attributes["url"])
    command.upgrade(config, "head")
    with database.transaction() as session:
        session.add(User(id=1, name="u"))
    claim = claimed(database)
    batch = Batch()
    for one in RECORDS:
        batch.add(dict(one))
    with database.transaction() as session:
        record(session, claim, batch, 60)
        sweeps.add(session, sweep_of(1))
        session.add(Dataset(**DATASET))
        quota.note(session, 1, DATASET["bytes"])
        before = quota.kept(session, 1)
    command.downgrade(config, "0022")
    command.upgrade(config, "head")
    with database.snapshot() as session:
        assert quota.kept(session, 1) == before > 0
        assert bytes_agree(session)


DATASET: dict[str, Any] = {"id": "d", "owner_id": 1, "name": "rows", "format": "npy", "bytes": 7,
                           "sha256": "0", "n": 1}  # fmt: skip


def sweep_of(owner_id: int) -> Sweep:
    grid = {"spec": ppca_spec(), "grid": {"seeds": [[1], [2]]}}
    return sweeps.new(owner_id, SweepSubmission.model_validate(grid))


def test_counters_are_filled_from_existing_rows(config: Config) -> None:
    """They are computed from existing experiments and from the stored usage of purged ones."""
    database = Database(config.attributes["url"])
    command.upgrade(config, "head")
    with database.transaction() as session:
        session.add(User(id=1, name="u"))
    for number, (status, kind, started_at) in enumerate((
        (Status.SUCCEEDED, None, 110.0),
        (Status.FAILED, "oom", 120.0),
        (Status.FAILED, "error", 140.0),
        (Status.CANCELLED, None, None),
        (Status.QUEUED, None, None),
    )):  # fmt: skip
        one = submitted(database)
        finished_at = None if status == Status.QUEUED else 200.0
        columns = {"status": status, "failure_kind": kind, "lost": number, "created_at": 100.0,
                   "started_at": started_at, "finished_at": finished_at}  # fmt: skip
        with database.transaction() as session:
            session.execute(update(Experiment).where(Experiment.id == one).values(**columns))
            if kind == "error":
                deletion.remove_ended(session, [one])
                assert deletion.purge(session, one)
    there = (Status.SUCCEEDED, Status.FAILED, Status.CANCELLED, Status.QUEUED)
    expected = Statistics(
        by_status=Counter(dict.fromkeys(Status, 0) | dict.fromkeys(there, 1)),
        failures=Counter({"oom": 1, "error": 1}),
        lost=0 + 1 + 2 + 3 + 4, waits=3, waits_s=10.0 + 20.0 + 40.0, runs=3,
        runs_s=90.0 + 80.0 + 60.0,
    )  # fmt: skip
    for _ in range(2):
        with database.transaction() as session:
            assert statistics(session) == expected
        command.downgrade(config, "0021")
        command.upgrade(config, "head")


def test_idempotency_keys_are_moved_and_back(config: Config) -> None:
    """Keys of experiments, retries, batches and sweeps move; counters go on counting."""
    database = Database(config.attributes["url"])
    command.upgrade(config, "0025")
    one, again, gone, plain, sweep = (letter * 32 for letter in "abcds")
    batch = f'[{{"id": "{plain}", "url": "/v1/experiments/{plain}", "cached_from": null}}]'
    columns = (
        "id, owner_id, tags, priority, spec, device, family, status, desired_state, dispatch_no, "
        "attempt, lost, created_at, last_seq, idempotency_key, submission_sha256, retry_of, "
        "deleted_at"
    )

    def values(id: str, key: str, retry_of: str = "NULL", deleted_at: str = "NULL") -> str:
        return (
            f"('{id}', 1, '[]', 0, '{{}}', 'cpu', 'ppca', 'queued', 'run', 0, 0, 0, 7.0, 0, {key}, "
            f"'x', {retry_of}, {deleted_at})"
        )

    rows = (
        values(one, "'k1'"),
        values(again, "'k2'", f"'{one}'"),
        values(gone, "'k3'", deleted_at="1.0"),
        values(plain, "NULL"),
    )
    requests = "INSERT INTO requests (owner_id, idempotency_key, sha256, made, created_at) VALUES"
    with database.transaction() as session:
        session.execute(text("INSERT INTO users (id, name, created_at) VALUES (1, 'u', 0)"))
        for row in rows:
            session.execute(text(f"INSERT INTO experiments ({columns}) VALUES {row}"))
        for key, made in (("k3", batch), ("k4", f'["{sweep}"]'), ("k5", '["6"]')):
            values_of = {"key": key, "made": made}
            session.execute(text(f"{requests} (1, :key, 'y', :made, 5)"), values_of)
    command.upgrade(config, "0026")
    with database.transaction() as session:
        found = {row.idempotency_key: row for row in session.scalars(select(KeptRequest))}
        assert {key: (row.sha256, row.made) for key, row in found.items()} == {
            "k1": ("POST /v1/experiments", [{"id": one, "cached_from": None}]),
            "k2": (f"POST /v1/experiments/{one}:retry", [{"id": again, "cached_from": None}]),
            "k3": ("POST /v1/experiments:batch", json.loads(batch)),
            "k4": ("POST /v1/sweeps", [sweep, 0]),
            "k5": ("y", ["6"]),
        }
        assert (found["k1"].created_at, found["k4"].created_at) == (7.0, 5.0)
        old_bytes = len(batch) + len(f'["{sweep}"]["6"]')
        new_bytes = sum(len(json.dumps(row.made)) for row in found.values())
        assert quota.kept(session, 1) == new_bytes - old_bytes
        session.execute(text(f"UPDATE experiments SET status = 'failed' WHERE id = '{one}'"))
        session.execute(text(f"UPDATE experiments SET deleted_at = 8.0 WHERE id = '{again}'"))
    command.downgrade(config, "0025")
    with database.transaction() as session:
        session.execute(text(f"UPDATE experiments SET status = 'failed' WHERE id = '{again}'"))
        assert session.scalar(text("SELECT sum(number) FROM tallies WHERE status = 'failed'")) == 2
        keys = "SELECT id, idempotency_key FROM experiments WHERE idempotency_key IS NOT NULL"
        assert {row.id: row.idempotency_key for row in session.execute(text(keys))} == {
            one: "k1",
        }
        left = {row.idempotency_key: row.made for row in session.scalars(select(KeptRequest))}
        assert left == {"k3": json.loads(batch), "k4": [sweep], "k5": ["6"]}
        assert quota.kept(session, 1) == 0
