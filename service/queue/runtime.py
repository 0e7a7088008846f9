"""Estimate how long a run takes, from runs of its family on the machines that it may run on. If
these have had too few runs, all runs on the same kind of slot are used.

The time of a run is modelled as a power of the work w given by its spec: log t = a + b log w +
noise, 0 ≤ b ≤ 1, fitted by least squares to the latest runs that succeeded at their first attempt.
The spread is that of the residuals. If the work is unknown or the same for all, b is 0.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from sqlalchemy import Row, bindparam, func, select
from sqlalchemy.orm import Session

from mptcore.specs import ExperimentSpec, stored_spec_if_known
from service.experiments.models import DEVICES, Attempt, Device, Experiment, Queue
from service.queue import workers
from service.queue.schemas import RuntimeOut
from service.vocabulary import Status

LEARNED_FROM = 50
"""Number of recent runs per machine that are used."""
LOOKED_AT = 200
MIN_RUNS = 5
SHARE = 0.8
"""Share of runs within the interval; as many are below it as above."""
NEARLY_ALL = 0.9


def expected_runtime(session: Session, spec: ExperimentSpec, within_s: float) -> RuntimeOut | None:
    """Return the expected runtime on the slowest of the machines whose workers reported within
    `within_s` seconds; None until a few runs of the family have ended."""
    queues = [queue for queue in Queue if Device(spec.device) in DEVICES[queue]]
    hosts = workers.hosts(session, within_s)
    found = [one for queue in queues for one in _on(session, spec, queue, hosts[queue])]
    return max(found, key=lambda one: one.median_s, default=None)


def _on(
    session: Session, spec: ExperimentSpec, queue: Queue, hosts: Collection[str]
) -> list[RuntimeOut]:
    """Return the expected runtime of each machine with enough runs, else of all machines together
    if they have enough."""
    ran: dict[str | None, list[tuple[float, float]]] = defaultdict(list)
    for worker, took_s, value in _latest(session, spec, queue):
        if (known := stored_spec_if_known(value)) is None:
            continue
        times = _log_work(known), math.log(max(1e-3, took_s))
        ran[None].append(times)
        if (host := worker.rpartition(":")[0]) in hosts:
            ran[host].append(times)
    found = {host: learned(of[:LEARNED_FROM], _log_work(spec)) for host, of in ran.items()}
    learned_on = [
        one.model_copy(update={"host": host}) for host, one in found.items() if one is not None
    ]
    return [one for one in learned_on if one.host is not None] or learned_on


def _latest(
    session: Session, spec: ExperimentSpec, queue: Queue
) -> Sequence[Row[*tuple[Any, ...]]]:
    return session.execute(
        select(Attempt.worker, Attempt.ended_at - Attempt.started_at, Experiment.spec)
        .join(Experiment, Experiment.id == Attempt.experiment_id)
        .where(
            Attempt.family == spec.model.family,
            Attempt.queue == queue,
            Attempt.attempt == 1,
            Attempt.ended_at.is_not(None),
            Experiment.attempt == 1,
            Experiment.status == Status.SUCCEEDED,
        )
        .order_by(Attempt.ended_at.desc())
        .limit(LOOKED_AT)
    ).all()


_ATTEMPTS = Attempt.metadata.tables[Attempt.__tablename__]
_LATEST = (
    select(_ATTEMPTS.c.experiment_id, _ATTEMPTS.c.family)
    .where(
        _ATTEMPTS.c.queue == bindparam("queue"),
        _ATTEMPTS.c.ended_at.is_not(None),
        _ATTEMPTS.c.outcome == Status.SUCCEEDED,
    )
    .order_by(_ATTEMPTS.c.ended_at.desc())
    .limit(LOOKED_AT)
    .subquery()
)
_LATEST_TIMES = (
    select(_LATEST.c.family, func.sum(_ATTEMPTS.c.ended_at - _ATTEMPTS.c.started_at))
    .join(_ATTEMPTS, _ATTEMPTS.c.experiment_id == _LATEST.c.experiment_id)
    .group_by(_LATEST.c.experiment_id, _LATEST.c.family)
)
"""Built once, because each claim executes it while a drain is planned."""


def recent_runtimes(session: Session, queue: Queue) -> dict[str, float]:
    """Return how long nearly all of the latest runs on a kind of slot took, in seconds by family,
    whatever their work: at most one in ten took longer. Left out are families with few such runs.
    The time of a run is that of all its attempts."""
    times = defaultdict[str, list[float]](list)
    for family, took_s in session.execute(_LATEST_TIMES, {"queue": queue}):
        times[family].append(took_s)
    return {
        family: sorted(of_family)[int(NEARLY_ALL * len(of_family))]
        for family, of_family in times.items()
        if len(of_family) >= MIN_RUNS
    }


def _log_work(spec: ExperimentSpec) -> float:
    """Return the logarithm of masks × dimensions; 0 if the spec does not determine them."""
    masks, dim = spec.mask_count(), getattr(spec.data, "dim", None)
    return math.log(masks * dim) if masks and dim else 0.0


def learned(ran: Sequence[tuple[float, float]], log_work: float) -> RuntimeOut | None:
    """Fit the runtime to the logarithms of work and time of each run."""
    if len(ran) < MIN_RUNS:
        return None
    w, t = np.transpose(ran)
    off = w - w.mean()
    spread = off @ off
    slope = min(1.0, max(0.0, off @ t / spread)) if spread > 0 else 0.0
    at = t.mean() + slope * (log_work - w.mean())
    shares = ((1 - SHARE) / 2, 0.5, (1 + SHARE) / 2)
    # Plotting positions i / (n + 1): for few values the tails are the minimum and the maximum.
    rest = np.quantile(t - t.mean() - slope * off, shares, method="weibull")
    low, median, high = np.exp(at + rest).tolist()
    return RuntimeOut(median_s=median, low_s=low, high_s=high, runs=len(ran), host=None)
