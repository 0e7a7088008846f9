"""Migrations lead to what the models say, and back."""

import uuid
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import inspect, select, text

import migrations
from service import quota
from service.database import Base, Database
from service.experiments.recording import Batch, record
from service.keys import new_key, parse
from service.users import MAY, ApiKey, Role, Scope, User, store_key
from tests.support.attempts import claimed
from tests.support.invariants import bytes_agree
from tests.support.records import RECORDS


@pytest.fixture(params=["sqlite", "postgresql"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Config:
    """Of an empty database."""
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


def test_up_finds_no_difference_and_down_leaves_nothing(config: Config) -> None:
    database = Database(config.attributes["url"])
    for _ in range(2):
        command.upgrade(config, "head")
        with database.engine.connect() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            assert compare_metadata(context, Base.metadata) == []
        command.downgrade(config, "base")
        assert set(inspect(database.engine).get_table_names()) <= {"alembic_version"}


def test_what_is_stored_survives(config: Config) -> None:
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


def test_users_and_keys_of_before_may_what_they_could(config: Config) -> None:
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
        assert keys == {"local": {*Scope}, "ann": {*MAY[Role.MEMBER]}}
        local = session.scalars(select(User).where(User.name == "local")).one()
        store_key(session, local, (limited := new_key()), [Scope.READ])
        store_key(session, local, (brief := new_key()), MAY[Role.MEMBER], lasts_s=60.0)
    command.downgrade(config, "0010")
    with database.snapshot() as session:
        revoked = session.scalars(text("SELECT id FROM api_keys WHERE revoked_at IS NOT NULL"))
        assert set(revoked) == {parse(limited)[0], parse(brief)[0]}


def test_bytes_of_before_are_counted(config: Config) -> None:
    """As the records of an experiment are from then on."""
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
        before = quota.kept(session, 1)
    command.downgrade(config, "0022")
    command.upgrade(config, "head")
    with database.snapshot() as session:
        assert quota.kept(session, 1) == before > 0
        assert bytes_agree(session)
