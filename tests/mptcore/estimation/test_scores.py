"""Estimates from scored masks, calculated by hand from scores that identify their mask."""

import math
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

import pytest
import torch
from torch import Tensor

from mptcore.estimation.estimate import Estimate
from mptcore.estimation.masks import MaskBatch, enumerate_masks
from mptcore.estimation.model import Evidence, Model
from mptcore.estimation.scores import (
    SizeScores,
    WholeSizes,
    convergence,
    cumulative_estimate,
    score_sizes,
    size_estimates,
    with_difference,
)
from mptcore.runtime.state import RunState
from mptcore.specs import AllSizes

DIM = 3
NUMBERS = {1: [1, 2, 4], 2: [3, 5, 6], 3: [7]}
"""The masks of each size, as binary numbers whose first digit is the last one."""


class Numbers(Model):
    """A mask's score is its number."""

    device = torch.device("cpu")
    dim, bytes_per_mask = DIM, 1

    computed = 0

    def scores(self, masks: Tensor) -> Tensor:
        self.computed += len(masks)
        return masks.double() @ torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)

    def evidence(self) -> Evidence:
        raise NotImplementedError


class TenTimes(Numbers):
    def scores(self, masks: Tensor) -> Tensor:
        return 10 * super().scores(masks)


class SampledNumbers(Numbers):
    """Each with its grades: −1, 0.5 and 0.01 of the number."""

    is_sampled = True

    def __init__(self) -> None:
        self.firsts: list[int] = []

    def sampled_scores(self, masks: Tensor, first: int) -> Tensor:
        self.firsts.append(first)
        number = Numbers.scores(self, masks)
        return torch.stack([10 * number, -number, 0.5 * number, 0.01 * number])


class Crowded(Numbers):
    """Model that fits only two items into memory at a time."""

    def __init__(self) -> None:
        self.tried: list[int] = []

    def scores(self, masks: Tensor) -> Tensor:
        self.tried.append(len(masks))
        if len(masks) > 2:
            raise MemoryError
        return super().scores(masks)


class JointNumbers(Numbers):
    is_tractable = True

    def joint_scores(self, masks: Tensor) -> Tensor:
        return 100 * self.scores(masks)


def scored(
    *models: Model, max_masks: int = 2, state: RunState | None = None, joint: bool = False
) -> list[tuple[Sequence[int], Any]]:
    """The sizes and values of all masks of each size, in batches that cut a size or end with it."""
    masks = enumerate_masks((1, 2, 3), DIM, max_masks)
    scores = score_sizes(models, masks, state or RunState(), joint)
    return [(table.sizes, table.values.tolist()) for table in scores if table is not None]


def test_a_batch_size_that_did_not_fit_is_not_tried_again() -> None:
    """Each model by itself."""
    crowded, roomy = Crowded(), Numbers()
    tables = scored(crowded, roomy, max_masks=8)
    assert crowded.tried == [3, 2, 1, 2, 1, 1]
    assert (crowded.masks_that_fit, roomy.masks_that_fit) == (2, None)
    for (sizes, (of_crowded, of_roomy, difference)), size in zip(tables, NUMBERS, strict=True):
        assert (sizes, of_crowded, of_roomy) == ([size], [[NUMBERS[size]]], [[NUMBERS[size]]])
        assert difference == [[[0] * len(NUMBERS[size])]]


@pytest.mark.parametrize("max_masks", [1, 2, 3, 8])
def test_each_size_has_its_scores_by_each_model(max_masks: int) -> None:
    tables = scored(Numbers(), TenTimes(), max_masks=max_masks)
    assert tables == [
        ([size], [[[[factor * number for number in numbers]]] for factor in (1, 10, -9)])
        for size, numbers in NUMBERS.items()
    ]


def test_sizes_in_one_batch_are_kept_apart() -> None:
    first, second = (batch.masks for batch in enumerate_masks((1, 2), DIM, 3))
    both = MaskBatch([(1, 3), (2, 3)], torch.cat([first, second]))
    tables = [table for table in score_sizes([Numbers()], [both], RunState()) if table is not None]
    assert [(table.sizes, table.values.tolist()) for table in tables] == [
        ([size], [[[NUMBERS[size]]]]) for size in (1, 2)
    ]


def test_joint_scores_are_computed_with_the_scores() -> None:
    assert scored(JointNumbers(), joint=True) == [
        ([size], [[[numbers], [[100 * number for number in numbers]]]])
        for size, numbers in NUMBERS.items()
    ]


def test_sampled_scores_have_a_bias_and_exact_scores_add_nothing() -> None:
    for (_, (sampled, exact, difference)), numbers in zip(
        scored(SampledNumbers(), Numbers()), NUMBERS.values(), strict=True
    ):
        values = torch.tensor(numbers, dtype=torch.float64)
        rows = torch.stack([10 * values, -values, 0.5 * values, 0.01 * values])
        assert torch.equal(torch.tensor(sampled, dtype=torch.float64)[:, 0], rows)
        assert exact == [[numbers], *[[[0] * len(numbers)]] * 3]
        rows[0] = 9 * values
        assert torch.equal(torch.tensor(difference, dtype=torch.float64)[:, 0], rows)


def test_no_masks_give_no_scores() -> None:
    assert [*score_sizes([Numbers()], [], RunState())] == []


def test_a_size_is_yielded_as_soon_as_it_is_scored() -> None:
    """Before the batch that begins the next is counted, and with its scores."""
    masks = enumerate_masks((1, 2, 3), DIM, 2)
    state = RunState()
    yielded = (
        (table and [*table.sizes], state.masks) for table in score_sizes([Numbers()], masks, state)
    )
    assert [*yielded] == [
        (None, 2),
        (None, 3),
        ([1], 3),
        (None, 5),
        (None, 6),
        ([2], 6),
        (None, 7),
        ([3], 7),
    ]


def test_cached_scores_are_counted_and_not_recomputed() -> None:
    """Models that draw numbers for each mask continue their count: of batches of 2, 1, 2, 1 and 1,
    the first three are cached."""
    state, model = RunState(at_safe_point=True), SampledNumbers()
    whole = scored(SampledNumbers(), state=state)
    resumed = RunState(scores=state.scores[:3], at_safe_point=True)
    assert scored(model, state=resumed) == whole
    assert model.firsts == [5, 6]
    assert model.computed == 7 - 5


def rows_of(*rows: Sequence[float]) -> Tensor:
    """Scores (R, 1, P) of one size."""
    return torch.tensor(rows, dtype=torch.float64)[:, None]


SAMPLED = rows_of([1, 5], [0.1, 0.2], [0.3, 0.1], [0.01, 0.04])
OTHER = rows_of([4, 1], [0.4, 0.1], [0.1, 0.2], [0.02, 0.05])


def test_the_difference_of_sampled_scores() -> None:
    """Biases subtract, variances add, and it is as doubtful as the more doubtful of the two."""
    assert torch.equal(with_difference(SAMPLED[None]), SAMPLED[None])
    both = torch.stack([SAMPLED, OTHER])
    rows = with_difference(both)
    assert torch.equal(rows[:2], both)
    difference = rows_of([-3, 4], [-0.3, 0.1], [0.3, 0.2], [0.03, 0.09])
    torch.testing.assert_close(rows[2], difference)


def test_enumerated_masks_leave_only_the_sampling_error() -> None:
    """The root of the sum of their variances, 0.05, over their number."""
    every, drawn = AllSizes(design="exhaustive"), AllSizes(per_size=2)
    (exact,), (sampled,) = size_estimates(SAMPLED[:1], every), size_estimates(SAMPLED, every)
    assert astuple(exact)[:4] == (3, 0, 2, math.inf)
    assert astuple(sampled)[:4] == pytest.approx((3, math.sqrt(0.05) / 2, 2, math.inf))
    (of_some,) = size_estimates(SAMPLED, drawn)  # the spread of scores holds the error of sampling
    assert astuple(of_some)[:4] == pytest.approx((3, 2, 2, 2 / 3))


def test_windows_of_a_permutation_are_one_replicate() -> None:
    """Four masks are two windows on each of two permutations, whose means are 2 and 5, and 0 and 8
    for the other size."""
    masks = AllSizes(per_size=4, design="balanced")
    assert masks.windows_per_permutation == 2
    values = torch.tensor([[1.0, 3.0, 4.0, 6.0], [-1, 1, 7, 9]], dtype=torch.float64)
    first, second = size_estimates(values[None], masks, [4.0, 5.0])
    assert astuple(first)[:4] == pytest.approx((3.5, 1.5, 4, 2 / 3))
    assert astuple(second)[:4] == pytest.approx((4, 4, 4, 2 / 4))


def test_sums_over_sizes() -> None:
    """Independent sizes: their variances add up. Nested: a total of each permutation."""
    curve = [rows_of([1, 3]), rows_of([10, 16])]
    independent = cumulative_estimate(curve, AllSizes(per_size=2))
    nested = cumulative_estimate(curve, AllSizes(per_size=2, design="nested"))
    assert astuple(independent)[:4] == pytest.approx((15, math.hypot(1, 3), 4, 2 / 3))
    assert astuple(nested)[:4] == pytest.approx((15, 4, 4, 2 / 8))


@pytest.mark.parametrize("design", ["independent", "nested", "balanced"])
def test_convergence_records_the_number_of_masks_of_each_size(design: Any) -> None:
    values = torch.tensor([[1, 3, 2, 2], [10, 14, 18, 2]], dtype=torch.float64)
    found = convergence(values, AllSizes(per_size=4, design=design))
    assert [one.n for one in found] == [1, 2, 3, 4]
    assert [one.mean for one in found] == [11, 14, 16, 13]
    if design != "balanced":
        first = 2 / 8 if design == "nested" else 2 / 3
        assert [one.degrees for one in found[1:]] == pytest.approx([first, 2 * first, 3 * first])


def test_convergence_of_large_scores_keeps_its_digits() -> None:
    """Scores of one size are about 1e9, those of another about −1e9, so their squares cancel."""
    small = torch.tensor([[1, 3, 2, 2], [10, 14, 18, 2]], dtype=torch.float64)
    large = small + torch.tensor([[1e9], [-1e9]], dtype=torch.float64)
    masks = AllSizes(per_size=4)
    found, expected = convergence(large, masks), convergence(small, masks)
    for one, other in zip(found[1:], expected[1:], strict=True):
        assert one.std_err == pytest.approx(other.std_err, rel=1e-6)
    equal = convergence(rows_of([-1e9 / 3] * 5)[0], AllSizes(per_size=5))
    assert [one.std_err for one in equal] == [None, 0, 0, 0, 0]


def test_scores_of_batches_are_joined_by_size() -> None:
    """Sizes with equally many masks are together. Their estimates are those of each size alone,
    bit for bit."""
    counts = {1: 3, 2: 200, 3: 200, 4: 1, 5: 300, 6: 300, 7: 2}
    values = torch.randn(2, 1, 1006, generator=torch.Generator().manual_seed(1)).double()
    runs = [(1, 3), (2, 200), (3, 200), (4, 1), (5, 250)], [(5, 50)], [(6, 300), (7, 2)]
    whole, tables = WholeSizes(), list[SizeScores]()
    for of_batch, scores in zip(runs, torch.split(values, [654, 50, 302], 2), strict=True):
        tables += whole.add(of_batch, scores)
    tables += whole.last()
    assert [[*table.sizes] for table in tables] == [[1], [2, 3], [4], [5], [6], [7]]
    assert [*whole.last()] == []
    joined = torch.cat([table.values[:2].flatten(2) for table in tables], 2)
    assert torch.equal(joined, values)
    for table in tables:
        assert table.values.shape == (3, 1, len(table.sizes), counts[table.sizes[0]])
        for scores in table.values:
            estimates = size_estimates(scores, AllSizes(per_size=2))
            assert estimates == [Estimate.of(of_size) for of_size in scores[0]]
