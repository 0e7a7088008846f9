"""Find the experiments that a request names and that the caller may read or change."""

from collections.abc import Sequence
from http import HTTPStatus

from sqlalchemy import select
from sqlalchemy.orm import Session

from mptcore.specs import Problem
from service.accounts.permission import not_found, writable
from service.accounts.users import Caller
from service.experiments import store
from service.refusals import ApiError, invalid
from service.tables.experiments import Experiment


def find(session: Session, user: Caller, experiment_id: str) -> Experiment:
    """Return an experiment that the caller may read. Raises ApiError."""
    found = _readable(session, user, experiment_id)
    if found is None:
        raise not_found("experiment")
    return found


def find_own(session: Session, user: Caller, experiment_id: str) -> Experiment:
    """Return an experiment that the caller may change. Raises ApiError."""
    return writable(user, _readable(session, user, experiment_id), "experiment")


def find_deleted(session: Session, user: Caller, experiment_id: str) -> Experiment | None:
    """A deleted experiment of the caller's, or for an admin of anyone's, that is not purged yet."""
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
    found = {one.id: one for one in store.readable_ones(session, user, ids, whole=whole)}
    missing = [i for i, one in enumerate(ids) if one not in found]
    if missing:
        detail = not_found("experiment").detail
        listed = ", ".join(ids[i] for i in missing)
        problems = [Problem(f"/ids/{i}", detail) for i in missing]
        raise ApiError(HTTPStatus.NOT_FOUND, "not_found", f"{detail}: {listed}", problems)
    return [found[one] for one in ids]


def _readable(session: Session, user: Caller, experiment_id: str) -> Experiment | None:
    if not experiment_id.isalnum():
        return None
    return store.find_readable(session, user.id, experiment_id, user.is_admin)
