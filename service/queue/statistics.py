"""Numbers of the queue as a whole, for monitoring. No function commits."""

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field

from sqlalchemy import and_, case, func, literal, select, update
from sqlalchemy.orm import Session, aliased

from service.accounts.models import User
from service.db.engine import among, insert_new, now
from service.experiments.models import GAVE_WAY, LOST, Attempt, Device, Experiment, Held, Total
from service.fair_share import FairShare
from service.queue.models import LEAD_S, Controller
from service.vocabulary import TERMINAL, Status

_EARLIER = aliased(Attempt)
_IS_FIRST = (
    ~select(_EARLIER.attempt)
    .where(_EARLIER.experiment_id == Attempt.experiment_id, _EARLIER.attempt < Attempt.attempt)
    .exists()
)
_IS_LAST = and_(Attempt.attempt == Experiment.attempt, Experiment.status.in_(TERMINAL))
_ENDED_IT = and_(_IS_LAST, Attempt.outcome.not_in((Status.QUEUED, Status.PAUSED, GAVE_WAY)))
"""Condition that the experiment ended with this attempt, not while it waited after it."""
_WAIT_S = func.coalesce(Experiment.started_at - Experiment.created_at, 0.0)
_RUN_S = func.coalesce(Experiment.finished_at - Experiment.started_at, 0.0)
_FIGURES = (
    literal(1),
    case((and_(_IS_LAST, Experiment.status == Status.FAILED), 1), else_=0),
    case((_IS_FIRST, 1), else_=0),
    case((_IS_FIRST, _WAIT_S), else_=0.0),
    case((_ENDED_IT, 1), else_=0),
    case((_ENDED_IT, _RUN_S), else_=0.0),
)
"""Numbers that an attempt adds to the columns of `totals`, in their order."""
_COLUMNS = (Total.number, Total.failed, Total.waits, Total.waits_s, Total.runs, Total.runs_s)


@dataclass
class Statistics:
    """Counts since the beginning, including purged experiments. Waits last from submission to the
    first start, runs from there to the end."""

    by_status: Counter[str] = field(default_factory=Counter)
    """Number of experiments that exist, by status."""
    failures: Counter[str] = field(default_factory=Counter)
    """Number of runs that failed, by kind."""
    lost: int = 0
    """Number of lost attempts."""
    waits: int = 0
    waits_s: float = 0.0
    runs: int = 0
    """Number of experiments that ended with an attempt, not while they waited."""
    runs_s: float = 0.0


def statistics(session: Session) -> Statistics:
    """Return the numbers at one moment; the session must read one snapshot. Attempts are counted in
    `totals` once they are folded, and are read from their rows before."""
    figures = Statistics(Counter(dict.fromkeys(Status, 0)))
    by_status = select(Experiment.status, func.count()).group_by(Experiment.status)
    for status, number in session.execute(by_status):
        figures.by_status[status] = number
    unfolded = (
        select(Attempt.outcome, *map(func.sum, _FIGURES))
        .join(Experiment, Experiment.id == Attempt.experiment_id)
        .where(Attempt.folded.is_(False))
        .group_by(Attempt.outcome)
    )
    folded = select(Total.outcome, *_COLUMNS)
    for outcome, number, failed, waits, waits_s, runs, runs_s in (
        *session.execute(folded),
        *session.execute(unfolded),
    ):
        if failed:
            figures.failures[outcome] += failed
        if outcome == LOST:
            figures.lost += number
        figures.waits, figures.waits_s = figures.waits + waits, figures.waits_s + waits_s
        figures.runs, figures.runs_s = figures.runs + runs, figures.runs_s + runs_s
    return figures


def add_to_totals(session: Session, ended_attempts: Collection[Attempt]) -> None:
    """Add attempts that have ended to the totals. Call it in the transaction that marks them as
    folded."""
    if not ended_attempts:
        return
    ended = {(attempt.experiment_id, attempt.attempt) for attempt in ended_attempts}
    rows = session.execute(
        select(Attempt.experiment_id, Attempt.attempt, Attempt.outcome, *_FIGURES)
        .join(Experiment, Experiment.id == Attempt.experiment_id)
        .where(among(Attempt.experiment_id, {experiment_id for experiment_id, _ in ended}))
    )
    sums: dict[str, list[float]] = defaultdict(lambda: [0] * len(_FIGURES))
    for experiment_id, attempt, outcome, *figures in rows:
        if (experiment_id, attempt) in ended:
            sums[outcome] = [a + b for a, b in zip(sums[outcome], figures, strict=True)]
    insert_new(session, Total, [{"outcome": outcome} for outcome in sorted(sums)])
    for outcome, figures in sorted(sums.items()):
        session.execute(
            update(Total)
            .where(Total.outcome == outcome)
            .values({c: c + figure for c, figure in zip(_COLUMNS, figures, strict=True)})
        )


def oldest_waiting_s(session: Session, fair_share: FairShare) -> dict[Device, float]:
    """Return the age of the oldest experiment of each device that waits only for a worker: it is
    not held, and its owner is not disabled and may have more runs. A device without any is
    missing."""
    running = (
        select(Experiment.owner_id, func.count().label("number"))
        .where(Experiment.status == Status.RUNNING)
        .group_by(Experiment.owner_id)
        .subquery()
    )
    most = func.coalesce(User.max_running, fair_share.max_running)
    rows = session.execute(
        select(Experiment.device, now() - func.min(Experiment.created_at))
        .join(User, User.id == Experiment.owner_id)
        .outerjoin(running, running.c.owner_id == User.id)
        .where(
            Experiment.status == Status.QUEUED,
            Experiment.held == Held.NOT,
            User.disabled_at.is_(None),
            most.is_(None) | (func.coalesce(running.c.number, 0) < most),
        )
        .group_by(Experiment.device)
    )
    return {Device(device): age_s for device, age_s in rows}


def controller_last_look_s(session: Session) -> float:
    """Return the time since the controller last looked for work."""
    last_look = select(now() - Controller.until + LEAD_S)
    return session.execute(last_look).scalar_one()


def expired_leases(session: Session) -> int:
    """Return the number of running experiments whose workers were silent for a whole lease."""
    expired = (Experiment.status == Status.RUNNING) & (Experiment.lease_expires_at < now())
    return session.scalar(select(func.count()).where(expired)) or 0
