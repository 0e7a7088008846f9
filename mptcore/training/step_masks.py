"""Masks for training steps on vectors."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from mptcore.estimation.permutations import smallest_masked
from mptcore.estimation.random_numbers import random_keys
from mptcore.runtime.compiled import in_threads, together
from mptcore.runtime.rng import generator_for
from mptcore.specs import Ramp, UniformSize
from mptcore.specs.train import EpochSchedule

MIN_KEYS = 2**14
"""Minimum number of keys that are worth a thread."""


class _Ready(NamedTuple):
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
        self._ready: _Ready | None = None

    def draw(self, fraction: float) -> Tensor:  # (S, B, D)
        """Return the masks for a step at this fraction of the training. A mask covers the
        dimensions with the smallest random keys."""
        sizes = self._sizes(fraction)
        shape = (sizes.shape[1], self.dim)
        keys = torch.empty(len(self._generators), *shape, dtype=torch.float64)

        def draw(first: int, end: int) -> None:
            for own, generator in zip(keys[first:end], self._generators[first:end], strict=True):
                random_keys(own, generator)

        in_threads(draw, len(keys), max(1, MIN_KEYS // keys[0].numel()))
        return smallest_masked(keys, sizes.expand(len(keys), -1))

    def draw_several(self, fractions: Sequence[float]) -> Tensor:  # (S, E, B, D)
        """Return the masks for E steps, as repeated calls of `draw` would."""
        ready = self._take_ready(fractions)
        if ready is not None:
            return ready
        masks = self._none_yet(fractions)
        together(self._calls(fractions, masks))
        return masks

    @contextmanager
    def several_ahead(self, fractions: Sequence[float]) -> Iterator[list[Callable[[], None]]]:
        """Draw the masks for the next E steps while others are computed: yield calls that draw
        them, one for each seed. They must be made before the context ends. The generators keep
        their states from before."""
        before, masks = self.states(), self._none_yet(fractions)
        yield self._calls(fractions, masks) if fractions else []
        self._keep(fractions, before, masks)

    def _none_yet(self, fractions: Sequence[float]) -> Tensor:  # (S, E, B, D)
        masks = self.spec.masks_per_step(self.dim)
        shape = (len(self._generators), len(fractions), masks, self.dim)
        return torch.empty(shape, dtype=torch.bool)

    def _calls(self, fractions: Sequence[float], masks: Tensor) -> list[Callable[[], None]]:
        own = zip(self._generators, masks, strict=True)
        return [partial(self._draw_several, fractions, *one) for one in own]

    def _draw_several(
        self, fractions: Sequence[float], generator: torch.Generator, masks: Tensor
    ) -> None:
        """Write the masks (E, B, D) of a seed for E steps, in one thread."""
        keys = torch.empty(masks.shape, dtype=torch.float64)
        if isinstance(self.spec.masks, UniformSize):
            sizes = torch.empty(masks.shape[:2], dtype=torch.int64)
            for own, own_sizes in zip(keys, sizes, strict=True):
                own_sizes[:] = torch.randint(1, self.dim + 1, (1,), generator=generator)
                random_keys(own, generator)
        else:
            random_keys(keys, generator)
            given = torch.tensor([self._given_sizes(fraction) for fraction in fractions])
            sizes = given.repeat_interleave(self.spec.masks.per_size, dim=1)
        masks[:] = smallest_masked(keys, sizes, in_one_thread=True)

    def _take_ready(self, fractions: Sequence[float]) -> Tensor | None:
        """Return the masks drawn in advance, if they are those for these steps."""
        ready, self._ready = self._ready, None
        if ready is None or ready.fractions != fractions or not self._stand_at(ready.before):
            return None
        self.go_to(ready.after)
        return ready.masks

    def _keep(self, fractions: Sequence[float], before: list[Tensor], masks: Tensor) -> None:
        self._ready = _Ready(fractions, before, self.states(), masks)
        self.go_to(before)

    def states(self) -> list[Tensor]:
        return [generator.get_state() for generator in self._generators]

    def _stand_at(self, states: list[Tensor]) -> bool:
        return all(map(torch.equal, self.states(), states))

    def go_to(self, states: list[Tensor]) -> None:
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)

    def _sizes(self, fraction: float) -> Tensor:  # (S or 1, B)
        masks = self.spec.masks
        if isinstance(masks, UniformSize):
            drawn = [torch.randint(1, self.dim + 1, (1,), generator=g) for g in self._generators]
            return torch.stack(drawn).repeat_interleave(masks.per_size, dim=1)
        sizes = torch.tensor([self._given_sizes(fraction)])
        return sizes.repeat_interleave(masks.per_size, dim=1)

    def _given_sizes(self, fraction: float) -> list[int]:
        masks = self.spec.masks
        assert not isinstance(masks, UniformSize)
        if isinstance(masks, Ramp):
            return [masks.size_at(fraction, self.dim)]
        return list(masks.mask_sizes(self.dim))

    def generators(self) -> dict[str, torch.Generator]:
        """Return all generators by name."""
        return {f"masks/{i}": generator for i, generator in enumerate(self._generators)}
