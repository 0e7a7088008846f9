"""Held-out observations that are also among the observations that a model is fitted to."""

import torch
from torch import Tensor

from mptcore.data.dataset import Dataset

BLOCK_NUMBERS = 2**17
"""Numbers that are hashed at once: they stay in a processor's cache."""


def heldout_copies(data: Dataset) -> int:
    """Return how many held-out observations are exact copies of observations that are not held out.
    Missing values are equal to each other."""
    if data.heldout is None:
        return 0
    generator = torch.Generator().manual_seed(0)
    factors = torch.randint(2**62, (data.dim,), generator=generator) * 2 + 1
    hashes, order = _hashes(data.x, factors).sort()
    of_heldout = _hashes(data.heldout, factors)
    places = torch.searchsorted(hashes, of_heldout).clamp(max=len(hashes) - 1)
    rows = (hashes[places] == of_heldout).nonzero().flatten()
    similar = data.x[order[places[rows]]]
    heldout = data.heldout[rows]
    equal = (similar == heldout) | (similar.isnan() & heldout.isnan())
    return int(equal.all(1).sum())


def copies_warning(data: Dataset) -> str | None:
    """Return a sentence about held-out copies, if there are any."""
    copies = heldout_copies(data)
    if copies == 0:
        return None
    assert data.heldout is not None
    verb = "is an exact copy" if copies == 1 else "are exact copies"
    return (
        f"{copies} of {len(data.heldout)} held-out rows {verb} of rows that are not held out: a "
        "model that learns rows by heart scores them too well. If the data should have no "
        "duplicates, remove them"
    )


def _hashes(x: Tensor, factors: Tensor) -> Tensor:
    """Return a 64-bit hash of each row of x (N, D), (N,); it is the same for 0 and -0. The upper
    half of each number is folded into the lower one, which is 0 in small whole numbers."""
    hashes = torch.empty(len(x), dtype=torch.int64)
    size = max(1, BLOCK_NUMBERS // x.shape[1])
    for block, rows in zip(torch.split(hashes, size), torch.split(x, size), strict=True):
        numbers = rows.double() + 0.0
        if numbers.sum().isnan():
            numbers[numbers.isnan()] = torch.nan  # NaN has many forms
        bits = numbers.view(torch.int64)
        block[:] = (bits ^ (bits >> 32)).mul_(factors).sum(1)
    return hashes
