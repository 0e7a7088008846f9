"""Reconstruct the records of a run from the tables."""

import heapq
import json
import math
from collections.abc import Iterator, Sequence
from itertools import count, zip_longest
from typing import Any, NamedTuple, cast

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from mptcore.protocol.records import Artifact, Labels, Log, Metric, Point, Record
from service.records import results
from service.records.curves import POINTS_TOGETHER, Columns, record_numbers
from service.records.recording import COLUMNS
from service.tables.engine import IN_BINARY, Database
from service.tables.experiments import Block, Event, Series

Numbered = tuple[int, Record]


class Span(NamedTuple):
    """Blocks whose first records are in this range. Their other records may be later."""

    first_seq: int
    last_seq: int


def numbered_records(database: Database, experiment_id: str) -> Iterator[Numbered]:
    """Yield all stored records of an ended run in order. Progress records have no numbers and are
    omitted, as are log lines beyond MAX_LOGS. A few thousand records are in memory at a time. No
    connection is held while they are sent."""
    with database.snapshot() as session:
        others = [*_metrics(session, experiment_id), *_logs(session, experiment_id)]
        others += _artifacts(session, experiment_id)
    points = numbered_points(database, experiment_id)
    return heapq.merge(points, sorted(others, key=_seq), key=_seq)


def _seq(numbered: Numbered) -> int:
    return numbered[0]


def numbered_points(database: Database, experiment_id: str) -> Iterator[tuple[int, Point]]:
    """Yield the points of all series in the order of their numbers."""
    with database.snapshot() as session:
        spans = [*_spans(session, experiment_id)]
    waiting: list[tuple[int, int, Point, Iterator[tuple[int, Point]]]] = []
    ties = count()  # blocks of old stores have no record numbers: interpolated ones may be equal
    for span, following in zip_longest(spans, spans[1:]):
        with database.snapshot() as session:
            blocks = _blocks(session, experiment_id, span)
        for points in map(_points, blocks):
            seq, point = next(points)
            heapq.heappush(waiting, (seq, next(ties), point, points))
        until = math.inf if following is None else following.first_seq
        while waiting and waiting[0][0] < until:
            seq, tie, point, points = waiting[0]
            yield seq, point
            later = next(points, None)
            if later is None:
                heapq.heappop(waiting)
            else:
                heapq.heapreplace(waiting, (later[0], tie, later[1], points))


def _spans(session: Session, experiment_id: str) -> Iterator[Span]:
    """Yield spans of blocks that are read together."""
    rows = session.execute(
        select(Block.first_seq, Block.count.label("points"))
        .join(Series, Series.id == Block.series_id)
        .where(Series.experiment_id == experiment_id)
        .order_by(Block.first_seq)
    ).all()
    some: list[int] = []
    points = 0
    for row in rows:
        some.append(row.first_seq)
        points += row.points
        if points >= POINTS_TOGETHER:
            yield Span(some[0], some[-1])
            some, points = [], 0
    if some:
        yield Span(some[0], some[-1])


def _blocks(session: Session, experiment_id: str, span: Span) -> Sequence[Any]:
    content = [getattr(Block, name) for name in (*COLUMNS, "seq", "reason", "reasons")]
    query = (
        select(
            *(Series.name, Series.labels, Block.first_seq, Block.last_seq),
            *(Block.count.label("points"), *content),
        )
        .join(Series, Series.id == Block.series_id)
        .where(Series.experiment_id == experiment_id)
        .where(Block.first_seq.between(span.first_seq, span.last_seq))
    )
    return session.execute(query, execution_options=IN_BINARY).all()


def _points(block: Any) -> Iterator[tuple[int, Point]]:
    labels = json.loads(block.labels)
    seqs = record_numbers(block.seq, block.first_seq, block.last_seq, block.points)
    columns: Columns = {n: np.frombuffer(getattr(block, n), dtype="<f8") for n in COLUMNS}
    reasons = [None, *block.reasons]
    numbers = zip(*(columns[name].tolist() for name in COLUMNS), block.reason, strict=True)
    for seq, (x, value, std_err, n, code) in zip(seqs.tolist(), numbers, strict=True):
        yield (
            int(seq),
            Point(
                block.name,
                x,
                _number(value),
                _number(std_err),
                int(n),
                labels,
                reasons[code],
            ),
        )


def _number(value: float) -> float | None:
    return None if value != value else value


def _metrics(session: Session, experiment_id: str) -> Iterator[Numbered]:
    for one in results.metrics(session, experiment_id):
        labels = results.parsed_labels(one.labels)
        yield (
            one.seq,
            Metric(
                one.name,
                one.value,
                one.std_err,
                cast(Labels, labels),
                one.reason,
            ),
        )


def _logs(session: Session, experiment_id: str) -> Iterator[Numbered]:
    logs = select(Event.seq, Event.data).where(
        Event.experiment_id == experiment_id, Event.kind == "log"
    )
    for seq, data in session.execute(logs):
        yield cast(int, seq), Log(data["level"], data["message"])


def _artifacts(session: Session, experiment_id: str) -> Iterator[Numbered]:
    for one in results.artifacts(session, experiment_id):
        yield one.seq, Artifact(one.file, one.media_type, one.sha256)
