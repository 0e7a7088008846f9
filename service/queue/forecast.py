"""Expected times at which slots become free.

A run that reports progress is expected to continue at its present speed. Other runs are expected to
take as long as recent runs on this kind of slot. Without both, there is no expectation.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session, aliased

from service.accounts.models import OWN
from service.db.engine import now
from service.experiments.models import Attempt, Experiment, Queue
from service.queue.ledger import Member
from service.vocabulary import Status

MAX_ENDED = 100
"""Maximum number of ended attempts whose mean length is used."""
MIN_ENDED = 3
BASIS = "from the progress of current runs and the mean length of the last runs, at most 100"
UNKNOWN = "it is not known how long the runs before it take"


@dataclass(frozen=True, slots=True)
class Running:
    """A current run; `end` is None if it is unknown."""

    owner_id: int
    end: float | None
    project_id: int = OWN
    experiment_id: str = ""
    worker_id: str = ""
    priority: int = 0
    started_at: float = 0.0
    """Start of its attempt."""
    has_progressed: bool = False
    """True if this attempt has computed something."""
    has_eta: bool = False
    """True if its end is expected from its present speed."""
    gives_way_to: str | None = None
    """Experiment that it is asked to give way to, and its owner."""
    other_owner_id: int | None = None

    @property
    def member(self) -> Member:
        return Member(self.owner_id, self.project_id)


@dataclass(frozen=True, slots=True)
class Forecast:
    """Forecast of one queue, in the database's time."""

    clock: float
    mean_s: float | None
    """Mean duration of recent runs; None until some have ended."""
    running: Sequence[Running]

    def of(self, owner_id: int) -> list[Running]:
        """Return the current runs of one user."""
        return [run for run in self.running if run.owner_id == owner_id]

    def start_after(self, position: int, idle: int, running: Iterable[Running]) -> float | None:
        """Return when a slot is free after `position` other starts, on idle slots and those of
        current runs. None if it is unknown."""
        free = [self.clock] * idle
        free += sorted(max(self.clock, run.end) for run in running if run.end is not None)
        if not free or (position and self.mean_s is None):
            return None
        rounds, slot = divmod(position, len(free))
        return free[slot] + rounds * (self.mean_s or 0.0)


def rounded(at: float, clock: float) -> float:
    """Round a time up to the precision of the estimate: seconds, minutes, or tens of minutes."""
    wait_s = at - clock
    step_s = 1 if wait_s < 60 else 60 if wait_s < 3600 else 600
    return math.ceil(at / step_s) * step_s


_OTHER = aliased(Experiment)
_RUNNING = (
    select(
        Attempt.owner_id,
        Attempt.project_id,
        Attempt.queue,
        Attempt.attempt,
        Attempt.started_at,
        Attempt.experiment_id,
        Attempt.worker,
        Experiment.priority,
        Experiment.gives_way_to,
        _OTHER.owner_id.label("other_owner_id"),
        Experiment.progress_done,
        Experiment.progress_total,
        Experiment.progress_at,
        Experiment.progress_eta_s,
    )
    .join(Experiment, Experiment.id == Attempt.experiment_id)
    .outerjoin(_OTHER, _OTHER.id == Experiment.gives_way_to)
    .where(Attempt.folded.is_(False), Attempt.ended_at.is_(None))
    .where(Experiment.status == Status.RUNNING)
)


def forecasts(session: Session) -> dict[Queue, Forecast]:
    """Return the forecast of every queue."""
    clock: float = session.execute(select(now())).scalar_one()
    rows = session.execute(_RUNNING).all()
    by_queue = {}
    for queue in Queue:
        mean_s = mean_length_s(session, queue)
        running = [
            Running(
                owner_id=row.owner_id,
                project_id=row.project_id,
                end=expected_end(row, mean_s, clock),
                experiment_id=row.experiment_id,
                worker_id=row.worker,
                priority=row.priority,
                started_at=row.started_at,
                has_progressed=row.progress_at is not None,
                has_eta=row.progress_eta_s is not None,
                gives_way_to=row.gives_way_to,
                other_owner_id=row.other_owner_id,
            )
            for row in rows
            if row.queue == queue
        ]
        by_queue[queue] = Forecast(clock, mean_s, running)
    return by_queue


def ends_of(
    session: Session, sweep_id: str, by_queue: Mapping[Queue, Forecast]
) -> list[float | None]:
    """Return the expected end of each running experiment of a sweep; None if unknown."""
    running = session.execute(_RUNNING.where(Experiment.sweep_id == sweep_id))
    return [expected_end(row, by_queue[Queue(row.queue)].mean_s, by_queue[Queue(row.queue)].clock)
            for row in running]  # fmt: skip


def mean_length_s(session: Session, queue: Queue) -> float | None:
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
    return float(mean_s) if count >= MIN_ENDED else None


def expected_end(run: Any, mean_s: float | None, clock: float) -> float | None:
    """Return the expected end of a run from its ETA or its progress. The progress of a resumed run
    is not used, because it includes earlier attempts."""
    if run.progress_eta_s is not None:
        return float(max(clock, run.progress_at + run.progress_eta_s))
    elapsed_s = max(0.0, clock - run.started_at)
    if run.attempt == 1 and run.progress_done and run.progress_total:
        remaining = max(0.0, run.progress_total / run.progress_done - 1)
        return float(clock + elapsed_s * remaining)
    if mean_s is None or elapsed_s > mean_s:
        return None
    return float(run.started_at + mean_s)
