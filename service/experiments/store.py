"""Find experiments, and check what their owner may submit. Every query names the owner, or the
reader who may see them, and leaves out deleted experiments."""

from collections.abc import Collection, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session, defer, joinedload, undefer

from service import quota
from service.experiments.models import (
    UNFINISHED,
    Artifact,
    Attempt,
    Event,
    Experiment,
    Held,
    Metric,
    Status,
)
from service.experiments.shares import MOST_PRIORITY
from service.experiments.sizes import of_texts
from service.fair_share import FairShare
from service.refusals import ApiError
from service.sharing import readable, reader
from service.users import Caller, User

_BY_ID = (
    select(Experiment)
    .where(Experiment.id == bindparam("id"), Experiment.deleted_at.is_(None))
    .options(joinedload(Experiment.owner))
    .execution_options(populate_existing=True)
)
_OWN = _BY_ID.where(Experiment.owner_id == bindparam("owner_id"))
_READABLE = _BY_ID.where(readable(Experiment))
_METRICS = select(Metric).where(Metric.experiment_id == bindparam("id")).order_by(Metric.seq)
_ATTEMPTS = (
    select(Attempt)
    .where(Attempt.experiment_id == bindparam("id"))
    .order_by(Attempt.attempt)
    .options(undefer(Attempt.environment))
)
"""Built once, because building a statement takes as long as executing it."""


def check_limits(
    session: Session, owner_id: int, priority: int, more: int, sharing: FairShare, needed: int = 0
) -> None:
    """Raises ApiError if a user may not have `more` experiments, which need `needed` bytes.
    Submissions of one user pass here one at a time, so that two do not both take the last place.
    """
    check_priority(session, owner_id, priority)
    count, most = submitted_of(session, owner_id, sharing)
    if count + more > most:
        asked = "" if more == 1 else f"; these are {more} more"
        detail = f"{count} of your experiments have not ended, and your limit is {most}{asked}"
        raise ApiError(HTTPStatus.CONFLICT, "limit_reached", detail)
    check_bytes(session, owner_id, sharing, needed)


def check_bytes(session: Session, owner_id: int, sharing: FairShare, needed: int) -> None:
    """Check that a user may keep so many more bytes. Raises ApiError."""
    if (problem := quota.room_of(session, owner_id, sharing).problem(needed)) is not None:
        raise ApiError(HTTPStatus.CONFLICT, "storage_quota", problem)


def change(
    session: Session, experiment: Experiment, changes: Mapping[str, Any], sharing: FairShare
) -> None:
    """Change columns of an experiment, and count the bytes of its texts. Raises ApiError."""
    check_priority(session, experiment.owner_id, changes.get("priority", 0))
    session.refresh(experiment)  # no other change passes the lock that was taken
    before = of_texts(experiment.name, experiment.tags, experiment.note)
    for name, value in changes.items():
        setattr(experiment, name, value)
    more = of_texts(experiment.name, experiment.tags, experiment.note) - before
    if more > 0:
        check_bytes(session, experiment.owner_id, sharing, more)
    experiment.spec_bytes += more
    quota.note(session, experiment.owner_id, more)


def check_priority(session: Session, owner_id: int, priority: int) -> None:
    """Raises ApiError if the owner may not use this priority. Locks the user's row."""
    may_jump = session.scalar(
        select(User.may_jump).where(User.id == owner_id).with_for_update(key_share=True)
    )
    if priority > MOST_PRIORITY and not may_jump:
        detail = f"a priority above {MOST_PRIORITY} jumps the queue: an administrator allows it"
        raise ApiError(HTTPStatus.FORBIDDEN, "may_not_jump", detail)


def submitted_of(session: Session, owner_id: int, sharing: FairShare) -> tuple[int, int]:
    """Return how many experiments of a user have not ended, and the limit."""
    own = session.scalar(select(User.max_submitted).where(User.id == owner_id))
    mine = select(func.count()).where(
        Experiment.owner_id == owner_id, Experiment.status.in_(UNFINISHED)
    )
    return session.scalar(mine) or 0, sharing.max_submitted if own is None else own


def next_in_turn(session: Session, owner_id: int, limit: int) -> Sequence[Experiment]:
    """Return the owner's queued experiments in the order in which they would run."""
    query = (
        select(Experiment)
        .where(Experiment.owner_id == owner_id, Experiment.status == Status.QUEUED)
        .options(defer(Experiment.spec, raiseload=True))
    )
    order = (Experiment.held != Held.NOT, Experiment.priority.desc(), Experiment.id)
    return session.scalars(query.order_by(*order).limit(limit)).all()


def find(session: Session, owner_id: int, experiment_id: str) -> Experiment | None:
    """Return the experiment if it is the owner's."""
    return session.scalar(_OWN, {"id": experiment_id, "owner_id": owner_id})


def find_readable(
    session: Session, reader_id: int, experiment_id: str, reads_all: bool = False
) -> Experiment | None:
    """Return the experiment if the reader owns it, if it is shared with the lab, or if the reader
    may read everything."""
    return session.scalar(_READABLE, {"id": experiment_id, **reader(reader_id, reads_all)})


def find_referenced(
    session: Session, reader_id: int, experiment_ids: Collection[str]
) -> Sequence[Experiment]:
    """Return those of these experiments that are open to the reader. They may end at any time."""
    if not experiment_ids:
        return ()
    query = (
        select(Experiment)
        .where(Experiment.id.in_(experiment_ids), Experiment.deleted_at.is_(None))
        .where(readable(Experiment))
        .order_by(Experiment.id)
        .execution_options(populate_existing=True)
    )
    return session.scalars(query, reader(reader_id)).all()


def readable_ids(session: Session, user: Caller, experiment_ids: Sequence[str]) -> set[str]:
    """Return the ids of those of these experiments that the caller may read."""
    query = select(Experiment.id).where(
        Experiment.id.in_(experiment_ids), Experiment.deleted_at.is_(None), readable(Experiment)
    )
    return set(session.scalars(query, reader(user.id, user.is_admin)))


def readable_ones(
    session: Session, user: Caller, experiment_ids: Sequence[str], *, whole: bool = False
) -> Sequence[Experiment]:
    """Return those of these experiments that the caller may read, with specs and owners."""
    query = select(Experiment).where(
        Experiment.id.in_(experiment_ids), Experiment.deleted_at.is_(None), readable(Experiment)
    )
    more = joinedload(Experiment.owner) if whole else defer(Experiment.spec, raiseload=True)
    return session.scalars(query.options(more), reader(user.id, user.is_admin)).all()


def metrics(session: Session, experiment_id: str) -> Sequence[Metric]:
    """Return an experiment's metrics in the order of their records."""
    return session.scalars(_METRICS, {"id": experiment_id}).all()


def metrics_of(
    session: Session, ids: Sequence[str], names: Sequence[str] | None
) -> dict[str, list[Metric]]:
    """Return the metrics with these names, or all, by experiment."""
    if names is not None and not names:
        return {}
    query = select(Metric).where(Metric.experiment_id.in_(ids))
    if names is not None:
        query = query.where(Metric.name.in_(names))
    found: dict[str, list[Metric]] = {one: [] for one in ids}
    for metric in session.scalars(query.order_by(Metric.seq)):
        found[metric.experiment_id].append(metric)
    return found


def attempts(session: Session, experiment_id: str) -> Sequence[Attempt]:
    """Return an experiment's attempts and their environments, oldest first."""
    return session.scalars(_ATTEMPTS, {"id": experiment_id}).all()


def artifacts(session: Session, experiment_id: str) -> Sequence[Artifact]:
    """Return the files of an experiment in the order of their records."""
    query = select(Artifact).where(Artifact.experiment_id == experiment_id)
    return session.scalars(query.order_by(Artifact.seq)).all()


def logs(
    session: Session, experiment_id: str, after: int, level: str | None, limit: int
) -> Sequence[Event]:
    """Return the lines of an experiment's log after a record, in order."""
    query = select(Event).where(Event.experiment_id == experiment_id, Event.kind == "log")
    if level is not None:
        query = query.where(Event.data["level"].as_string() == level)
    return session.scalars(query.where(Event.seq > after).order_by(Event.seq).limit(limit)).all()
