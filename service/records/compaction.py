"""Merge small blocks of points. A run that records one point a second stores a block for each, and
a reader takes longer for a block than for a point."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from sqlalchemy import Row, delete, func, select
from sqlalchemy.orm import Session

from service.db.engine import IN_BINARY, insert_new
from service.experiments.models import Block, Experiment, Series
from service.records.recording import COLUMNS, MAX_REASONS

SIZES = (1, 256, 2048)
"""Numbers of points of a block. Blocks from one size to below the next are merged together, so that
a point is rewritten only a few times. Blocks of the last size stay as they are."""
MAX_POINTS = 4096
"""Approximate maximum number of points of a merged block: a download holds one of each series."""
MANY, MANY_AT_END = 16, 4
"""Numbers of blocks of a size, one after the other at the end of a series, that are merged: in the
course of a run, and at its end."""
ALL = 2**31 - 1
"""Larger than any record number."""
BLOCKS_AT_ONCE = 2000
"""Number of blocks after which a transaction merges no more, so that it is short compared to a
lease."""

_TABLE = Block.metadata.tables[Block.__tablename__]
_POINTS = Block.count.label("points")  # a row has a method of its own called count


@dataclass
class _Part:
    """Consecutive blocks of a series that become one."""

    points: int
    first_seqs: list[int]


def compact(session: Session, experiment_id: str, up_to: int) -> bool:
    """Merge the small blocks at the end of each series that has many, as far as records `up_to`.
    Return whether there may be more. No later resume may delete some of these records and keep
    others."""
    experiment = select(Experiment.id).where(Experiment.id == experiment_id)
    if session.scalar(experiment.with_for_update(read=True, key_share=True)) is None:
        return False  # it is purged
    many = MANY_AT_END if up_to == ALL else MANY
    of_it = Series.experiment_id == experiment_id, Block.last_seq <= up_to
    of_series = select(Block.series_id).join(Series, Series.id == Block.series_id).where(*of_it)
    ids = session.scalars(of_series.group_by(Block.series_id).having(func.count() >= many)).all()
    read = saved = 0
    for series_id in ids:
        columns = Block.first_seq, _POINTS, Block.seq.is_(None).label("is_old")
        blocks = select(*columns).where(Block.series_id == series_id, Block.last_seq <= up_to)
        rows = session.execute(blocks.order_by(Block.first_seq)).all()
        for part in _parts(rows, many):
            if len(part.first_seqs) > 1:
                read += len(part.first_seqs)
                saved += len(part.first_seqs) - _merge(session, series_id, part.first_seqs)
        if read >= BLOCKS_AT_ONCE:
            return saved > 0
    return False


def _parts(blocks: Sequence[Row[int, int, bool]], many: int) -> list[_Part]:
    """Return the parts of a series after merging. A block of before version 0.2 has no record
    numbers and stays as it is, as a large one does."""
    parts = [_Part(SIZES[-1] if one.is_old else one.points, [one.first_seq]) for one in blocks]
    for size, next_size in pairwise(SIZES):
        begin = 1 + max((i for i, part in enumerate(parts) if part.points >= next_size), default=-1)
        end = 1 + max((i for i, part in enumerate(parts) if part.points >= size), default=-1)
        small = parts[begin:end]
        if sum(part.points >= size for part in small) < many:
            continue
        joined = small[:1]
        for part in small[1:]:
            last = joined[-1]
            if last.points + part.points > MAX_POINTS:
                joined.append(part)
            else:
                joined[-1] = _Part(last.points + part.points, last.first_seqs + part.first_seqs)
        parts[begin:end] = joined
    return parts


def _merge(session: Session, series_id: int, first_seqs: Sequence[int]) -> int:
    """Merge consecutive blocks, and return how many they are then."""
    is_part = Block.series_id == series_id, Block.first_seq.between(first_seqs[0], first_seqs[-1])
    query = select(_TABLE).where(*is_part).order_by(Block.first_seq)
    blocks = session.execute(query, execution_options=IN_BINARY).all()
    session.execute(delete(_TABLE).where(*is_part))
    merged = [_merged(part) for part in _with_few_reasons(blocks)]
    insert_new(session, Block, merged)
    return len(merged)


def _with_few_reasons(blocks: Sequence[Row[Any]]) -> Iterator[Sequence[Row[Any]]]:
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
