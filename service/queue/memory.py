"""Expected memory of a run, and which workers have enough. The family estimates the size of its
tensors; the measured peaks of earlier runs correct the estimate."""

from dataclasses import dataclass
from functools import cache, partial

from sqlalchemy import literal_column, select
from sqlalchemy.orm import Session

from mptcore.specs import ExperimentSpec, Problem
from service.experiments.models import DEVICES, TELLING_BYTES, Attempt, Device, Experiment, Queue
from service.queue import workers
from service.vocabulary import Status

GIB = 2**30
RUNTIME_BYTES = {Queue.CPU: 400 * 2**20, Queue.GPU: workers.GPU_RUNTIME_BYTES}
"""Memory used before the first tensor: torch, or the context of a GPU."""
LEARNED_FROM = 50
"""Number of recent successful runs of a family that are used, among those large enough."""
MIN_RUNS = 5
RATIO_BOUNDS = 0.2, 5.0


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory in bytes: `estimated` only from the spec, `expected` with the correction."""

    by_spec: int
    expected: int


class MemoryModel:
    """Expected memory of runs and the memory of workers. Each is looked up once for all specs."""

    def __init__(self, session: Session):
        self._ratio = cache(partial(learned_ratio, session))
        self._largest = cache(partial(workers.largest, session))

    def expected(self, spec: ExperimentSpec) -> Memory:
        """Return the expected memory of a run."""
        queue = Queue.CPU if spec.device == "cpu" else Queue.GPU
        by_spec = spec.memory_estimate()
        ratio = self._ratio(spec.model.family, queue)
        return Memory(by_spec, RUNTIME_BYTES[queue] + int(ratio * by_spec))

    def problems(self, spec: ExperimentSpec, memory: Memory) -> list[Problem]:
        """Return a problem if no known worker could ever run it. Workers that are absent or report
        no memory are not considered."""
        device = Device(spec.device)
        holds = self._largest()
        largest = {
            queue: holds[queue] for queue in Queue if device in DEVICES[queue] and queue in holds
        }
        if not largest or any(one is None or one >= memory.expected for one in largest.values()):
            return []
        have = " and ".join(
            f"{(size or 0) / GIB:.3g} GiB on a {queue.upper()}" for queue, size in largest.items()
        )
        takes = f"a run takes about {memory.expected / GIB:.3g} GiB"
        return [Problem(spec.memory_field, f"{takes}; the workers hold at most {have}")]


def learned_ratio(session: Session, family: str, queue: Queue) -> float:
    """Return the factor by which runs of the family exceeded their estimates in 19 of 20 cases; 1
    until a few have run."""
    rows = session.execute(
        select(Attempt.peak_bytes, Attempt.estimated_bytes)
        .join(Experiment, Experiment.id == Attempt.experiment_id)
        .where(
            Attempt.family == family,
            Attempt.queue == queue,
            Experiment.status == Status.SUCCEEDED,
            Attempt.ended_at.is_not(None),
            Attempt.peak_bytes.is_not(None),
            Attempt.estimated_bytes >= literal_column(str(TELLING_BYTES)),  # as in the index
        )
        .order_by(Attempt.ended_at.desc())
        .limit(LEARNED_FROM)
    ).all()
    if len(rows) < MIN_RUNS:
        return 1.0
    ratios = sorted(((peak or 0) - RUNTIME_BYTES[queue]) / (by_spec or 1) for peak, by_spec in rows)
    least, most = RATIO_BOUNDS
    return min(most, max(least, ratios[int(0.95 * (len(ratios) - 1) + 0.5)]))
