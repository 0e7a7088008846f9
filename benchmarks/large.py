"""Time each query in a store of many experiments and points: a claim of `benchmarks.service`."""

import json
import re
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from typing import Any

import numpy as np
from fastapi.testclient import TestClient
from sqlalchemy import event, insert, text

from benchmarks import scale
from benchmarks.figures import Figure
from benchmarks.queries import FILTERS, SMALL
from benchmarks.scale import ID, NUMBERS, vacuum
from service.app import create_app
from service.db.engine import Database
from service.events.changes import Changes
from service.experiments import deletion
from service.experiments.models import Queue
from service.operations import retention
from service.queue import claims, clock, lease, ledger, quota, sizes, worker_samples, workers
from service.queue.memory import learned_ratio
from service.records.recording import Batch, record
from service.settings import Settings
from service.sweeps.models import Sweep, SweepPoint
from service.vocabulary import Status
from service.webhooks import store as webhooks
from tests.support.records import point

POINTS = 20_000_000
SERIES = 2
"""Series of each experiment. Each has one block."""
LOOKS = 3
AT_MOST_MS = 200
SWEPT = 10_000
"""Points of a sweep."""
BIG = ("experiments", "series", "blocks", "metrics", "events", "attempts", "artifacts", "audit")
SWEEP = f"{7:032x}"
Work = Callable[[], object]


def large(settings: Settings) -> Iterator[Figure]:
    """Each query of the service, its slowest statement, and which tables are read as a whole."""
    with closing(Database(settings.url, timeouts="")) as database:
        began = time.perf_counter()
        store(database)
        took = time.perf_counter() - began
        yield Figure(f"{scale.EXPERIMENTS:,} experiments, {POINTS:,} points", took, "s")
    yield from looks(settings)


def looks(settings: Settings) -> Iterator[Figure]:
    """Measure on a store that is filled."""
    app = create_app(settings)
    key = settings.key_file.read_text().strip()
    with TestClient(app, headers={"Authorization": f"Bearer {key}"}) as api:
        watch = Watch(app.state.database)
        for name, work in (*requests(api), *beside(app.state.database, settings)):
            yield from watch.figures(name, work)


class Watch:
    """Times pieces of work, and explains their statements."""

    def __init__(self, database: Database):
        self.database = database
        self._statements: list[tuple[str, Any]] = []

    def figures(self, name: str, work: Work) -> Iterator[Figure]:
        took = []
        with self._watching():
            for _ in range(LOOKS):
                self._statements.clear()
                began = time.perf_counter()
                work()
                took.append(1000 * (time.perf_counter() - began))
        scanned = sorted({table for one in self._statements for table in self._scanned(*one)})
        beside = f" (reads all {', '.join(scanned)})" if scanned else ""
        yield Figure(f"{name}{beside}", statistics.median(took), "ms", at_most=AT_MOST_MS)

    @contextmanager
    def _watching(self) -> Iterator[None]:
        event.listen(self.database.engine, "before_cursor_execute", self._note)
        yield
        event.remove(self.database.engine, "before_cursor_execute", self._note)

    def _note(self, _: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        self._statements.append((statement, parameters))

    def _scanned(self, statement: str, parameters: Any) -> Iterator[str]:
        """Yield the large tables that a statement reads as a whole."""
        if isinstance(parameters, list) or not re.match("SELECT|UPDATE|DELETE|WITH", statement):
            return
        is_sqlite = self.database.engine.dialect.name == "sqlite"
        explain = "EXPLAIN QUERY PLAN" if is_sqlite else "EXPLAIN"
        with self.database.engine.connect() as connection:
            plan = connection.exec_driver_sql(f"{explain} {statement}", parameters).fetchall()
        for line in (str(row[-1]) for row in plan):
            found = re.search(r"Seq Scan on (\w+)|^SCAN (\w+)$", line)
            if found and (table := found[1] or found[2].rstrip("_0123456789")) in BIG:
                yield table


def requests(api: TestClient) -> Iterator[tuple[str, Work]]:
    """Time the queries of users and of Prometheus."""

    def get(path: str) -> Work:
        return lambda: _ok(api.get(path))

    one = f"/v1/experiments/{scale.EXPERIMENTS // 2:032}"
    for whose in ("mine", "all"):
        for name, query in FILTERS.items():
            yield f"{whose}: {name}", get(f"/v1/experiments?limit=50&whose={whose}&{query}")
    yield "an experiment", get(one)
    yield "its curves", get(f"{one}/curves?max_points=2000")
    yield "its metrics", get(f"{one}/metrics")
    yield "its log", get(f"{one}/logs")
    yield "its artifacts", get(f"{one}/artifacts")
    yield "its events", get(f"{one}/events")
    yield "the queue", get("/v1/queue")
    yield "workers", get("/v1/workers")
    yield "sweeps", get("/v1/sweeps")
    yield "a sweep", get(f"/v1/sweeps/{SWEEP}")
    yield "its table", get(f"/v1/sweeps/{SWEEP}/table")
    yield "presets", get("/v1/presets:runs")
    yield "usage of all", get("/v1/usage")
    yield "the audit", get("/v1/audit")
    yield "the audit of one", get(f"/v1/audit?object_id={scale.EXPERIMENTS // 2:032}")
    yield "the audit of no one", get("/v1/audit?actor=nobody")
    yield "metrics of Prometheus", get("/metrics")
    made: list[str] = []

    def submit() -> None:
        answer = api.post("/v1/experiments", json={"spec": SMALL, "cache": False})
        _ok(answer)
        made.append(answer.json()["id"])

    def delete() -> None:
        one = made.pop()
        _ok(api.delete(f"/v1/experiments/{one}"))
        _ok(api.post(f"/v1/experiments/{one}:undelete"))

    yield "a submission", submit
    yield "a submission, cached", lambda: _ok(api.post("/v1/experiments", json={"spec": SMALL}))
    yield "delete and undelete", delete
    yield "cancel by a filter", lambda: _ok(api.post("/v1/experiments:cancel?name=no+such"))


def _ok(answer: Any) -> None:
    assert answer.is_success, answer.text


def beside(database: Database, settings: Settings) -> Iterator[tuple[str, Work]]:
    """Time the queries of workers and of the controller."""
    changes = Changes()
    begun: list[lease.Claim] = []

    def within(work: Callable[[Any], object]) -> Work:
        def run() -> None:
            with database.transaction() as session:
                work(session)

        return run

    def reads(work: Callable[[Any], object]) -> Work:
        def run() -> None:
            with database.snapshot() as session:
                work(session)

        return run

    def begin(session: Any) -> None:
        claim = claims.claim(session, "w", Queue.CPU, lease_s=60, fair_share=settings.share)
        assert claim is not None
        begun.append(claim)

    def write(session: Any) -> None:
        batch = Batch()
        for seq in range(1, 1000):
            batch.add(point(seq))
        record(session, begun[-1], batch, 60)

    def taken(work: Callable[..., Iterator[object]], number: int) -> Work:
        return lambda: [*islice(work(database, strict), number)]

    strict = settings.model_copy(
        update={"keep_s": 1.0, "keep_user_bytes": 10**12, "purge_after_s": 0.0}
    )
    rare = settings.model_copy(update={"keep_s": 1e9, "purge_after_s": 1e9})
    yield "a claim", within(begin)
    yield "a batch of 999 points", within(write)
    yield "the end of a run", within(lambda s: lease.finish(s, begun.pop(), Status.SUCCEEDED))
    yield "what has changed", reads(changes.look)
    yield "a clock that was set back", within(lambda s: clock.repair(s, 60))
    yield "lost runs", within(lambda s: lease.expire(s, 3))
    yield "the ledger folded", within(lambda s: ledger.fold(s, settings.share))
    yield "bytes measured", within(sizes.measure)
    yield "bytes of a user", reads(lambda s: quota.kept(s, 1))
    yield (
        "a worker's sample",
        within(lambda s: worker_samples.take(s, "w", workers.Vitals("h", Queue.CPU, 1))),
    )
    yield "memory that runs take", reads(lambda s: learned_ratio(s, "ppca", Queue.CPU))
    yield "webhooks", within(webhooks.claim)
    yield "webhooks forgotten", within(webhooks.forget)
    ids = [f"{i:032}" for i in range(500)]
    yield "checkpoints of ended runs", within(lambda s: lease.forget_checkpoints(s, ids, 60))
    yield "too old: a page", taken(retention.planned, deletion.PAGE)
    yield "too old: none", lambda: [*retention.planned(database, rare)]
    old = retention.planned(database, strict)
    yield "delete 100", lambda: retention.delete(database, islice(old, 100))
    yield "to be purged", taken(retention.purgeable, 100)
    gone = retention.purgeable(database, strict)
    yield "purge one", lambda: retention.purge(database, strict, islice(gone, 1))


def store(database: Database) -> None:
    """Insert experiments with their records, only by SQL."""
    number = scale.EXPERIMENTS
    scale.store_experiments(database, number, json.dumps(SMALL))
    for first in range(0, number, scale.AT_ONCE):
        numbers = {"first": first, "last": min(first + scale.AT_ONCE, number) - 1, "number": number}
        with database.transaction() as session:
            for statement in _EACH:
                session.execute(text(statement), {**numbers, **_block(POINTS // SERIES // number)})
    with database.transaction() as session:
        common = {"owner_id": 1, "tags": [], "priority": 0, "spec": SMALL}
        beside = {"fields": ["seeds", "model.latent_dim"], "comes_after": []}
        session.execute(insert(Sweep), [{**common, **beside, "id": SWEEP}])
        rows = [
            {"sweep_id": SWEEP, "point": i, "experiment_id": f"{i:032}"}
            for i in range(min(SWEPT, number))
        ]
        session.execute(insert(SweepPoint), rows)
    if database.engine.dialect.name == "postgresql":
        with database.transaction() as session:
            session.execute(text("SELECT setval('events_id_seq', (SELECT max(id) FROM events))"))
            session.execute(text("SELECT setval('series_id_seq', (SELECT max(id) FROM series))"))
    vacuum(database)


def _block(count: int) -> dict[str, Any]:
    """Columns of every block. Their content does not matter to a query."""
    numbers = np.random.default_rng(0)
    x = np.arange(1, count + 1)
    return {
        "count": count, "seq": x.astype("<i4").tobytes(), "x": x.astype("<f8").tobytes(),
        "value": numbers.normal(size=count).tobytes(), "n": np.full(count, 1e2).tobytes(),
        "std_err": numbers.exponential(size=count).tobytes(), "reason": bytes(count),
    }  # fmt: skip


def _of_each(table: str, columns: str, values: str, where: str = "true") -> str:
    return f"{NUMBERS} INSERT INTO {table} ({columns}) SELECT {values} FROM numbers WHERE {where}"


_ENDED = "i < :number - 2000"
_EACH = [
    _of_each(
        "attempts",
        "experiment_id, attempt, owner_id, queue, worker, started_at, ended_at, folded, family, "
        "estimated_bytes, peak_bytes, outcome",
        f"{ID}, 1, 1 + i % 50, 'cpu', 'w', 1e9 + i + 10, 1e9 + i + 60, true, 'ppca', 1000, 2000, "
        "'succeeded'",
        _ENDED,
    ),
    *(
        _of_each(
            "events",
            "experiment_id, at, kind, data, seq",
            f"{ID}, 1e9 + i, 'status', '{{\"status\": \"{status}\"}}', NULL",
        )
        for status in ("queued", "running", "succeeded")
    ),
    *(
        _of_each(
            "metrics",
            "experiment_id, name, labels, seq, value, std_err",
            f"{ID}, 'lml', '{{\"seed\"\\:{seed}}}', {seed}, -1e-4 * (i * 7 % 1000003), 0",
            _ENDED,
        )
        for seed in (4, 44)
    ),
    *(
        _of_each(
            "series",
            "id, experiment_id, name, labels",
            f"{SERIES} * i + {one}, {ID}, 'loss', '{{\"seed\"\\:{one}}}'",
            _ENDED,
        )
        for one in range(SERIES)
    ),
    *(
        _of_each(
            "blocks",
            "series_id, first_seq, last_seq, count, seq, x, value, std_err, n, reason, reasons",
            f"{SERIES} * i + {one}, 1, :count, :count, :seq, :x, :value, :std_err, :n, :reason, "
            "'[]'",
            _ENDED,
        )
        for one in range(SERIES)
    ),
    _of_each(
        "artifacts",
        "experiment_id, file, attempt, seq, media_type, sha256, bytes",
        f"{ID}, 'weights', 1, 1, 'x', '0', 1000",
        f"{_ENDED} AND i % 10 = 0",
    ),
    _of_each(
        "audit",
        "at, actor, action, object_id, details",
        f"1e9 + i, 'user', 'experiment.submitted', {ID}, '{{}}'",
    ),
]
