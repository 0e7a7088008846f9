"""Measure the monitoring of a store of a million experiments: a claim of `benchmarks.service`."""

import statistics
import time
from collections.abc import Iterator
from contextlib import closing

from sqlalchemy import text

from benchmarks.figures import Figure
from benchmarks.queries import asking
from service.db.engine import Database
from service.settings import Settings

EXPERIMENTS = 1_000_000
SHORT_EXPERIMENTS = 100_000
USERS = 50
LOOKS = 10
AT_ONCE = 50_000


def metrics(settings: Settings) -> Iterator[Figure]:
    """Time of a Prometheus scrape with many experiments, of which all but 2,000 have ended."""
    with closing(Database(settings.url)) as database:
        began = time.perf_counter()
        store_experiments(database, EXPERIMENTS)
        yield Figure(f"{EXPERIMENTS:,} experiments made by SQL", time.perf_counter() - began, "s")
    with asking(settings) as asker:
        first, _ = asker.ask("/metrics")
        yield Figure("/metrics, first", first, "ms")
        took = statistics.median(asker.ask("/metrics")[0] for _ in range(LOOKS))
        yield Figure("/metrics, median", took, "ms", at_most=200)


SPEC = '{"model": {"family": "ppca"}, "compute": {"device": "cpu"}}'


def store_experiments(database: Database, number: int, spec: str = SPEC) -> None:
    """Insert small experiments of 50 users: the last 2,000 are queued, 20 of them run."""
    with database.transaction() as session:
        for i in range(2, USERS + 1):
            session.execute(text("INSERT INTO users (id, name, role, created_at, disabled_at) "
                                 f"VALUES ({i}, 'user{i}', 'member', 0, NULL)"))  # fmt: skip
    for first in range(0, number, AT_ONCE):
        with database.transaction() as session:
            last = min(first + AT_ONCE, number) - 1
            numbers = {"first": first, "last": last, "number": number}
            session.execute(text(_INSERT.replace("SPEC", spec)), numbers)
    vacuum(database)


def vacuum(database: Database) -> None:
    if database.engine.dialect.name == "postgresql":  # as it does by itself in time
        with database.engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            connection.execute(text("SET statement_timeout = 0"))
            connection.execute(text("VACUUM ANALYZE"))


NUMBERS = """
WITH RECURSIVE numbers(i) AS (
    SELECT CAST(:first AS INTEGER) UNION ALL SELECT i + 1 FROM numbers WHERE i < :last
)"""
ID = "substr('00000000000000000000000000000000', 1, 32 - length(CAST(i AS VARCHAR))) || i"
_INSERT = f"""
{NUMBERS}, made AS (
    SELECT i, CASE WHEN i >= :number - 20 THEN 'running' WHEN i >= :number - 2000 THEN 'queued'
                   WHEN i % 50 = 1 THEN 'failed' WHEN i % 50 = 2 THEN 'cancelled'
                   ELSE 'succeeded' END AS status
    FROM numbers
)
INSERT INTO experiments (id, owner_id, tags, priority, spec, device, family, status, desired_state,
    held, attempt, lost, last_seq, visibility, name, failure_kind, created_at,
    started_at, finished_at, lease_expires_at)
SELECT {ID}, 1 + i % 50, '["synthetic"]', 0, 'SPEC', 'cpu', 'ppca', status, 'run',
    '', 1, 0, 0, 'private', 'run ' || CAST(i AS VARCHAR),
    CASE status WHEN 'failed' THEN 'error' END, 1e9 + i,
    CASE WHEN status <> 'queued' THEN 1e9 + i + 10 END,
    CASE WHEN status NOT IN ('queued', 'running') THEN 1e9 + i + 60 END,
    CASE status WHEN 'running' THEN 4e9 END
FROM made
"""
