"""Data and, if known, the parameters they were drawn with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from mptcore.protocol.records import RunError
from mptcore.specs.data.columns import columns_are, missing_values


class Scaling(NamedTuple):
    """Shift and scale of standardized data, whose values are (x - center) / scale."""

    center: Tensor  # (D,), or (1,) for all dimensions alike, in float64
    scale: Tensor  # likewise


@dataclass(frozen=True)
class Dataset:
    x: Tensor  # (N, D): what is trained on and scored, NaN where a value is missing
    parameters: Mapping[str, Tensor] | None = None
    """Parameters of simulated data's generator, by name."""
    heldout: Tensor | None = None  # (H, D)
    columns: Sequence[str] | None = None
    """Names of the dimensions of a table."""
    heldout_rows: Tensor | None = None  # (H,)
    """Places of the held-out observations among all, from 0."""
    scaling: Scaling | None = None
    """Shift and scale that were applied."""
    ids: Mapping[str, Sequence[str]] | None = None
    """Columns that identify all rows of the source, those held out too."""

    @property
    def dim(self) -> int:
        return self.x.shape[1]

    @property
    def mean(self) -> Tensor:  # (D,)
        """Mean of the observed values of each dimension, in float64."""
        x = self.x.double()
        return x.nanmean(0) if self.x.isnan().any() else x.mean(0)

    @property
    def constant(self) -> list[str]:
        """Names or indices of the columns whose observed values are all the same."""
        missing = self.x.isnan()
        one = self.x.gather(0, missing.byte().argmin(0, keepdim=True))  # an observed value, (1, D)
        places = ((self.x == one) | missing).all(0).nonzero().flatten().tolist()
        names = self.columns or [*map(str, range(self.dim))]
        return [names[c] for c in places]

    @property
    def scale(self) -> Tensor:  # (D,)
        """Standard deviation of the observed values of each dimension, in float64."""
        return (self.x.double() - self.mean).square().nanmean(0).sqrt()

    def held_out(self, count: int, seed: int) -> "Dataset":
        """Return the data with `count` randomly chosen observations held out."""
        if count == 0:
            return self
        order = torch.randperm(len(self.x), generator=torch.Generator().manual_seed(seed))
        aside, kept = order[:count].sort().values, order[count:].sort().values
        return replace(self, x=self.x[kept], heldout=self.x[aside], heldout_rows=aside)


def refuse_missing(data: Dataset, refusal: str | None) -> None:
    """Raise RunError if values are missing and there is a reason why they are refused, or if a
    column has no value at all."""
    parts = [data.x] if data.heldout is None else [data.x, data.heldout]
    if not any(part.sum().isnan() for part in parts):  # the sum is quick, and NaN if a value is
        return
    names = data.columns or [*map(str, range(data.dim))]

    def named(places: Tensor) -> list[str]:
        return [names[c] for c in places.nonzero().flatten().tolist()]

    missing = named(torch.stack([part.isnan().any(0) for part in parts]).any(0))
    if missing and refusal is not None:
        raise RunError("invalid", missing_values(missing, data.columns is not None, refusal))
    if empty := named(data.x.isnan().all(0)):
        which = columns_are(empty, data.columns is not None, "empty")
        raise RunError("invalid", f"{which}: no value is left that is not held out")
