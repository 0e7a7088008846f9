"""Masks for training steps on vectors."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from mptcore.estimation.permutations import smallest_masked
from mptcore.estimation.random_numbers import random_keys
from mptcore.runtime.compiled import run_in_threads
from mptcore.runtime.rng import generator_for
from mptcore.specs import Ramp, UniformSize
from mptcore.specs.train import EpochSchedule

MIN_KEYS = 2**14
"""Minimum number of keys that are worth a thread."""


class _Prefetched(NamedTuple):
    """Masks drawn in advance, with the states of the generators before and after."""

    fractions: Sequence[float]
    before: list[Tensor]
    after: list[Tensor]
    masks: Tensor  # (S, E, B, D)


class StepMasks:
    """Masks for each training step, drawn for each seed by its own generator. They are drawn on the
    CPU: all starts of a seed share them, and one copy sends those of a step to a GPU."""

    def __init__(self, spec: EpochSchedule, dim: int, seeds: Sequence[int]):
        self.spec, self.dim = spec, dim
        self._generators = [generator_for(seed, "train masks") for seed in seeds]
        self._prefetched: _Prefetched | None = None

    def draw(self, fractions: Sequence[float]) -> Tensor:  # (S, E, B, D)
        """Return the masks for E steps at these fractions of the training. A mask covers the
        dimensions with the smallest random keys."""
        if (prefetched := self._take_prefetched(fractions)) is not None:
            return prefetched
        masks = self._empty(fractions)
        calls = self._calls(fractions, masks, in_one_thread=len(masks) > 1)
        if masks.numel() >= 2 * MIN_KEYS:
            run_in_threads(calls)
        else:
            for call in calls:
                call()
        return masks

    @contextmanager
    def prefetch(self, fractions: Sequence[float]) -> Iterator[list[Callable[[], None]]]:
        """Draw the masks for the next E steps while others are computed: yield calls that draw
        them, one for each seed. They must be made before the context ends. The generators keep
        their states from before."""
        before, masks = self.states(), self._empty(fractions)
        yield self._calls(fractions, masks, in_one_thread=True) if fractions else []
        self._prefetched = _Prefetched(fractions, before, self.states(), masks)
        self.restore(before)

    def _empty(self, fractions: Sequence[float]) -> Tensor:  # (S, E, B, D)
        masks = self.spec.masks_per_step(self.dim)
        shape = (len(self._generators), len(fractions), masks, self.dim)
        return torch.empty(shape, dtype=torch.bool)

    def _calls(
        self, fractions: Sequence[float], masks: Tensor, in_one_thread: bool
    ) -> list[Callable[[], None]]:
        """Return calls that write the masks (S, E, B, D), one for each seed."""
        pairs = zip(self._generators, masks, strict=True)
        return [partial(self._draw_seed, fractions, *pair, in_one_thread) for pair in pairs]

    def _draw_seed(
        self,
        fractions: Sequence[float],
        generator: torch.Generator,
        masks: Tensor,  # (E, B, D), output
        in_one_thread: bool,
    ) -> None:
        """Write the masks of a seed for E steps."""
        keys = torch.empty(masks.shape, dtype=torch.float64)
        if isinstance(self.spec.masks, UniformSize):
            sizes = torch.empty(masks.shape[:2], dtype=torch.int64)
            for step_keys, step_sizes in zip(keys, sizes, strict=True):
                step_sizes[:] = torch.randint(1, self.dim + 1, (1,), generator=generator)
                random_keys(step_keys, generator)
        else:
            random_keys(keys, generator)
            of_steps = torch.tensor([self._given_sizes(fraction) for fraction in fractions])
            sizes = of_steps.repeat_interleave(self.spec.masks.per_size, dim=1)
        masks[:] = smallest_masked(keys, sizes, in_one_thread)

    def _take_prefetched(self, fractions: Sequence[float]) -> Tensor | None:
        """Return the masks drawn in advance, if they are those for these steps."""
        prefetched, self._prefetched = self._prefetched, None
        if prefetched is None or prefetched.fractions != fractions:
            return None
        if not all(map(torch.equal, self.states(), prefetched.before)):
            return None
        self.restore(prefetched.after)
        return prefetched.masks

    def states(self) -> list[Tensor]:
        return [generator.get_state() for generator in self._generators]

    def restore(self, states: list[Tensor]) -> None:
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)

    def _given_sizes(self, fraction: float) -> list[int]:
        masks = self.spec.masks
        assert not isinstance(masks, UniformSize)
        if isinstance(masks, Ramp):
            return [masks.size_at(fraction, self.dim)]
        return list(masks.mask_sizes(self.dim))

    def generators(self) -> dict[str, torch.Generator]:
        """Return all generators by name."""
        return {f"masks/{i}": generator for i, generator in enumerate(self._generators)}
