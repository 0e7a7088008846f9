"""Delete experiments: first hide them, later remove their rows. No function commits."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, delete, or_, select, update
from sqlalchemy.orm import Session

from service.database import now
from service.experiments import sizes, states
from service.experiments.models import (
    TERMINAL,
    WAITING,
    Artifact,
    Attempt,
    Block,
    Checkpoint,
    DesiredState,
    Event,
    Experiment,
    Metric,
    Series,
    Wait,
)
from service.sweeps.models import SweepPoint
from service.users import User
from service.webhooks.models import Delivery

RESTORE_MARGIN_S = 60.0
"""No transaction takes longer, so a restored experiment is never among those being purged."""


class Kept(NamedTuple):
    """An experiment, its owner, and whether a quota may remove it."""

    id: str
    owner: str
    removable: bool


def remove(session: Session, experiment: Experiment) -> bool:
    """Hide an experiment. A waiting one is cancelled first. Return False if it is running or
    pinned. Its idempotency key becomes free."""
    if experiment.status in WAITING:
        states.request(session, experiment.id, DesiredState.CANCEL)
    return bool(remove_ended(session, [experiment.id]))


def remove_ended(session: Session, experiment_ids: Sequence[str]) -> Sequence[str]:
    """Hide those of these experiments that have ended and are not pinned, and return them."""
    return session.scalars(
        update(Experiment)
        .where(Experiment.id.in_(experiment_ids), _removable(), Experiment.deleted_at.is_(None))
        .values(deleted_at=now(), idempotency_key=None)
        .returning(Experiment.id)
        .execution_options(synchronize_session=False)
    ).all()


def restore(session: Session, experiment_id: str, purge_after_s: float) -> bool:
    """Bring back a deleted experiment. False where it may be purged by now: its files go before its
    row does, so a minute before that is too late."""
    kept = Experiment.deleted_at > now() - (purge_after_s - RESTORE_MARGIN_S)
    change = update(Experiment).where(Experiment.id == experiment_id, kept).values(deleted_at=None)
    restored = session.scalars(
        change.returning(Experiment.id).execution_options(synchronize_session=False)
    )
    return restored.one_or_none() is not None


def older(session: Session, keep_s: float) -> Sequence[Kept]:
    """Return experiments that ended longer ago and are not pinned."""
    return _kept(session, _removable(), Experiment.finished_at < now() - keep_s)


def with_files(session: Session) -> Sequence[Kept]:
    """Return experiments with files, the oldest first."""
    left = select(Artifact.experiment_id).where(Artifact.experiment_id == Experiment.id)
    return _kept(session, left.exists())


def _kept(session: Session, *conditions: ColumnElement[bool]) -> list[Kept]:
    query = (
        select(Experiment.id, User.name, _removable())
        .join(User, User.id == Experiment.owner_id)
        .where(Experiment.deleted_at.is_(None), *conditions)
        .order_by(Experiment.finished_at, Experiment.id)
    )
    return [Kept(id, owner, removable) for id, owner, removable in session.execute(query)]


def _removable() -> ColumnElement[bool]:
    return _ended() & ~Experiment.pinned


def _ended() -> ColumnElement[bool]:
    return Experiment.status.in_(TERMINAL)


def purgeable(session: Session, after_s: float, limit: int | None = None) -> Sequence[Kept]:
    """Return experiments that were deleted longer ago, the oldest first, except those from which an
    unfinished run will start: they were accepted before."""
    over = (
        select(Experiment.id, User.name)
        .join(User, User.id == Experiment.owner_id)
        .where(Experiment.deleted_at <= now() - after_s)
        .order_by(Experiment.deleted_at, Experiment.id)
    )
    found = session.execute(over.limit(limit)).all()
    in_use = set(_started_from(session)) if found else set()
    return [Kept(row.id, row.name, True) for row in found if row.id not in in_use]


def _started_from(session: Session) -> Iterator[str]:
    """Yield the experiments whose weights unfinished runs need."""
    named = [Experiment.spec[(part, "experiment")].as_string() for part in ("model", "baseline")]
    given = or_(*(one.is_not(None) for one in named))
    for row in session.execute(select(*named).where(~_ended(), given)):
        yield from (one for one in row if one is not None)


RECORDS = (Series, Metric, Event, Artifact, Checkpoint, Attempt, Wait, SweepPoint, Delivery)
"""Tables whose rows belong to an experiment and are deleted with it."""


def purge(session: Session, experiment_id: str) -> bool:
    """Delete a deleted experiment's records and row. Return False if another transaction has locked
    it, or if its attempts are not yet added to its owner's usage."""
    held = select(Experiment.id).where(
        Experiment.id == experiment_id, Experiment.deleted_at.is_not(None)
    )
    if session.scalar(held.with_for_update(skip_locked=True)) is None:
        return False
    unfolded = select(Attempt).where(
        Attempt.experiment_id == experiment_id, Attempt.folded.is_(False)
    )
    if session.scalar(select(unfolded.exists())):
        return False
    sizes.note(session, experiment_id, -sizes.of_experiment(session, experiment_id))
    series = select(Series.id).where(Series.experiment_id == experiment_id)
    session.execute(delete(Block).where(Block.series_id.in_(series)))
    for table in RECORDS:
        session.execute(delete(table).where(table.experiment_id == experiment_id))
    session.execute(delete(Experiment).where(Experiment.id == experiment_id))
    return True
