"""What the routes of batches and sweeps take and give."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from mptcore.specs.parsing.long_lists import first_errors
from service.experiments.models import Status
from service.experiments.schemas import (
    After,
    FailureOut,
    Line,
    Note,
    Priority,
    Progress,
    Tags,
)
from service.experiments.sent import Sent
from service.sharing import Visibility
from service.sweeps.expansion import MOST_POINTS, Points

MOST_TOGETHER = 1000

Concurrency = Annotated[int, Field(ge=1, le=MOST_POINTS)]
"""How many runs of the sweep may be under way at once, beside its owner's own limit; null: no limit
of its own."""


class Batch(BaseModel):
    """Experiments to queue, all or none."""

    model_config = ConfigDict(extra="forbid", strict=True)

    experiments: Annotated[
        list[Sent], Field(min_length=1, max_length=MOST_TOGETHER), first_errors(Sent)
    ]


class Made(BaseModel):
    """An experiment of a batch; `cached_from` is its id where it was there before."""

    id: str
    url: str
    cached_from: str | None


class BatchOut(BaseModel):
    """In the order of the request."""

    items: list[Made]


class MorePoints(Points):
    """Points to add to a sweep."""

    cache: bool = True
    """Whether a point is computed by an experiment of before, where you may read one that computed
    the same."""


class SweepSubmission(MorePoints):
    """A spec and what of it is swept. The spec need not be whole without a point's values."""

    spec: dict[str, Any]
    name: Line | None = None
    tags: Tags = Field(default_factory=list)
    note: Note | None = None
    priority: Priority = 0
    visibility: Annotated[Visibility, Field(strict=False)] = Visibility.PRIVATE
    after: After = Field(default_factory=list)
    concurrency: Concurrency | None = None


class SweepChanges(BaseModel):
    """What to change; what is left out stays. Name, tags and note are the sweep's alone; priority
    and visibility go to its experiments too."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Line | None = None
    tags: Tags = []
    note: Note | None = None
    priority: Priority = 0
    visibility: Annotated[Visibility, Field(strict=False)] = Visibility.PRIVATE
    concurrency: Concurrency | None = None


class SweepUrls(BaseModel):
    self: str
    table: str
    points: str
    events: str
    cancel: str
    retry: str


class SweepSummary(BaseModel):
    """A sweep, how many of its points stand where, and what that comes to: running where any is,
    else queued, else paused; failed where all have ended and any failed, else cancelled where any
    was."""

    id: str
    owner: str
    visibility: Visibility
    name: str | None
    tags: list[str]
    note: str | None
    priority: int
    concurrency: int | None
    created_at: datetime
    fields: list[str]
    status: Status
    terminal: bool
    points: int
    """Those whose experiments are there and open to the caller."""
    counts: dict[Status, int]
    urls: SweepUrls


class SweepOut(SweepSummary):
    """With the spec that it began from, and when it may end; null where that is not known, and
    `estimate` says what it rests on."""

    spec: dict[str, Any]
    after: list[str]
    progress: Progress
    estimated_end: datetime | None
    estimate: str


class SweepPage(BaseModel):
    """Newest first; `next_cursor` is null on the last page."""

    items: list[SweepSummary]
    next_cursor: str | None


class Added(BaseModel):
    """The points that were added: from `first` on, so many."""

    first: int
    count: int


class Retried(BaseModel):
    """How many of the points are computed anew."""

    count: int


class MetricCell(BaseModel):
    """The mean of a metric over `count` seeds and its standard error. The mean is null where a seed
    has no value. For several seeds the error is the standard deviation of the values over √count,
    and at least what the seeds' own errors give; for one seed it is the metric's own."""

    value: float | None
    std_err: float | None
    count: int


class TableRow(BaseModel):
    """A point: the values of the swept fields by their paths, and its metrics over its seeds, by
    name and labels other than the seed: `lml[model=baseline]`."""

    point: int
    experiment_id: str
    fields: dict[str, Any]
    status: Status
    failure: FailureOut | None
    metrics: dict[str, MetricCell]


class PooledRow(BaseModel):
    """The points that differ in their seeds alone, taken together: how many, and their metrics over
    the seeds of all."""

    points: int
    fields: dict[str, Any]
    metrics: dict[str, MetricCell]


class Table(BaseModel):
    """One row for each point, in their order. `pooled` has values where `seeds` are swept."""

    fields: list[str]
    metrics: list[str]
    items: list[TableRow]
    pooled: list[PooledRow]


class TableFormat(StrEnum):
    JSON = "json"
    CSV = "csv"


class CsvForm(StrEnum):
    """The rows of a CSV: one for each point; one for each choice of the fields other than `seeds`;
    or one for each value of a metric, with its labels in columns of their own."""

    POINTS = "points"
    POOLED = "pooled"
    LONG = "long"
