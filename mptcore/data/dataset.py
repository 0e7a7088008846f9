"""Data and, if known, the parameters they were drawn with."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from mptcore.data.duplicates import copied_rows
from mptcore.protocol.records import RunError
from mptcore.specs.vectors import columns_are, missing_values

SUM_FACTOR = 1e6
"""Margin below values whose squares overflow, for sums over observations and dimensions."""
MAX_SQUARED = 1e140
"""Standard deviation up to which, and down to whose inverse, squares keep all digits."""


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
    """Id columns of a table by name, with a value for each of all observations, held-out ones
    too, in the order of the source."""

    @property
    def dim(self) -> int:
        return self.x.shape[1]

    @property
    def mean(self) -> Tensor:  # (D,)
        """Mean of the observed values of each dimension, in float64."""
        return mean_of(self.x.double())

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
        return scale_of(self.x.double())

    def held_out(self, count: int, seed: int) -> "Dataset":
        """Return the data with `count` randomly chosen observations held out."""
        if count == 0:
            return self
        order = torch.randperm(len(self.x), generator=torch.Generator().manual_seed(seed))
        aside, kept = order[:count].sort().values, order[count:].sort().values
        return replace(self, x=self.x[kept], heldout=self.x[aside], heldout_rows=aside)


def mean_of(x: Tensor) -> Tensor:  # (N, D) to (D,)
    """Return the mean of the values of each column that are not NaN. Sums do not overflow."""
    mean = x.nanmean(0) if x.isnan().any() else x.mean(0)
    if mean.isfinite().all():
        return mean
    unit = _units(x)
    return (x / unit).nanmean(0) * unit


def scale_of(x: Tensor) -> Tensor:  # (N, D) to (D,)
    """Return the standard deviation of the values of each column that are not NaN. Squares neither
    overflow nor underflow."""
    scale = (x - mean_of(x)).square().nanmean(0).sqrt()
    if ((scale > 1 / MAX_SQUARED) & (scale < MAX_SQUARED)).all():
        return scale
    unit = _units(x)
    scaled = x / unit
    return (scaled - mean_of(scaled)).square().nanmean(0).sqrt() * unit


def _units(x: Tensor) -> Tensor:  # (N, D) to (D,)
    """Return the power of two below the largest magnitude of each column. Division by it is
    exact."""
    _, exponents = torch.frexp(x.nan_to_num().abs().amax(0))
    return torch.ldexp(torch.ones_like(x[0]), exponents - 1)


def refuse_extreme(data: Dataset, dtype: torch.dtype) -> None:
    """Raise RunError if a column has values whose squares overflow in the precision that is
    computed with, or if squares of their differences underflow or have fewer digits."""
    limits = torch.finfo(dtype)
    parts = [data.x] if data.heldout is None else [data.x, data.heldout]
    x = torch.cat(parts).double()
    largest = x.nan_to_num().abs().amax(0)
    spread = x.nan_to_num(-math.inf).amax(0) - x.nan_to_num(math.inf).amin(0)
    smallest = (limits.tiny / limits.eps) ** 0.5
    names, precision = data.columns or [*map(str, range(data.dim))], str(dtype).split(".")[-1]
    for columns, detail in (
        (largest > limits.max**0.5 / SUM_FACTOR, "whose squares overflow"),
        ((spread > 0) & (spread < smallest), "and squares of their differences underflow"),
    ):
        for column in columns.nonzero().flatten().tolist()[:1]:
            name = names[column] + ("" if data.columns else " (counted from 0)")
            values = f"has values up to {largest[column].item():.3g} in size"
            cure = "multiply the column by a constant, or set data.standardize=columns"
            raise RunError("invalid", f"column {name} {values}, {detail} in {precision}: {cure}")


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


def copies_warning(data: Dataset) -> str | None:
    """Return a sentence about held-out observations that are exact copies of others, if any are."""
    if data.heldout is None:
        return None
    copies = len(copied_rows(data.heldout.double().numpy(), data.x.double().numpy()))
    if copies == 0:
        return None
    verb = "is an exact copy" if copies == 1 else "are exact copies"
    return (
        f"{copies} of {len(data.heldout)} held-out rows {verb} of rows that are not held out: a "
        "model that learns rows by heart scores them too well. If the data should have no "
        "duplicates, remove them"
    )
