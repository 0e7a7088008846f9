"""Measure runs that several workers compute: the way of batches through the database, and the
speed-up by a second worker."""

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from sqlalchemy import select

from benchmarks.figures import Figure
from service.queue import division, lease
from service.queue.states import is_terminal
from service.settings import Settings
from service.tables.engine import Database
from service.tables.experiments import Experiment, Status
from tests.support.attempts import claimed, submitted
from tests.support.processes import Lab, wait_until
from tests.support.vae_specs import deep_vae

BATCHES, SPAN = 2000, 4
MASKS = 300
LEASE_S = 60.0
SPEC: dict[str, Any] = {
    "model": deep_vae(latent_dim=4, width=64, draws=8, rounds=3),
    "data": {"source": "digits", "standardize": True},
    "evaluate": {"lml": {"method": "iwae", "samples": 2},
                 "masks": {"schedule": "fixed", "rate": 0.33, "per_size": MASKS}},
    "compute": {"threads": 1, "precision": "float32", "device": "cpu"},
}  # fmt: skip
"""A mask takes about a tenth of a second."""
HELPED = {"MPT_HELP_AFTER_S": "1", "MPT_LEASE_S": "30"}


def helpers(settings: Settings) -> Iterator[Figure]:
    """Measure batches a minute through the database, then the time of one experiment with one and
    with two workers."""
    yield _through_the_database(settings)
    alone_s, together_s = (_runtime_s(settings, workers) for workers in (1, 2))
    yield Figure("one worker", alone_s, "s")
    yield Figure("two workers, speed-up", alone_s / together_s, "times", at_least=1.85)


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
            sent = [{"number": first + i, **values} for i in range(SPAN)]
            with database.transaction() as session:
                division.send_scores(session, *of, 1, sent)
            with database.transaction() as session:
                lease.heartbeat(session, run, LEASE_S)
                read += len(division.take_scores(session, *of))
        minutes = (time.perf_counter() - began) / 60
        with database.transaction() as session:
            lease.finish(session, run, Status.SUCCEEDED)
    return Figure("batches through the database", BATCHES / minutes, "a minute", at_least=10_000)


def _runtime_s(settings: Settings, workers: int) -> float:
    """Return the seconds from the start to the end of one experiment."""
    with closing(Database(settings.url)) as database:
        experiment_id = submitted(database, SPEC)
        lab = Lab(settings, settings.store / "log")
        beside = {} if settings.database_url is None else {"dispatcher": ("dispatcher",)}
        command = ("-m", "worker.local") if not beside else ("worker", "cpu")
        names = {**beside, **{f"worker{i}": command for i in range(workers)}}
        for name, words in names.items():
            lab.start(name, *words, MPT_MAX_WORKERS=str(workers), **HELPED)
        try:
            wait_until(lambda: _has_ended(database, experiment_id), timeout_s=600)
        finally:
            lab.stop()
        with database.snapshot() as session:
            one = session.execute(
                select(Experiment.started_at, Experiment.finished_at).where(
                    Experiment.id == experiment_id
                )
            ).one()
    assert one.started_at is not None
    assert one.finished_at is not None
    return float(one.finished_at - one.started_at)


def _has_ended(database: Database, experiment_id: str) -> bool:
    with database.snapshot() as session:
        return is_terminal(session.get_one(Experiment, experiment_id).status)
