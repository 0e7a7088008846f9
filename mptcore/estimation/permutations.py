"""Draw many permutations at once, bit-identical to repeated calls of torch.randperm."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mptcore.estimation.random_numbers import KERNELS, random_words
from mptcore.runtime.compiled import kernels, parallel_ranges

MIN_PART = 64
"""Minimum number of masks that are worth a thread."""
MAX_DIM = 2**13
"""Maximum number of dimensions for which the random numbers of many masks fit in memory."""
WIDE = 512
"""Number of dimensions from which torch.randperm itself is as fast."""


def masks_of_sizes(sizes: Tensor, dim: int, generator: torch.Generator) -> Tensor:
    """Return a mask (B, D) for each size (B,): the first entries of torch.randperm(dim)."""
    compiled, count = kernels(KERNELS), len(sizes)
    masked = torch.zeros(count, dim, dtype=torch.bool)
    if compiled is None or dim > MAX_DIM:
        most = int(sizes.max())
        orders = permutations(count, dim, generator, most)
        return masked.scatter_(1, orders, torch.arange(most) < sizes[:, None])
    words = random_words(count * (dim - 1), generator)
    of_sizes, found = sizes.numpy(), masked.numpy()

    def part(first: int, end: int) -> None:
        compiled.shuffled_masks(words, first, end, of_sizes, np.empty(dim, np.int32), found)

    parallel_ranges(part, count, MIN_PART)
    return masked


def smallest_masked(keys: Tensor, sizes: Tensor, in_one_thread: bool = False) -> Tensor:
    """Return masks (S, B, D) of the `sizes` (S, B) dimensions with the smallest keys (S, B, D)."""
    compiled = kernels(KERNELS)
    if compiled is None:
        ranked = torch.from_numpy(np.sort(keys.numpy(), -1))  # ten times as fast as torch's
        return keys <= ranked.gather(-1, (sizes - 1)[..., None])
    masked = torch.empty(keys.shape, dtype=torch.bool)
    rows, found = keys.flatten(0, 1).numpy(), masked.flatten(0, 1).numpy()
    of_rows = sizes.flatten().contiguous().numpy()

    def part(first: int, end: int) -> None:
        compiled.smallest(rows[first:end], of_rows[first:end], found[first:end])

    parallel_ranges(part, len(rows), len(rows) if in_one_thread else MIN_PART)
    return masked


def permutations(count: int, dim: int, generator: torch.Generator, first: int) -> Tensor:
    """Return the first `first` entries of `count` permutations, (count, first), equal bit for bit
    to `count` calls of torch.randperm(dim). The generator ends in the same state as after those
    calls."""
    if dim >= WIDE or dim == 1 or count == 1:
        drawn = [torch.randperm(dim, generator=generator)[:first] for _ in range(count)]
        return torch.stack(drawn)
    return _shuffled(random_words(count * (dim - 1), generator).reshape(count, -1), first)


def _shuffled(words: NDArray[np.uint32], first: int) -> Tensor:
    """Shuffle all rows (B, D − 1) at once by Fisher and Yates, as torch does: for i = 0, 1, … swap
    entry i with entry i + word mod (D − i). Later steps do not change entry i."""
    count, dim = words.shape[0], words.shape[1] + 1
    steps = min(first, dim - 1)
    other = np.ascontiguousarray(words[:, :steps].T)  # (steps, B)
    left = np.arange(dim, dim - steps, -1, dtype=np.uint32)[:, None]
    other -= other // left * left
    places = other.astype(np.intp) * count + np.arange(steps * count).reshape(steps, count)
    entries = np.repeat(np.arange(dim, dtype=np.int32), count)  # (D, B), flat
    rows = entries.reshape(dim, count)
    found = np.empty((first, count), dtype=np.int32)
    for step, place in enumerate(places):
        entries.take(place, out=found[step], mode="clip")  # unbuffered; all indices are valid
        entries[place] = rows[step]
    if first == dim:
        found[-1] = rows[-1]
    return torch.from_numpy(found).long().T
