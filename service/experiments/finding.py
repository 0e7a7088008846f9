"""The experiment that a path names, where the caller may read it, or change it."""

from typing import Annotated

from fastapi import Path
from sqlalchemy.orm import Session

from service.experiments import store
from service.experiments.models import Experiment
from service.permission import not_found, writable
from service.users import Caller

ExperimentId = Annotated[str, Path(max_length=100)]


def find(session: Session, user: Caller, experiment_id: str) -> Experiment:
    """What the caller may read. Raises ApiError."""
    found = _readable(session, user, experiment_id)
    if found is None:
        raise not_found("experiment")
    return found


def find_own(session: Session, user: Caller, experiment_id: str) -> Experiment:
    """What the caller may change. Raises ApiError."""
    return writable(user, _readable(session, user, experiment_id), "experiment")


def _readable(session: Session, user: Caller, experiment_id: str) -> Experiment | None:
    if not experiment_id.isalnum():
        return None
    return store.find_readable(session, user.id, experiment_id, user.is_admin)
