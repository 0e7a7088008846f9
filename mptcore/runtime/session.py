"""What a run remembers of itself, so that it can be resumed to the same bits.

A resumed run goes through its records again from the first, with two short cuts: training goes on
from the epoch that was kept, and masks that were scored before are not scored again. So it ends
with the very records of an undisturbed run, whatever the moment it was stopped at.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor


@dataclass(frozen=True)
class TrainingState:
    """Training at rest between two epochs."""

    epoch: int
    seq: int
    """Records given before this epoch."""
    done: int
    """Masks scored before this epoch."""
    tensors: dict[str, Tensor]


@dataclass
class Tape:
    """Scores in the order they were computed; at the start those of the run that is resumed."""

    values: list[Tensor] = field(default_factory=list)  # (models, 1 or 2, B) each
    _next: int = 0

    @classmethod
    def of(cls, values: Tensor, lengths: list[int]) -> "Tape":
        return cls(list(torch.split(values, lengths, dim=2)))

    @property
    def remembers(self) -> bool:
        """Whether the next batch was scored before."""
        return self._next < len(self.values)

    def scored(self, compute: Callable[[], Tensor], count: int | None = None) -> Tensor:
        """The scores of the next batch: remembered, or computed and kept. What was remembered of
        batches of another size, cut for another machine, is dropped from there on."""
        if self.remembers and count not in (None, self.values[self._next].shape[2]):
            del self.values[self._next :]
        if self._next == len(self.values):
            self.values.append(compute())
        self._next += 1
        return self.values[self._next - 1]


@dataclass
class Session:
    """`seq` counts the records given; whoever takes them raises it. `at_rest` is true where the
    state may be saved."""

    seq: int = 0
    tape: Tape = field(default_factory=Tape)
    training: Callable[[], TrainingState] | None = None
    at_rest: bool = False
    work_dir: Path | None = None
    """Where the files that the run keeps are written."""
