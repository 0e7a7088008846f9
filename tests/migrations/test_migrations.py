"""Migrations produce the tables of the models, keep what version 0.2 stored, and refuse others."""

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import inspect, text

import migrations
import service.app  # noqa: F401  # knows all tables
from service.db.engine import Base, Database
from service.db.revisions import FIRST, OlderTables
from service.operations import backup
from service.operations.backup import BackupFailed
from service.operations.prepare import migrate, prepare
from service.settings import Settings
from tests.support.archived_labs import empty_lab, put_in_place, unpack
from tests.support.forks import fork
from tests.support.processes import environment

DESCENDING = ("ix_experiments_startable_cpu", "ix_experiments_startable_gpu")
EARLIER = ("version_0_2", "revision_0050", "revision_0051")
"""Archives of earlier versions whose tables are carried over."""


@pytest.fixture(params=["sqlite", "postgresql"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def empty(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Settings:
    """Settings of an empty database, and of a store that does not exist."""
    return empty_lab(kind, tmp_path / "store", request, monkeypatch)


@pytest.fixture(params=["new", *EARLIER])
def migrated(
    request: pytest.FixtureRequest, kind: str, empty: Settings, tmp_path: Path
) -> Iterator[Database]:
    """A database that was migrated from nothing, or from the tables of an earlier version."""
    if request.param == "new":
        empty.store.mkdir()
    else:
        put_in_place(unpack(request.param, kind, tmp_path / "backup"), empty)
    migrate(empty.url)
    with closing(Database(empty.url)) as database:
        yield database


@pytest.fixture
def old(kind: str, empty: Settings, tmp_path: Path) -> Settings:
    """A lab of version 0.2."""
    put_in_place(unpack("version_0_2", kind, tmp_path / "backup"), empty)
    return empty


INDEXES_AND_TRIGGERS = {
    "sqlite": "SELECT sql FROM sqlite_master WHERE type IN ('index', 'trigger')",
    "postgresql": "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' UNION ALL "
    "SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal",
}


def schema(database: Database) -> tuple[dict[str, Any], set[str]]:
    """Return the columns and keys of all tables, and the definitions of indexes and triggers. The
    order of columns is left out."""
    reflected = inspect(database.engine)
    tables = {
        table: (
            {
                column["name"]: (
                    str(column["type"]), column["nullable"], (column["default"] or "").strip("()")
                )
                for column in reflected.get_columns(table)
            },
            reflected.get_pk_constraint(table),
            sorted(map(str, reflected.get_foreign_keys(table))),
            sorted(map(str, reflected.get_unique_constraints(table))),
        )
        for table in reflected.get_table_names()
    }  # fmt: skip
    with database.snapshot() as session:
        statement = INDEXES_AND_TRIGGERS[database.engine.dialect.name]
        return tables, set(session.scalars(text(statement)))


def rows(database: Database) -> dict[str, list[str]]:
    with database.snapshot() as session:
        return {
            table: sorted(map(str, session.execute(text(f"SELECT * FROM {table}"))))
            for table in inspect(database.engine).get_table_names()
        }


def test_migrated_tables_are_those_of_the_models(migrated: Database) -> None:
    assert differences(migrated) == []


def differences(database: Database) -> list[Any]:
    """Return the differences between the tables and the models."""
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        found: list[Any] = compare_metadata(context, Base.metadata)
        if connection.dialect.name == "sqlite":  # which does not report the order of columns
            found = [one for one in found if one[1].name not in DESCENDING]
        for table in Base.metadata.sorted_tables:  # whose keys autogenerate does not compare
            key = inspect(connection).get_pk_constraint(table.name)["constrained_columns"]
            if set(key) != {column.name for column in table.primary_key}:
                found.append(("primary key", table.name))
    return found


def configured(settings: Settings) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.attributes["url"] = settings.url
    return config


def test_down_ends_at_the_first_revision(empty: Settings) -> None:
    empty.store.mkdir()
    config = configured(empty)
    command.upgrade(config, "head")
    command.downgrade(config, FIRST)
    with pytest.raises(NotImplementedError, match="restore its backup"):
        command.downgrade(config, "base")
    command.upgrade(config, "head")
    with closing(Database(empty.url)) as database:
        assert differences(database) == []


def test_what_was_open_to_a_project_is_private_without_projects(old: Settings) -> None:
    migrate(old.url)
    with closing(Database(old.url)) as database:
        with database.transaction() as session:
            session.execute(text("UPDATE experiments SET visibility = 'project'"))
        command.downgrade(configured(old), "0052")
        with database.snapshot() as session:
            kinds = {*session.scalars(text("SELECT visibility FROM experiments"))}
            assert kinds == {"private"}


@pytest.mark.parametrize("version", EARLIER)
def test_tables_that_are_carried_over_equal_new_ones(
    kind: str,
    version: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    earlier, new = (
        empty_lab(kind, tmp_path / name, request, monkeypatch) for name in ("earlier", "new")
    )
    put_in_place(unpack(version, kind, tmp_path / "backup"), earlier)
    new.store.mkdir()
    for settings in (earlier, new):
        migrate(settings.url)
    with closing(Database(earlier.url)) as carried, closing(Database(new.url)) as made:
        assert schema(carried) == schema(made)


def test_no_id_of_an_event_is_given_twice(migrated: Database) -> None:
    experiment = (
        "INSERT INTO experiments (id, owner_id, tags, priority, spec, device, family, status,"
        " desired_state, attempt, lost, created_at, last_seq) VALUES ('a', 1, '[]', 0, '{}', 'cpu',"
        " 'ppca', 'queued', 'run', 0, 0, 0, 0)"
    )
    insert = (
        "INSERT INTO events (experiment_id, at, kind, data)"
        " VALUES ('a', 0, 'status', '{}') RETURNING id"
    )
    with migrated.transaction() as session:
        user = "INSERT INTO users (id, name, created_at) VALUES (1, 'a', 0) ON CONFLICT DO NOTHING"
        for statement in (user, experiment):
            session.execute(text(statement))
        first = session.scalar(text(insert))
        session.execute(text("DELETE FROM events"))
        assert session.scalar(text(insert)) > first


def test_only_the_audit_has_triggers(migrated: Database) -> None:
    names = {
        "sqlite": "SELECT DISTINCT tbl_name FROM sqlite_master WHERE type = 'trigger'",
        "postgresql": "SELECT DISTINCT event_object_table FROM information_schema.triggers",
    }[migrated.engine.dialect.name]
    with migrated.snapshot() as session:
        assert session.scalars(text(names)).all() == ["audit"]
        assert session.execute(text("SELECT id, holder FROM controller")).all() == [(1, "")]


def content(settings: Settings) -> tuple[dict[str, list[str]], dict[str, bytes]]:
    """Return all rows and all files of a lab, without those of the database."""
    files = {
        str(path): path.read_bytes()
        for path in settings.store.rglob("*")
        if path.is_file() and "sqlite3" not in path.name
    }
    with closing(Database(settings.url)) as database:
        return rows(database), files


LEADS_THERE = ("First run the `mpt migrate` of commit b6a2762a", "Or start the version")


@pytest.mark.parametrize(
    ("revision", "name", "remedies"),
    [
        ("0008", "version 0.1", LEADS_THERE),
        ("0018", "a development version", ("Start the version that made them",)),
        ("0049", "a development version", LEADS_THERE),
    ],
)
def test_tables_of_other_earlier_versions_are_refused_and_not_changed(
    old: Settings, tmp_path: Path, revision: str, name: str, remedies: Sequence[str]
) -> None:
    """`mpt migrate` and the start of a process name the revision and the remedy."""
    with closing(Database(old.url)) as database, database.transaction() as session:
        session.execute(text(f"UPDATE alembic_version SET version_num = '{revision}'"))
    before = content(old)
    output = tmp_path / "output"
    assert fork(["migrate"], environment(old), output).wait(30) == 1
    for words in (
        f"revision {revision} ({name})",
        "nothing was changed",
        "`mpt bundle`",
        *remedies,
    ):
        assert words in output.read_text()
    assert "Traceback" not in output.read_text()
    assert content(old) == before
    with closing(Database(old.url)) as database, pytest.raises(OlderTables):
        database.check_tables()


def test_a_backup_of_another_earlier_version_is_refused(tmp_path: Path) -> None:
    saved = unpack("version_0_2", "sqlite", tmp_path / "backup")
    with closing(Database(f"sqlite:///{saved / 'database.sqlite3'}")) as database:
        with database.transaction() as session:
            session.execute(text("UPDATE alembic_version SET version_num = '0008'"))
    with pytest.raises(BackupFailed, match="revision 0008"):
        backup.restore(Settings(store=tmp_path / "store", database_url=None), saved)


def test_mpt_serve_names_the_revision_that_it_refuses(tmp_path: Path) -> None:
    settings = Settings(store=tmp_path / "store", database_url=None)
    put_in_place(unpack("version_0_2", "sqlite", tmp_path / "backup"), settings)
    with closing(Database(settings.url)) as database, database.transaction() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '0008'"))
    output = tmp_path / "output"
    assert fork(["serve", "--port", "0"], environment(settings), output).wait(60) == 1
    assert "revision 0008 (version 0.1)" in output.read_text()


KILLED = """
import os, signal
from sqlalchemy import Engine, event
from service.operations import prepare
statements = 0
@event.listens_for(Engine, "before_cursor_execute")
def kill(connection, cursor, statement, *_):
    global statements
    statements += {words!r} in statement
    if statements == {number}:
        os.kill(os.getpid(), signal.SIGKILL)
prepare.main()
"""


def kill_migration(settings: Settings, words: str, number: int) -> None:
    """Run `mpt migrate`, and kill it before the statement of that number with these words."""
    code = KILLED.format(words=words, number=number)
    killed = subprocess.run([sys.executable, "-c", code], env=environment(settings), check=False)
    assert killed.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("words", "number"),
    [("CREATE TABLE", 3), ("CREATE INDEX", 9), ("DROP TABLE", 3), ("UPDATE alembic_version", 1)],
)
def test_a_migration_that_was_killed_is_completed_by_the_next(
    old: Settings, words: str, number: int
) -> None:
    """Nothing of the first one is left: it is one transaction."""
    before = content(old)
    kill_migration(old, words, number)
    assert content(old) == before
    migrate(old.url)
    with closing(Database(old.url)) as database:
        assert differences(database) == []


@pytest.mark.parametrize(
    ("words", "number"), [("CREATE TABLE", 9), ("INSERT INTO alembic_version", 1)]
)
def test_a_store_whose_first_migration_was_killed_is_made_by_the_next(
    empty: Settings, words: str, number: int
) -> None:
    kill_migration(empty, words, number)
    prepare(empty)
    with closing(Database(empty.url)) as database:
        assert differences(database) == []
    assert empty.key_file.exists()
