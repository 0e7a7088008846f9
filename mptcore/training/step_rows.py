"""Choose the observations of training steps on vectors."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from mptcore.runtime.rng import generator_for


class StepRows:
    """Observations of each training step, drawn for each seed by its own generator. The rows of a
    seed do not depend on the other seeds."""

    def __init__(self, observations: int, batch_size: int, seeds: Sequence[int]):
        self._observations, self._batch_size = observations, batch_size
        self._generators = [generator_for(seed, "batches") for seed in seeds]

    def epoch(self) -> Iterator[tuple[Tensor, ...]]:
        """Yield the rows (B,) of each seed, for each step of an epoch."""
        orders = [torch.randperm(self._observations, generator=g) for g in self._generators]
        yield from zip(*(torch.split(o, self._batch_size) for o in orders), strict=True)

    def generators(self) -> dict[str, torch.Generator]:
        """Return all generators by name."""
        return {f"batches/{i}": generator for i, generator in enumerate(self._generators)}
