"""Stored bytes of an experiment: its spec and other texts, its records and artifacts. Also the
bytes of sweeps and uploads."""

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, Text, cast, func, insert, literal, select, update
from sqlalchemy.orm import Session

from service.datasets.models import CONTENTS, Dataset
from service.experiments.models import TERMINAL, Artifact, Block, Event, Experiment, Metric, Series
from service.queue.models import ByteChange
from service.sweeps.models import Sweep

EXPERIMENT_BYTES = 2048
"""Bytes of an experiment's rows beside its spec and its records, measured with their index entries:
1.5 KiB on SQLite, 2 KiB on PostgreSQL. Most experiments have smaller specs."""
POINT_BYTES = 37
"""Bytes of a point in a block: four numbers, its record number, and the code of its reason."""

BLOCK_BYTES: ColumnElement[int] = (
    func.length(Block.x)
    + func.length(Block.value)
    + func.length(Block.std_err)
    + func.length(Block.n)
    + func.coalesce(func.length(Block.seq), 0)
    + func.length(Block.reason)
    + func.length(cast(Block.reasons, Text))
)
METRIC_BYTES: ColumnElement[int] = (
    16
    + func.length(Metric.name)
    + func.length(Metric.labels)
    + func.coalesce(func.length(Metric.reason), 0)
)
LOG_BYTES: ColumnElement[int] = func.length(cast(Event.data, Text))
ARTIFACT_BYTES: ColumnElement[int] = func.coalesce(Artifact.bytes, 0)


def of_texts(name: str | None, tags: Sequence[str], note: str | None) -> int:
    """Return the bytes of the texts beside a spec, in UTF-8."""
    texts = (name or "", *tags, note or "")
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)


def of_sweep(sweep: Sweep) -> int:
    """Return the bytes of a sweep without its points."""
    texts = of_texts(sweep.name, sweep.tags, sweep.note)
    return len(json.dumps(sweep.spec)) + len(json.dumps(sweep.comes_after)) + texts


def of_dataset(dataset: Dataset | Row[Any]) -> int:
    """Return the bytes of an upload: of its file, and of the names and counts in its row, which may
    take a thousand times as much."""
    described = (getattr(dataset, name) for name in CONTENTS)
    return dataset.bytes + sum(len(json.dumps(one)) for one in described if one is not None)


def note(session: Session, experiment_id: str, change: int) -> None:
    """Count bytes that this transaction stores for the owner of an experiment, or deletes."""
    if change:
        owner = select(Experiment.owner_id, literal(change)).where(Experiment.id == experiment_id)
        session.execute(insert(ByteChange).from_select(["owner_id", "bytes"], owner))


def of_records(session: Session, experiment_id: str, after: int = 0) -> int:
    """Return the bytes of an experiment's records after a record, artifacts included."""
    blocks = (
        select(func.sum(BLOCK_BYTES))
        .join(Series, Series.id == Block.series_id)
        .where(Series.experiment_id == experiment_id, Block.last_seq > after)
    )
    others = (
        select(func.sum(size)).where(table.experiment_id == experiment_id, table.seq > after)
        for table, size in (
            (Metric, METRIC_BYTES),
            (Event, LOG_BYTES),
            (Artifact, ARTIFACT_BYTES),
        )
    )
    parts = [func.coalesce(one.scalar_subquery(), 0) for one in (blocks, *others)]
    return sum(int(part) for part in session.execute(select(*parts)).one())


def of_experiment(session: Session, experiment_id: str) -> int:
    """Return all bytes of an experiment that count."""
    spec = select(Experiment.spec_bytes).where(Experiment.id == experiment_id)
    of_spec: int = session.execute(spec).scalar_one()
    return EXPERIMENT_BYTES + of_spec + of_records(session, experiment_id)


def unmeasured(session: Session, limit: int) -> list[Artifact]:
    """Return artifacts of unknown size, of experiments that have ended."""
    query = (
        select(Artifact)
        .join(Experiment, Experiment.id == Artifact.experiment_id)
        .where(Artifact.bytes.is_(None), Experiment.status.in_(TERMINAL))
    )
    return [*session.scalars(query.limit(limit))]


def note_size(session: Session, artifact: Artifact, size: int) -> None:
    """Store the size of an artifact that was not known. It is skipped while another transaction has
    locked its experiment, which may be being purged."""
    held = select(Experiment.id).where(Experiment.id == artifact.experiment_id)
    if session.scalar(held.with_for_update(skip_locked=True)) is None:
        return
    measured = session.execute(
        update(Artifact)
        .where(
            Artifact.experiment_id == artifact.experiment_id,
            Artifact.file == artifact.file,
            Artifact.bytes.is_(None),
        )
        .values(bytes=size)
        .returning(Artifact.file)
    ).one_or_none()
    if measured is not None:
        note(session, artifact.experiment_id, size)
