"""Numbers of the queue as a whole, for monitoring. No function commits."""

from collections import Counter
from dataclasses import dataclass, field

from sqlalchemy import delete, func, insert, select
from sqlalchemy.orm import Session

from service.db.engine import now
from service.experiments.models import UNFINISHED, Experiment, Status, Tally

KEY = (Tally.status, Tally.failure_kind)
COUNTED = (Tally.number, Tally.present, Tally.lost, Tally.waits, Tally.waits_s, Tally.runs,
           Tally.runs_s)  # fmt: skip
FOLD_AT = 500
"""Number of tally rows up to which reading is cheap."""


@dataclass
class Statistics:
    """Counts since the beginning, including purged experiments. Waits last from submission to the
    first start, runs from there to the end."""

    by_status: Counter[str] = field(default_factory=Counter)
    """Number of experiments that exist, by status."""
    failures: Counter[str] = field(default_factory=Counter)
    """Number of failures of each kind."""
    lost: int = 0
    """Number of lost attempts."""
    waits: int = 0
    waits_s: float = 0.0
    runs: int = 0
    runs_s: float = 0.0


def statistics(session: Session) -> Statistics:
    """Return the numbers at one moment; the session must read one snapshot. Ended experiments are
    read from tallies, all others from their rows."""
    found = Statistics(Counter(dict.fromkeys(Status, 0)))
    sums = (func.sum(column) for column in COUNTED)
    for status, kind, number, present, lost, *times in session.execute(
        select(*KEY, *sums).group_by(*KEY)
    ):
        waits, waits_s, runs, runs_s = times
        if status:
            found.by_status[status] += int(present)
        if kind:
            found.failures[kind] += int(number)
        found.lost += int(lost)
        found.waits, found.waits_s = found.waits + int(waits), found.waits_s + float(waits_s)
        found.runs, found.runs_s = found.runs + int(runs), found.runs_s + float(runs_s)
    for status, number, lost, waits, waits_s in session.execute(
        select(
            Experiment.status,
            func.count(),
            func.sum(Experiment.lost),
            func.count(Experiment.started_at),
            func.sum(Experiment.started_at - Experiment.created_at),
        )
        .where(Experiment.status.in_(UNFINISHED))
        .group_by(Experiment.status)
    ):
        found.by_status[status] += number
        found.lost += int(lost)
        found.waits, found.waits_s = found.waits + waits, found.waits_s + (waits_s or 0.0)
    return found


def fold(session: Session) -> None:
    """Replace many tallies by their sums. Rows that another transaction folds are skipped."""
    if (session.scalar(select(func.count(Tally.id))) or 0) < FOLD_AT:
        return
    held = select(Tally.id).limit(20 * FOLD_AT).with_for_update(skip_locked=True)
    gone = delete(Tally).where(Tally.id.in_(held)).returning(*KEY, *COUNTED)
    sums: dict[tuple[str, str], list[float]] = {}
    for status, kind, *counted in session.execute(gone):
        before = sums.get((status, kind), [0] * len(counted))
        sums[status, kind] = [a + b for a, b in zip(before, counted, strict=True)]
    names = [column.key for column in (*KEY, *COUNTED)]
    rows = [dict(zip(names, (*key, *total), strict=True)) for key, total in sums.items()]
    if rows:
        session.execute(insert(Tally), rows)


def oldest_queued_s(session: Session) -> float:
    """Return the age of the experiment that has been queued for longest, or 0."""
    queued = Experiment.status == Status.QUEUED
    age = select(now() - func.min(Experiment.created_at)).where(queued)
    return session.scalar(age) or 0.0


def expired_leases(session: Session) -> int:
    """Return the number of running experiments whose workers were silent for a whole lease."""
    expired = (Experiment.status == Status.RUNNING) & (Experiment.lease_expires_at < now())
    return session.scalar(select(func.count()).where(expired)) or 0
