"""From rows of sweeps to answers."""

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Row

from service.experiments.models import TERMINAL, Status
from service.experiments.schemas import FailureOut, Progress, moment
from service.sharing import Visibility
from service.sweeps.expansion import value_at
from service.sweeps.models import Sweep
from service.sweeps.schemas import (
    MetricCell,
    SweepOut,
    SweepSummary,
    SweepUrls,
    Table,
    TableRow,
)

IN_TURN = (
    Status.RUNNING,
    Status.DISPATCHED,
    Status.QUEUED,
    Status.PAUSED,
    Status.FAILED,
    Status.CANCELLED,
)
"""The first of these that a point is in is the sweep's status; else it has succeeded."""
PER_RUN = 100
"""Progress is counted in so many parts of a run."""


def summary_out(sweep: Sweep, counts: Mapping[Status, int]) -> SweepSummary:
    created_at = moment(sweep.created_at)
    assert created_at is not None
    status = next((one for one in IN_TURN if counts.get(one)), Status.SUCCEEDED)
    path = f"/v1/sweeps/{sweep.id}"
    return SweepSummary(
        id=sweep.id,
        owner=sweep.owner.name,
        visibility=Visibility(sweep.visibility),
        name=sweep.name,
        tags=sweep.tags,
        note=sweep.note,
        priority=sweep.priority,
        concurrency=sweep.concurrency,
        created_at=created_at,
        fields=sweep.fields,
        status=status,
        terminal=status in TERMINAL,
        points=sum(counts.values()),
        counts={one: counts.get(one, 0) for one in Status},
        urls=SweepUrls(
            self=path,
            table=f"{path}/table",
            points=f"{path}/points",
            events=f"{path}/events",
            cancel=f"{path}:cancel",
            retry=f"{path}:retry",
        ),
    )


def sweep_out(
    sweep: Sweep, counts: Mapping[Status, int], running: float, end: tuple[float | None, str]
) -> SweepOut:
    """`running` is how many runs' worth those have done that run; `end` when it may end, and what
    that rests on."""
    ended = sum(counts.get(one, 0) for one in TERMINAL)
    return SweepOut.model_construct(
        **dict(summary_out(sweep, counts)),
        spec=sweep.spec,
        after=sweep.comes_after,
        progress=Progress(
            done=int(PER_RUN * (ended + running)),
            total=PER_RUN * sum(counts.values()),
            unit="hundredths of a run",
        ),
        estimated_end=moment(end[0]),
        estimate=end[1],
    )


Metrics = Mapping[str, Mapping[str, tuple[float | None, float | None]]]


def table(sweep: Sweep, points: Sequence[Row[Any]], metrics: Metrics) -> Table:
    names = dict.fromkeys(name for one in points for name in metrics.get(one.id, ()))
    rows = [_row(sweep, one, metrics.get(one.id, {})) for one in points]
    return Table.model_construct(fields=sweep.fields, metrics=[*names], items=rows)


def _row(
    sweep: Sweep, one: Row[Any], metrics: Mapping[str, tuple[float | None, float | None]]
) -> TableRow:
    failure = None
    if one.failure_kind is not None:
        failure = FailureOut(kind=one.failure_kind, message=one.failure_message or "")
    return TableRow.model_construct(
        point=one.point,
        experiment_id=one.id,
        fields={path: value_at(one.spec, path) for path in sweep.fields},
        status=Status(one.status),
        failure=failure,
        metrics={
            name: MetricCell.model_construct(value=value, std_err=std_err)
            for name, (value, std_err) in metrics.items()
        },
    )


def as_csv(made: Table) -> str:
    """A line for each point: its number, experiment and status, the swept fields, and each metric
    with its standard error. Lists and objects are JSON; what is missing is empty."""
    text = io.StringIO()
    writer = csv.writer(text)
    beside = [name for metric in made.metrics for name in (metric, f"{metric} std_err")]
    writer.writerow(["point", "experiment_id", "status", *made.fields, *beside])
    writer.writerows(_line(made, row) for row in made.items)
    return text.getvalue()


def _line(made: Table, row: TableRow) -> Iterator[Any]:
    yield from (row.point, row.experiment_id, row.status.value)
    yield from (_cell(row.fields[path]) for path in made.fields)
    for name in made.metrics:
        cell = row.metrics.get(name)
        yield from (None, None) if cell is None else (cell.value, cell.std_err)


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict | bool) else value
