"""Reconstruct the records of a run from the tables."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select
from sqlalchemy.orm import Session

from mptcore.protocol.records import (
    Artifact,
    Labels,
    Log,
    Metric,
    Record,
    encode,
    point_encoder,
)
from service.db.engine import IN_BINARY, Database
from service.experiments.models import Block, Event, Series
from service.records import results
from service.records.curves import POINTS_TOGETHER, record_numbers
from service.records.recording import COLUMNS

Numbered = tuple[int, Record]


class Span(NamedTuple):
    """Blocks whose first records are in this range. Their other records may be later."""

    first_seq: int
    last_seq: int


POINT_COLUMNS = ("series", "seq", *COLUMNS, "reason")
CONVERTED_TOGETHER = 1000
"""Points that become Python's numbers at a time."""


@dataclass(frozen=True)
class StoredSeries:
    """Name and labels of a series, which all of its points have in common."""

    id: int
    name: str
    labels: dict[str, Any]


def stored_series(session: Session, experiment_id: str) -> list[StoredSeries]:
    """Return the series of an experiment."""
    rows = session.execute(
        select(Series.id, Series.name, Series.labels)
        .where(Series.experiment_id == experiment_id)
        .order_by(Series.id)
    )
    return [StoredSeries(one.id, one.name, json.loads(one.labels)) for one in rows]


def record_lines(
    database: Database, experiment_id: str, series: Sequence[StoredSeries]
) -> Iterator[str]:
    """Yield all stored records of an ended run in order, as lines. Progress records have no numbers
    and are omitted, as are log lines beyond MAX_LOGS. About POINTS_TOGETHER points are in memory at
    a time. No connection is held while they are sent."""
    with database.snapshot() as session:
        others = [*_metrics(session, experiment_id), *_logs(session, experiment_id)]
        others += _artifacts(session, experiment_id)
    others.sort(key=_seq, reverse=True)
    encoders = [point_encoder(one.name, cast(Labels, one.labels)) for one in series]
    for index, seq, *point in stored_points(database, experiment_id, series):
        while others and others[-1][0] < seq:
            yield f"{encode(*others.pop())}\n"
        yield f"{encoders[index](seq, *point)}\n"
    while others:
        yield f"{encode(*others.pop())}\n"


def _seq(numbered: Numbered) -> int:
    return numbered[0]


def stored_points(
    database: Database, experiment_id: str, series: Sequence[StoredSeries]
) -> Iterator[tuple[Any, ...]]:
    """Yield the points of all series in the order of their numbers. A point is the index of its
    series, its number, x, value, std_err, n, and the reason if a number is missing (NaN)."""
    places = {one.id: index for index, one in enumerate(series)}
    with database.snapshot() as session:
        spans = [*_spans(session, experiment_id)]
    later: list[dict[str, NDArray[Any]]] = []
    for span, following in zip_longest(spans, spans[1:]):
        with database.snapshot() as session:
            parts = [*later, _columns(_blocks(session, experiment_id, span), places)]
        whole = {name: np.concatenate([one[name] for one in parts]) for name in POINT_COLUMNS}
        order = np.argsort(whole["seq"], kind="stable")
        until = math.inf if following is None else following.first_seq
        ready = np.searchsorted(whole["seq"], until, sorter=order)
        for first in range(0, int(ready), CONVERTED_TOGETHER):
            some = order[first : min(first + CONVERTED_TOGETHER, ready)]
            yield from zip(*(whole[name][some].tolist() for name in POINT_COLUMNS), strict=True)
        later = [{name: column[order[ready:]] for name, column in whole.items()}]


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
    heads = (Block.series_id, Block.first_seq, Block.last_seq, Block.count.label("points"))
    query = (
        select(*heads, *content)
        .join(Series, Series.id == Block.series_id)
        .where(Series.experiment_id == experiment_id)
        .where(Block.first_seq.between(span.first_seq, span.last_seq))
    )
    return session.execute(query, execution_options=IN_BINARY).all()


def _columns(blocks: Sequence[Any], places: Mapping[int, int]) -> dict[str, NDArray[Any]]:
    """Return the points of blocks, one block after the other."""
    owners = [places[one.series_id] for one in blocks]
    return {
        "series": np.repeat(owners, [one.points for one in blocks]),
        "seq": np.concatenate([_seqs(one) for one in blocks]).astype(np.int64),
        **{
            name: np.frombuffer(b"".join(getattr(one, name) for one in blocks), dtype="<f8")
            for name in COLUMNS
        },
        "reason": np.concatenate([_reasons(one) for one in blocks]),
    }


def _seqs(block: Any) -> NDArray[Any]:
    return record_numbers(block.seq, block.first_seq, block.last_seq, block.points)


def _reasons(block: Any) -> NDArray[Any]:
    known = np.array([None, *block.reasons], dtype=object)
    return known[np.frombuffer(block.reason, dtype=np.uint8)]


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
