"""Masks for training steps on vectors."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mptcore.estimation.permutations import smallest_masked
from mptcore.runtime.compiled import in_threads
from mptcore.runtime.rng import generator_for
from mptcore.specs import Ramp, UniformSize
from mptcore.specs.train import EpochSchedule

MIN_KEYS = 2**14
"""Minimum number of keys that are worth a thread."""


class _Ready(NamedTuple):
    """Masks drawn in advance, with the states of the generators before and after."""

    fraction: float
    before: list[Tensor]
    after: list[Tensor]
    masks: Tensor


class StepMasks:
    """Masks for each training step, drawn for each seed by its own generator. They are drawn on the
    CPU: all starts of a seed share them, and one copy sends those of a step to a GPU."""

    def __init__(self, spec: EpochSchedule, dim: int, seeds: Sequence[int]):
        self.spec, self.dim = spec, dim
        self._generators = [generator_for(seed, "train masks") for seed in seeds]
        self._ready: _Ready | None = None

    def draw(self, fraction: float) -> Tensor:  # (S, B, D)
        """Return the masks for a step at this fraction of the training."""
        ready, self._ready = self._ready, None
        if ready is None or ready.fraction != fraction or not self._stand_at(ready.before):
            return self.draw_each(fraction, 1).squeeze(2)
        self._go_to(ready.after)
        return ready.masks

    def draw_ahead(self, fraction: float) -> None:
        """Draw the next masks while a device is busy. The generators keep their states from before,
        because they may be saved before the masks are used."""
        before = self._states()
        masks = self.draw_each(fraction, 1).squeeze(2)
        self._ready = _Ready(fraction, before, self._states(), masks)
        self._go_to(before)

    def _states(self) -> list[Tensor]:
        return [generator.get_state() for generator in self._generators]

    def _stand_at(self, states: list[Tensor]) -> bool:
        return all(map(torch.equal, self._states(), states))

    def _go_to(self, states: list[Tensor]) -> None:
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)

    def draw_each(self, fraction: float, observations: int) -> Tensor:  # (S, B, N, D)
        """Draw B masks for each of N observations. A mask covers the dimensions with the smallest
        random keys."""
        sizes = self._sizes(fraction, observations)
        shape = (sizes.shape[1], self.dim)
        keys = torch.empty(len(self._generators), *shape, dtype=torch.float64)

        def draw(first: int, end: int) -> None:
            for own, generator in zip(keys[first:end], self._generators[first:end], strict=True):
                torch.rand(shape, generator=generator, out=own)

        in_threads(draw, len(keys), max(1, MIN_KEYS // keys[0].numel()))
        masks = smallest_masked(keys, sizes.expand(len(keys), -1))
        per_size = self.spec.masks.per_size
        split = masks.view(len(keys), -1, observations, per_size, self.dim)
        return split.transpose(2, 3).flatten(1, 2)

    def _sizes(self, fraction: float, observations: int) -> Tensor:  # (S or 1, B · N)
        masks, dim = self.spec.masks, self.dim
        match masks:
            case UniformSize():
                drawn = [
                    torch.randint(1, dim + 1, (observations,), generator=g)
                    for g in self._generators
                ]
                return torch.stack(drawn).repeat_interleave(masks.per_size, dim=1)
            case Ramp():
                sizes = torch.tensor([[masks.size_at(fraction, dim)]])
            case _:
                sizes = torch.tensor([list(masks.mask_sizes(dim))])
        return sizes.repeat_interleave(observations * masks.per_size, dim=1)

    def generators(self) -> dict[str, torch.Generator]:
        """Return all generators by name."""
        return {f"masks/{i}": generator for i, generator in enumerate(self._generators)}
