"""Draw masks. A mask is a row of D booleans, true where masked."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mptcore.estimation.permutations import masks_of_sizes, permutations
from mptcore.estimation.prefetch import prefetch
from mptcore.specs import Masks

Plan = Iterable[tuple[int, int]]
"""Pairs of a size and the number of masks of that size."""

TOGETHER = 512
"""Number of independent masks drawn at a time, unless more are scored together."""


@dataclass(frozen=True, slots=True)
class MaskBatch:
    """Masks that are scored together. Masks of one size are adjacent."""

    size_counts: list[tuple[int, int]]
    """Pairs of a size and the number of its masks, in the order of the rows."""
    masks: Tensor  # (B, D)
    first: int = 0
    """Number of masks before them in the run."""

    def __len__(self) -> int:
        return len(self.masks)


def draw_masks(
    spec: Masks, dim: int, generator: torch.Generator, max_masks: int
) -> Iterator[MaskBatch]:
    """Yield all masks of a spec, size by size, in batches of at most `max_masks`."""
    match spec.design:
        case "independent":
            return draw_independent(mask_plan(spec, dim), dim, generator, max_masks)
        case "balanced":
            return _balanced(spec, dim, generator, max_masks)
        case "nested":
            return _nested(spec, dim, generator, max_masks)
        case "exhaustive":
            return enumerate_masks(spec.mask_sizes(dim), dim, max_masks)


def mask_plan(spec: Masks, dim: int) -> Plan:
    return [(size, spec.per_size) for size in spec.mask_sizes(dim)]


def draw_independent(
    plan: Plan, dim: int, generator: torch.Generator, max_masks: int
) -> Iterator[MaskBatch]:
    """Draw masks in the published order: sizes, then P permutations for each size. The first m
    entries of each permutation are masked."""
    groups = _batches(plan, max_masks * -(-TOGETHER // max_masks))
    for group, masks in prefetch(
        lambda runs: masks_of_sizes(_each_size(runs), dim, generator), groups
    ):
        first = 0
        for runs in _batches(group, max_masks):
            count = sum(count for _, count in runs)
            yield MaskBatch(runs, masks[first : first + count])
            first += count


def _balanced(
    spec: Masks, dim: int, generator: torch.Generator, max_masks: int
) -> Iterator[MaskBatch]:
    """Draw cyclic windows at equal distances along shared permutations."""
    windows = spec.windows_per_permutation
    starts = torch.arange(windows) * dim // windows
    plan = [(size, spec.per_size // windows) for size in spec.mask_sizes(dim)]
    for runs in _batches(plan, max(1, max_masks // windows)):
        sizes = _each_size(runs)
        rank = permutations(len(sizes), dim, generator, dim).argsort(1)
        from_start = (rank[:, None] - starts[:, None]) % dim  # (permutations, windows, D)
        masks = (from_start < sizes[:, None, None]).flatten(0, 1)
        yield MaskBatch([(size, count * windows) for size, count in runs], masks)


def _nested(
    spec: Masks, dim: int, generator: torch.Generator, max_masks: int
) -> Iterator[MaskBatch]:
    rank = permutations(spec.per_size, dim, generator, dim).argsort(1)  # (P, D)
    first = 0
    for runs in _batches(mask_plan(spec, dim), max_masks):
        sizes = _each_size(runs)
        which = (torch.arange(len(sizes)) + first) % spec.per_size
        first += len(sizes)
        yield MaskBatch(runs, rank[which] < sizes[:, None])


def enumerate_masks(sizes: Iterable[int], dim: int, max_masks: int) -> Iterator[MaskBatch]:
    """Yield all masks of these sizes, size by size, in batches of at most `max_masks`."""
    for size in sizes:
        subsets = itertools.combinations(range(dim), size)
        while part := list(itertools.islice(subsets, max_masks)):
            places = np.fromiter(itertools.chain.from_iterable(part), np.int64, size * len(part))
            masks = torch.zeros(len(part), dim, dtype=torch.bool)
            masks.scatter_(1, torch.from_numpy(places).view(-1, size), True)
            yield MaskBatch([(size, len(part))], masks)


def _each_size(runs: list[tuple[int, int]]) -> Tensor:
    """The size of each mask, (B,)."""
    sizes, counts = zip(*runs, strict=True)
    return torch.from_numpy(np.repeat(sizes, counts))


def _batches(plan: Plan, most: int) -> Iterator[list[tuple[int, int]]]:
    """Split a plan into plans of at most `most` masks."""
    runs: list[tuple[int, int]] = []
    room = most
    for size, count in plan:
        while count:
            part = min(count, room)
            runs.append((size, part))
            count, room = count - part, room - part
            if not room:
                yield runs
                runs, room = [], most
    if runs:
        yield runs
