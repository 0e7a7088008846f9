"""Request and response bodies of experiments."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field

from mptcore.specs import ExperimentSpec
from mptcore.specs.base import ExperimentId
from service.queue.schemas import QueuePosition, RuntimeOut
from service.schemas import Line, Moment, Page, RequestModel, ResponseModel
from service.vocabulary import Action, Status, Visibility

Tags = Annotated[list[Line], Field(max_length=50)]
Note = Annotated[str, Field(max_length=10_000)]
Priority = Annotated[int, Field(ge=-100, le=200)]
ProjectName = Annotated[str, Field(min_length=1, max_length=100)]
After = Annotated[list[ExperimentId], Field(max_length=100)]


class Described(RequestModel):
    """Fields that experiments and sweeps have besides their specs."""

    name: Line | None = None
    """Name of your choice."""
    tags: Tags = Field([])
    """Tags to find it by."""
    note: Note | None = None
    """Text of your choice."""
    priority: Priority = 0
    """Higher values of yours run first. Values above 100 run before everyone's, if an administrator
    allows you to use them."""
    visibility: Annotated[Visibility | None, Field(strict=False)] = None
    """`private`; `project`: the members of its project may read it and start from its weights; or
    `lab`: everyone in the lab may. null: `project` if it is in a project, else `private`."""


class Submission(Described):
    """An experiment to run."""

    spec: ExperimentSpec
    """Spec of the computation."""
    after: After = Field([])
    """Ids of experiments that must succeed first. If one fails, this one fails too."""
    project: ProjectName | None = None
    """Name of a project of yours to which the run is charged. null: your own share."""
    cache: bool = True
    """False computes the experiment even if an earlier one that you may read computed the same."""


class Changes(Described):
    """Changes to an experiment. Omitted fields stay as they are."""

    pinned: bool = False
    """True keeps the experiment regardless of its age and of quotas."""


class Validation(ResponseModel):
    """Preview of a submission."""

    spec: ExperimentSpec
    """Spec with all defaults filled in."""
    masks: int | None
    """Number of masks to score; with a target the maximum. null: unknown before the run."""
    points: int
    """Maximum number of points, without interim scores of text."""
    memory_bytes: int
    """Estimated memory on the run's device."""
    runtime: RuntimeOut | None
    """Estimated run time. null: too few runs of the family so far."""
    cached_from: str | None
    """Id of the earlier experiment that would be returned. null: none."""
    queue_position: int
    """Number of queued experiments that would run before it on the workers that it may use."""
    queue_reason: str
    """Reason why it would wait."""
    estimated_start: datetime | None
    """Estimated start. null: unknown."""
    estimate: str
    """Basis of the estimated start, or why there is none."""


class Progress(ResponseModel):
    done: int
    """Completed units of work."""
    total: int
    """Units of work in all."""
    unit: str
    """Unit of work: epochs, steps, iterations, masks or sequences."""


class StageOut(Progress):
    """Progress of a stage, in its own unit."""

    name: str
    """Name of the stage: training or fitting."""


class RunProgress(Progress):
    """Progress of a run over all its seeds and objectives. With a target error, `total` is the
    expected number of masks."""

    stage: StageOut | None
    """Progress within the present stage. null: the stage has no unit of its own."""
    at: Moment | None
    """Time of this progress. `eta_s` counts from it."""
    eta_s: float | None
    """Estimated seconds to the end. null: unknown, or the run is not running."""
    estimated_end: Moment | None
    """Estimated end. null: unknown."""


class FailureOut(ResponseModel):
    kind: str
    """oom, error, lost, timeout, invalid or disk_full."""
    message: str
    """Cause of the failure, as a sentence."""


class MetricOut(ResponseModel):
    """A number of the whole run."""

    name: str
    """Name of the metric."""
    labels: dict[str, Any]
    """Labels that distinguish metrics of one name, such as seed."""
    value: float | None
    """Value. null with a `reason`: not a finite number."""
    std_err: float | None
    """Standard error. null with a `reason`: unknown."""
    reason: str | None
    """Reason why a number is null, or the method that computed it."""


class Before(ResponseModel):
    """A result before training, or early in it."""

    at: dict[str, int]
    """Epoch or step."""
    value: float | None
    """Mean over seeds."""
    std_err: float | None
    """Standard error. null: unknown."""


class Agreement(ResponseModel):
    """Comparison of an MPT score with the LML that it estimates."""

    outcome: Literal["agree", "unclear", "differ"]
    """`agree`: they differ by at most two standard errors; `differ`: by more than three."""
    text: str
    """The outcome in words."""
    value: float
    """MPT score minus LML."""
    std_err: float
    """Standard error of the difference."""


class SummaryRow(ResponseModel):
    """Mean of a metric over seeds."""

    name: str
    """Name of the metric."""
    labels: dict[str, Any]
    """Labels other than the seed."""
    title: str
    """Name with these labels: `lml[model=baseline]`."""
    value: float | None
    """Mean. null: a seed has no value."""
    std_err: float | None
    """Standard error, as in a sweep's table. null: unknown."""
    count: int
    """Number of seeds."""
    reason: str | None
    """Reason why a number is null, or the method that computed it."""
    covers: str
    """Description of the variation that the standard error covers."""
    meaning: str
    """The metric in a few words. Empty: not known."""
    higher_is_better: bool
    """True if a higher value means a better model of the same data."""
    label: str | None
    """Heading of a result of the model: its value after training. null: not a result."""
    unit: str | None
    """Unit of a result: nats. null: none."""
    tokens: int | None
    """Number of tokens that an area is for: it is this number times the score of a token. null: not
    an area, or unknown."""
    before: Before | None
    """The first value of `train.curve_at`. null: there is none, or this is a list."""
    agreement: Agreement | None
    """For an MPT score: whether it agrees with the LML. null: unknown."""


class ArtifactOut(ResponseModel):
    """A file of a run."""

    name: str
    """Name of the file."""
    media_type: str
    """Media type of its content."""
    sha256: str
    """SHA-256 of its content, in hexadecimal."""
    url: str
    """URL of the file."""


class MetricList(ResponseModel):
    items: list[MetricOut]
    """Metrics so far."""


class ArtifactList(ResponseModel):
    items: list[ArtifactOut]
    """Files so far."""


class Level(StrEnum):
    """Level of a log line."""

    INFO = "info"
    WARNING = "warning"


class LogOut(ResponseModel):
    """A line of a run's log."""

    seq: int
    """Number of the line among all records of the run."""
    at: Moment
    """Time at which it was stored."""
    level: Level
    """Level of the line."""
    message: str
    """Text of the line."""


class LogPage(ResponseModel):
    """A page of a log."""

    items: list[LogOut]
    """Lines, oldest first."""
    last_seq: int
    """Pass it as `after` to get later lines. It is given even if there are no lines."""
    more: bool
    """True if more lines are available already."""


class Urls(ResponseModel):
    self: str
    """The experiment."""
    curves: str
    """Its curves."""
    metrics: str
    """Its metrics."""
    artifacts: str
    """Its files."""
    events: str
    """Its events, as a page or a stream."""
    logs: str
    """Its log."""
    bundle: str
    """All of it as a zip file, after its end."""
    cancel: str
    """POST to cancel it."""


class Fields(StrEnum):
    """Detail of a list: without specs, or with specs."""

    SUMMARY = "summary"
    FULL = "full"


class Listed(ResponseModel):
    """Fields that experiments and sweeps have in common."""

    id: str
    """Id in all URLs."""
    owner: str
    """Name of the owner."""
    visibility: Visibility
    """`private`; `project`: the members of its project may read it and start from its weights; or
    `lab`: everyone in the lab may."""
    name: str | None
    """Name chosen by the owner."""
    title: str
    """The name or, without one, what distinguishes it: the swept fields of a sweep's point, or the
    spec in short. The title of a large spec is its family."""
    tags: list[str]
    """Tags chosen by the owner."""
    note: str | None
    """Text written by the owner."""
    priority: int
    """Priority among the owner's experiments. Higher values run first."""
    project: str | None
    """Name of the project to which its runs are charged. null: the owner's own share."""
    created_at: Moment
    """Time of the submission."""
    status: Status
    """Present status."""
    terminal: bool
    """True if the status will not change any more."""


class ExperimentSummary(Listed):
    """An experiment without its spec."""

    pinned: bool
    """True if retention does not delete it, neither by age nor by quota."""
    family: str
    """Family of its model."""
    desired_state: str
    """Request of its owner: run, pause or cancel."""
    attempt: int
    """Number of attempts so far."""
    retry_of: str | None
    """Id of the experiment that this one retries. null: none."""
    sweep: str | None
    """Id of the sweep that it belongs to. null: none."""
    after: list[str]
    """Ids of the experiments that had to succeed first."""
    worker: str | None
    """Worker of the latest attempt. null: none yet."""
    started_at: Moment | None
    """Start of the first attempt. null: not started."""
    finished_at: Moment | None
    """Time of the end. null: not ended."""
    progress: RunProgress | None
    """Progress of the run. null: unknown."""
    queue: QueuePosition | None
    """Queue position. null: not queued."""
    failure: FailureOut | None
    """Cause of the failure. null: it has not failed."""
    last_seq: int
    """Number of its last record."""
    can: list[Action]
    """Actions that you may take now, by its state, its owner, and the scopes of your key."""
    summary: list[SummaryRow] | None = None
    """Means over seeds, the results of the model first: its values after training. In lists, with
    `summary=true`: the results and the requested metrics. null: not part of this answer."""
    urls: Urls
    """Addresses of the experiment."""


class SummaryWithMetrics(ExperimentSummary):
    """An experiment without its spec, with the requested metrics."""

    metrics: list[MetricOut]
    """The requested metrics."""


class ExperimentOut(ExperimentSummary):
    """An experiment."""

    spec: dict[str, Any]
    """Spec as it was accepted. A later version of the service may refuse it."""
    cached_from: str | None = None
    """Id of the earlier experiment that is returned for a submission. null: none."""


class ListedWithMetrics(ExperimentOut):
    """An experiment with the requested metrics."""

    metrics: list[MetricOut]
    """The requested metrics."""


class EnvironmentOut(ResponseModel):
    """Code, packages and hardware of an attempt."""

    core: str
    """Beginning of a digest of mptcore's sources and of the libraries that results depend on."""
    packages: dict[str, str]
    """Versions of Python and of packages, by name."""
    platform: str
    """Operating system and C library."""
    cpu: str
    """Name of the processor."""
    cpu_capability: str
    """Vector instructions that torch uses. The last digits of results depend on them."""
    threads: int
    """Number of CPU threads. The last digits of results depend on it."""
    gpu: str | None
    """Name of the GPU. null on a CPU."""
    gpu_driver: str | None
    """Version of the GPU driver. null on a CPU."""
    cuda: str | None
    """CUDA version that torch was built for. null on a CPU."""
    precision: str
    """Floating-point type of the computation."""
    seeds: list[int]
    """Seeds of the runs."""
    inputs: dict[str, str]
    """SHA-256 of each file that was read, by its path."""
    memory_was_short: bool = False
    """True if work was repeated in smaller parts, because the memory was short. The last digits may
    then differ from those of a run with enough memory."""
    resumed_from: str | None = None
    """Device that the checkpoint was computed on, if it differs. The last digits may then differ,
    and between a CPU and a GPU the draws of VAEs differ."""


class AttemptOut(ResponseModel):
    """An attempt at an experiment. It continues from the last checkpoint."""

    attempt: int
    """Number of the attempt, from 1."""
    worker: str
    """Worker that ran it."""
    started_at: Moment
    """Time of the start."""
    ended_at: Moment | None
    """Time of the end. null: not ended."""
    peak_bytes: int | None
    """Peak memory in bytes, of the GPU or else of the machine. null until it has ended."""
    environment: EnvironmentOut | None
    """Code, packages and hardware. null: not reported."""


class ExperimentWithMetrics(ExperimentOut):
    """An experiment with its metrics and attempts."""

    metrics: list[MetricOut]
    """Metrics so far."""
    attempts: list[AttemptOut]
    """The latest 50 attempts, oldest first."""


class ExperimentPage(Page):
    """A page of experiments."""

    items: list[ListedWithMetrics | ExperimentOut | SummaryWithMetrics | ExperimentSummary]
    """Experiments, newest first, with as much detail as requested."""
    sweeps: list[str]
    """Ids of the sweeps of a folded page: of its items and, without filters, of those created in
    its time whose points had all been computed before."""
