"""Find experiments and change them. Every query names the owner, or the reader who may see them."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session, defer, joinedload

from mptcore.specs import Problem
from service.accounts.permissions import not_found
from service.accounts.users import Caller
from service.db.visibility import readable, reader
from service.experiments.models import Experiment, Held
from service.fair_share import FairShare
from service.queue import quota
from service.queue.sizes import of_texts
from service.refusals import ApiError, invalid
from service.vocabulary import DONE, Action, DesiredState, Status, allowed


def change(
    session: Session, experiment: Experiment, changes: Mapping[str, Any], fair_share: FairShare
) -> None:
    """Change columns of an experiment, and count the bytes of its texts. Raises ApiError."""
    quota.check_priority(session, experiment.owner_id, changes.get("priority", 0))
    session.refresh(experiment)  # the lock prevents other changes
    before = of_texts(experiment.name, experiment.tags, experiment.note)
    for name, value in changes.items():
        setattr(experiment, name, value)
    more = of_texts(experiment.name, experiment.tags, experiment.note) - before
    if more > 0:
        quota.check_bytes(session, experiment.owner_id, experiment.project_id, fair_share, more)
    experiment.spec_bytes += more


def actions(experiment: Experiment) -> set[Action]:
    """Return the actions that the state of an experiment allows."""
    state = Status(experiment.status), DesiredState(experiment.desired_state)
    return {Action.CHANGE, *allowed(*state)} - ({Action.DELETE} if experiment.pinned else set())


def wrong_state(experiment: Experiment) -> ApiError:
    """Return the refusal of an action that the state of an experiment does not allow."""
    state = Status(experiment.status), DesiredState(experiment.desired_state)
    *names, last = [DONE[action] for action in allowed(*state)] or [""]
    if not last:
        detail = "the experiment is being cancelled: it ends soon"
    else:
        words = f"{', '.join(names)} or {last}" if names else last
        detail = f"the experiment is {experiment.status}: it may be {words}"
    return ApiError(HTTPStatus.CONFLICT, "wrong_state", detail)


def next_in_turn(session: Session, owner_id: int, limit: int) -> Sequence[Experiment]:
    """Return the owner's queued experiments in the order in which they would run."""
    query = (
        select(Experiment)
        .where(Experiment.owner_id == owner_id, Experiment.status == Status.QUEUED)
        .options(defer(Experiment.spec, raiseload=True))
    )
    order = (Experiment.held != Held.NOT, Experiment.priority.desc(), Experiment.id)
    return session.scalars(query.order_by(*order).limit(limit)).all()


def readable_ids(session: Session, user: Caller, experiment_ids: Sequence[str]) -> set[str]:
    """Return the ids of the experiments among these that the caller may read."""
    query = select(Experiment.id).where(Experiment.id.in_(experiment_ids), readable(Experiment))
    return set(session.scalars(query, reader(user.id, user.is_admin)))


def readable_ones(
    session: Session, user: Caller, experiment_ids: Sequence[str], *, whole: bool = False
) -> Sequence[Experiment]:
    """Return those of these experiments that the caller may read, with specs and owners."""
    query = select(Experiment).where(Experiment.id.in_(experiment_ids), readable(Experiment))
    more = joinedload(Experiment.owner) if whole else defer(Experiment.spec, raiseload=True)
    return session.scalars(query.options(more), reader(user.id, user.is_admin)).all()


def find_deleted(session: Session, user: Caller, experiment_id: str) -> Experiment | None:
    """Return a deleted experiment that is not purged yet: the caller's, for an admin anyone's."""
    if not experiment_id.isalnum():
        return None
    query = select(Experiment).where(
        Experiment.id == experiment_id, Experiment.deleted_at.is_not(None)
    )
    if not user.is_admin:
        query = query.where(Experiment.owner_id == user.id)
    return session.scalar(query)


def find_all(
    session: Session, user: Caller, ids: Sequence[str], *, whole: bool = False
) -> list[Experiment]:
    """Return experiments in the order of their ids. Raises ApiError, with the same message for
    missing and for inaccessible ones."""
    if twice := [i for i, one in enumerate(ids) if one in ids[:i]]:
        raise invalid([Problem(f"/ids/{i}", f"{ids[i]} is named before") for i in twice])
    found = {one.id: one for one in readable_ones(session, user, ids, whole=whole)}
    missing = [i for i, one in enumerate(ids) if one not in found]
    if missing:
        detail = not_found("experiment").detail
        listed = ", ".join(ids[i] for i in missing)
        problems = [Problem(f"/ids/{i}", detail) for i in missing]
        raise ApiError(HTTPStatus.NOT_FOUND, "not_found", f"{detail}: {listed}", problems)
    return [found[one] for one in ids]
