"""How long a run would take, learned from runs of its family on that kind of slot.

The time of a run is taken for a power of the work that its spec says: log t = a + b log w + noise,
0 ≤ b ≤ 1, by least squares over the latest runs that succeeded at their first attempt. What they
differ from that by is the spread. Where the work is not known, or all did as much, b is 0.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from mptcore.specs import ExperimentSpec, stored_spec
from service.experiments.models import DEVICES, Attempt, Device, Experiment, Queue, Status

LEARNED_FROM = 50
LEAST_RUNS = 5
SHARE = 0.8
"""Of runs, that are within what is said; as many below as above."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """In seconds: the median, and what the middle 80 % are expected within, by so many runs."""

    median_s: float
    low_s: float
    high_s: float
    runs: int


def expected_runtime(session: Session, spec: ExperimentSpec) -> Runtime | None:
    """On the kind of slot where it would take longest; None until a few of its family have run."""
    queues = [queue for queue in Queue if Device(spec.compute.device) in DEVICES[queue]]
    found = [_on(session, spec, queue) for queue in queues]
    known = [one for one in found if one is not None]
    return max(known, key=lambda one: one.median_s, default=None)


def _on(session: Session, spec: ExperimentSpec, queue: Queue) -> Runtime | None:
    rows = session.execute(
        select(Attempt.ended_at - Attempt.started_at, Experiment.spec)
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
        .limit(LEARNED_FROM)
    ).all()
    ran = [(_log_work(stored_spec(value)), math.log(max(1e-3, took))) for took, value in rows]
    return learned(ran, _log_work(spec))


def _log_work(spec: ExperimentSpec) -> float:
    """Of the masks times the dimensions; 0 where the spec does not say."""
    masks, dim = spec.mask_count(), getattr(spec.data, "dim", None)
    return math.log(masks * dim) if masks and dim else 0.0


def learned(ran: Sequence[tuple[float, float]], log_work: float) -> Runtime | None:
    """From the logarithms of the work and the time of each run."""
    if len(ran) < LEAST_RUNS:
        return None
    mean_w, mean_t = (math.fsum(column) / len(ran) for column in zip(*ran, strict=True))
    spread_w = math.fsum((w - mean_w) ** 2 for w, _ in ran)
    both = math.fsum((w - mean_w) * (t - mean_t) for w, t in ran)
    slope = min(1.0, max(0.0, both / spread_w)) if spread_w > 0 else 0.0
    rest = sorted(t - mean_t - slope * (w - mean_w) for w, t in ran)
    at = mean_t + slope * (log_work - mean_w)
    low, median, high = (
        math.exp(at + _quantile(rest, q)) for q in ((1 - SHARE) / 2, 0.5, (1 + SHARE) / 2)
    )
    return Runtime(median, low, high, len(ran))


def _quantile(values: Sequence[float], share: float) -> float:
    """Of sorted values as a draw of as many: the next one has this share of its chance below. Of
    few, the tails are the least and the greatest (Weibull's plotting positions, i / (n + 1))."""
    place = min(max(share * (len(values) + 1), 1.0), float(len(values))) - 1
    below = math.floor(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (place - below) * (values[above] - values[below])
