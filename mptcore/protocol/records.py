"""Records of a run, as lines of JSON."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, Literal, get_args

SeriesName = Literal[
    "score",
    "score_by_rate",
    "score_by_rate_interim",
    "score_difference",
    "convergence",
    "bias",
    "loss",
    "loss_heldout",
    "mpt",
    "elbo",
    "lml",
    "lml_heldout",
    "lml_heldout_parts",
    "lml_fitting",
]
SERIES: tuple[SeriesName, ...] = get_args(SeriesName)
"""Names of series."""

LabelName = Literal["seed", "model", "objective", "epoch", "step", "of", "rate", "category"]
LABELS: tuple[LabelName, ...] = get_args(LabelName)
"""Names of labels. Labels distinguish series or metrics that have the same name."""

Labels = Mapping[LabelName, int | float | str]
FailureKind = Literal["error", "oom", "invalid", "no_gpu", "device", "disk_full"]


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a series. `n` is the number of masks (or draws) behind the value. A value or
    std_err that is not finite is null, and `reason` gives the reason."""

    kind: ClassVar = "point"
    series: SeriesName
    x: float
    value: float | None
    std_err: float | None
    n: int
    labels: Labels = field(default_factory=dict)
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Metric:
    """A number of the whole run."""

    kind: ClassVar = "metric"
    name: str
    value: float | None
    std_err: float | None
    labels: Labels = field(default_factory=dict)
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a run with a unit of its own."""

    name: Literal["training", "fitting"]
    done: int
    total: int
    """Total number of units. A fit that converges needs fewer iterations."""
    unit: Literal["epochs", "steps", "iterations"]


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of the whole run, over its seeds and objectives, and of its present stage.

    It is sent at fixed points of the work, after a batch of masks, never by the clock. Batches are
    larger on a GPU than on a CPU, so it has no `seq`, and a run that resumes on another device
    sends the same records as an undisturbed run.
    """

    kind: ClassVar = "progress"
    done: int
    total: int
    unit: str
    stage: Stage | None = None


@dataclass(frozen=True, slots=True)
class Log:
    """A line of the run's log."""

    kind: ClassVar = "log"
    level: Literal["info", "warning"]
    message: str


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file in the work directory, kept as a result of the run."""

    kind: ClassVar = "artifact"
    file: str
    media_type: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A checkpoint is being written while the run continues. It holds the state after the records
    up to `after`. Like the checkpoint it has no `seq`."""

    kind: ClassVar = "snapshot"
    after: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A saved state to resume from: `file` in the checkpoint directory has the state after the
    records up to `after`, at the latest snapshot. The clock decides when it is saved, so it has no
    `seq`, and no other record depends on it."""

    kind: ClassVar = "checkpoint"
    file: str
    sha256: str
    after: int


@dataclass(frozen=True, slots=True)
class Restart:
    """Announce that all given checkpoints are damaged: the run sends all records again, from the
    first. They replace the stored ones."""

    kind: ClassVar = "restart"


@dataclass(frozen=True, slots=True)
class Ready:
    """The process has imported the modules that a run needs. If it ends before this, the run is not
    at fault."""

    kind: ClassVar = "ready"


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Peak GPU memory of the run so far, in bytes, as torch's allocator reserved it, for the
    planning of other runs. It has no `seq`."""

    kind: ClassVar = "memory"
    device_bytes: int


@dataclass(frozen=True, slots=True)
class Environment:
    """Code, packages and hardware of the run. It is sent at the start and again, whole, when the
    run has read more inputs or was short of memory. It has no `seq`."""

    kind: ClassVar = "environment"
    core: str
    """Beginning of a digest of mptcore's sources and of the versions of the libraries that results
    depend on."""
    packages: Mapping[str, str]
    """Versions of packages and of Python, by name."""
    platform: str
    cpu: str
    cpu_capability: str
    """Vector instructions that torch uses. Other instructions give other last digits."""
    threads: int
    gpu: str | None
    """Name of the GPU. None on a CPU."""
    gpu_driver: str | None
    cuda: str | None
    precision: str
    seeds: Sequence[int]
    inputs: Mapping[str, str]
    """SHA-256 of each file that was read, by its path."""
    memory_was_short: bool
    """True if work was repeated in smaller parts, because the memory was short. The last digits may
    then differ from those of a run with enough memory."""
    resumed_from: str | None
    """Device that the checkpoint was computed on, if it differs from this device. The last digits
    may then differ from those of a run on one device; between a CPU and a GPU the draws of VAEs
    differ."""


@dataclass(frozen=True, slots=True)
class FullDisk:
    """The disk has no space for `file`, of `bytes` bytes. The run waits for it, and sends no other
    record before the file is written. It has no `seq`."""

    kind: ClassVar = "disk_full"
    file: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Failure:
    """The last record of a run that failed: its cause and, if known, a remedy."""

    kind: ClassVar = "failure"
    cause: FailureKind
    message: str


@dataclass(frozen=True, slots=True)
class End:
    """The last record of a complete run: `count` numbered records precede it. Exit status 0 without
    this record or with another count is a crash. It has no `seq`."""

    kind: ClassVar = "end"
    count: int


Record = (
    Point
    | Metric
    | Progress
    | Log
    | Artifact
    | Snapshot
    | Checkpoint
    | Restart
    | Ready
    | DeviceMemory
    | Environment
    | FullDisk
    | Failure
    | End
)


class RunError(Exception):
    """An error that ends a run, with a message for its user."""

    def __init__(self, cause: FailureKind, message: str):
        super().__init__(message)
        self.cause = cause


def encode(seq: int | None, record: Record) -> str:
    """Return a record as a line of JSON, without the newline. Equal records give equal lines."""
    line: dict[str, Any] = {"seq": seq, "record": record.kind}
    for name in (f.name for f in fields(record)):
        line[name] = getattr(record, name)
    if isinstance(record, Point):
        line["x"] = int(record.x) if float(record.x).is_integer() else record.x
    if isinstance(record, Point | Metric):
        line["labels"] = dict(sorted(record.labels.items()))
        _replace_not_finite(line)
    if isinstance(record, Progress):
        if record.stage is None:
            del line["stage"]
        else:
            line["stage"] = asdict(record.stage)
    return json.dumps(line, allow_nan=False)


def point_encoder(series: str, labels: Labels) -> Callable[..., str]:
    """Return a function that encodes the points of a series: the lines of `encode` for the stored
    numbers of a Point, several times as fast. It takes the record number, x, value, std_err, n and
    the reason. A missing number is NaN, and x and n are floats too."""
    named = f'"record": "point", "series": {json.dumps(series)}'
    labelled = f'"labels": {json.dumps(dict(sorted(labels.items())))}'

    def line(seq: int, x: float, value: float, std_err: float, n: float, reason: str | None) -> str:
        place = int(x) if x.is_integer() else x
        shown = "null" if value != value else value
        error = "null" if std_err != std_err else std_err
        why = "" if reason is None else f', "reason": {json.dumps(reason)}'
        return (
            f'{{"seq": {seq}, {named}, "x": {place}, "value": {shown}, "std_err": {error}, '
            f'"n": {int(n)}, {labelled}{why}}}'
        )

    return line


def _replace_not_finite(line: dict[str, Any]) -> None:
    for name in ("value", "std_err"):
        number = line[name]
        if number is None:
            continue
        line[name] = float(number)
        if not math.isfinite(number):
            line[name] = None
            line["reason"] = line["reason"] or f"{name} is {number}"
    if line["reason"] is None:
        del line["reason"]
