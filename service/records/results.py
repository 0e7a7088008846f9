"""Read the metrics, attempts, artifacts and log lines of experiments."""

from collections.abc import Sequence

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session, undefer

from service.tables.experiments import (
    Artifact,
    Attempt,
    Event,
    Metric,
)

_METRICS = select(Metric).where(Metric.experiment_id == bindparam("id")).order_by(Metric.seq)


_ATTEMPTS = (
    select(Attempt)
    .where(Attempt.experiment_id == bindparam("id"))
    .order_by(Attempt.attempt)
    .options(undefer(Attempt.environment))
)
"""Built once, because building a statement takes as long as executing it."""


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
