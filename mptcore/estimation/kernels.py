"""Compiled loops that draw masks."""

import numpy as np
from numpy.typing import NDArray

from mptcore.runtime.compiled import kernel


@kernel("void(u4[::1], i8, i8, i8[::1], i4[::1], b1[:,::1])")
def shuffled_masks(
    words: NDArray[np.uint32],  # (B (D − 1),)
    first: int,
    end: int,
    sizes: NDArray[np.int64],  # (B,)
    entries: NDArray[np.int32],  # (D,), overwritten
    masked: NDArray[np.bool_],  # (B, D), false; output
) -> None:
    """Mask the first entries of the permutations first to end that torch.randperm makes of these
    numbers: for i = 0, 1, … it swaps entry i with entry i + word mod (D − i). Numbers come in
    pairs, the second before the first."""
    dim = len(entries)
    for b in range(first, end):
        for j in range(dim):
            entries[j] = j
        own = b * (dim - 1)
        for i in range(min(sizes[b], dim - 1)):
            other = i + np.int64(words[(own + i) ^ 1] % np.uint32(dim - i))
            masked[b, entries[other]] = True
            entries[other] = entries[i]
        if sizes[b] == dim:
            masked[b, :] = True


@kernel("void(f8[:,::1], i8[::1], f8[::1], b1[:,::1])")
def smallest(
    keys: NDArray[np.float64],  # (B, D)
    sizes: NDArray[np.int64],  # (B,), from 1 to D
    ordered: NDArray[np.float64],  # (D,), overwritten
    masked: NDArray[np.bool_],  # (B, D), output
) -> None:
    """Mask the dimensions with the smallest keys: those up to the one of this rank, which Hoare's
    quickselect finds."""
    for b in range(len(keys)):
        for d in range(len(ordered)):
            ordered[d] = keys[b, d]
        rank = sizes[b] - 1
        first, last = 0, len(ordered) - 1
        while first < last:
            pivot = ordered[rank]
            i, j = first, last
            while i <= j:
                while ordered[i] < pivot:
                    i += 1
                while pivot < ordered[j]:
                    j -= 1
                if i <= j:
                    ordered[i], ordered[j] = ordered[j], ordered[i]
                    i += 1
                    j -= 1
            if j < rank:
                first = i
            if rank < i:
                last = j
        for d in range(len(ordered)):
            masked[b, d] = keys[b, d] <= ordered[rank]
