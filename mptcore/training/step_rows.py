"""The observations of training steps on vectors."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from mptcore.runtime.rng import generator_for


class StepRows:
    """The observations of each training step, drawn for each seed by a generator of its own: what
    a seed's starts see does not depend on the seeds beside it."""

    def __init__(self, observations: int, batch_size: int, seeds: Sequence[int]):
        self._observations, self._batch_size = observations, batch_size
        self._generators = [generator_for(seed, "batches") for seed in seeds]

    def epoch(self) -> Iterator[tuple[Tensor, ...]]:
        """For each step of an epoch the rows (B,) of each seed."""
        orders = [torch.randperm(self._observations, generator=g) for g in self._generators]
        yield from zip(*(torch.split(o, self._batch_size) for o in orders), strict=True)

    def generators(self) -> dict[str, torch.Generator]:
        """All of them, by name."""
        return {f"batches/{i}": generator for i, generator in enumerate(self._generators)}
