"""Reading series back from their blocks, of which a few at a time are held in memory."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Row, select, tuple_
from sqlalchemy.orm import Session

from service.experiments.models import Block, Series
from service.experiments.recording import COLUMNS
from service.experiments.schemas import SeriesOut
from service.experiments.selection import matches

BLOCKS_TOGETHER = 500
"""Named in one statement: a database takes only so many parameters."""
POINTS_TOGETHER = 100_000
"""Fetched by one statement, about: 4 MB."""

Indices = NDArray[np.int64]
AnyRow = Row[*tuple[Any, ...]]
_POINTS = Block.count.label("points")  # a row has a method of its own called count


def hold_still(session: Session) -> None:
    """Have everything that this session reads be of one moment: a run that is put back meanwhile
    takes records away. To be called before it reads; on SQLite each snapshot is so."""
    if session.get_bind().dialect.name == "postgresql":
        session.connection(execution_options={"isolation_level": "REPEATABLE READ"})


@dataclass(frozen=True)
class _Part:
    """The points that are wanted of a block of `count`, by their places in it."""

    series_id: int
    first_seq: int
    count: int
    places: Indices

    @property
    def key(self) -> tuple[int, int]:
        return self.series_id, self.first_seq


@dataclass
class _Line:
    """The points that are wanted of one series, as they are gathered from its blocks."""

    name: str
    labels: dict[str, object]
    total: int
    parts: list[_Part]
    columns: dict[str, list[NDArray[np.float64]]] = field(
        default_factory=lambda: {name: [] for name in COLUMNS}
    )
    reasons: list[str | None] = field(default_factory=list)


def read_series(
    session: Session,
    experiment_id: str,
    *,
    name: str | None = None,
    labels: dict[str, str] | None = None,
    after: int = 0,
    max_points: int,
) -> list[SeriesOut]:
    """The series of an experiment: of one name, where given; whose labels have the given values,
    compared as text; of their points those recorded after the record `after`, thinned to
    `max_points`: the first, the last and evenly many between. A session that reads beside a run
    must hold still."""
    lines = dict(_lines(session, experiment_id, name, labels or {}, after, max_points))
    wanted = {part.key: part for line in lines.values() for part in line.parts}
    for some in _groups(wanted.values()):
        for block in _blocks(session, [part.key for part in some]):
            part = wanted[block.series_id, block.first_seq]
            _gather(lines[block.series_id], block, part.places)
    return [_out(line) for line in lines.values()]


def labels_of(session: Session, experiment_id: str) -> list[tuple[str, dict[str, object]]]:
    """The name and labels of each series that there is."""
    query = select(Series.name, Series.labels).where(Series.experiment_id == experiment_id)
    found = session.execute(query.order_by(Series.id))
    return [(name, json.loads(labels)) for name, labels in found]


def _lines(
    session: Session,
    experiment_id: str,
    name: str | None,
    labels: dict[str, str],
    after: int,
    max_points: int,
) -> Iterator[tuple[int, _Line]]:
    """Each series by its id, and which of its points to read: the sizes of its blocks tell."""
    query = (
        select(Series.id, Series.name, Series.labels, Block.first_seq, Block.last_seq, _POINTS)
        .join(Block, Block.series_id == Series.id)
        .where(Series.experiment_id == experiment_id, Block.last_seq > after)
        .order_by(Series.id, Block.first_seq)
    )
    if name is not None:
        query = query.where(Series.name == name)
    for series_id, rows in groupby(session.execute(query).all(), key=lambda row: row.id):
        blocks = list(rows)
        own = json.loads(blocks[0].labels)
        if matches(own, labels):
            skipped = _skipped(session, blocks[0], after)
            total = sum(block.points for block in blocks) - skipped
            if total > 0:
                parts = list(_parts(blocks, _sample(total, max_points) + skipped))
                yield series_id, _Line(blocks[0].name, own, total, parts)


def _skipped(session: Session, first: AnyRow, after: int) -> int:
    """How many points of the first block, the only one that can have any, are not after `after`."""
    if first.first_seq > after:
        return 0
    column = session.scalar(
        select(Block.seq).where(Block.series_id == first.id, Block.first_seq == first.first_seq)
    )
    if column is None:
        seqs = np.linspace(first.first_seq, first.last_seq, first.points).round()
    else:
        seqs = np.frombuffer(column, dtype="<i4")
    return int(np.searchsorted(seqs, after, side="right"))


def _sample(total: int, most: int) -> Indices:
    if total <= most:
        return np.arange(total)
    return np.unique(np.linspace(0, total - 1, most).round().astype(np.int64))


def _parts(blocks: Sequence[AnyRow], kept: Indices) -> Iterator[_Part]:
    """The blocks in which the points of these places, counted over all blocks, are found."""
    ends = np.cumsum([block.points for block in blocks])
    cuts = np.searchsorted(kept, ends)
    for block, end, start, stop in zip(blocks, ends, [0, *cuts[:-1]], cuts, strict=True):
        if stop > start:
            places = kept[start:stop] - (end - block.points)
            yield _Part(block.id, block.first_seq, block.points, places)


def _groups(parts: Iterable[_Part]) -> Iterator[list[_Part]]:
    """Parts that are fetched together."""
    some: list[_Part] = []
    points = 0
    for part in parts:
        some.append(part)
        points += part.count
        if points >= POINTS_TOGETHER or len(some) == BLOCKS_TOGETHER:
            yield some
            some, points = [], 0
    yield some


_CONTENT = [getattr(Block, name) for name in (*COLUMNS, "reason", "reasons")]


def _blocks(session: Session, keys: Sequence[tuple[int, int]]) -> Sequence[AnyRow]:
    """The content of these blocks, in their order."""
    query = select(Block.series_id, Block.first_seq, *_CONTENT).where(
        tuple_(Block.series_id, Block.first_seq).in_(keys),
        Block.series_id.in_({series_id for series_id, _ in keys}),  # by which SQLite finds them
    )
    return session.execute(query.order_by(Block.series_id, Block.first_seq)).all()


def _gather(line: _Line, block: AnyRow, places: Indices) -> None:
    for name, parts in line.columns.items():
        parts.append(np.frombuffer(getattr(block, name), dtype="<f8")[places])
    known = [None, *block.reasons]
    line.reasons += [known[block.reason[place]] for place in places]


def _out(line: _Line) -> SeriesOut:
    columns = {name: np.concatenate(parts) for name, parts in line.columns.items()}
    return SeriesOut(
        name=line.name,
        labels=line.labels,
        total_points=line.total,
        sampled=len(columns["x"]) < line.total,
        x=columns["x"].tolist(),
        value=_nullable(columns["value"]),
        std_err=_nullable(columns["std_err"]),
        n=columns["n"].tolist(),
        reasons=line.reasons if any(line.reasons) else None,
    )


def _nullable(values: NDArray[np.float64]) -> list[float | None]:
    listed: list[float | None] = values.tolist()
    for i in np.flatnonzero(np.isnan(values)):
        listed[i] = None
    return listed
