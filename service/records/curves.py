"""Read series from their blocks. Only a few blocks are in memory at a time."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Row, func, select, tuple_
from sqlalchemy.orm import Session

from service.db.engine import IN_BINARY
from service.experiments.models import Block, Series
from service.records.downsampling import downsampled, points_per_series
from service.records.recording import COLUMNS
from service.records.schemas import SeriesOut
from service.records.selection import Wanted, matches

BLOCKS_TOGETHER = 500
"""Maximum number of blocks in one statement: databases limit the number of parameters."""
POINTS_TOGETHER = 50_000
"""Approximate number of points that one statement fetches and that are downsampled together: 2
MB."""
VALUE = COLUMNS.index("value")
MIN_SHOWN = 2
"""Minimum number of points of a series: its first and its last."""

Points = list[NDArray[Any]]
"""Points as columns: x, value, std_err, n, and the code of the reason."""
AnyRow = Row[*tuple[Any, ...]]
_POINTS = Block.count.label("points")  # a row has a method of its own called count


MAX_SERIES = 20_000
"""Maximum number of series that are read of several experiments together. Reading 200,000 took 600
MB of memory and 12 s. The spec of one experiment limits its curves."""


class TooManySeries(Exception):
    """Some experiments have more series together than are read at once."""

    def __init__(self, series: int):
        super().__init__(f"they have {series} series together; at most {MAX_SERIES} are read")


def check_series(session: Session, experiment_ids: Sequence[str]) -> None:
    """Check the number of series of several experiments. A single experiment may have any number.
    Raises TooManySeries."""
    own = select(func.count()).where(Series.experiment_id.in_(experiment_ids))
    count = session.scalar(own) or 0
    if count > MAX_SERIES and len(experiment_ids) > 1:
        raise TooManySeries(count)


class TooManyPoints(Exception):
    """More points are stored than the caller wants to read."""


class TooFewPoints(Exception):
    """There is no room for the first and last point of every series."""

    def __init__(self, series: int):
        super().__init__(f"{series} series need at least {MIN_SHOWN * series}: two points each")


@dataclass(frozen=True)
class Curve:
    """A series by column, complete or downsampled. A missing number is NaN. The column `reason` has
    the index of its reason in `reasons`, whose first entry is None."""

    experiment_id: str
    name: str
    labels: dict[str, object]
    total: int
    columns: dict[str, NDArray[Any]]
    reasons: list[str | None]

    @property
    def shown(self) -> int:
        return len(self.columns["x"])

    @property
    def sampled(self) -> bool:
        return self.shown < self.total

    @property
    def reason_of_each(self) -> list[str | None] | None:
        """The reason of each point, or None if no number is missing."""
        if not self.columns["reason"].any():
            return None
        return [self.reasons[code] for code in self.columns["reason"].tolist()]


@dataclass
class _Line:
    """A series that is assembled from its blocks. It is downsampled in windows of POINTS_TOGETHER
    that do not depend on the blocks, and then as a whole."""

    head: AnyRow
    labels: dict[str, object]
    total: int
    skipped: int
    """Number of points to skip in its first block."""
    most: int = 0
    blocks: list[AnyRow] = field(default_factory=list)
    """Blocks that are not converted yet: a series may have thousands of a few points."""
    fetched: int = 0
    """Number of their points."""
    rest: list[Points] = field(default_factory=list)
    kept: list[Points] = field(default_factory=list)
    reasons: dict[str | None, int] = field(default_factory=lambda: {None: 0})

    def add(self, block: AnyRow) -> None:
        self.blocks.append(block)
        self.fetched += len(block.reason)
        if self.fetched >= POINTS_TOGETHER:
            self._convert()
            whole, self.rest = _joined(self.rest), []
            while len(whole[VALUE]) >= POINTS_TOGETHER:
                self._keep([column[:POINTS_TOGETHER] for column in whole])
                whole = [column[POINTS_TOGETHER:] for column in whole]
            self.fetched = len(whole[VALUE])
            if self.fetched:
                self.rest = [whole]

    def _convert(self) -> None:
        """Convert the fetched blocks to columns."""
        if not self.blocks:
            return
        columns: Points = [
            np.frombuffer(b"".join(getattr(block, name) for block in self.blocks))
            for name in COLUMNS
        ]
        codes: list[NDArray[Any]] = []
        for block in self.blocks:
            codes.append(np.frombuffer(block.reason, dtype=np.uint8))
            if block.reasons:
                known = [self.reasons.setdefault(one, len(self.reasons)) for one in block.reasons]
                codes[-1] = np.array([0, *known], dtype=np.int32)[codes[-1]]
        columns.append(np.concatenate(codes))
        self.rest.append([column[self.skipped :] for column in columns])
        self.blocks, self.skipped = [], 0

    def _keep(self, window: Points) -> None:
        """Keep twice the window's share of the points. The final downsampling selects from them."""
        count = len(window[VALUE])
        most = max(MIN_SHOWN, -(-2 * self.most * count // self.total))
        if count > most:
            places = downsampled(window[VALUE], most)
            window = [column[places] for column in window]
        self.kept.append(window)

    def curve(self) -> Curve:
        self._convert()
        points = _joined([*self.kept, *self.rest])
        if len(points[VALUE]) > self.most:
            places = downsampled(points[VALUE], self.most)
            points = [column[places] for column in points]
        columns = dict(zip((*COLUMNS, "reason"), points, strict=True))
        head, reasons = self.head, [*self.reasons]
        return Curve(head.experiment_id, head.name, self.labels, self.total, columns, reasons)


def _joined(parts: Sequence[Points]) -> Points:
    if len(parts) == 1:
        return parts[0]
    return [np.concatenate(columns) for columns in zip(*parts, strict=True)]


def read_curves(
    session: Session,
    experiment_ids: Sequence[str],
    *,
    names: Sequence[str] | None = None,
    labels: Wanted | None = None,
    after: int = 0,
    max_points: int,
    max_stored: int | None = None,
) -> list[Curve]:
    """Return the series of some experiments, in their order: those with the given names and label
    values, with the points recorded after the record `after`, downsampled to at most `max_points`
    in total. A session that reads during a run must be consistent (`hold_still`). Raises
    TooFewPoints, and TooManyPoints if more than `max_stored` points are stored; default: any
    number."""
    lines: dict[int, _Line] = {}
    blocks: list[AnyRow] = []
    skipped = _skipped(session, experiment_ids, after) if after else {}
    wanted = {key: frozenset(values) for key, values in (labels or {}).items()}
    for head, own in _heads(session, experiment_ids, names, after):
        line = _line(own, wanted, skipped.get(head, 0))
        if line is not None:
            lines[head] = line
            blocks += own
    totals = [line.total for line in lines.values()]
    if sum(min(total, MIN_SHOWN) for total in totals) > max_points:
        raise TooFewPoints(len(lines))
    if max_stored is not None and sum(totals) > max_stored:
        raise TooManyPoints
    for line, most in zip(lines.values(), points_per_series(totals, max_points), strict=True):
        line.most = most
    for some in _groups(blocks):
        for block in _contents(session, some, after):
            lines[block.series_id].add(block)
    place = {one: i for i, one in enumerate(experiment_ids)}
    found = [line.curve() for line in lines.values()]
    return sorted(found, key=lambda curve: place[curve.experiment_id])


def read_series(
    session: Session, experiment_id: str, *, after: int = 0, max_points: int
) -> list[SeriesOut]:
    """Return the series of one experiment as lists of numbers."""
    found = read_curves(session, [experiment_id], after=after, max_points=max_points)
    return [series_out(curve) for curve in found]


def labels_of(
    session: Session, experiment_ids: Sequence[str]
) -> dict[str, list[tuple[str, dict[str, object]]]]:
    """Return the name and labels of each existing series, by experiment."""
    query = select(Series.experiment_id, Series.name, Series.labels)
    query = query.where(Series.experiment_id.in_(experiment_ids)).order_by(Series.id)
    found: dict[str, list[tuple[str, dict[str, object]]]] = {one: [] for one in experiment_ids}
    for experiment_id, name, labels in session.execute(query):
        found[experiment_id].append((name, json.loads(labels)))
    return found


def _heads(
    session: Session, experiment_ids: Sequence[str], names: Sequence[str] | None, after: int
) -> Iterator[tuple[int, list[AnyRow]]]:
    """Yield the id of each series with the sizes of its blocks."""
    query = (
        select(
            Series.id.label("series_id"),
            Series.experiment_id,
            Series.name,
            Series.labels,
            Block.first_seq,
            Block.last_seq,
            _POINTS,
        )
        .join(Block, Block.series_id == Series.id)
        .where(Series.experiment_id.in_(experiment_ids), Block.last_seq > after)
        .order_by(Series.id, Block.first_seq)
    )
    if names is not None:
        query = query.where(Series.name.in_(names))
    for series_id, rows in groupby(session.execute(query).all(), key=lambda row: row.series_id):
        yield series_id, list(rows)


def _line(blocks: list[AnyRow], wanted: Wanted, skipped: int) -> _Line | None:
    labels = json.loads(blocks[0].labels)
    if not matches(labels, wanted):
        return None
    total = sum(block.points for block in blocks) - skipped
    return _Line(blocks[0], labels, total, skipped) if total > 0 else None


def _skipped(session: Session, experiment_ids: Sequence[str], after: int) -> dict[int, int]:
    """Return how many points of the first block that is read are not after `after`, by series.
    Others have none."""
    spanning = (
        select(Block.series_id, Block.seq, Block.first_seq, Block.last_seq, _POINTS)
        .join(Series, Series.id == Block.series_id)
        .where(Series.experiment_id.in_(experiment_ids))
        .where(Block.first_seq <= after, Block.last_seq > after)
    )
    return {
        row.series_id: int(
            np.searchsorted(
                record_numbers(row.seq, row.first_seq, row.last_seq, row.points),
                after,
                side="right",
            )
        )
        for row in session.execute(spanning)
    }


def record_numbers(column: bytes | None, first: int, last: int, points: int) -> NDArray[Any]:
    """Return the record numbers of a block's points."""
    if column is None:
        return np.linspace(first, last, points).round()
    return np.frombuffer(column, dtype="<i4")


def _groups(blocks: Iterable[AnyRow]) -> Iterator[list[AnyRow]]:
    """Group blocks that are fetched together."""
    some: list[AnyRow] = []
    points = 0
    for block in blocks:
        some.append(block)
        points += block.points
        if points >= POINTS_TOGETHER or len(some) == BLOCKS_TOGETHER:
            yield some
            some, points = [], 0
    if some:
        yield some


_CONTENT = [getattr(Block, name) for name in (*COLUMNS, "reason", "reasons")]


def _contents(session: Session, blocks: Sequence[AnyRow], after: int) -> Sequence[AnyRow]:
    """Return the contents of these blocks, in order. They must be consecutive blocks of their
    series."""
    keys = [(block.series_id, block.first_seq) for block in blocks]
    place = tuple_(Block.series_id, Block.first_seq)
    query = select(Block.series_id, *_CONTENT).where(
        place.between(tuple_(*keys[0]), tuple_(*keys[-1])),
        Block.series_id.in_({series_id for series_id, _ in keys}),
        Block.last_seq > after,
    )
    ordered = query.order_by(Block.series_id, Block.first_seq)
    return session.execute(ordered, execution_options=IN_BINARY).all()


def series_out(curve: Curve) -> SeriesOut:
    columns = {name: _listed(curve.columns[name]) for name in COLUMNS}
    return SeriesOut(
        name=curve.name,
        labels=curve.labels,
        total_points=curve.total,
        sampled=curve.sampled,
        reasons=curve.reason_of_each,
        **columns,
    )


def _listed(values: NDArray[np.float64]) -> list[Any]:
    listed: list[Any] = values.tolist()
    for i in np.flatnonzero(np.isnan(values)):
        listed[i] = None
    return listed
