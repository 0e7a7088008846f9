"""Reading series back from their blocks."""

import json
from collections.abc import Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select
from sqlalchemy.orm import Session

from service.experiments.models import Block, Series
from service.experiments.recording import COLUMNS
from service.experiments.schemas import SeriesOut


def read_series(
    session: Session,
    experiment_id: str,
    *,
    name: str | None = None,
    labels: dict[str, str] | None = None,
    after: int = 0,
    upto: int | None = None,
    max_points: int,
) -> list[SeriesOut]:
    """The series of an experiment: of one name, where given; whose labels have the given values,
    compared as text; of their points those recorded after the record `after`, and no later than
    `upto`."""
    query = (
        select(Series, Block)
        .join(Block, Block.series_id == Series.id)
        .where(Series.experiment_id == experiment_id, Block.last_seq > after)
        .order_by(Series.id, Block.first_seq)
    )
    if upto is not None:
        query = query.where(Block.last_seq <= upto)
    if name is not None:
        query = query.where(Series.name == name)
    rows = session.execute(query)
    found = []
    for series, pairs in groupby(rows, key=lambda row: row[0]):
        own = json.loads(series.labels)
        if all(str(own.get(key)) == value for key, value in (labels or {}).items()):
            found.append(_series(series, own, [block for _, block in pairs], max_points))
    return found


def _series(
    series: Series, labels: dict[str, object], blocks: Sequence[Block], max_points: int
) -> SeriesOut:
    total = sum(block.count for block in blocks)
    kept = _sample(total, max_points)
    columns = {name: _column(blocks, name)[kept] for name in COLUMNS}
    return SeriesOut(
        name=series.name,
        labels=labels,
        total_points=total,
        sampled=len(kept) < total,
        x=columns["x"].tolist(),
        value=_nullable(columns["value"]),
        std_err=_nullable(columns["std_err"]),
        n=columns["n"].tolist(),
        reasons=_reasons(blocks, kept),
    )


def _sample(total: int, most: int) -> NDArray[np.int64]:
    if total <= most:
        return np.arange(total)
    return np.unique(np.linspace(0, total - 1, most).round().astype(np.int64))


def _column(blocks: Sequence[Block], name: str) -> NDArray[np.float64]:
    return np.frombuffer(b"".join(getattr(block, name) for block in blocks), dtype="<f8")


def _nullable(values: NDArray[np.float64]) -> list[float | None]:
    listed: list[float | None] = values.tolist()
    for i in np.flatnonzero(np.isnan(values)):
        listed[i] = None
    return listed


def _reasons(blocks: Sequence[Block], kept: NDArray[np.int64]) -> list[str | None] | None:
    if not any(block.reasons for block in blocks):
        return None
    every: list[str | None] = []
    for block in blocks:
        known = [None, *block.reasons]
        every += [known[code] for code in block.reason]
    return [every[i] for i in kept]
