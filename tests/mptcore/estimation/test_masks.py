"""Designs: the properties of the masks of each one."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mptcore.estimation.masks import draw_masks
from mptcore.estimation.permutations import (
    WIDE,
    masks_of_sizes,
    permutations,
    smallest_masked,
)
from mptcore.specs import AllSizes, FixedSize, ListedSizes, Masks
from mptcore.specs.masks import Design

DIM = 12


def drawn(masks: Masks, seed: int = 0, max_masks: int = 1000, dim: int = DIM) -> dict[int, Tensor]:
    """All masks (P, D) of each size, in the order drawn."""
    parts: dict[int, list[Tensor]] = {}
    for batch in draw_masks(masks, dim, torch.Generator().manual_seed(seed), max_masks):
        assert len(batch.masks) <= max_masks
        sizes, counts = zip(*batch.size_counts, strict=True)
        for size, masked in zip(sizes, torch.split(batch.masks, list(counts)), strict=True):
            parts.setdefault(size, []).append(masked)
    return {size: torch.cat(part) for size, part in parts.items()}


SCHEDULES: list[Callable[..., Masks]] = [
    lambda **options: AllSizes(**options),
    lambda **options: ListedSizes(schedule="sizes", sizes=(9, 2, 12), **options),
    lambda **options: FixedSize(schedule="fixed", size=5, **options),
]


@pytest.mark.parametrize("design", ["independent", "balanced", "nested"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_mask_has_its_size(schedule: Callable[..., Masks], design: Design) -> None:
    masks = schedule(per_size=6, design=design)
    found = drawn(masks)
    assert list(found) == list(masks.mask_sizes(DIM))
    for size, masked in found.items():
        assert masked.shape == (6, DIM)
        assert masked.sum(1).tolist() == [size] * 6


@pytest.mark.parametrize("design", ["independent", "balanced", "nested", "exhaustive"])
def test_masks_do_not_depend_on_the_batch(design: Design) -> None:
    masks = AllSizes(per_size=9, design=design)
    whole, small = drawn(masks, dim=6), drawn(masks, max_masks=4, dim=6)
    for size, masked in whole.items():
        assert torch.equal(masked, small[size])


def test_independent_masks_have_the_published_order() -> None:
    found = drawn(AllSizes(per_size=3), seed=44)
    generator = torch.Generator().manual_seed(44)
    for size in range(1, DIM + 1):
        for p in range(3):
            first = torch.randperm(DIM, generator=generator)[:size]
            assert sorted(first.tolist()) == found[size][p].nonzero().flatten().tolist()


@pytest.mark.parametrize("seed", [4, 2**63])
@pytest.mark.parametrize("dim", [1, 2, 3, 4, 5, 10, 17, 200, WIDE - 1, WIDE, 3000])
def test_permutations_equal_those_of_torch(dim: int, seed: int) -> None:
    ours, theirs = (torch.Generator().manual_seed(seed) for _ in range(2))
    firsts = sorted({1, dim // 2 + 1, dim})
    for count, first in itertools.product([1, 2, 3, 64, 129], firsts):  # one stream
        drawn = permutations(count, dim, ours, first)
        expected = [torch.randperm(dim, generator=theirs)[:first] for _ in range(count)]
        assert torch.equal(drawn, torch.stack(expected))
        assert torch.equal(ours.get_state(), theirs.get_state())


@pytest.mark.parametrize("dim", [1, 2, 3, 5, 10, 17, 200, WIDE, 3000])
def test_compiled_masks_are_those_of_permutations(dim: int) -> None:
    ours, theirs = (torch.Generator().manual_seed(4) for _ in range(2))
    for count in (1, 2, 3, 129, 129):
        sizes = torch.randint(1, dim + 1, (count,), generator=torch.Generator().manual_seed(dim))
        sizes[0] = dim
        drawn = masks_of_sizes(sizes, dim, ours)
        for mask, size in zip(drawn, sizes.tolist(), strict=True):
            first = torch.randperm(dim, generator=theirs)[:size]
            assert sorted(first.tolist()) == mask.nonzero().flatten().tolist()
        assert torch.equal(ours.get_state(), theirs.get_state())


@pytest.mark.parametrize("dim", [1, 2, 3, 10, 50, 333])
def test_smallest_keys_are_masked(dim: int) -> None:
    generator = torch.Generator().manual_seed(dim)
    keys = torch.rand(3, 70, dim, generator=generator, dtype=torch.float64)
    keys[0] = keys[0].sort(-1).values
    keys[1] **= 40  # far from uniform
    sizes = torch.randint(1, dim + 1, (3, 70), generator=generator)
    assert torch.equal(
        smallest_masked(keys, sizes), keys.argsort(-1).argsort(-1) < sizes[..., None]
    )


@pytest.mark.parametrize(("per_size", "windows"), [(1, 1), (4, 2), (12, 3), (7, 1), (100, 10)])
def test_balanced_masks_share_the_dimensions_evenly(per_size: int, windows: int) -> None:
    masks = AllSizes(per_size=per_size, design="balanced")
    assert masks.windows_per_permutation == windows
    for size, masked in drawn(masks).items():
        for group in masked.view(-1, windows, DIM):
            times = group.sum(0)
            covered = windows * size
            assert times.max() - times.min() <= (1 if DIM % windows == 0 else 2)
            assert times.sum() == covered


def test_balanced_masks_by_hand() -> None:
    """Two windows on each of three permutations of five, from the first and the third on."""
    masks = AllSizes(per_size=6, design="balanced")
    assert masks.windows_per_permutation == 2
    orders = iter(permutations(15, 5, torch.Generator().manual_seed(3), 5).tolist())
    for size, masked in drawn(masks, seed=3, dim=5).items():
        for pair in masked.view(3, 2, 5):
            order = next(orders)
            for start, mask in zip((0, 2), pair, strict=True):
                window = sorted(order[(start + i) % 5] for i in range(size))
                assert mask.nonzero().flatten().tolist() == window


def test_nested_masks_are_prefixes_of_permutations() -> None:
    orders = permutations(4, 5, torch.Generator().manual_seed(3), 5).tolist()
    for size, masked in drawn(AllSizes(per_size=4, design="nested"), seed=3, dim=5).items():
        for order, mask in zip(orders, masked, strict=True):
            assert mask.nonzero().flatten().tolist() == sorted(order[:size])


def test_nested_masks_grow_one_dimension_at_a_time() -> None:
    found = drawn(AllSizes(per_size=5, design="nested"))
    for size in range(2, DIM + 1):
        assert bool((found[size] >= found[size - 1]).all())


def test_exhaustive_masks_are_all_subsets() -> None:
    for size, masked in drawn(AllSizes(design="exhaustive"), dim=6).items():
        assert masked.dtype == torch.bool
        distinct = {tuple(row) for row in masked.tolist()}
        assert len(distinct) == len(masked) == math.comb(6, size)
        assert all(sum(row) == size for row in distinct)
    assert AllSizes(design="exhaustive").count(6) == 2**6 - 1


@pytest.mark.parametrize("design", ["independent", "balanced", "nested"])
def test_every_dimension_is_masked_equally_often(design: Design) -> None:
    """Each mask is uniform over the subsets of its size, so a dimension is in m of D."""
    masks = FixedSize(schedule="fixed", size=3, per_size=4000, design=design)
    often = drawn(masks, max_masks=4000)[3].double().mean(0)
    error = (0.25 * 0.75 / 4000) ** 0.5
    assert (often - 0.25).abs().max() < 4.5 * error


def test_equal_keys_at_the_bound_are_all_masked() -> None:
    below_one = math.nextafter(1, 0)
    keys = torch.tensor([[0.0, 0.0, 0.0], [0.1, 0.2, 0.2], [below_one, below_one, 0.5]]).double()
    keys[2, :2] = below_one
    found = smallest_masked(keys[None], torch.tensor([[1, 2, 2]]))
    assert found.tolist() == [[[True] * 3] * 3]
