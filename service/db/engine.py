"""The database: engine, clock, and the two kinds of transaction."""

import json
import math
import os
import re
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, overload

from psycopg.pq import Format
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Dialect,
    Engine,
    Float,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    TextClause,
    TypeDecorator,
    bindparam,
    create_engine,
    event,
    make_url,
    select,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import ExceptionContext, ExecutionContext
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnectionFree
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import DeclarativeBase, InstrumentedAttribute, Session
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine

from service import timings
from service.db.errors import DISK_FULL, TRANSIENT_DB_ERRORS, by_nature, write_trouble
from service.db.revisions import WrongEncoding, require_this_version

MIN_FREE_BYTES = 1 << 20
"""Minimum free bytes on the disk of an SQLite database. With less, its transactions soon fail."""


TIMEOUTS = "-c statement_timeout=60s -c lock_timeout=20s -c idle_in_transaction_session_timeout=60s"
STATEMENT_S = 60.0
"""Time limit of a statement on SQLite, as PostgreSQL's."""
BUSY_S = 30.0
"""Maximum seconds that a write waits for others on SQLite."""
LIMIT_STEPS = 10_000
"""Steps of SQLite between two looks at the clock."""
NO_TIMEOUTS = "-c statement_timeout=0 -c lock_timeout=0 -c idle_in_transaction_session_timeout=0"
"""Options for migrations, which may take any time."""


class Base(DeclarativeBase):
    """Base of all tables. Times are seconds since 1970 in UTC by the database's clock, so that
    arithmetic is the same on SQLite and PostgreSQL and needs no time zones."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


LargeId = BigInteger().with_variant(Integer, "sqlite")
"""Ids of rows that are inserted several times a second: of 32 bits they would be used up within
months. SQLite's integers have 64 bits."""


def partial_index(name: str, columns: Sequence[str | TextClause], where: str) -> Index:
    """Return an index of the rows that meet a condition, on either database."""
    return Index(name, *columns, sqlite_where=text(where), postgresql_where=text(where))


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


class _Ids(TypeDecorator[Sequence[str]]):
    """A list of ids as one parameter."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(
            postgresql.ARRAY(Text()) if dialect.name == "postgresql" else Text()
        )

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return [*value] if dialect.name == "postgresql" else json.dumps([*value])


class _AnyOf(FunctionElement[bool]):
    """The operator and the right side of `among`."""

    inherit_cache = True


@compiles(_AnyOf, "sqlite")
def _any_of_sqlite(element: _AnyOf, compiler: SQLCompiler, **kw: Any) -> str:
    return f"IN (SELECT value FROM json_each({compiler.process(element.clauses, **kw)}))"


@compiles(_AnyOf, "postgresql")
def _any_of_postgresql(element: _AnyOf, compiler: SQLCompiler, **kw: Any) -> str:
    return f"= ANY ({compiler.process(element.clauses, **kw)})"


def among(
    column: ColumnElement[str] | InstrumentedAttribute[str],
    ids: Iterable[str] | None = None,
    *,
    key: str | None = None,
) -> ColumnElement[bool]:
    """Return the condition that a column has one of these ids, of which there may be any number: a
    parameter for each, as of `in_`, would exceed the limit of the drivers (65,535). With `key` the
    ids are given when the statement is executed."""
    given = None if ids is None else [*ids]
    found = bindparam(key, type_=_Ids()) if given is None else bindparam(None, given, type_=_Ids())
    # A boolean function instead would be compared with 1 on SQLite, and no index would be used.
    return column.op("", is_comparison=True)(_AnyOf(found))


class Database:
    """The engine. Store functions receive a session and never commit; `transaction` commits,
    `snapshot` does not."""

    def __init__(self, url: str, connections: int = 2, timeouts: str = TIMEOUTS):
        """Open at most `connections` at once and keep them open, for a loop with one or two
        threads. `timeouts` are PostgreSQL's; NO_TIMEOUTS lifts the limit of SQLite's statements
        too."""
        self.engine = _engine(url, connections, timeouts)
        self._reader = _reader(self.engine)
        self._writing = threading.Lock()
        self._trouble: str | None = None
        event.listen(self.engine, "handle_error", self._note_trouble)

    def close(self) -> None:
        """Close unused connections."""
        self.engine.dispose()

    def check_tables(self) -> None:
        """Raises NotMigrated if the tables have another version, or lack a table or a column that
        this process knows."""
        self.check_revision()
        with self.snapshot() as session:
            for table in Base.metadata.sorted_tables:
                session.execute(select(table).limit(0))

    def check_revision(self) -> None:
        """Raises NotMigrated, OlderTables or NewerTables if the tables are not this version's."""
        with self.snapshot() as session:
            revision = session.scalar(_REVISION)
        require_this_version(revision)

    def check_encoding(self) -> None:
        """Raises WrongEncoding if the database cannot store all text."""
        if self.engine.dialect.name == "postgresql":
            with self.snapshot() as session:
                encoding = session.scalar(text("SHOW server_encoding"))
            if encoding != "UTF8":
                raise WrongEncoding(str(encoding), str(self.engine.url.database))

    def check_writable(self) -> str | None:
        """Return the known reason why nothing can be written: the last write failed and so does
        another one, or the disk of an SQLite database is full."""
        path = self.engine.url.database
        if self.engine.dialect.name == "sqlite" and path:
            if shutil.disk_usage(os.path.dirname(path)).free < MIN_FREE_BYTES:
                return DISK_FULL
        if self._trouble is not None:
            try:
                with self.transaction() as session:
                    for statement in _PROBE[self.engine.dialect.name]:
                        session.execute(statement)
            except TRANSIENT_DB_ERRORS as error:
                return write_trouble(error) or "the database does not answer"
        return self._trouble

    def _note_trouble(self, context: ExceptionContext) -> None:
        if isinstance(context.sqlalchemy_exception, DBAPIError):
            self._trouble = write_trouble(context.sqlalchemy_exception) or self._trouble

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """Begin a transaction that writes. It is committed at the end of the block, or rolled back
        on an error."""
        with self._turn_to_write(), Session(self.engine, expire_on_commit=False) as session:
            with session.begin():
                yield session
                session.flush()
                began = time.perf_counter()
            timings.add("database", time.perf_counter() - began)
            self._trouble = None

    @contextmanager
    def _turn_to_write(self) -> Iterator[None]:
        """Wait until no other thread writes to SQLite, which lets one write at a time: its own wait
        is a poll, up to every 100 ms, which late comers often win. Raises NoConnectionFree."""
        if self.engine.dialect.name != "sqlite":
            yield
            return
        with timings.timed("database"):
            if not self._writing.acquire(timeout=BUSY_S):
                raise NoConnectionFree(f"other threads have been writing for {BUSY_S:g} s")
        try:
            yield
        finally:
            self._writing.release()

    @contextmanager
    def snapshot(self) -> Iterator[Session]:
        """Begin a read. On SQLite it is a transaction without a lock. On PostgreSQL each statement
        sees the data committed before it begins, inside or outside a transaction."""
        with Session(self._reader, expire_on_commit=False) as session:
            yield session


_REVISION = text("SELECT max(version_num) FROM alembic_version")

_WRITE = text("UPDATE alembic_version SET version_num = version_num")
_PROBE = {
    "postgresql": (
        text("CREATE TEMP TABLE probe ON COMMIT DROP AS SELECT generate_series(1, 10000)"),
        _WRITE,
    ),
    "sqlite": (
        text("CREATE TABLE probe AS SELECT zeroblob(1000000)"),
        text("DROP TABLE probe"),
        _WRITE,
    ),
}
"""Statements that need a megabyte or so of free space, and change nothing."""


def insert_new(
    session: Session,
    table: type[Base],
    rows: Sequence[dict[str, Any]],
) -> None:
    """Insert rows, and skip those whose key exists."""
    if not rows:
        return
    assert isinstance(table.__table__, Table)
    name = session.get_bind().dialect.name
    insert = postgresql.insert if name == "postgresql" else sqlite.insert
    session.execute(insert(table.__table__).on_conflict_do_nothing(), list(rows))


def _engine(url: str, connections: int, timeouts: str) -> Engine:
    name = make_url(url).get_backend_name()
    far = name == "postgresql"  # a connection may have been lost, which a file cannot be
    engine = create_engine(
        url,
        json_serializer=_storable_json,
        pool_pre_ping=far,
        poolclass=TimedPool,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=10,
        connect_args={**POSTGRESQL_OPTIONS, "options": timeouts} if far else {},
    )
    event.listen(engine, "handle_error", by_nature)
    event.listen(engine, "before_cursor_execute", _begin_timing)
    event.listen(engine, "after_cursor_execute", _end_timing)
    event.listen(engine, "before_cursor_execute", _with_storable_text, retval=True)
    if far:
        event.listen(engine, "before_cursor_execute", _in_binary)
    if name == "sqlite":
        event.listen(engine, "connect", _open_sqlite)
        if timeouts != NO_TIMEOUTS:
            event.listen(engine, "connect", _limit_sqlite)
            event.listen(engine, "checkin", _lift_limit)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


class TimedPool(QueuePool):
    """Pool that records how long a request waits for a connection."""

    def _do_get(self) -> ConnectionPoolEntry:
        with timings.timed("connection"):
            return super()._do_get()


def _begin_timing(connection: Connection, *_: object) -> None:
    connection.info["began"] = time.perf_counter()


def _end_timing(connection: Connection, *_: object) -> None:
    timings.add("database", time.perf_counter() - connection.info["began"])


UNSTORABLE = re.compile("[\0\ud800-\udfff]")
"""PostgreSQL cannot store NUL. Half of a surrogate pair has no UTF-8 encoding."""


def storable(value: Any) -> Any:
    """Replace characters in text or JSON that cannot be stored by U+FFFD."""
    match value:
        case str():
            return UNSTORABLE.sub("\ufffd", value)
        case dict():
            return {storable(key): storable(part) for key, part in value.items()}
        case list() | tuple():
            return type(value)(storable(part) for part in value)
    return value


def _storable_json(value: Any) -> str:
    text = json.dumps(value)
    suspect = "\\u0000" in text or "\\ud" in text
    return json.dumps(storable(value)) if suspect else text


def _with_storable_text(
    connection: Connection, cursor: object, statement: str, parameters: Any, *_: object
) -> tuple[str, Any]:
    """Replace such characters in all text of a statement. Crashing runners, libraries and file
    names may contain them."""
    return statement, storable(parameters)


IN_BINARY = {"mpt_in_binary": True}
"""Execution options for statements that read much binary data. PostgreSQL's text format needs twice
the bytes and time."""


def _in_binary(
    connection: Connection,
    cursor: Any,
    statement: str,
    parameters: Any,
    context: ExecutionContext | None,
    many: bool,
) -> None:
    if context is not None and context.execution_options.get("mpt_in_binary"):
        cursor.format = Format.BINARY


def _reader(engine: Engine) -> Engine:
    """Return an engine for reading that shares the connections and sends no BEGIN or ROLLBACK to
    PostgreSQL."""
    if engine.dialect.name == "postgresql":
        return engine.execution_options(isolation_level="AUTOCOMMIT")
    return engine.execution_options(mpt_reads=True)


POSTGRESQL_OPTIONS = {
    "client_encoding": "utf8",  # else psycopg gives bytes for the text of an SQL_ASCII database
    "connect_timeout": 5,
    "tcp_user_timeout": 10_000,  # timeout of a connection without an answer, in ms
    "keepalives_idle": 5,
}


def _open_sqlite(connection: Any, record: object) -> None:
    connection.isolation_level = None  # transactions begin where _begin_sqlite says so
    connection.create_function("power", 2, pow, deterministic=True)  # not every SQLite has it
    for pragma in (
        "journal_mode=WAL",
        "synchronous=FULL",  # committed data are on the disk
        "foreign_keys=ON",
        f"busy_timeout={1000 * BUSY_S:.0f}",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _limit_sqlite(connection: Any, record: ConnectionPoolEntry) -> None:
    """Interrupt statements that take too long. A filter may read all specs of a user."""

    def is_over() -> bool:
        began: float = record.info.get("began", math.inf)
        limit_s: float = record.info.get("limit_s", STATEMENT_S)
        return time.perf_counter() - began > limit_s

    connection.set_progress_handler(is_over, LIMIT_STEPS)


def hold_still(session: Session) -> None:
    """Make all reads of this session see the same snapshot. Otherwise a run that is requeued
    between two reads would remove records. Call it before the first read. On SQLite every snapshot
    is consistent."""
    if session.get_bind().dialect.name == "postgresql":
        session.connection(execution_options={"isolation_level": "REPEATABLE READ"})


def limit_statements(session: Session, seconds: float) -> None:
    """Limit the time of a reading session's statements, until it ends, and make them see the same
    snapshot. Call it before the first one."""
    hold_still(session)
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text(f"SET LOCAL statement_timeout = {round(1000 * seconds)}"))
    else:
        session.connection().info["limit_s"] = seconds


def limit_hanging(session: Session) -> None:
    """Let PostgreSQL end this transaction if it does nothing for 3 s: others wait for its locks."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("SET LOCAL idle_in_transaction_session_timeout = '3s'"))


def _lift_limit(connection: Any, record: ConnectionPoolEntry) -> None:
    record.info.pop("limit_s", None)


def _begin_sqlite(connection: Connection) -> None:
    """Take the write lock when a write transaction begins. Upgrading a read transaction would fail
    for every timeout."""
    reads = connection.get_execution_options().get("mpt_reads", False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


@overload
def moment(seconds: float) -> datetime: ...
@overload
def moment(seconds: float | None) -> datetime | None: ...
def moment(seconds: float | None) -> datetime | None:
    """Convert a time of the database to a date with a time zone."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
