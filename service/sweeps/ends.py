"""Estimate the end of a sweep."""

import math
from collections.abc import Mapping

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.experiments.models import Device, Experiment, Held, Queue
from service.queue import forecast
from service.queue.ledger import Member
from service.queue.position import queue_positions
from service.queue.snapshot import QUEUES, QueueSnapshot, QueueSnapshots
from service.sweeps.models import Sweep
from service.vocabulary import UNFINISHED, Status

ENDED = "all of its runs have ended"
PAUSED = "some of its runs are paused"
WAITS = "its runs wait for other experiments"


def estimated_end(
    session: Session, queue_snapshots: QueueSnapshots, sweep: Sweep
) -> tuple[float | None, str]:
    """Expected end in the database's time, with the basis of the estimate or the reason why there
    is none. The last experiment that may start now starts at its queue position; the held
    ones follow in rounds."""
    left = _left(session, sweep.id)
    if not left:
        return None, ENDED
    if any(status == Status.PAUSED for status, _ in left):
        return None, PAUSED
    if (Status.QUEUED, Held.AFTER) in left:
        return None, WAITS
    queue_snapshot = queue_snapshots.of(session, {Member(sweep.owner_id)})
    found = queue_snapshot.forecasts
    ends = forecast.ends_of(session, sweep.id, found)
    last = _last(session, sweep.id)
    if last is not None:
        place = queue_positions(session, [last], queue_snapshots)[last.id]
        if place.estimated_start is None:
            return None, place.estimate
        mean_s = _mean_s(found, last)
        ends.append(None if mean_s is None else place.estimated_start.timestamp() + mean_s)
    if any(end is None for end in ends):
        return None, forecast.UNKNOWN
    clock = next(iter(found.values())).clock
    end = max((one for one in ends if one is not None), default=clock)
    held = left.get((Status.QUEUED, Held.SWEEP), 0)
    return _after_held(session, queue_snapshot, sweep, held, end)


def _after_held(
    session: Session, queue_snapshot: QueueSnapshot, sweep: Sweep, held: int, end: float
) -> tuple[float | None, str]:
    if not held:
        return end, forecast.BASIS
    one = session.scalars(_OF.filter_by(sweep_id=sweep.id, held=Held.SWEEP).limit(1)).one()
    mean_s = _mean_s(queue_snapshot.forecasts, one)
    slots = queue_snapshot.slots
    together = sum(slots[queue].workers for queue in QUEUES[Device(one.device)] if queue in slots)
    if mean_s is None or not together:
        return None, forecast.UNKNOWN
    rounds = math.ceil(held / min(together, sweep.concurrency or together))
    return end + rounds * mean_s, forecast.BASIS


_OF = select(Experiment).where(Experiment.status == Status.QUEUED)


def _left(session: Session, sweep_id: str) -> dict[tuple[str, str], int]:
    rows = session.execute(
        select(Experiment.status, Experiment.held, func.count())
        .where(Experiment.sweep_id == sweep_id, Experiment.status.in_(UNFINISHED))
        .group_by(Experiment.status, Experiment.held)
    )
    return {(status, held): count for status, held, count in rows}


def _last(session: Session, sweep_id: str) -> Experiment | None:
    """Return the last of the sweep's experiments that may be chosen now."""
    free = _OF.where(Experiment.sweep_id == sweep_id, Experiment.held == Held.NOT)
    return session.scalar(free.order_by(Experiment.priority, Experiment.id.desc()).limit(1))


def _mean_s(found: Mapping[Queue, forecast.Forecast], one: Experiment) -> float | None:
    known = [mean for q in QUEUES[Device(one.device)] if (mean := found[q].mean_s) is not None]
    return max(known, default=None)
