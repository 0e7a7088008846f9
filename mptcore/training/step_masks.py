"""Masks for training steps on vectors."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from mptcore.estimation.permutations import smallest_masked
from mptcore.estimation.random_numbers import random_keys
from mptcore.runtime.compiled import parallel_ranges
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
        keys = torch.empty(self._shape(fractions), dtype=torch.float64)
        sizes = self._sizes(fractions).repeat(len(keys), 1, 1)

        def draw_seeds(first: int, end: int) -> None:
            for s in range(first, end):
                self._draw_keys(self._generators[s], keys[s], sizes[s])

        parallel_ranges(draw_seeds, len(keys), max(1, MIN_KEYS // keys[0].numel()))
        return smallest_masked(keys.flatten(0, 1), sizes.flatten(0, 1)).view(keys.shape)

    @contextmanager
    def prefetch(self, fractions: Sequence[float]) -> Iterator[list[Callable[[], None]]]:
        """Draw the masks for the next E steps while others are computed: yield calls that draw
        them, one for each seed. They must be made before the context ends. The generators keep
        their states from before."""
        before, masks = self.states(), torch.empty(self._shape(fractions), dtype=torch.bool)

        def draw_seed(s: int) -> None:
            keys, sizes = torch.empty(masks[s].shape, dtype=torch.float64), self._sizes(fractions)
            self._draw_keys(self._generators[s], keys, sizes)
            masks[s] = smallest_masked(keys, sizes, in_one_thread=True)

        yield [partial(draw_seed, s) for s in range(len(masks))] if fractions else []
        self._prefetched = _Prefetched(fractions, before, self.states(), masks)
        self.restore(before)

    def _shape(self, fractions: Sequence[float]) -> tuple[int, int, int, int]:
        masks = self.spec.masks_per_step(self.dim)
        return len(self._generators), len(fractions), masks, self.dim

    def _sizes(self, fractions: Sequence[float]) -> Tensor:  # (E, B)
        """Return the sizes of the masks for E steps. Random ones are drawn with the keys."""
        masks = self.spec.masks
        if isinstance(masks, UniformSize):
            return torch.empty(len(fractions), masks.per_size, dtype=torch.int64)
        if isinstance(masks, Ramp):
            sizes = [[masks.size_at(fraction, self.dim)] for fraction in fractions]
        else:
            sizes = [list(masks.mask_sizes(self.dim))] * len(fractions)
        return torch.tensor(sizes).repeat_interleave(masks.per_size, dim=1)

    def _draw_keys(
        self,
        generator: torch.Generator,
        keys: Tensor,  # (E, B, D), output
        sizes: Tensor,  # (E, B), overwritten if they are random
    ) -> None:
        """Draw the keys of a seed for E steps, and its sizes if these are random."""
        if not isinstance(self.spec.masks, UniformSize):
            random_keys(keys, generator)
            return
        for step_keys, step_sizes in zip(keys, sizes, strict=True):
            step_sizes[:] = torch.randint(1, self.dim + 1, (1,), generator=generator)
            random_keys(step_keys, generator)

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

    def generators(self) -> dict[str, torch.Generator]:
        """Return all generators by name."""
        return {f"masks/{i}": generator for i, generator in enumerate(self._generators)}
