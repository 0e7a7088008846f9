"""What a run remembers of itself, so that it can be resumed to the same bits.

A resumed run goes through its records again from the first, with two short cuts: training goes on
from the epoch that was kept, and masks that were scored before are not scored again. So it ends
with the very records of an undisturbed run, whatever the moment it was stopped at.
"""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from mptcore.protocol.records import Progress, Record, Stage


@dataclass
class MaskPlan:
    """How many masks an evaluation with a target scores in all. Who plans it changes it, from the
    most that it may take to what it takes."""

    most: int
    masks: int

    @property
    def left_out(self) -> int:
        return self.most - self.masks


class Step(NamedTuple):
    """A step of a run's work: the record that it gave, if any, how many masks were scored since the
    step before, and the plan of the evaluation that begins."""

    record: Record | None = None
    masks: int = 0
    plan: MaskPlan | None = None


Result = TypeVar("Result")
Work = Generator[Step, None, Result]
"""Work that gives steps on its way and returns its result. Parts of it are joined by `yield from`.
Between two steps a run may be saved, where session.at_safe_point is true."""


@dataclass(frozen=True)
class TrainingState:
    """Training between two epochs."""

    epoch: int
    seq: int
    """Records given before this epoch."""
    masks: int
    """Masks scored before this epoch."""
    plans: tuple[MaskPlan, ...]
    """Those of the evaluations before this epoch."""
    tensors: dict[str, Tensor]


@dataclass
class ScoreCache:
    """Scores in the order they were computed; at the start those of the run that is resumed."""

    values: list[Tensor] = field(default_factory=list)  # (models, 1 to 3, B) each
    _next: int = 0

    @classmethod
    def of(cls, values: Tensor, lengths: list[int]) -> "ScoreCache":
        """From the scores of all batches, and the length of each."""
        return cls(list(torch.split(values, lengths, dim=2)))

    def holds_next(self, masks: int) -> bool:
        """Whether the next batch, of so many masks, was scored before."""
        return self._next < len(self.values) and self.values[self._next].shape[2] == masks

    def get_or_compute(self, compute: Callable[[], Tensor], masks: int) -> Tensor:
        """The scores of the next batch, of so many masks. Those of batches of another size, cut for
        another machine, are dropped from there on."""
        if not self.holds_next(masks):
            del self.values[self._next :]
            self.values.append(compute())
        self._next += 1
        return self.values[self._next - 1]


@dataclass
class Session:
    """A run as it goes on."""

    seq: int = 0
    """Records given so far, those of progress left out; whoever takes them raises it."""
    masks: int = 0
    """Masks scored so far; `with_progress` raises it."""
    plans: list[MaskPlan] = field(default_factory=list)
    """Of the evaluations with a target that have begun; `with_progress` adds them."""
    scores: ScoreCache = field(default_factory=ScoreCache)
    stage: Stage | None = None
    """What the run is at, where that has a unit of its own."""
    training: Callable[[], TrainingState] | None = None
    """The state of the training, as it is once called."""
    at_safe_point: bool = False
    """Whether the run may be saved."""
    device: str = ""
    """What it is computed on."""
    precision: str = ""
    """The type of numbers that it is computed in."""
    saved_on: str | None = None
    """What the checkpoint was computed on that it goes on from."""
    work_dir: Path | None = None
    """Where the files that the run keeps are written."""

    def begin(self, plan: MaskPlan) -> None:
        """An evaluation with a target; until it has its plan it is expected to be as the latest."""
        if self.plans:
            plan.masks = plan.most - self.plans[-1].left_out
        self.plans.append(plan)

    def left_out(self, evaluations: int) -> int:
        """By how many masks so many evaluations with a target stay below the most that they may
        take; those to come are expected to be as the latest."""
        if not self.plans:
            return 0
        to_come = max(0, evaluations - len(self.plans))
        return sum(plan.left_out for plan in self.plans) + to_come * self.plans[-1].left_out


class ExperimentRun(Protocol):
    """What runs one experiment."""

    @property
    def total(self) -> int:
        """Masks to be scored in all, at most, known once some are scored."""

    @property
    def evaluations(self) -> int:
        """How often masks are scored as the spec's `evaluate` says."""

    def records(self, resumed: TrainingState | None) -> Work[None]:
        """All records, from the first. Raises RunError."""


def with_progress(
    work: Work[None], session: Session, total: Callable[[], int]
) -> Iterator[Record | None]:
    """The records of some work, with about a hundred progress records among them. The total is
    asked for whenever masks were scored, since evaluations with a target plan theirs on the way.
    None stands for a step without a record."""
    for record, masks, plan in work:
        if plan is not None:
            session.begin(plan)
        before = session.masks
        session.masks = done = before + masks
        yield record
        if masks == 0:
            continue
        whole = total()
        portion = max(1, whole // 100)
        if done // portion > before // portion or before < whole == done:
            yield Progress(done, whole, "masks", session.stage)
