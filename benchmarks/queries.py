"""Speed of finding and reading stored data: claims of `benchmarks.service`."""

import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPMessage

import numpy as np
import orjson
import psutil
from pyarrow import ipc
from sqlalchemy import insert, text
from sqlalchemy.orm import Session

from benchmarks.figures import Figure
from service.db.engine import Database
from service.experiments.models import Block, Experiment, Metric, Series
from service.records.compaction import compact
from service.records.recording import BATCH_RECORDS, Batch, record
from service.settings import Settings
from service.vocabulary import Status
from tests.support.attempts import claimed
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import Lab
from tests.support.records import point

SMALL = ppca_spec()
POINTS_OF_BLOCK = 2_000
LOOKS = 20
MILLION = f"{1:032x}"
HUNDRED_THOUSAND = f"{2:032x}"
MANY = [f"{i:032x}" for i in range(100, 200)]
THINNED = "max_points=2000"


class Asker:
    """Asks one API process, by the client of the standard library."""

    def __init__(self, http: HTTPConnection, key: str, process: psutil.Process):
        self._http = http
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        self.process = process

    def ask(
        self,
        path: str,
        body: str | None = None,
        *,
        parse: Callable[[bytes], object] = bytes,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[float, HTTPMessage]:
        """Return the milliseconds of the whole response, and its headers."""
        began = time.perf_counter()
        self._http.request(
            "POST" if body else "GET", path, body, {**self._headers, **(headers or {})}
        )
        response = self._http.getresponse()
        content = response.read()
        parse(content)
        took = 1000 * (time.perf_counter() - began)
        assert response.status in (200, 304), content
        return took, response.headers

    def median(
        self,
        path: str,
        body: str | None = None,
        *,
        parse: Callable[[bytes], object] = bytes,
        headers: Mapping[str, str] | None = None,
    ) -> float:
        return statistics.median(
            self.ask(path, body, parse=parse, headers=headers)[0] for _ in range(LOOKS)
        )

    def peak_bytes(self) -> int:
        """Peak memory of the process."""
        status = open(f"/proc/{self.process.pid}/status").read()
        return 1024 * int(status.partition("VmHWM:")[2].split()[0])


@contextmanager
def asking(settings: Settings) -> Iterator[Asker]:
    lab = Lab(settings, settings.store / "log")
    process = lab.start("api", "api", "--port", str(lab.port))
    try:
        lab.client()
        key = settings.key_file.read_text().strip()
        with closing(HTTPConnection("127.0.0.1", lab.port, timeout=60)) as http:
            http.connect()
            asker = Asker(http, key, process)
            asker.ask("/v1/me")
            yield asker
    finally:
        lab.stop()


def curves(settings: Settings) -> Iterator[Figure]:
    """Measure full and downsampled curves with one client and one API process."""
    with closing(Database(settings.url)) as database:
        _store_curves(database)
    path = "/v1/experiments/{}/curves".format
    with asking(settings) as asker:
        before = asker.peak_bytes()
        cold, headers = asker.ask(f"{path(MILLION)}?{THINNED}")
        yield Figure("1,000,000 points to 2,000, first", cold, "ms", at_most=150)
        yield Figure(
            "the same, median", asker.median(f"{path(MILLION)}?{THINNED}"), "ms", at_most=150
        )
        if etag := headers.get("ETag"):
            again = asker.median(f"{path(MILLION)}?{THINNED}", headers={"If-None-Match": etag})
            yield Figure("the same by ETag, median", again, "ms", at_most=5)
        yield Figure("memory that it took", (asker.peak_bytes() - before) / 1e6, "MB", at_most=50)
        for form in ("json", "csv", "arrow"):
            took = asker.median(f"{path(HUNDRED_THOUSAND)}?format={form}")
            yield Figure(f"100,000 points, {form}, median", took, "ms")
        body = json.dumps({"ids": MANY, "max_points": 1_000_000})
        for form in ("json", "csv", "arrow"):
            took = asker.median(f"/v1/curves:batchGet?format={form}", body)
            yield Figure(f"100 experiments at once, {form}", took, "ms", at_most=300)


DAY_S, SAVED_EVERY_S = 86_400, 30


def slow_run(settings: Settings) -> Iterator[Figure]:
    """Measure curves of a run that stored one point a second for a day, with a checkpoint every 30
    s, and of one that stored the same points in large batches."""
    seqs = range(1, DAY_S + 1)
    with closing(Database(settings.url)) as database:
        slow, quick = claimed(database), claimed(database)
        compacting_s = 0.0
        for saved in range(0, DAY_S, SAVED_EVERY_S):
            with database.transaction() as session:
                for seq in seqs[saved : saved + SAVED_EVERY_S]:
                    record(session, slow, _batch([seq]), lease_s=1e6)
            began = time.perf_counter()
            with database.transaction() as session:
                compact(session, slow.experiment_id, saved + SAVED_EVERY_S)
            compacting_s += time.perf_counter() - began
        for first in range(0, DAY_S, BATCH_RECORDS):
            with database.transaction() as session:
                record(session, quick, _batch(seqs[first : first + BATCH_RECORDS]), lease_s=1e6)
    yield Figure("compaction, each time", 1000 * compacting_s / (DAY_S / SAVED_EVERY_S), "ms")
    with asking(settings) as asker:
        for what in ("max_points=100000", THINNED):
            slow_ms, quick_ms = (
                asker.median(f"/v1/experiments/{claim.experiment_id}/curves?{what}")
                for claim in (slow, quick)
            )
            yield Figure(f"{what}, a quick run", quick_ms, "ms")
            yield Figure(f"{what}, a slow run", slow_ms, "ms")


def _batch(seqs: Iterable[int]) -> Batch:
    batch = Batch()
    for seq in seqs:
        batch.add(point(seq))
    return batch


def curves_of_one(settings: Settings, looks: int) -> Iterator[Figure]:
    """Measure the status of an experiment and its 100,000 points in full, read and parsed by one
    client."""
    with closing(Database(settings.url)) as database, database.transaction() as session:
        _experiments(session, [HUNDRED_THOUSAND])
        store_series(session, 2, HUNDRED_THOUSAND, 100_000)
    path = f"/v1/experiments/{HUNDRED_THOUSAND}"
    with asking(settings) as asker:
        took = sorted(asker.ask(path)[0] for _ in range(looks))
        yield Figure("status p50", took[looks // 2], "ms", at_most=1.5)
        yield Figure("status p99", took[int(0.99 * looks)], "ms", at_most=4)
        for form in ("json", "arrow"):
            took_ms = asker.median(f"{path}/curves?format={form}", parse=PARSERS[form])
            yield Figure(f"100,000 points, {form}", took_ms, "ms")


def _read_arrow(content: bytes) -> None:
    with ipc.open_stream(content) as reader:
        reader.read_all()


PARSERS: dict[str, Callable[[bytes], object]] = {"json": orjson.loads, "arrow": _read_arrow}


def _store_curves(database: Database) -> None:
    with database.transaction() as session:
        _experiments(session, [MILLION, HUNDRED_THOUSAND, *MANY])
        store_series(session, 1, MILLION, 1_000_000)
        store_series(session, 2, HUNDRED_THOUSAND, 100_000)
        for i, one in enumerate(MANY):
            for seed in range(5):
                store_series(session, 10 + 5 * i + seed, one, 1000, seed)
    if database.engine.dialect.name == "postgresql":  # as it does by itself in time
        with database.transaction() as session:
            session.execute(text("ANALYZE"))


def _experiments(session: Session, ids: Sequence[str]) -> None:
    rows = [
        {"id": id_, "owner_id": 1, "spec": SMALL, "tags": [], "priority": 0,
         "status": Status.SUCCEEDED, "last_seq": 1_000_000}
        for id_ in ids
    ]  # fmt: skip
    session.execute(insert(Experiment), rows)


def store_series(
    session: Session, id_: int, experiment_id: str, points: int, seed: int = 0
) -> None:
    labels = json.dumps({"seed": seed}, separators=(",", ":"))
    session.add(Series(id=id_, experiment_id=experiment_id, name="loss", labels=labels))
    session.flush()
    noise = np.random.default_rng(seed)
    for first in range(1, points + 1, POINTS_OF_BLOCK):
        count = min(POINTS_OF_BLOCK, points + 1 - first)
        x = np.arange(first, first + count)
        columns = {
            "x": x.astype("<f8").tobytes(),
            "value": noise.normal(size=count).tobytes(),
            "std_err": noise.exponential(size=count).tobytes(),
            "n": np.full(count, 100.0).tobytes(),
        }
        row = {"series_id": id_, "first_seq": first, "last_seq": first + count - 1, "count": count}
        session.execute(insert(Block), [{**row, **columns, "seq": x.astype("<i4").tobytes(),
                                         "reason": bytes(count), "reasons": []}])  # fmt: skip


EXPERIMENTS = 100_000
PAGES_ASKED = 100
FILTERS = {
    "newest": "",
    "rare status": "status=failed",
    "rare tag": "tag=rare",
    "rare family": "family=vae",
    "one name": "name=run%2077777",
    "words, everywhere": "q=run",
    "words, rare": "q=77777",
    "created long ago": "created_before=1971-01-01",
    "a rare metric": "filter=metrics.lml%20%3E%20-0.001",
    "a metric of a seed": "filter=metrics.lml%7Bseed%3D4%7D%20%3E%20-0.001",
    "by metric": "order_by=metrics.lml%20desc",
    "by finish": "order_by=finished",
    "by name": "order_by=name",
    "a field of specs": "filter=spec.model.latent_dim%20%3D%203",
    "a rare field of specs": "filter=spec.data.seed%20%3D%20999999",
    "a rare range in specs": "filter=spec.data.seed%20%3E%20999990",
    "several": "filter=metrics.lml%20%3E%20-60%20and%20status%3Dsucceeded%20and%20tag%3D%22even%22",
}


def lists(settings: Settings) -> Iterator[Figure]:
    """A page of 50 among 100,000 experiments, all of the caller's own, by each filter and order."""
    with closing(Database(settings.url)) as database:
        store_many(database)
    at_most = None if settings.database_url is None else 50
    with asking(settings) as asker:
        for name, query in FILTERS.items():
            path = f"/v1/experiments?limit=50&{query}"
            asked = 20 if settings.database_url is None else PAGES_ASKED
            took = sorted(asker.ask(path)[0] for _ in range(asked))
            yield Figure(f"list, {name}, p50", took[len(took) // 2], "ms")
            yield Figure(f"list, {name}, p99", took[-2], "ms", at_most=at_most)


def store_many(database: Database) -> None:
    with database.transaction() as session:
        for first in range(0, EXPERIMENTS, 5_000):
            numbers = range(first, first + 5_000)
            session.execute(insert(Experiment), [_row(i) for i in numbers])
            session.execute(insert(Metric), [one for i in numbers for one in _metrics(i)])
    if database.engine.dialect.name == "postgresql":  # as it does by itself in time
        with database.engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            connection.execute(text("VACUUM ANALYZE"))


def _row(i: int) -> dict[str, object]:
    family = "vae" if i % 10_000 == 7 else "ppca"
    spec = {**SMALL, "model": {**SMALL["model"], "family": family, "latent_dim": i % 5},
            "data": {**SMALL["data"], "seed": i}}  # fmt: skip
    tags = ["even" if i % 2 == 0 else "odd", *(["rare"] if i % 10_000 == 3 else [])]
    status = Status.FAILED if i % 10_000 == 5 else Status.SUCCEEDED
    return {"id": f"{i:032x}", "owner_id": 1, "spec": spec, "tags": tags, "priority": 0,
            "name": f"run {i}", "status": status, "created_at": 1e9 + i, "started_at": 1e9 + i,
            "finished_at": 1e9 + i + (i * 7919) % 1000}  # fmt: skip


def _metrics(i: int) -> Iterator[dict[str, object]]:
    for seed in (4, 44):
        value = -((i * 7919 + seed) % 1_000_003) / 10_000
        yield {"experiment_id": f"{i:032x}", "name": "lml", "labels": f'{{"seed":{seed}}}',
               "seq": seed, "value": value, "std_err": 0.0, "reason": None}  # fmt: skip
