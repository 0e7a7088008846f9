"""Merge small blocks of points. A run that records one point a second stores a block for each, and
a reader takes longer for a block than for a point."""

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any

import numpy as np
from sqlalchemy import ColumnElement, Row, bindparam, delete, func, select
from sqlalchemy.orm import Session

from service.db.engine import IN_BINARY, insert_new
from service.experiments.models import Block, Series
from service.records.recording import COLUMNS, MAX_REASONS

SIZES = (1, 256, 4096, 65_536)
"""Numbers of points of a block. Blocks from one size to below the next are merged together, so that
a point is rewritten only a few times. Blocks of the last size stay as they are."""
MANY, MANY_AT_END = 16, 4
"""Numbers of blocks of a size, one after the other at the end of a series, that are merged: in the
course of a run, and at its end."""
ALL = 2**31 - 1
"""Larger than any record number."""

_TABLE = Block.metadata.tables[Block.__tablename__]


def _last_of(size: str) -> ColumnElement[int]:
    """The first record of a series' last block of at least this size; -1 if there is none."""
    last = select(func.max(Block.first_seq))
    last = last.where(Block.series_id == Series.id, Block.count >= bindparam(size))
    return func.coalesce(last.correlate(Series).scalar_subquery(), -1)


_IN_RANGE = (
    Block.series_id == Series.id,
    Block.first_seq > _last_of("next_size"),
    Block.first_seq <= _last_of("size"),
    Block.last_seq <= bindparam("up_to"),
)
_NUMBER = select(func.count()).where(*_IN_RANGE, Block.count >= bindparam("size"))
_MANY_SMALL = (
    select(_TABLE)
    .join(Series, _IN_RANGE[0])
    .where(
        Series.experiment_id == bindparam("of"),
        _NUMBER.correlate(Series).scalar_subquery() >= bindparam("many"),
        *_IN_RANGE[1:],
    )
    .order_by(Block.series_id, Block.first_seq)
)
_DELETE = delete(_TABLE).where(
    _TABLE.c.series_id == bindparam("of"),
    _TABLE.c.first_seq.between(bindparam("first"), bindparam("last")),
)


def compact(session: Session, experiment_id: str, up_to: int) -> None:
    """Merge the small blocks at the end of each series that has many, as far as records `up_to`. No
    later resume may delete some of these records and keep others. Call it behind the fence."""
    given = {"of": experiment_id, "up_to": up_to, "many": MANY_AT_END if up_to == ALL else MANY}
    connection = session.connection()
    for size, next_size in pairwise(SIZES):
        sizes = {"size": size, "next_size": next_size}
        small = session.execute(_MANY_SMALL, given | sizes, execution_options=IN_BINARY).all()
        series = (rows for _, rows in groupby(small, key=lambda block: block.series_id))
        parts = [part for rows in series for part in _with_few_reasons(rows)]
        if parts:
            connection.execute(_DELETE, [
                {"of": part[0].series_id, "first": part[0].first_seq, "last": part[-1].first_seq}
                for part in parts
            ])  # fmt: skip
            insert_new(session, Block, [_merged(part) for part in parts])


def _with_few_reasons(blocks: Iterator[Row[Any]]) -> Iterator[Sequence[Row[Any]]]:
    """Split blocks so that each part has at most MAX_REASONS reasons."""
    part, reasons = list[Row[Any]](), set[str]()
    for block in blocks:
        if len(reasons.union(block.reasons)) > MAX_REASONS:
            yield part
            part, reasons = [], set()
        part.append(block)
        reasons.update(block.reasons)
    yield part


def _merged(blocks: Sequence[Row[Any]]) -> dict[str, Any]:
    reasons = sorted({reason for block in blocks for reason in block.reasons})
    code = {reason: i + 1 for i, reason in enumerate(reasons)}
    return {
        "series_id": blocks[0].series_id,
        "first_seq": blocks[0].first_seq,
        "last_seq": blocks[-1].last_seq,
        "count": sum(block._mapping["count"] for block in blocks),
        **{name: b"".join(getattr(block, name) for block in blocks) for name in ("seq", *COLUMNS)},
        "reason": b"".join(
            np.array([0, *(code[reason] for reason in block.reasons)], np.uint8)[
                np.frombuffer(block.reason, np.uint8)
            ].tobytes()
            for block in blocks
        ),
        "reasons": reasons,
    }
