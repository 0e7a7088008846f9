"""Measure runs that several workers compute: the way of batches through the database, many helpers
that only sleep, and the speed-up by a second worker."""

import heapq
import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import psutil
from sqlalchemy import text

from benchmarks.figures import Figure, percentile
from mptcore.runtime.exchange import MAX_SPAN, SPAN_S
from service.queue import division, helping, lease
from service.queue.helping import HelpClaim
from service.queue.states import is_terminal
from service.settings import Settings
from service.tables.engine import Database, now
from service.tables.experiments import Experiment, Queue, Status
from service.tables.helpers import Help
from tests.support.attempts import claimed, submitted
from tests.support.processes import Lab, wait_until
from tests.support.vae_specs import deep_vae
from worker.helper import CONTACT_S
from worker.supervisor import PROGRESS_S

BATCHES, SPAN = 2000, 4
MASKS = 8000
LEASE_S = 60.0
EACH = 8
"""Helpers of a run."""
THREADS, SIMULATED_S = 16, 10.0
VAE: dict[str, Any] = {
    "model": deep_vae(latent_dim=4, width=64, draws=8, rounds=3),
    "data": {"source": "digits", "standardize": True},
    "evaluate": {"lml": {"method": "iwae", "samples": 2},
                 "masks": {"schedule": "fixed", "rate": 0.33, "per_size": MASKS}},
    "compute": {"threads": 1, "precision": "float32", "device": "cpu"},
}  # fmt: skip
"""A mask takes about a sixtieth of a second."""
AREA: dict[str, Any] = {
    "model": {"family": "masked_lm", "checkpoint": "rxnfp-bert"},
    "data": {"source": "text", "file": "nci_smiles.txt"},
    "evaluate": {"target_std_err": 2.5},
    "compute": {"threads": 1, "device": "cpu"},
}
"""The area under the curve of a pretrained model."""
HELPED = {"MPT_HELP_AFTER_S": "1", "MPT_LEASE_S": "30"}


def helpers(settings: Settings) -> Iterator[Figure]:
    """Measure batches a minute through the database, then the time of one experiment with one and
    with two workers."""
    yield _through_the_database(settings)
    if settings.database_url is not None:
        for helpers, batch_s in ((64, 2.0), (64, 0.1), (1000, 2.0)):
            yield from _simulated(settings, helpers, batch_s)
    for name, spec in (("VAE", VAE), ("area", AREA)):
        alone_s, together_s = (_runtime_s(settings, [spec], workers) for workers in (1, 2))
        both_s = _runtime_s(settings, [spec, {**spec, "seeds": [1]}], 2, help=False)
        found, possible = alone_s / together_s, 2 * alone_s / both_s
        yield Figure(f"{name}: one worker", alone_s, "s")
        yield Figure(f"{name}: two workers, speed-up", found, "times")
        yield Figure(
            f"{name}: of what two runs without helpers gain", found / possible, "", at_least=0.95
        )


def _through_the_database(settings: Settings) -> Figure:
    """Claim, send and read batches, in as many transactions as workers use for them."""
    values = {"shape": [1, 4, 1], "data": "A" * 44}
    with closing(Database(settings.url)) as database:
        run = claimed(database)
        of = run.experiment_id, run.attempt
        with database.transaction() as session:
            division.begin(session, *of, 0)
        began, read = time.perf_counter(), 0
        while read < BATCHES:
            with database.transaction() as session:
                first = division.claim_span(session, *of, SPAN)
            assert first is not None
            sent = [division.packed({"number": first + i, **values}) for i in range(SPAN)]
            with database.transaction() as session:
                division.send_scores(session, *of, 1, sent)
            with database.transaction() as session:
                lease.heartbeat(session, run, LEASE_S)
                read += len(division.take_scores(session, *of))
        minutes = (time.perf_counter() - began) / 60
        with database.transaction() as session:
            lease.finish(session, run, Status.SUCCEEDED)
    return Figure("batches through the database", BATCHES / minutes, "a minute", at_least=10_000)


@dataclass(order=True)
class Sleeper:
    """A helper that sleeps instead of computing, or the coordinator of its run."""

    due: float
    work: Callable[[], float] = field(compare=False)
    """One transaction; it returns the seconds until the next one."""


def _simulated(settings: Settings, helpers: int, batch_s: float) -> Iterator[Figure]:
    """Let so many helpers claim, sleep and send scores for a while, eight for each run, beside
    their coordinators. A transaction that begins late tells that this process or the database is
    the limit; the database's processor time for each transaction tells how many it can do."""
    with closing(Database(settings.url, connections=THREADS)) as database:
        with database.transaction() as session:
            pid = session.scalar(text("SELECT pg_read_file('postmaster.pid')")).split()[0]
        server = psutil.Process(int(pid))
        claims = [claimed(database, VAE) for _ in range(-(-helpers // EACH))]
        works = list(_works(database, claims, helpers, batch_s))
        began = time.monotonic()
        waiting = [Sleeper(began + i / len(works), work) for i, work in enumerate(works)]
        heapq.heapify(waiting)
        late: list[float] = []

        def turn(one: Sleeper) -> None:
            late.append(time.monotonic() - one.due)
            one.due = max(time.monotonic(), one.due + one.work())

        cpu_s = _cpu_s(server)
        with ThreadPoolExecutor(THREADS) as pool:
            running: dict[Future[None], Sleeper] = {}
            while time.monotonic() < began + SIMULATED_S:
                for done in [one for one in running if one.done()]:
                    done.result()
                    heapq.heappush(waiting, running.pop(done))
                if waiting and waiting[0].due <= time.monotonic() and len(running) < THREADS:
                    one = heapq.heappop(waiting)
                    running[pool.submit(turn, one)] = one
                else:
                    time.sleep(0.001)
        cpu_s = _cpu_s(server) - cpu_s
        with database.transaction() as session:
            helping.end_all(session)
            for claim in claims:
                lease.finish(session, claim, Status.SUCCEEDED)
    of = f"{helpers} helpers, {batch_s:g} s"
    yield Figure(f"{of}: transactions", len(late) / SIMULATED_S, "a second")
    yield Figure(f"{of}: late, 95 %", 1e3 * percentile(late, 95), "ms")
    yield Figure(f"{of}: database", 1e3 * cpu_s / len(late), "ms CPU")


def _works(
    database: Database, claims: list[lease.Claim], helpers: int, batch_s: float
) -> Iterator[Callable[[], float]]:
    """Yield what each helper and each coordinator does again and again."""
    for claim in claims:
        with database.transaction() as session:
            division.begin(session, claim.experiment_id, claim.attempt, 0)
        yield partial(_coordinate, database, claim)
    for number, claim in zip(range(helpers), itertools.cycle(claims), strict=False):
        with database.transaction() as session:
            row = Help(experiment_id=claim.experiment_id, attempt=claim.attempt, owner_id=1,
                       queue=Queue.CPU, worker=f"sleeper{number}", started_at=now(),
                       lease_expires_at=now() + LEASE_S)  # fmt: skip
            session.add(row)
            session.flush()
            yield partial(_help, database, HelpClaim(row.id, claim.experiment_id, claim.attempt,
                                                     {}, {}, None), batch_s, [0.0, 0])  # fmt: skip


def _coordinate(database: Database, claim: lease.Claim) -> float:
    with database.transaction() as session:
        lease.heartbeat(session, claim, LEASE_S)
        division.take_scores(session, claim.experiment_id, claim.attempt)
    return PROGRESS_S


def _help(database: Database, claim: HelpClaim, batch_s: float, state: list[Any]) -> float:
    """Renew the lease, and send and claim batches when their time has come, as a helper does."""
    at, span = time.monotonic(), min(MAX_SPAN, max(1, round(SPAN_S / batch_s)))
    is_done = at >= state[0]
    of = claim.experiment_id, claim.attempt
    with database.transaction() as session:
        helping.beat(session, claim, LEASE_S)
        if is_done and state[0]:
            batches = ({"number": state[1] + i, "shape": [1, 4, 1], "data": "A" * 44}
                       for i in range(span))  # fmt: skip
            sent = [*map(division.packed, batches)]
            division.send_scores(session, *of, claim.id, sent)
        division.plans(session, *of)
        if is_done:
            state[:] = [at + span * batch_s, division.claim_span(session, *of, span)]
    return min(CONTACT_S, span * batch_s)


def _cpu_s(server: psutil.Process) -> float:
    """Return the processor time of PostgreSQL, in seconds."""
    each = [one.cpu_times() for one in (server, *server.children())]
    return sum(one.user + one.system for one in each)


def _runtime_s(
    settings: Settings, specs: list[dict[str, Any]], workers: int, *, help: bool = True
) -> float:
    """Return the seconds from the first start to the last end of experiments."""
    with closing(Database(settings.url)) as database:
        ids = [submitted(database, spec) for spec in specs]
        lab = Lab(settings, settings.store / "log")
        beside = {} if settings.database_url is None else {"dispatcher": ("dispatcher",)}
        command = ("-m", "worker.local") if not beside else ("worker", "cpu")
        names = {**beside, **{f"worker{i}": command for i in range(workers)}}
        for name, words in names.items():
            lab.start(name, *words, MPT_MAX_WORKERS=str(workers if help else 1), **HELPED)
        try:
            wait_until(lambda: all(_has_ended(database, one) for one in ids), timeout_s=1800)
        finally:
            lab.stop()
        with database.snapshot() as session:
            ended = [session.get_one(Experiment, one) for one in ids]
    for one in ended:
        assert one.status == Status.SUCCEEDED, one.failure_message
    return max(one.finished_at or 0 for one in ended) - min(one.started_at or 0 for one in ended)


def _has_ended(database: Database, experiment_id: str) -> bool:
    with database.snapshot() as session:
        return is_terminal(session.get_one(Experiment, experiment_id).status)
