"""Deleting experiments: first no one sees them, later their rows go. No function commits."""

from sqlalchemy import update
from sqlalchemy.orm import Session

from service.database import now
from service.experiments import states
from service.experiments.models import TERMINAL, WAITING, DesiredState, Experiment


def delete(session: Session, experiment: Experiment) -> bool:
    """Have no one see an experiment any more; what waits is cancelled first. False where it runs.
    Its idempotency key is free again."""
    if experiment.status in WAITING:
        states.request(session, experiment.id, DesiredState.CANCEL)
    ended = (Experiment.id == experiment.id) & Experiment.status.in_(TERMINAL)
    deleted = session.execute(
        update(Experiment)
        .where(ended, Experiment.deleted_at.is_(None))
        .values(deleted_at=now(), idempotency_key=None)
        .returning(Experiment.id)
    )
    return deleted.one_or_none() is not None
