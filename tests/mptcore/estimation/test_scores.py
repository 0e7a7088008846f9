"""Estimates from scored masks, calculated by hand from scores that identify their mask."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from typing import Any

import pytest
import torch
from torch import Tensor

from mptcore.estimation.estimate import Moments
from mptcore.estimation.masks import MaskBatch, enumerate_masks
from mptcore.estimation.model import Evidence, Model
from mptcore.estimation.scores import (
    ScoredSizes,
    SizeScores,
    WholeSizes,
    by_model,
    convergence,
    cumulative_estimate,
    score_masks,
    size_estimates,
    with_difference,
)
from mptcore.protocol.records import Log, Record
from mptcore.runtime.state import RunState
from mptcore.specs import AllSizes
from tests.support.runs import result_of

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
    *models: Model, max_masks: int = 2, state: RunState | None = None, **options: Any
) -> ScoredSizes:
    """All masks of each size, in batches that cut a size or end with it."""
    masks = enumerate_masks((1, 2, 3), DIM, max_masks)
    return result_of(score_masks(models, masks, state or RunState(), **options))


def test_a_batch_size_that_did_not_fit_is_not_tried_again() -> None:
    """Each model by itself."""
    crowded, roomy = Crowded(), Numbers()
    (one, two, three) = scored(crowded, roomy, max_masks=8)
    assert crowded.tried == [3, 2, 1, 2, 1, 1]
    assert (crowded.masks_that_fit, roomy.masks_that_fit) == (2, None)
    for size, found in zip((1, 2, 3), (one, two, three), strict=True):
        assert [row.values.tolist() for row in found] == [[NUMBERS[size]]] * 2


@pytest.mark.parametrize("max_masks", [1, 2, 3, 8])
def test_each_size_has_its_scores_by_each_model(max_masks: int) -> None:
    found = scored(Numbers(), Numbers(), max_masks=max_masks)
    for row, (size, numbers) in zip(found, NUMBERS.items(), strict=True):
        assert len(row) == 2
        for one in row:
            assert (one.sizes, one.values.tolist()) == ([size], [numbers])
            assert one.joint is None
            assert one.grades is None


def test_sizes_in_one_batch_are_kept_apart() -> None:
    first, second = (batch.masks for batch in enumerate_masks((1, 2), DIM, 3))
    both = MaskBatch([(1, 3), (2, 3)], torch.cat([first, second]))
    found = result_of(score_masks([Numbers()], [both], RunState()))
    expected = [([size], [NUMBERS[size]]) for size in (1, 2)]
    assert [(one.sizes, one.values.tolist()) for (one,) in found] == expected


def test_joint_scores_are_computed_with_the_scores() -> None:
    for (one,), numbers in zip(scored(JointNumbers(), joint=True), NUMBERS.values(), strict=True):
        assert one.joint is not None
        assert one.joint.tolist() == [[100 * number for number in numbers]]
        assert one.values.tolist() == [numbers]
        assert one.grades is None


def test_sampled_scores_have_grades_and_exact_scores_add_nothing() -> None:
    for (own, other), numbers in zip(
        scored(SampledNumbers(), Numbers()), NUMBERS.values(), strict=True
    ):
        assert own.joint is None
        assert own.grades is not None
        assert other.grades is not None
        assert own.values.tolist() == [[10 * number for number in numbers]]
        assert own.grades.tolist() == [
            [[share * number for number in numbers]] for share in (-1, 0.5, 0.01)
        ]
        assert other.values.tolist() == [numbers]
        assert other.grades.tolist() == [[[0.0] * len(numbers)]] * 3


def test_no_masks_give_no_scores() -> None:
    assert result_of(score_masks([Numbers()], [], RunState())) == []


def test_a_size_is_recorded_as_soon_as_it_is_scored() -> None:
    """Before the step of the batch that begins the next, and with its scores."""

    def told(scores: tuple[SizeScores, ...]) -> Iterator[Record]:
        yield Log("info", f"{scores[0].sizes}: {scores[0].values.tolist()}")

    masks = enumerate_masks((1, 2, 3), DIM, 2)
    state = RunState()
    records = score_masks([Numbers()], masks, state, records_of=told)
    assert [(record, state.masks) for record in records] == [
        (None, 2),
        (None, 3),
        (Log("info", "[1]: [[1.0, 2.0, 4.0]]"), 3),
        (None, 5),
        (None, 6),
        (Log("info", "[2]: [[3.0, 5.0, 6.0]]"), 6),
        (None, 7),
        (Log("info", "[3]: [[7.0]]"), 7),
    ]


def test_cached_scores_are_counted_and_not_recomputed() -> None:
    """Models that draw numbers for each mask continue their count: of batches of 2, 1, 2, 1 and 1,
    the first three are cached."""
    state, model = RunState(at_safe_point=True), SampledNumbers()
    whole = scored(SampledNumbers(), state=state)
    resumed = RunState(scores=state.scores[:3], at_safe_point=True)
    for (old,), (new,) in zip(whole, scored(model, state=resumed), strict=True):
        assert torch.equal(old.values, new.values)
    assert model.firsts == [5, 6]
    assert model.computed == 7 - 5


def graded(size: int, values: Sequence[float], *grades: Sequence[float]) -> SizeScores:
    rows = torch.tensor(grades, dtype=torch.float64)[:, None] if grades else None
    return SizeScores([size], torch.tensor([values], dtype=torch.float64), grades=rows)


OWN = graded(2, [1, 5], [0.1, 0.2], [0.3, 0.1], [0.01, 0.04])
OTHER = graded(2, [4, 1], [0.4, 0.1], [0.1, 0.2], [0.02, 0.05])


def test_the_difference_of_sampled_scores() -> None:
    """Biases subtract, variances add, and it is as doubtful as the more doubtful of the two."""
    assert with_difference((OWN,)) == (OWN,)
    own, other, difference = with_difference((OWN, OTHER))
    assert (own, other) == (OWN, OTHER)
    assert difference.sizes == [2]
    assert difference.values.tolist() == [[-3, 4]]
    assert difference.grades is not None
    assert difference.grades.flatten().tolist() == pytest.approx([-0.3, 0.1, 0.3, 0.2, 0.03, 0.09])
    exact = graded(2, [4, 1])
    for one in (OWN - exact, exact - OWN):
        assert one.grades is None
        assert one.sizes == [2]
    assert (OWN - exact).values.tolist() == [[-3, 4]]


def test_enumerated_masks_leave_only_the_sampling_error() -> None:
    """The root of the sum of their variances, 0.05, over their number."""
    every, drawn = AllSizes(design="exhaustive"), AllSizes(per_size=2)
    (exact,), (sampled,) = size_estimates(graded(2, [1, 5]), every), size_estimates(OWN, every)
    assert astuple(exact)[:4] == (3, 0, 2, math.inf)
    assert astuple(sampled)[:4] == pytest.approx((3, math.sqrt(0.05) / 2, 2, math.inf))
    (of_some,) = size_estimates(OWN, drawn)  # the spread of scores holds the error of sampling
    assert astuple(of_some)[:4] == pytest.approx((3, 2, 2, 2 / 3))


def test_windows_of_a_permutation_are_one_replicate() -> None:
    """Four masks are two windows on each of two permutations, whose means are 2 and 5, and 0 and 8
    for the other size."""
    masks = AllSizes(per_size=4, design="balanced")
    assert masks.windows_per_permutation == 2
    values = torch.tensor([[1.0, 3.0, 4.0, 6.0], [-1, 1, 7, 9]], dtype=torch.float64)
    first, second = size_estimates(SizeScores([1, 2], values), masks, [4.0, 5.0])
    assert astuple(first)[:4] == pytest.approx((3.5, 1.5, 4, 2 / 3))
    assert astuple(second)[:4] == pytest.approx((4, 4, 4, 2 / 4))


def test_sums_over_sizes() -> None:
    """Independent sizes: their variances add up. Nested: a total of each permutation."""
    curve = [graded(1, [1, 3]), graded(2, [10, 16])]
    independent = cumulative_estimate(curve, AllSizes(per_size=2))
    nested = cumulative_estimate(curve, AllSizes(per_size=2, design="nested"))
    assert astuple(independent)[:4] == pytest.approx((15, math.hypot(1, 3), 4, 2 / 3))
    assert astuple(nested)[:4] == pytest.approx((15, 4, 4, 2 / 8))


@pytest.mark.parametrize("design", ["independent", "nested", "balanced"])
def test_convergence_records_the_number_of_masks_of_each_size(design: Any) -> None:
    curve = [graded(1, [1, 3, 2, 2]), graded(2, [10, 14, 18, 2])]
    found = convergence(curve, AllSizes(per_size=4, design=design))
    assert [one.n for one in found] == [1, 2, 3, 4]
    assert [one.mean for one in found] == [11, 14, 16, 13]
    if design != "balanced":
        first = 2 / 8 if design == "nested" else 2 / 3
        assert [one.degrees for one in found[1:]] == pytest.approx([first, 2 * first, 3 * first])


def test_convergence_of_large_scores_keeps_its_digits() -> None:
    """Scores of one size are about 1e9, those of another about −1e9, so their squares cancel."""
    small = [graded(1, [1, 3, 2, 2]), graded(2, [10, 14, 18, 2])]
    large = [graded(1, [1e9 + 1, 1e9 + 3, 1e9 + 2, 1e9 + 2]),
             graded(2, [10 - 1e9, 14 - 1e9, 18 - 1e9, 2 - 1e9])]  # fmt: skip
    masks = AllSizes(per_size=4)
    found, expected = convergence(large, masks), convergence(small, masks)
    for one, other in zip(found[1:], expected[1:], strict=True):
        assert one.std_err == pytest.approx(other.std_err, rel=1e-6)
    equal = convergence([graded(1, [-1e9 / 3] * 5)], AllSizes(per_size=5))
    assert [one.std_err for one in equal] == [None, 0, 0, 0, 0]


def test_scores_of_batches_are_joined_by_size() -> None:
    """Sizes with equally many masks are together. Their moments are those of each size alone, bit
    for bit."""
    counts = {1: 3, 2: 200, 3: 200, 4: 1, 5: 300, 6: 300, 7: 2}
    values = torch.randn(2, 1, 1006, generator=torch.Generator().manual_seed(1)).double()
    runs = [(1, 3), (2, 200), (3, 200), (4, 1), (5, 250)], [(5, 50)], [(6, 300), (7, 2)]
    whole = WholeSizes()
    found: list[tuple[Sequence[int], Tensor]] = []
    for own, scores in zip(runs, torch.split(values, [654, 50, 302], 2), strict=True):
        found += whole.add(own, scores)
    found += whole.last()
    assert [[*sizes] for sizes, _ in found] == [[1], [2, 3], [4], [5], [6], [7]]
    assert [*whole.last()] == []
    assert torch.equal(torch.cat([part.flatten(2) for _, part in found], 2), values)
    for sizes, part in found:
        assert part.shape == (2, 1, len(sizes), counts[sizes[0]])
        for model, one in zip(part, by_model(sizes, part), strict=True):
            assert one.moments == [Moments.of(row) for row in model[0]]
