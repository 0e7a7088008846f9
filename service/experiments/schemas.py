"""Request and response models of the experiment routes."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from mptcore.specs import ExperimentSpec
from mptcore.specs.base import ExperimentId
from service.experiments.models import Status
from service.sharing import Visibility

Line = Annotated[str, Field(min_length=1, max_length=200)]
Tags = Annotated[list[Line], Field(max_length=50)]
Note = Annotated[str, Field(max_length=10_000)]
Priority = Annotated[int, Field(ge=-100, le=200)]
"""Of your own experiments, higher runs first. Above 100 it goes before everyone's, for users whom
an administrator lets."""


After = Annotated[list[ExperimentId], Field(max_length=100)]
"""The ids of experiments that are to succeed first; where one does not, this one fails. What a
model's `experiment` names is one of them of itself."""


class Submission(BaseModel):
    """An experiment to run: the spec says what is computed, the rest stands beside it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    spec: ExperimentSpec
    name: Line | None = None
    tags: Tags = []
    note: Note | None = None
    priority: Priority = 0
    visibility: Annotated[Visibility, Field(strict=False)] = Visibility.PRIVATE
    """Whether the lab may read it, and start from what it trained."""
    after: After = []
    cache: bool = True
    """Whether an experiment that computed the same answers for it, where you may read one."""


class Changes(BaseModel):
    """What to change beside the spec; what is left out stays."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Line | None = None
    tags: Tags = []
    note: Note | None = None
    priority: Priority = 0
    visibility: Annotated[Visibility, Field(strict=False)] = Visibility.PRIVATE
    pinned: bool = False
    """Neither its age nor a quota removes what is pinned."""


class RuntimeOut(BaseModel):
    """In seconds: half of such runs take less than `median_s`, and four of five from `low_s` to
    `high_s`, by the last `runs` of the family on the machine `host`: the one where it would take
    longest of those whose workers are there. Null: by runs on that kind of slot, wherever."""

    median_s: float
    low_s: float
    high_s: float
    runs: int
    host: str | None


class Validation(BaseModel):
    """What a submission would become."""

    spec: ExperimentSpec
    masks: int | None
    """How many masks would be scored; where a target is set, at most."""
    points: int
    """How many points the run would write at most; interim scores of text are left out."""
    memory_bytes: int
    """What a run is expected to take of its device, about."""
    runtime: RuntimeOut | None
    """How long it would run; null until a few of its family have."""
    cached_from: str | None
    """The experiment of before that would answer for it."""
    queue_position: int
    """How many queued experiments would run before it, on the workers that it may run on."""
    queue_reason: str
    """Why it would wait."""
    estimated_start: datetime | None
    estimate: str


class StageOut(BaseModel):
    """A stage of a run, measured in its own unit."""

    name: str
    done: int
    total: int
    unit: str


class Progress(BaseModel):
    done: int
    total: int
    unit: str


class RunProgress(Progress):
    """How far the whole run is, over its seeds and objectives; where a target is set, towards the
    masks that it is expected to take. While it runs, `eta_s` counts from `at`."""

    stage: StageOut | None
    at: datetime | None
    eta_s: float | None
    eta_std_err_s: float | None
    estimated_end: datetime | None


class QueuePlace(BaseModel):
    """Where a queued experiment stands among those that wait for the same workers, why it waits,
    and when it may start; null where that is not known. `estimate` says what the estimate rests on,
    or why there is none."""

    position: int
    reason: str
    estimated_start: datetime | None
    estimate: str


class Share(BaseModel):
    """A user's share of the server, in the terms of Slurm's sshare. Usage is in decayed
    slot-seconds; a second of a GPU slot counts as several of a CPU slot."""

    raw_shares: int
    norm_shares: float
    """Of the shares of all users."""
    raw_usage: float
    effectv_usage: float
    """Of the usage of all users."""
    level_fs: float | None
    """norm_shares / effectv_usage: above 1 the user has had less than its part; null before any
    use."""
    fair_share: float
    """1 for the user who is next in turn, falling evenly to 1 / users for the last."""


class QueuedOut(BaseModel):
    """A queued experiment of the caller."""

    id: str
    name: str | None
    priority: int
    device: str
    created_at: datetime
    queue: QueuePlace


class QueueOut(BaseModel):
    """How the caller stands: what it may have and has, its share, and what waits, in its order."""

    running: int
    max_running: int | None
    submitted: int
    max_submitted: int
    gpu_hours: float | None
    """Of GPU slots within the last 24 hours; null where the caller has no limit of them."""
    max_gpu_hours_a_day: float | None
    kept_bytes: int
    """Of specs, records, artifacts and data sets."""
    max_bytes: int | None
    share: Share
    items: list[QueuedOut]
    """The first hundred."""


class FailureOut(BaseModel):
    kind: str
    message: str


class MetricOut(BaseModel):
    """A number of the whole run; null with a reason where it is not a finite number."""

    name: str
    labels: dict[str, Any]
    value: float | None
    std_err: float | None
    reason: str | None


class ArtifactOut(BaseModel):
    """A file left by a run."""

    name: str
    media_type: str
    sha256: str
    url: str


class MetricList(BaseModel):
    items: list[MetricOut]


class ArtifactList(BaseModel):
    items: list[ArtifactOut]


class Level(StrEnum):
    """Level of a log line."""

    INFO = "info"
    WARNING = "warning"


class LogOut(BaseModel):
    """A line of a run's log. `seq` is its number among all records of the run."""

    seq: int
    at: datetime
    level: Level
    message: str


class LogPage(BaseModel):
    """The oldest first. `last_seq` goes back as `after`, also where there are none."""

    items: list[LogOut]
    last_seq: int
    more: bool
    """Whether there are more by now."""


class Urls(BaseModel):
    self: str
    curves: str
    metrics: str
    artifacts: str
    events: str
    logs: str
    bundle: str
    cancel: str


class Fields(StrEnum):
    """What a list says of each experiment: all but its spec, or all."""

    SUMMARY = "summary"
    FULL = "full"


class ExperimentSummary(BaseModel):
    """An experiment and its status, without its spec."""

    id: str
    owner: str
    visibility: Visibility
    pinned: bool
    name: str | None
    tags: list[str]
    note: str | None
    priority: int
    family: str
    status: Status
    terminal: bool
    desired_state: str
    attempt: int
    retry_of: str | None
    sweep: str | None
    """The sweep that it is a point of."""
    after: list[str]
    """The experiments that had to succeed first."""
    worker: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    progress: RunProgress | None
    queue: QueuePlace | None
    failure: FailureOut | None
    last_seq: int
    urls: Urls


class SummaryWithMetrics(ExperimentSummary):
    """With those that were asked for."""

    metrics: list[MetricOut]


class ExperimentOut(ExperimentSummary):
    """An experiment and its status."""

    spec: dict[str, Any]
    """As it was accepted: a later version of the service may not accept it again."""
    cached_from: str | None = None
    """In the answer to a submission that this experiment, of before, answers for: its id."""


class ListedWithMetrics(ExperimentOut):
    """With those that were asked for."""

    metrics: list[MetricOut]


class EnvironmentOut(BaseModel):
    """What an attempt is computed with. `gpu`, `gpu_driver` and `cuda` are null on a CPU.
    `resumed_from` names the device of the checkpoint that it goes on from, where that is another:
    the last digits may then differ, and between a CPU and a GPU what VAEs draw does."""

    core: str
    packages: dict[str, str]
    platform: str
    cpu: str
    cpu_capability: str
    threads: int
    gpu: str | None
    gpu_driver: str | None
    cuda: str | None
    precision: str
    seeds: list[int]
    inputs: dict[str, str]
    resumed_from: str | None = None


class AttemptOut(BaseModel):
    """One try at an experiment; a later one goes on from where the one before was saved."""

    attempt: int
    worker: str
    started_at: datetime
    ended_at: datetime | None
    peak_bytes: int | None
    """The most memory that it took, of a GPU's or of the machine's; null until it has ended."""
    environment: EnvironmentOut | None
    """Null before its runner has said, and of what ran before this was kept."""


class ExperimentWithMetrics(ExperimentOut):
    """With its metrics, and with what each of its attempts was computed with."""

    metrics: list[MetricOut]
    attempts: list[AttemptOut]


class ExperimentPage(BaseModel):
    """Newest first. `next_cursor` is null on the last page."""

    items: list[ListedWithMetrics | ExperimentOut | SummaryWithMetrics | ExperimentSummary]
    next_cursor: str | None


class SeriesOut(BaseModel):
    """A series by column. `sampled` says that points were left out to keep to max_points: the
    first, the last, and of even stretches between the smallest, the largest and the first missing
    value remain, the same ones each time. `reasons` is null or says for each point why a number is
    missing."""

    name: str
    labels: dict[str, Any]
    total_points: int
    sampled: bool
    x: list[float]
    value: list[float | None]
    std_err: list[float | None]
    n: list[float]
    reasons: list[str | None] | None


class CurvesOut(BaseModel):
    """`last_seq`, given back as `after`, asks for what came since; it never falls, also where a
    run goes on from a checkpoint and records once more what was read already. `partial` says that
    the run has not ended. `total_points` and `sampled` are of all series."""

    experiment_id: str
    status: Status
    last_seq: int
    partial: bool
    total_points: int
    sampled: bool
    series: list[SeriesOut]


Label = int | float | Line
"""Value of a label."""


class CurvesWanted(BaseModel):
    """Which curves of which experiments."""

    model_config = ConfigDict(extra="forbid", strict=True)

    ids: Annotated[
        list[Annotated[str, Field(max_length=100)]], Field(min_length=1, max_length=1000)
    ]
    series: Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=100)] | None = (
        None
    )
    """Their names; null for all."""
    labels: Annotated[
        dict[str, Label | Annotated[list[Label], Field(max_length=1000)]], Field(max_length=20)
    ] = {}
    """The value that a label must have, or several of which it must have one."""
    max_points: Annotated[int, Field(ge=2, le=1_000_000)] = 100_000
    """Of all series of all experiments together; more are thinned."""


class ManyCurvesOut(BaseModel):
    """The curves of some experiments, in the order of their ids. `partial` says that some have not
    ended; `total_points` and `sampled` are of all."""

    partial: bool
    total_points: int
    sampled: bool
    items: list[CurvesOut]


def moment(seconds: float | None) -> datetime | None:
    """Convert a time of the database to a date with a time zone."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
