"""Read the metrics, attempts, artifacts and log lines of experiments."""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Result, Row, bindparam, func, literal, select
from sqlalchemy.orm import Session, undefer

from mptcore.protocol.metrics import INTERIM
from service.experiments.models import (
    Artifact,
    Attempt,
    Event,
    Metric,
)

MetricRow = Row[*tuple[Any, ...]]
"""A metric. Objects of the class Metric would take three times as long to read."""
METRIC = (
    Metric.experiment_id,
    Metric.seq,
    Metric.name,
    Metric.labels,
    Metric.value,
    Metric.std_err,
    Metric.reason,
)
"""Columns of a metric."""
_METRICS = select(*METRIC).where(Metric.experiment_id == bindparam("id")).order_by(Metric.seq)

MAX_ATTEMPTS = 50
"""Attempts that an answer lists, and whose environments are kept: an owner may pause and resume
for ever, and each attempt has an environment of up to 20 KB."""
_ATTEMPTS = (
    select(Attempt)
    .where(Attempt.experiment_id == bindparam("id"))
    .order_by(Attempt.attempt.desc())
    .limit(MAX_ATTEMPTS)
    .options(undefer(Attempt.environment))
)
"""Built once, because building a statement takes as long as executing it."""


def metrics(session: Session, experiment_id: str) -> Sequence[MetricRow]:
    """Return an experiment's metrics in the order of their records."""
    return _all_rows(session.execute(_METRICS, {"id": experiment_id}))


ROWS_AT_ONCE = 1000
"""Rows that one call of the driver converts. It holds the interpreter's lock meanwhile: 100,000 at
once stopped all other threads of the process for half a second."""


def _all_rows(found: Result[*tuple[Any, ...]]) -> list[MetricRow]:
    return [row for some in found.partitions(ROWS_AT_ONCE) for row in some]


def is_final(metric: Any) -> list[ColumnElement[bool]]:
    """Return the clauses that match metrics other than those of `train.curve_at`."""
    return [metric.labels.not_like(f'%"{label}":%') for label in sorted(INTERIM)]


MAX_METRICS = 100_000
"""Maximum number of metrics that an answer is made from. One experiment has fewer, because its spec
limits its curves."""


@lru_cache(maxsize=10_000)
def parsed_labels(text: str) -> dict[str, Any]:
    """Return stored labels, which must not be changed. Many metrics and experiments have the
    same."""
    labels: dict[str, Any] = json.loads(text)
    return labels


class TooManyMetrics(Exception):
    """Some experiments have more metrics together than are read at once."""

    def __init__(self) -> None:
        super().__init__(f"they have more than {MAX_METRICS} metrics together")


def check_metrics(session: Session, *which: ColumnElement[bool]) -> None:
    """Check the number of metrics that meet some conditions. Raises TooManyMetrics."""
    some = select(literal(1)).where(*which).limit(MAX_METRICS + 1).subquery()
    if (session.scalar(select(func.count()).select_from(some)) or 0) > MAX_METRICS:
        raise TooManyMetrics


def metrics_of(
    session: Session,
    ids: Sequence[str],
    names: Sequence[str] | None,
    only_final: bool = False,
) -> dict[str, list[MetricRow]]:
    """Return the metrics with these names, or all, by experiment; with `only_final`, without those
    of `train.curve_at`. Raises TooManyMetrics if they are more than MAX_METRICS of several
    experiments."""
    if names is not None and not names:
        return {}
    wanted: list[ColumnElement[bool]] = [Metric.experiment_id.in_(ids)]
    if names is not None:
        wanted.append(Metric.name.in_(names))
    if only_final:
        wanted.extend(is_final(Metric))
    if len(ids) > 1:
        check_metrics(session, *wanted)
    found: dict[str, list[MetricRow]] = {one: [] for one in ids}
    for metric in _all_rows(session.execute(select(*METRIC).where(*wanted).order_by(Metric.seq))):
        found[metric[0]].append(metric)
    return found


def attempts(session: Session, experiment_id: str) -> Sequence[Attempt]:
    """Return an experiment's latest attempts and their environments, oldest first."""
    return session.scalars(_ATTEMPTS, {"id": experiment_id}).all()[::-1]


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
