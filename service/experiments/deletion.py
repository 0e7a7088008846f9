"""Delete experiments: first hide them, later remove their rows. No function commits."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Select,
    delete,
    exists,
    func,
    or_,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from service.accounts.models import User
from service.db.engine import now
from service.experiments.models import (
    NEVER_STARTED,
    Artifact,
    Attempt,
    Block,
    Checkpoint,
    Event,
    Experiment,
    Metric,
    Series,
    Wait,
)
from service.queue import states
from service.sweeps.models import SweepPoint
from service.vocabulary import TERMINAL, UNFINISHED, WAITING, DesiredState
from service.webhooks.models import Delivery

RESTORE_MARGIN_S = 60.0
"""Safety margin before the purge of an experiment. No transaction takes longer, so a restored
experiment is never among those being purged."""
PAGE = 1000
"""Maximum number of experiments that one statement of retention reads."""


Time = InstrumentedAttribute[float | None]


class Kept(NamedTuple):
    """An experiment, its owner, when it ended or was deleted, and whether it may be removed."""

    id: str
    owner: str
    at: float | None
    removable: bool
    is_deleted: bool


def remove(session: Session, experiment: Experiment) -> bool:
    """Hide an experiment. A waiting one is cancelled first. Return False if it is running or
    pinned."""
    if experiment.status in WAITING:
        states.request(session, experiment.id, DesiredState.CANCEL)
    return bool(remove_ended(session, [experiment.id]))


def remove_ended(session: Session, experiment_ids: Sequence[str] | Select[str]) -> Sequence[str]:
    """Hide those of these experiments that have ended and are not pinned, and return them."""
    return session.scalars(
        update(Experiment)
        .where(Experiment.id.in_(experiment_ids), _removable(), Experiment.deleted_at.is_(None))
        .values(deleted_at=now())
        .returning(Experiment.id)
        .execution_options(synchronize_session=False)
    ).all()


def restore(session: Session, experiment_id: str, purge_after_s: float) -> bool:
    """Restore a deleted experiment and return whether it was restored. This fails from one minute
    before its purge on, because its files are deleted before its row."""
    kept = Experiment.deleted_at > now() - (purge_after_s - RESTORE_MARGIN_S)
    change = update(Experiment).where(Experiment.id == experiment_id, kept).values(deleted_at=None)
    restored = session.scalars(
        change.returning(Experiment.id).execution_options(synchronize_session=False)
    )
    return restored.one_or_none() is not None


def owners(session: Session) -> Sequence[int]:
    """Return all users."""
    return session.scalars(select(User.id).order_by(User.id)).all()


def cutoff(session: Session, ago_s: float) -> float:
    """Return the time that many seconds ago, by the database's clock."""
    return session.execute(select(now() - ago_s)).scalar_one()


def older(session: Session, owner_id: int, before: float, after: Kept | None) -> list[Kept]:
    """Return a page of a user's experiments that ended before that time, the oldest first. `after`
    is the last one of the page before."""
    at = Experiment.finished_at
    query = _kept(at).where(Experiment.owner_id == owner_id, at < before)
    return _page(session, query, at, after)


def with_files(session: Session, after: Kept | None) -> list[Kept]:
    """Return a page of experiments with files, by their ids."""
    left = select(Artifact.experiment_id).distinct().order_by(Artifact.experiment_id)
    if after is not None:
        left = left.where(Artifact.experiment_id > after.id)
    query = _kept(Experiment.finished_at).where(Experiment.id.in_(left.limit(PAGE)))
    return [Kept(*row) for row in session.execute(query.order_by(Experiment.id))]


def _kept(at: Time) -> Select[*tuple[Any, ...]]:
    """Experiments and their owners. Pinned and deleted ones are read too, so that many of them do
    not slow a page."""
    is_deleted = Experiment.deleted_at.is_not(None)
    columns = (Experiment.id, User.name, at, _removable() & ~is_deleted, is_deleted)
    return select(*columns).join(User, User.id == Experiment.owner_id)


def _page(
    session: Session, query: Select[*tuple[Any, ...]], at: Time, after: Kept | None
) -> list[Kept]:
    place = tuple_(at, Experiment.id)
    if after is not None:
        query = query.where(place > tuple_(after.at, after.id))
    return [Kept(*row) for row in session.execute(query.order_by(at, Experiment.id).limit(PAGE))]


def _removable() -> ColumnElement[bool]:
    return _ended() & ~Experiment.pinned


def _ended() -> ColumnElement[bool]:
    return Experiment.status.in_(TERMINAL)


def purgeable(session: Session, before: float, after: Kept | None) -> list[Kept]:
    """Return a page of experiments that were deleted before that time, the oldest first. An
    experiment from which an unfinished run will start is not removable: the run was accepted
    before."""
    at = Experiment.deleted_at
    found = _page(session, _kept(at).where(at <= before), at, after)
    in_use = set(_started_from(session)) if found else set()
    return [one._replace(removable=one.id not in in_use) for one in found]


def _started_from(session: Session) -> Iterator[str]:
    """Yield the experiments whose weights unfinished runs need."""
    named = [Experiment.spec[(part, "experiment")].as_string() for part in ("model", "baseline")]
    given = or_(*(one.is_not(None) for one in named))
    query = select(*named).where(Experiment.status.in_(UNFINISHED), given)
    for row in session.execute(query):
        yield from (one for one in row if one is not None)


RECORDS = (
    Series, Metric, Event, Artifact, Checkpoint, Attempt, Wait, SweepPoint, Delivery,
)  # fmt: skip
"""Tables whose rows belong to an experiment and are deleted with it."""


def purge(session: Session, experiment_id: str) -> bool:
    """Delete a deleted experiment's records and row. Return False if another transaction has locked
    it, if its attempts are not yet added to its owner's usage, or if an experiment still waits for
    it."""
    held = select(Experiment.id).where(
        Experiment.id == experiment_id,
        Experiment.deleted_at.is_not(None),
        ~exists().where(Wait.after_id == Experiment.id),
    )
    if session.scalar(held.with_for_update(skip_locked=True)) is None:
        return False
    unfolded = select(Attempt.experiment_id).where(
        Attempt.experiment_id == experiment_id, Attempt.folded.is_(False)
    )
    if session.scalar(select(unfolded.exists())):
        return False
    series = select(Series.id).where(Series.experiment_id == experiment_id)
    session.execute(delete(Block).where(Block.series_id.in_(series)))
    for table in RECORDS:
        session.execute(delete(table).where(table.experiment_id == experiment_id))
    session.execute(delete(Experiment).where(Experiment.id == experiment_id))
    return True


def never_started(session: Session, before: float, after: Kept | None) -> list[Kept]:
    """Return a page of experiments outside sweeps that were cancelled before that time and before
    their first attempt, the earliest first. An experiment that is pinned, was retried, or is named
    by another experiment or a sweep is not removable."""
    at = Experiment.finished_at
    columns = (Experiment.id, User.name, at, ~_is_needed(), Experiment.deleted_at.is_not(None))
    query = select(*columns).join(User, User.id == Experiment.owner_id)
    page = _page(session, query.where(text(NEVER_STARTED), at < before), at, after)
    predecessors = _predecessors(session, page) if page else set()
    return [
        kept._replace(removable=kept.removable and kept.id not in predecessors) for kept in page
    ]


def _is_needed() -> ColumnElement[bool]:
    retry = aliased(Experiment)
    return or_(
        Experiment.pinned,
        select(retry.id).where(retry.retry_of == Experiment.id).exists(),
        select(SweepPoint.sweep_id).where(SweepPoint.experiment_id == Experiment.id).exists(),
        select(Wait.after_id).where(Wait.after_id == Experiment.id).exists(),
    )


def _predecessors(session: Session, page: Sequence[Kept]) -> set[str]:
    """Return those of these cancelled experiments that others were to come after. The others were
    submitted before these were cancelled, so no older or newer experiments are read."""
    ids = {kept.id for kept in page}
    first = select(func.min(Experiment.created_at)).where(Experiment.id.in_(ids))
    last = max(kept.at for kept in page if kept.at is not None) + RESTORE_MARGIN_S
    names = select(Experiment.comes_after).where(
        Experiment.comes_after.is_not(None),
        Experiment.created_at.between(first.scalar_subquery(), last),
    )
    return {one for names in session.scalars(names) for one in names or () if one in ids}


def purge_never_started(session: Session, experiment_ids: Sequence[str]) -> Sequence[str]:
    """Delete the rows of these experiments, which have no records and no files, and return the
    deleted ones. Those that were retried or pinned meanwhile, or that another transaction has
    locked, are left."""
    held = select(Experiment.id).where(Experiment.id.in_(experiment_ids), ~_is_needed())
    ids = session.scalars(held.with_for_update(skip_locked=True)).all()
    for table in RECORDS:
        session.execute(delete(table).where(table.experiment_id.in_(ids)))
    session.execute(delete(Experiment).where(Experiment.id.in_(ids)))
    return ids
