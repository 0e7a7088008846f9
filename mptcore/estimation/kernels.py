"""Compiled loops that draw random numbers and masks."""

import numpy as np
from numpy.typing import NDArray

from mptcore.runtime.compiled import inlined, kernel

LENGTH = 624
"""Number of words in the state of a Mersenne Twister."""
SHIFT = 397


@inlined()
def twisted(first: np.uint32, second: np.uint32, third: np.uint32) -> np.uint32:
    """Return the new word of a state from its old one, the one after it, and the one 397 places
    after it."""
    joined = (first & np.uint32(0x80000000)) | (second & np.uint32(0x7FFFFFFF))
    odd = np.uint32(0) - (joined & np.uint32(1))
    return third ^ (joined >> np.uint32(1)) ^ (odd & np.uint32(0x9908B0DF))


@kernel("i8(u4[::1], i8, u4[::1])")
def random_words(
    state: NDArray[np.uint32],  # (LENGTH,), advanced
    place: int,
    found: NDArray[np.uint32],  # (count,), output
) -> int:
    """Write the numbers of a Mersenne Twister (Matsumoto and Nishimura, 1998, MT19937) from a place
    of its state. Return the place after them."""
    done = 0
    while done < len(found):
        if place == LENGTH:
            for i in range(LENGTH - SHIFT):
                state[i] = twisted(state[i], state[i + 1], state[i + SHIFT])
            for i in range(LENGTH - SHIFT, LENGTH - 1):
                state[i] = twisted(state[i], state[i + 1], state[i + SHIFT - LENGTH])
            state[LENGTH - 1] = twisted(state[LENGTH - 1], state[0], state[SHIFT - 1])
            place = 0
        count = min(LENGTH - place, len(found) - done)
        words, own = state[place : place + count], found[done : done + count]
        for i in range(count):
            word = words[i]
            word ^= word >> np.uint32(11)
            word ^= (word << np.uint32(7)) & np.uint32(0x9D2C5680)
            word ^= (word << np.uint32(15)) & np.uint32(0xEFC60000)
            own[i] = word ^ (word >> np.uint32(18))
        done += count
        place += count
    return place


@kernel("i8(u4[::1], i8, f8[::1])")
def random_keys(
    state: NDArray[np.uint32],  # (LENGTH,), advanced
    place: int,
    found: NDArray[np.float64],  # (count,), output
) -> int:
    """Write uniform numbers from [0, 1), as torch makes them: 53 bits of two words, the first above
    the second. Return the place after the last word."""
    words = np.empty(LENGTH, np.uint32)
    for first in range(0, len(found), LENGTH // 2):
        own = found[first : first + LENGTH // 2]
        place = random_words(state, place, words[: 2 * len(own)])
        for i in range(len(own)):
            high = np.int32(words[2 * i] & np.uint32(0x1FFFFF))
            own[i] = (high * 2.0**32 + words[2 * i + 1]) * 2.0**-53
    return place


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
    numbers: for i = 0, 1, … it swaps entry i with entry i + word mod (D − i)."""
    dim = len(entries)
    for b in range(first, end):
        for j in range(dim):
            entries[j] = j
        own = b * (dim - 1)
        for i in range(min(sizes[b], dim - 1)):
            other = i + np.int64(words[own + i] % np.uint32(dim - i))
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
