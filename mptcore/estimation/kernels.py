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


@kernel("void(f8[:,::1], i8[::1], b1[:,::1])")
def smallest(
    keys: NDArray[np.float64],  # (B, D), uniform on [0, 1)
    sizes: NDArray[np.int64],  # (B,), from 1 to D
    masked: NDArray[np.bool_],  # (B, D), output
) -> None:
    """Mask the dimensions with the smallest keys: all keys up to a bound that includes as many as
    the size. The bound is found by interpolation, because keys are uniform. Every third step halves
    the interval instead, so that the search ends for any keys. Equal keys at the bound are all
    masked."""
    dim = keys.shape[1]
    for b in range(len(keys)):
        own, size = keys[b], sizes[b]
        low, high, below, within = -0.5, 1.0, 0, dim
        step = 0
        while within != size:
            step += 1
            share = (size - below) / (within - below + 1) if step % 3 else 0.5
            bound = low + share * (high - low)
            if not low < bound < high:
                bound = low + 0.5 * (high - low)
                if not low < bound < high:
                    break
            count = 0
            for d in range(dim):
                count += own[d] <= bound
            if count < size:
                low, below = bound, count
            else:
                high, within = bound, count
        for d in range(dim):
            masked[b, d] = own[d] <= high
