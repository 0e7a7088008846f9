"""Expected times at which slots become free.

A run that reports progress is expected to continue at its present speed. Other runs are expected to
take as long as recent runs on this kind of slot. Without both, there is no expectation.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.db.engine import now
from service.experiments.models import Attempt, Experiment, Queue, Status
from service.fair_share import FairShare
from service.queue.workers import Slots

MAX_ENDED = 100
"""Maximum number of ended attempts whose mean length is used."""
LEAST = 3
BASIS = "from the progress of current runs and the mean length of the last runs, at most 100"
UNKNOWN = "it is not known how long the runs before it take"


@dataclass(frozen=True, slots=True)
class Running:
    """A current run, in the database's time; `end` is None if it is unknown."""

    owner_id: int
    started_at: float
    end: float | None


@dataclass(frozen=True, slots=True)
class Forecast:
    """Forecast of one queue, in the database's time."""

    clock: float
    mean_s: float | None
    """Mean duration of recent runs; None until some have ended."""
    running: Sequence[Running]
    ends: dict[int, float]
    """Expected end of each user's first run to finish, by user."""

    def usual_s(self, fair_share: FairShare) -> float:
        """Return how long a run takes, for comparing users."""
        return max(1.0, fair_share.advance_s if self.mean_s is None else self.mean_s)

    def start_after(self, position: int, slots: Slots) -> float | None:
        """Return when a slot is free after `position` other runs have started; None if unknown."""
        free = [self.clock] * slots.idle
        free += [max(self.clock, run.end) for run in self.running if run.end is not None]
        if not free or (position and self.mean_s is None):
            return None
        rounds, position = divmod(position, len(free))
        later = rounds * (self.mean_s or 0.0)
        free = [at + later for at in free]
        heapq.heapify(free)
        for _ in range(position):
            heapq.heapreplace(free, free[0] + (self.mean_s or 0.0))
        return _rounded(free[0], self.clock)


def _rounded(at: float, clock: float) -> float:
    """Round a time up to the precision of the estimate: seconds, minutes, or tens of minutes."""
    wait_s = at - clock
    step_s = 1 if wait_s < 60 else 60 if wait_s < 3600 else 600
    return math.ceil(at / step_s) * step_s


def forecasts(session: Session) -> dict[Queue, Forecast]:
    """Return the forecast of every queue."""
    clock: float = session.execute(select(now())).scalar_one()
    running = session.execute(_RUNNING).all()
    return {queue: _forecast(session, queue, running, clock) for queue in Queue}


_RUNNING = (
    select(
        Attempt.owner_id,
        Attempt.queue,
        Attempt.attempt,
        Attempt.started_at,
        Experiment.progress_done,
        Experiment.progress_total,
        Experiment.progress_at,
        Experiment.progress_eta_s,
    )
    .join(Experiment, Experiment.id == Attempt.experiment_id)
    .where(Attempt.folded.is_(False), Attempt.ended_at.is_(None))
    .where(Experiment.status == Status.RUNNING)
)


def ends_of(session: Session, sweep_id: str, found: Mapping[Queue, Forecast]) -> list[float | None]:
    """Return the expected end of each running experiment of a sweep; None if unknown."""
    running = session.execute(_RUNNING.where(Experiment.sweep_id == sweep_id))
    return [_end(one, found[Queue(one.queue)].mean_s, found[Queue(one.queue)].clock)
            for one in running]  # fmt: skip


def _forecast(session: Session, queue: Queue, running: Sequence[Any], clock: float) -> Forecast:
    mean_s = _mean_s(session, queue)
    ends: dict[int, float] = defaultdict(lambda: math.inf)
    runs = []
    for one in running:
        if one.queue == queue:
            end = _end(one, mean_s, clock)
            runs.append(Running(one.owner_id, one.started_at, end))
            if end is not None:
                ends[one.owner_id] = min(ends[one.owner_id], _rounded(end, clock))
    return Forecast(clock, mean_s, runs, dict(ends))


def _mean_s(session: Session, queue: Queue) -> float | None:
    lately = (
        select((Attempt.ended_at - Attempt.started_at).label("length_s"))
        .where(Attempt.queue == queue, Attempt.ended_at.is_not(None))
        .order_by(Attempt.ended_at.desc())
        .limit(MAX_ENDED)
        .subquery()
    )
    count, mean_s = session.execute(
        select(func.count(), func.avg(lately.c.length_s)).select_from(lately)
    ).one()
    return float(mean_s) if count >= LEAST else None


def _end(one: Any, mean_s: float | None, clock: float) -> float | None:
    """Return the expected end of a run from its ETA or its progress. The progress of a resumed run
    is not used, because it includes earlier attempts."""
    if one.progress_eta_s is not None:
        return float(max(clock, one.progress_at + one.progress_eta_s))
    elapsed_s = max(0.0, clock - one.started_at)
    if one.attempt == 1 and one.progress_done and one.progress_total:
        left = max(0.0, one.progress_total / one.progress_done - 1)
        return float(clock + elapsed_s * left)
    if mean_s is None or elapsed_s > mean_s:
        return None
    return float(one.started_at + mean_s)
