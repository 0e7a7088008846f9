"""Random numbers of a torch generator, bit-identical to those of torch, in less time."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mptcore.runtime.compiled import kernels

KERNELS = "mptcore.estimation.kernels"
MIN_KEYS = 2**12
"""Minimum number of keys that are worth reading and writing a generator's state."""
GENERATOR_STATE = np.dtype(
    [("seed", "u8"), ("left", "i4"), ("is_seeded", "i4"), ("next", "u8"), ("words", "u8", 624),
     ("normal", "V40")]
)  # fmt: skip
"""Layout of the state of a torch generator on the CPU. If `left` is 1, all words are used."""


def random_words(count: int, generator: torch.Generator) -> NDArray[np.uint32]:
    """Return the next `count` 32-bit numbers of a generator."""
    found = np.empty(count, np.uint32)

    def draw(state: NDArray[np.uint32], place: int) -> int:
        compiled = kernels(KERNELS)
        if compiled is not None:
            return int(compiled.random_words(state, place, found))
        twister = np.random.MT19937()
        twister.state = {"bit_generator": "MT19937", "state": {"key": state, "pos": place}}
        found[:] = twister.random_raw(count)
        after = twister.state["state"]
        state[:] = after["key"]
        return int(after["pos"])

    if count:
        _advance(generator, draw)
    return found


def random_keys(keys: Tensor, generator: torch.Generator) -> None:
    """Fill a contiguous tensor of float64 with uniform numbers from [0, 1), as torch.rand does."""
    compiled = kernels(KERNELS)
    if compiled is None or keys.numel() < MIN_KEYS:
        torch.rand(keys.shape, generator=generator, out=keys)
        return
    found = keys.view(-1).numpy()
    _advance(generator, lambda state, place: int(compiled.random_keys(state, place, found)))


def _advance(generator: torch.Generator, draw: Callable[[NDArray[np.uint32], int], int]) -> None:
    """Let a function draw from the words (624,) of a generator's Mersenne Twister: it changes them,
    and returns the place after the last word used, given that of the next."""
    kept = generator.get_state()
    state = kept.numpy().view(GENERATOR_STATE)[0]
    words, length = state["words"].astype(np.uint32), len(state["words"])
    place = draw(words, int(state["next"]) if state["left"] > 1 else length)
    state["words"], state["next"], state["left"] = words, place, length + 1 - place
    generator.set_state(kept)
