"""Stored bytes of an experiment: its spec and other texts, its records and artifacts. Also the
bytes of sweeps and uploads."""

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Text, cast, func, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from service.datasets.models import CONTENTS, Dataset
from service.experiments.models import Artifact, Block, Event, Experiment, Metric, Series
from service.sweeps.models import Sweep
from service.vocabulary import TERMINAL, Status

EXPERIMENT_BYTES = 2048
"""Bytes of an experiment's rows beside its spec and its records, measured with their index entries:
1.5 KiB on SQLite, 2 KiB on PostgreSQL. Most experiments have smaller specs."""
POINT_BYTES = 37
"""Bytes of a point in a block: four numbers, its record number, and the code of its reason."""
METRIC_BYTES = 16
"""Bytes of a metric beside its texts."""
MEASURED_AT_ONCE = 200


def of_texts(name: str | None, tags: Sequence[str], note: str | None) -> int:
    """Return the bytes of the texts beside a spec, in UTF-8."""
    texts = (name or "", *tags, note or "")
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)


def of_sweep(sweep: Sweep) -> int:
    """Return the bytes of a sweep without its points."""
    texts = of_texts(sweep.name, sweep.tags, sweep.note)
    return len(json.dumps(sweep.spec)) + len(json.dumps(sweep.comes_after)) + texts


def of_dataset(dataset: Dataset) -> int:
    """Return the bytes of an upload: of its file, and of the names and counts in its row, which may
    take a thousand times as much."""
    described = (getattr(dataset, name) for name in CONTENTS)
    return dataset.bytes + sum(len(json.dumps(one)) for one in described if one is not None)


def _sum(
    size: ColumnElement[Any] | InstrumentedAttribute[Any], *conditions: ColumnElement[bool]
) -> ColumnElement[int]:
    query = select(func.coalesce(func.sum(size), 0)).where(*conditions)
    return query.correlate(Experiment).scalar_subquery()


_METRIC = func.length(Metric.name) + func.length(Metric.labels) + METRIC_BYTES
_RECORD_BYTES = (
    _sum(
        POINT_BYTES * Block.count,
        Block.series_id == Series.id,
        Series.experiment_id == Experiment.id,
    )
    + _sum(
        _METRIC + func.coalesce(func.length(Metric.reason), 0),
        Metric.experiment_id == Experiment.id,
    )
    + _sum(
        func.length(cast(Event.data, Text)),
        Event.experiment_id == Experiment.id,
        Event.kind == "log",
    )
    + _sum(Artifact.bytes, Artifact.experiment_id == Experiment.id)
)


def measure(session: Session) -> bool:
    """Measure the records and artifacts of experiments whose attempt has ended since the last call.
    Those that another transaction has locked are left for the next one. Return whether there may
    be more."""
    ids = session.scalars(
        select(Experiment.id)
        .where(Experiment.record_bytes.is_(None), Experiment.status != Status.RUNNING)
        .limit(MEASURED_AT_ONCE)
        .with_for_update(skip_locked=True)
    ).all()
    if ids:
        measured = update(Experiment).where(Experiment.id.in_(ids))
        session.execute(
            measured.values(record_bytes=_RECORD_BYTES).execution_options(synchronize_session=False)
        )
    return len(ids) == MEASURED_AT_ONCE


def unmeasured_artifacts(session: Session, limit: int) -> list[Artifact]:
    """Return artifacts of unknown size, of experiments that have ended."""
    query = (
        select(Artifact)
        .join(Experiment, Experiment.id == Artifact.experiment_id)
        .where(Artifact.bytes.is_(None), Experiment.status.in_(TERMINAL))
    )
    return [*session.scalars(query.limit(limit))]


def set_size(session: Session, artifact: Artifact, size: int) -> None:
    """Store the size of an artifact that was not known. It is skipped while another transaction has
    locked its experiment, which may be being purged."""
    held = select(Experiment.id).where(Experiment.id == artifact.experiment_id)
    if session.scalar(held.with_for_update(skip_locked=True)) is None:
        return
    session.execute(
        update(Artifact)
        .where(
            Artifact.experiment_id == artifact.experiment_id,
            Artifact.file == artifact.file,
            Artifact.bytes.is_(None),
        )
        .values(bytes=size)
    )
    again = update(Experiment).where(Experiment.id == artifact.experiment_id)
    session.execute(again.values(record_bytes=None))
