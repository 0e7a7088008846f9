"""The database: its engine, its clock, and the two kinds of transaction."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, Float, MetaData, Table, create_engine, event, make_url
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import DeclarativeBase, Session
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

AWAY = (OperationalError, InterfaceError)
"""What is raised while the database does not answer: nothing was committed, or it is not known."""


class Base(DeclarativeBase):
    """All tables. Times are seconds since 1970 in UTC, as the database's clock tells them: one
    arithmetic on SQLite and on PostgreSQL, and no time zone to lose."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class now(FunctionElement[float]):  # reads as the SQL function it is
    """The database's clock at this statement."""

    type = Float()
    inherit_cache = True


@compiles(now, "sqlite")
def _now_sqlite(element: now, compiler: SQLCompiler, **kw: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(now, "postgresql")
def _now_postgresql(element: now, compiler: SQLCompiler, **kw: Any) -> str:
    return "extract(epoch from clock_timestamp())::float8"


class Database:
    """The engine. Store functions take a session and never commit; these two do or do not."""

    def __init__(self, url: str):
        self.engine = _engine(url)
        self._reader = _reader(self.engine)

    def close(self) -> None:
        """Close the connections that no one uses."""
        self.engine.dispose()

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """A transaction that writes: committed at the end of the block, else rolled back."""
        with Session(self.engine, expire_on_commit=False) as session, session.begin():
            yield session

    @contextmanager
    def snapshot(self) -> Iterator[Session]:
        """For reading: on SQLite a transaction that takes no lock. On PostgreSQL each statement
        sees what is committed when it begins, in a transaction or out of one."""
        with Session(self._reader, expire_on_commit=False) as session:
            yield session


def insert_new(session: Session, table: type[Base], rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows, leaving alone those whose key is there already."""
    if not rows:
        return
    assert isinstance(table.__table__, Table)
    name = session.get_bind().dialect.name
    insert = postgresql.insert if name == "postgresql" else sqlite.insert
    session.execute(insert(table.__table__).on_conflict_do_nothing(), list(rows))


def _engine(url: str) -> Engine:
    name = make_url(url).get_backend_name()
    far = name == "postgresql"  # a connection may have been lost, which a file cannot be
    engine = create_engine(
        url,
        pool_pre_ping=far,
        pool_size=THREADS,
        max_overflow=0,
        connect_args=POSTGRESQL_OPTIONS if far else {},
    )
    if name == "sqlite":
        event.listen(engine, "connect", _open_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def _reader(engine: Engine) -> Engine:
    """The same connections, for reading: without BEGIN and ROLLBACK where these are messages."""
    if engine.dialect.name == "postgresql":
        return engine.execution_options(isolation_level="AUTOCOMMIT")
    return engine.execution_options(mpt_reads=True)


THREADS = 40
"""As many as an API process has for its handlers: none waits for a connection, or closes one that
the next needs. A process opens only as many as it uses at once."""

POSTGRESQL_OPTIONS = {
    "connect_timeout": 5,
    "tcp_user_timeout": 10_000,  # a connection that no one answers is given up, in ms
    "keepalives_idle": 5,
    "options": "-c statement_timeout=60s -c lock_timeout=20s"
    " -c idle_in_transaction_session_timeout=60s",
}


def _open_sqlite(connection: Any, record: object) -> None:
    connection.isolation_level = None  # transactions begin where _begin_sqlite says so
    for pragma in (
        "journal_mode=WAL",
        "synchronous=NORMAL",
        "foreign_keys=ON",
        "busy_timeout=30000",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    """A write transaction takes the write lock at once: an upgrade from reading fails whatever
    the timeout."""
    reads = connection.get_execution_options().get("mpt_reads", False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")
