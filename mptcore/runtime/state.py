"""State of a run. A run that is resumed from it gives the same bits.

A resumed run goes through its records again from the first, with two short cuts: training continues
from the saved epoch, and masks that were scored before are not scored again. So its records equal
those of an uninterrupted run, at whatever moment it was stopped."""

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from torch import Tensor

from mptcore.protocol.records import Progress, Record, Stage
from mptcore.runtime.out_of_memory import shortages


@dataclass
class MaskPlan:
    """Number of masks that an evaluation with a target scores in all. It starts at the maximum; the
    evaluation lowers it as it learns."""

    max_masks: int
    planned: int

    @property
    def unused(self) -> int:
        return self.max_masks - self.planned


BatchT = TypeVar("BatchT")
Shape = tuple[int, int, int]
"""Shape of the scores of a batch: models, rows, and masks or masked tokens."""
Result = TypeVar("Result")
Records = Generator[Record | None, None, Result]
"""Yields records, and None after other work; returns its result. Parts are composed with `yield
from`. Between two of them a run may be saved if state.at_safe_point is true."""


@dataclass(frozen=True)
class TrainingState:
    """Training state between two epochs."""

    epoch: int
    seq: int
    """Number of records emitted before this epoch."""
    masks: int
    """Number of masks scored before this epoch."""
    plans: tuple[MaskPlan, ...]
    """Plans of the evaluations before this epoch."""
    tensors: dict[str, Tensor]


@dataclass
class RunState:
    """State of a run."""

    seq: int = 0
    """Number of records emitted so far, without progress records. The consumer increments it."""
    masks: int = 0
    """Number of masks scored so far."""
    max_masks: int = 0
    """Maximum number of masks to score in all. It is known once the first masks are scored."""
    plans: list[MaskPlan] = field(default_factory=list)
    """Plans of the evaluations with a target that have begun."""
    scores: list[Tensor] = field(default_factory=list)  # (models, rows, B) each
    """Scores of all batches in order. A resumed run starts with the saved ones."""
    stage: Stage | None = None
    """Current stage, if it is measured in its own unit."""
    training: Callable[[], TrainingState] | None = None
    """Return the state of the training."""
    at_safe_point: bool = False
    """True if the run may be saved."""
    device: str = ""
    """Device of the computation."""
    precision: str = ""
    """Number type of the computation."""
    saved_on: str | None = None
    """Device of the checkpoint from which the run was resumed."""
    work_dir: Path | None = None
    """Folder for the files of the run."""
    was_short_before: bool = False
    """True if the work of the checkpoint was repeated in smaller parts."""
    _shortages_before: int = field(default_factory=shortages)
    _batches: int = 0
    """Number of batches whose scores are kept and were given."""

    @property
    def memory_was_short(self) -> bool:
        """True if work of the run was repeated in smaller parts, because the memory was short."""
        return self.was_short_before or shortages() > self._shortages_before

    def scored(
        self,
        batches: Iterable[BatchT],
        score: Callable[[BatchT], Tensor],
        shape: Callable[[BatchT], Shape],
    ) -> Iterator[tuple[BatchT, Tensor]]:
        """Yield each batch with its scores (models, rows, B), in order. All scores of a run come
        into being here. They are kept where the run may be saved, and saved ones are not computed
        again. If a saved batch has another size, because it was cut for another machine, it and all
        later saved scores are discarded."""
        for batch in batches:
            if not self.at_safe_point:  # curves during a training, which resumes from its epoch
                yield batch, score(batch)
                continue
            is_saved = self._batches < len(self.scores)
            if not is_saved or self.scores[self._batches].shape != shape(batch):
                del self.scores[self._batches :]
                self.scores.append(score(batch))
            self._batches += 1
            yield batch, self.scores[self._batches - 1]

    def count(self, masks: int) -> None:
        """Count masks that were scored. A record or None is yielded next, so that progress is
        reported."""
        self.masks += masks

    def plan(self, max_masks: int) -> MaskPlan:
        """Begin an evaluation with a target, and return its plan. At first it is assumed to leave
        as many masks unused as the latest one."""
        unused = self.plans[-1].unused if self.plans else 0
        self.plans.append(MaskPlan(max_masks, max_masks - unused))
        return self.plans[-1]

    def left_out(self, evaluations: int) -> int:
        """Return by how many masks these evaluations with a target stay below their maximum. Future
        evaluations are assumed to equal the latest."""
        if not self.plans:
            return 0
        to_come = max(0, evaluations - len(self.plans))
        return sum(plan.unused for plan in self.plans) + to_come * self.plans[-1].unused


class ExperimentRun(Protocol):
    """Runs one experiment."""

    def records(self, resumed: TrainingState | None) -> Records[None]:
        """Yield all records from the start. Raises RunError."""


def with_progress(
    records: Records[None], state: RunState, total: Callable[[], int]
) -> Iterator[Record | None]:
    """Yield records, with about a hundred progress records among them, and one when the first masks
    were scored, when twice as many were, and so on, and whenever the total has changed: the first
    expected end depends on them. `total` is called whenever masks were scored, because evaluations
    with a target plan their masks on the way. It may be too small where sequences of unknown length
    are drawn."""
    known = scored = reported = 0
    before = state.masks
    for record in records:
        done = state.masks
        yield record
        if done == before:
            continue
        whole = total()
        portion = max(1, whole // 100)
        scored += done - before
        is_due = done // portion > before // portion or before < whole <= done
        if is_due or whole != known or scored >= 2 * reported:
            known, reported = whole, scored
            yield Progress(done, max(whole, done), "masks", state.stage)
        before = done
