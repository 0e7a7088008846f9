"""Read the metrics, attempts, artifacts and log lines of experiments."""

from collections.abc import Sequence

from sqlalchemy import bindparam, func, literal, select
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


MAX_METRICS = 100_000
"""Maximum number of metrics of several experiments together. An experiment of 1,000 seeds has some
thousands; reading a million took 3 GB of memory and 37 s."""


class TooManyMetrics(Exception):
    """Some experiments have more metrics together than are read at once."""

    def __init__(self) -> None:
        super().__init__(f"they have more than {MAX_METRICS} metrics together")


def metrics_of(
    session: Session, ids: Sequence[str], names: Sequence[str] | None
) -> dict[str, list[Metric]]:
    """Return the metrics with these names, or all, by experiment. A single experiment may have any
    number. Raises TooManyMetrics."""
    if names is not None and not names:
        return {}
    wanted = [Metric.experiment_id.in_(ids)]
    if names is not None:
        wanted.append(Metric.name.in_(names))
    if len(ids) > 1:
        some = select(literal(1)).where(*wanted).limit(MAX_METRICS + 1).subquery()
        if (session.scalar(select(func.count()).select_from(some)) or 0) > MAX_METRICS:
            raise TooManyMetrics
    found: dict[str, list[Metric]] = {one: [] for one in ids}
    for metric in session.scalars(select(Metric).where(*wanted).order_by(Metric.seq)):
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
