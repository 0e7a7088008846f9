"""Find experiments, and check what their owner may submit. Every query names the owner, or the
reader who may see them, and leaves out deleted experiments."""

from collections.abc import Collection, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session, defer, joinedload

from service.accounts.users import Caller
from service.fair_share import FairShare
from service.queue import quota
from service.queue.shares import MAX_PRIORITY
from service.queue.sizes import of_texts
from service.refusals import ApiError
from service.tables.experiments import (
    UNFINISHED,
    Experiment,
    Held,
    Status,
)
from service.tables.users import User
from service.tables.visibility import readable, reader

_BY_ID = (
    select(Experiment)
    .where(Experiment.id == bindparam("id"), Experiment.deleted_at.is_(None))
    .options(joinedload(Experiment.owner))
    .execution_options(populate_existing=True)
)
_OWN = _BY_ID.where(Experiment.owner_id == bindparam("owner_id"))
_READABLE = _BY_ID.where(readable(Experiment))


def check_limits(
    session: Session,
    owner_id: int,
    priority: int,
    more: int,
    fair_share: FairShare,
    needed: int = 0,
) -> None:
    """Raises ApiError if a user may not have `more` experiments, which need `needed` bytes.
    Submissions of one user pass here one at a time, so that two do not both take the last place.
    """
    check_priority(session, owner_id, priority)
    count, most = submitted_of(session, owner_id, fair_share)
    if count + more > most:
        asked = "" if more == 1 else f"; these are {more} more"
        detail = f"{count} of your experiments have not ended, and your limit is {most}{asked}"
        raise ApiError(HTTPStatus.CONFLICT, "limit_reached", detail)
    check_bytes(session, owner_id, fair_share, needed)


def check_bytes(session: Session, owner_id: int, fair_share: FairShare, needed: int) -> None:
    """Check that a user may keep so many more bytes. Raises ApiError."""
    if (problem := quota.room_of(session, owner_id, fair_share).problem(needed)) is not None:
        raise ApiError(HTTPStatus.CONFLICT, "storage_quota", problem)


def change(
    session: Session, experiment: Experiment, changes: Mapping[str, Any], fair_share: FairShare
) -> None:
    """Change columns of an experiment, and count the bytes of its texts. Raises ApiError."""
    check_priority(session, experiment.owner_id, changes.get("priority", 0))
    session.refresh(experiment)  # no other change passes the lock that was taken
    before = of_texts(experiment.name, experiment.tags, experiment.note)
    for name, value in changes.items():
        setattr(experiment, name, value)
    more = of_texts(experiment.name, experiment.tags, experiment.note) - before
    if more > 0:
        check_bytes(session, experiment.owner_id, fair_share, more)
    experiment.spec_bytes += more
    quota.note(session, experiment.owner_id, more)


def check_priority(session: Session, owner_id: int, priority: int) -> None:
    """Raises ApiError if the owner may not use this priority. Locks the user's row."""
    may_jump = session.scalar(
        select(User.may_jump).where(User.id == owner_id).with_for_update(key_share=True)
    )
    if priority > MAX_PRIORITY and not may_jump:
        detail = f"a priority above {MAX_PRIORITY} jumps the queue: an administrator allows it"
        raise ApiError(HTTPStatus.FORBIDDEN, "may_not_jump", detail)


def submitted_of(session: Session, owner_id: int, fair_share: FairShare) -> tuple[int, int]:
    """Return how many experiments of a user have not ended, and the limit."""
    own = session.scalar(select(User.max_submitted).where(User.id == owner_id))
    mine = select(func.count()).where(
        Experiment.owner_id == owner_id, Experiment.status.in_(UNFINISHED)
    )
    return session.scalar(mine) or 0, fair_share.max_submitted if own is None else own


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
