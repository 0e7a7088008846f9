"""The records of a run, one JSON object a line."""

import json
import math
from collections.abc import Mapping, Sequence
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
]
SERIES: tuple[SeriesName, ...] = get_args(SeriesName)
"""What a series may be called."""

LabelName = Literal["seed", "model", "objective", "epoch", "step", "of", "rate"]
LABELS: tuple[LabelName, ...] = get_args(LabelName)
"""What tells series or metrics of one name apart."""

Labels = Mapping[LabelName, int | float | str]
FailureKind = Literal["error", "oom", "invalid", "no_gpu"]


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a series. `n` counts the masks (or draws) behind the value; where value or
    std_err is not a finite number it is null, and `reason` says why."""

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
    """One number of a whole run."""

    kind: ClassVar = "metric"
    name: str
    value: float | None
    std_err: float | None
    labels: Labels = field(default_factory=dict)
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a run that counts in a unit of its own."""

    name: Literal["training"]
    done: int
    total: int
    unit: Literal["epochs", "steps"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the whole run is, over its seeds and objectives, and within its present stage.
    Emitted at fixed points of the work, never by the clock. It comes where a batch of masks ends,
    and a GPU takes larger ones than a processor: so it has no place in the run's sequence either,
    and a run that goes on elsewhere gives the very records of an undisturbed one."""

    kind: ClassVar = "progress"
    done: int
    total: int
    unit: str
    stage: Stage | None = None


@dataclass(frozen=True, slots=True)
class Log:
    """A sentence for whoever reads the run's log."""

    kind: ClassVar = "log"
    level: Literal["info", "warning"]
    message: str


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file that the run keeps, under its work directory."""

    kind: ClassVar = "artifact"
    file: str
    media_type: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What follows from the records up to `after` is being written, while the run goes on; the
    checkpoint comes when it is. Like that it has no place in the run's sequence."""

    kind: ClassVar = "snapshot"
    after: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A place from which the run can be resumed: `file` in the checkpoint directory holds all that
    follows from the records up to `after`, where the latest snapshot was. When it is saved depends
    on the clock, so it has no place in the run's sequence: its line has "seq": null, and no other
    record depends on it."""

    kind: ClassVar = "checkpoint"
    file: str
    sha256: str
    after: int


@dataclass(frozen=True, slots=True)
class Restart:
    """None of the checkpoints that the run was to go on from is whole: all its records come again,
    from the first, and take the place of those that were kept."""

    kind: ClassVar = "restart"


@dataclass(frozen=True, slots=True)
class Ready:
    """The process has imported what a run needs. What ends it before that is not the run's."""

    kind: ClassVar = "ready"


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """What the run took of its GPU's memory at most, in bytes, as torch's allocator reserved it:
    for whoever plans the next one. It has no place in the run's sequence ("seq": null)."""

    kind: ClassVar = "memory"
    device_bytes: int


@dataclass(frozen=True, slots=True)
class Environment:
    """What the run is computed with: said when it has begun and again, whole, whenever it has read
    more of what its spec names. Like memory it has no place in the run's sequence."""

    kind: ClassVar = "environment"
    core: str
    """The beginning of a digest of mptcore's sources and of the versions that results depend upon.
    """
    packages: Mapping[str, str]
    """Their versions; Python's too."""
    platform: str
    cpu: str
    cpu_capability: str
    """The vector instructions that torch uses: sums of others differ in the last digits."""
    threads: int
    gpu: str | None
    """The GPU that it is computed on; None on a CPU."""
    gpu_driver: str | None
    cuda: str | None
    precision: str
    seeds: Sequence[int]
    inputs: Mapping[str, str]
    """The SHA-256 of what was read, by where it lies."""
    resumed_from: str | None
    """The device that the checkpoint was computed on that it goes on from, where that is another:
    the last digits may differ from those of a run on one of them, and between a CPU and a GPU what
    VAEs draw does."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The last record of a run that failed: its cause and, where known, its cure."""

    kind: ClassVar = "failure"
    cause: FailureKind
    message: str


@dataclass(frozen=True, slots=True)
class End:
    """The last record of a complete run: `count` numbered records precede it. An exit status of 0
    without it, or another count, is a crash. It has no number itself ("seq": null)."""

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
    | Failure
    | End
)


class RunError(Exception):
    """A run that cannot go on, for a reason its user should read."""

    def __init__(self, cause: FailureKind, message: str):
        super().__init__(message)
        self.cause = cause


def encode(seq: int | None, record: Record) -> str:
    """A record as one line of JSON, without the newline: equal records give equal lines."""
    line: dict[str, Any] = {"seq": seq, "record": record.kind}
    for name in (f.name for f in fields(record)):
        line[name] = getattr(record, name)
    if isinstance(record, Point):
        line["x"] = int(record.x) if float(record.x).is_integer() else record.x
    if isinstance(record, Point | Metric):
        line["labels"] = dict(sorted(record.labels.items()))
        _null_what_is_not_finite(line)
    if isinstance(record, Progress):
        if record.stage is None:
            del line["stage"]
        else:
            line["stage"] = asdict(record.stage)
    return json.dumps(line, allow_nan=False)


def _null_what_is_not_finite(line: dict[str, Any]) -> None:
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
