"""Draw many permutations at once, bit-identical to repeated calls of torch.randperm."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

WIDE = 512
"""Number of dimensions from which torch.randperm itself is as fast."""


def permutations(count: int, dim: int, generator: torch.Generator, first: int) -> Tensor:
    """Return the first `first` entries of `count` permutations, (count, first), equal bit for bit
    to `count` calls of torch.randperm(dim). The generator ends in the same state as after those
    calls."""
    if dim >= WIDE or dim == 1 or count == 1:
        drawn = [torch.randperm(dim, generator=generator)[:first] for _ in range(count)]
        return torch.stack(drawn)
    paired = count - count * (dim - 1) % 2  # an odd number of words does not pair up
    found = _shuffled(_words(paired * (dim - 1), generator).reshape(paired, -1), first)
    if paired == count:
        return found
    last = torch.randperm(dim, generator=generator)[:first]
    return torch.cat([found, last[None]])


def _words(count: int, generator: torch.Generator) -> NDArray[np.uint32]:
    """Return the next `count` 32-bit numbers of a generator; the count is even. Torch joins two of
    them into a 64-bit number, the first as the high half."""
    pairs = torch.empty(count // 2, dtype=torch.int64).random_(-(2**63), None, generator=generator)
    joined = pairs.numpy().view(np.uint64)
    return ((joined << 32) | (joined >> 32)).astype("<u8", copy=False).view(np.uint32)


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
        entries.take(place, out=found[step], mode="clip")  # unbuffered; all places are within
        entries[place] = rows[step]
    if first == dim:
        found[-1] = rows[-1]
    return torch.from_numpy(found).long().T
