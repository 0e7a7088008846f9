"""Drawing masks. A mask is a row of D booleans, true where masked."""

import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from mptcore.specs import Masks


def draw_masks(
    spec: Masks, dim: int, generator: torch.Generator, max_masks: int
) -> Iterator[tuple[int, Tensor]]:
    """All masks of a spec, size by size, as (size, masks (b, D)) with b at most `max_masks`."""
    match spec.design:
        case "independent":
            return _independent(spec, dim, generator, max_masks)
        case "balanced":
            return _balanced(spec, dim, generator, max_masks)
        case "nested":
            return _nested(spec, dim, generator, max_masks)
        case "exhaustive":
            return _exhaustive(spec, dim, max_masks)


def windows_per_permutation(per_size: int) -> int:
    """How many masks of one size the balanced design takes from one permutation: the largest
    divisor of P not above its square root, so that at least √P permutations remain to give a
    standard error."""
    return max(w for w in range(1, math.isqrt(per_size) + 1) if per_size % w == 0)


def _independent(
    spec: Masks, dim: int, generator: torch.Generator, max_masks: int
) -> Iterator[tuple[int, Tensor]]:
    """The published order of draws: sizes, then P, one permutation each, its first m masked."""
    for size in spec.mask_sizes(dim):
        for count in _chunks(spec.per_size, max_masks):
            first = torch.stack(
                [torch.randperm(dim, generator=generator)[:size] for _ in range(count)]
            )
            yield size, _from_indices(first, dim)


def _balanced(
    spec: Masks, dim: int, generator: torch.Generator, max_masks: int
) -> Iterator[tuple[int, Tensor]]:
    """Cyclic windows at equal distances along common permutations."""
    windows = windows_per_permutation(spec.per_size)
    starts = torch.arange(windows) * dim // windows
    for size in spec.mask_sizes(dim):
        places = (starts[:, None] + torch.arange(size)) % dim  # (windows, size)
        for count in _chunks(spec.per_size // windows, max(1, max_masks // windows)):
            orders = torch.stack([torch.randperm(dim, generator=generator) for _ in range(count)])
            yield size, _from_indices(orders[:, places].flatten(0, 1), dim)


def _nested(
    spec: Masks, dim: int, generator: torch.Generator, max_masks: int
) -> Iterator[tuple[int, Tensor]]:
    orders = [torch.randperm(dim, generator=generator) for _ in range(spec.per_size)]
    rank = torch.stack(orders).argsort(1)  # (P, D)
    for size in spec.mask_sizes(dim):
        for part in torch.split(rank, max_masks):
            yield size, part < size


def _exhaustive(spec: Masks, dim: int, max_masks: int) -> Iterator[tuple[int, Tensor]]:
    for size in spec.mask_sizes(dim):
        subsets = itertools.combinations(range(dim), size)
        while part := list(itertools.islice(subsets, max_masks)):
            yield size, _from_indices(torch.tensor(part), dim)


def _from_indices(index: Tensor, dim: int) -> Tensor:  # (b, size) to (b, D)
    masked = torch.zeros(len(index), dim, dtype=torch.bool)
    return masked.scatter_(1, index, True)


def _chunks(total: int, most: int) -> Iterator[int]:
    for start in range(0, total, most):
        yield min(most, total - start)
