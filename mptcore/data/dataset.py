"""Data and, if known, the parameters they were drawn with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Dataset:
    x: Tensor  # (N, D): what is trained on and scored
    parameters: Mapping[str, Tensor] | None = None
    """Parameters of simulated data's generator, by name."""
    heldout: Tensor | None = None  # (H, D)
    columns: Sequence[str] | None = None
    """Names of the dimensions of a table."""

    @property
    def dim(self) -> int:
        return self.x.shape[1]

    def held_out(self, count: int, seed: int) -> "Dataset":
        """Return the data with `count` randomly chosen observations held out."""
        if count == 0:
            return self
        order = torch.randperm(len(self.x), generator=torch.Generator().manual_seed(seed))
        aside, kept = order[:count].sort().values, order[count:].sort().values
        return replace(self, x=self.x[kept], heldout=self.x[aside])
