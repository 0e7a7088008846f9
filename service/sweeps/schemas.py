"""Request and response bodies of sweeps."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from service.experiments.schemas import (
    After,
    Described,
    FailureOut,
    Listed,
    Progress,
    ProjectName,
)
from service.schemas import Page, ResponseModel
from service.sweeps.expansion import MAX_POINTS, Points
from service.vocabulary import Action, Status

Concurrency = Annotated[int, Field(ge=1, le=MAX_POINTS)]


class MorePoints(Points):
    """Points to add to a sweep."""

    cache: bool = True
    """False computes points even if an earlier experiment that you may read is the same."""


class SweepSubmission(Described, MorePoints):
    """A spec, and the fields of it that are swept."""

    spec: dict[str, Any]
    """Fields that all points share. It need not be complete without the values of a point."""
    after: After = Field([])
    """Ids of experiments that must succeed first. If one fails, the points fail too."""
    concurrency: Concurrency | None = None
    """Maximum number of runs at the same time, besides the owner's limit. null: no other limit."""
    project: ProjectName | None = None
    """Name of a project of yours to which the runs are charged. null: your own share."""


class SweepChanges(Described):
    """Changes to a sweep. Omitted fields stay as they are. Priority and visibility change for its
    experiments too."""

    concurrency: Concurrency | None = None
    """Maximum number of runs at the same time, besides the owner's limit. null: no other limit."""


class SweepUrls(ResponseModel):
    self: str
    """The sweep."""
    table: str
    """Its table."""
    points: str
    """POST to add points."""
    events: str
    """Events of its experiments, as a page or a stream."""
    cancel: str
    """POST to cancel it."""
    retry: str
    """POST to retry the points that failed or were cancelled."""


class BestPoint(ResponseModel):
    """The best point of a sweep."""

    metric: str
    """Metric that decides, as in a table."""
    label: str
    """Its heading, as in a summary."""
    value: float
    """Mean of the metric over the seeds of the experiment."""
    std_err: float | None
    """Standard error of the mean. null: unknown."""
    experiment_id: str
    """Id of the experiment."""
    at: str | None
    """Its swept fields, without those of the measurement: "K = 3". null: its spec is too large."""


class SweepSummary(Listed):
    """A sweep. Its status is running if any point is running, else queued, else paused; after all
    have ended it is failed if any point failed, else cancelled if any was cancelled."""

    concurrency: int | None
    """Maximum number of its runs at the same time. null: no limit of its own."""
    fields: list[str]
    """Paths of the swept fields, such as model.latent_dim."""
    points: int
    """Number of points that you may read."""
    counts: dict[Status, int]
    """Number of points in each status."""
    ended: int
    """Number of points that have ended."""
    best: BestPoint | None
    """The best point so far. null: more than 100 points, fewer than two values, or only the table
    can tell, because the data or the seeds are swept."""
    urls: SweepUrls
    """Addresses of the sweep."""


class SweepOut(SweepSummary):
    """A sweep with its spec and progress."""

    can: list[Action]
    """Actions that you may take now, by the states of its points, its owner, and the scopes of your
    key."""
    spec: dict[str, Any]
    """Fields that all points share, as submitted."""
    after: list[str]
    """Ids of the experiments that had to succeed first."""
    progress: Progress
    """Progress of all its runs together."""
    estimated_end: datetime | None
    """Estimated end. null: unknown."""
    estimate: str
    """Basis of the estimated end, or why there is none."""


class SweepPage(Page):
    """A page of sweeps."""

    items: list[SweepSummary]
    """Sweeps, newest first."""


class Added(ResponseModel):
    """Points that were added to a sweep."""

    first: int
    """Number of the first added point."""
    count: int
    """Number of added points."""


class Retried(ResponseModel):
    """Points that are retried."""

    count: int
    """Number of points that are computed again."""
    more: bool
    """True if points are left: a request retries at most 1,000, whose specs have at most 32 MiB,
    and no more than you may have unfinished. Send the request again, at your limit later."""


class MetricCell(ResponseModel):
    """Mean of a metric over seeds."""

    value: float | None
    """Mean. null: a seed has no value."""
    std_err: float | None
    """Standard error. For several seeds: the standard deviation of the values divided by √count,
    but at least the error that follows from the errors of the seeds. Errors over the population of
    texts are not reduced, because the seeds share the texts. For one seed: the error of the metric.
    null: unknown."""
    count: int
    """Number of seeds."""


class TableRow(ResponseModel):
    """A point of a sweep."""

    point: int
    """Number of the point."""
    experiment_id: str
    """Id of its experiment."""
    fields: dict[str, Any]
    """Values of the swept fields, by their paths."""
    status: Status
    """Status of its experiment."""
    failure: FailureOut | None
    """Cause of the failure. null: it has not failed."""
    metrics: dict[str, MetricCell]
    """Means over seeds, by name and labels other than the seed: `lml[model=baseline]`."""


class PooledRow(ResponseModel):
    """All points that differ only in their seeds."""

    points: int
    """Number of points."""
    fields: dict[str, Any]
    """Values of the swept fields other than seeds, by their paths."""
    metrics: dict[str, MetricCell]
    """Means over the seeds of all points, by name and labels other than the seed."""


class BestRow(ResponseModel):
    """The best row of a table: one of `pooled` if seeds are swept, else of `items`."""

    metric: str
    """Metric that decides: the held-out LML or, without one, the best known measure."""
    label: str
    """Its heading, as in a summary."""
    row: int
    """Index of the best row."""
    alike: list[int]
    """Indices of the rows within two standard errors of the best, of the difference where the
    points share their held-out observations."""
    smallest: int | None
    """Index of the smallest model of the best and these rows. null: the best is the only one, or
    other fields than `model.latent_dim` and `model.family` are swept."""
    fields: list[str]
    """Swept fields that distinguish the rows."""


class Table(ResponseModel):
    """Table of a sweep."""

    fields: list[str]
    """Paths of the swept fields."""
    metrics: list[str]
    """Names of all metrics of the points. `lml_heldout_behind_best` is how much larger the held-out
    LML of the best point is, with the standard error of the difference over the held-out
    observations. Points are compared if they have the same data, at most 1,000."""
    items: list[TableRow]
    """A row for each point, in their order."""
    pooled: list[PooledRow]
    """A row for each choice of the fields other than `seeds`. Empty if `seeds` are not swept."""
    chief_metric: str | None
    """Metric that a chart shows first. null: there are none."""
    varying: list[list[str]]
    """Swept fields other than `seeds` with several values. Fields that change together are one
    list."""
    best: BestRow | None
    """The best row. null: fewer than two values, only the measurement is swept, or the data differ
    (see `notes`)."""
    extension: dict[str, list[Any]] | None
    """Grid of points that extends the sweep if the best latent dimension is its first or last
    value: send it as `grid` to `POST /v1/sweeps/{sweep_id}/points`. null: it is neither, or the
    points are no grid."""
    notes: list[str]
    """Sentences about the best row and those as good, for people: the first names the best, if
    there is one."""


class TableFormat(StrEnum):
    JSON = "json"
    CSV = "csv"


class CsvForm(StrEnum):
    """Rows of a CSV: one for each point; one for each choice of the fields other than `seeds`; or
    one for each value of a metric, with its labels in separate columns."""

    POINTS = "points"
    POOLED = "pooled"
    LONG = "long"
