"""A stratified sample by hand: two strata, and a second row that is −2 times the first."""

import math
import statistics
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from itertools import accumulate, chain
from statistics import fmean
from typing import Any

import pytest
import torch
from torch import Tensor

from mptcore.estimation.allocation import (
    StratifiedSample,
    affordable,
    neyman,
    sample_to_target,
    smoothed,
    target_records,
)
from mptcore.protocol.records import Labels, Log, Metric, Record
from mptcore.runtime.state import MaskPlan, Records
from tests.support.runs import result_of

WIDTHS = torch.tensor([2.0, 3.0], dtype=torch.float64)
NONE = torch.tensor([False, False])
PILOT = ([0.0] * 9 + [10.0], [0.0, 2.0])
KURTOSIS = 329 / 41
"""About their means the scores have the mean squares 9 and 1, and 657 and 1 to the fourth, whose
means over the two are 41 (of squares of squares) and 329."""
DEGREES = [2 * 9 / (KURTOSIS - 1), 2 / (KURTOSIS - 1)]
VARIANCES = [(DEGREES[0] * 10 + 2 * 6) / (DEGREES[0] + 2), (DEGREES[1] * 2 + 12) / (DEGREES[1] + 2)]
"""Their own are 10 and 2, and those of the neighbours 6, with two degrees of freedom."""
SPREAD = [0.25**2 / 1, 0.5**2 / 2]
"""After a round of one mask of the one, with λ = 1 / 4, and of two of the other, with 1 / 2."""


def rows(*strata: list[float]) -> tuple[Tensor, Tensor]:
    """The values (2, masks), stratum by stratum, and the number of each stratum."""
    values = torch.tensor([*chain.from_iterable(strata)], dtype=torch.float64)
    return torch.stack([values, -2 * values]), torch.tensor([*map(len, strata)])


def pilot(enumerated: Tensor = NONE) -> StratifiedSample:
    return StratifiedSample.of_pilot(WIDTHS, *rows(*PILOT), enumerated)


def one_round() -> StratifiedSample:
    """The pilot, and masks with the scores that leave its means and squares as they are."""
    before, shares = pilot(), torch.tensor([0.25, 0.5]).double()
    sample = before.with_round(*rows([4.0], [1.0, 3.0]), shares, NONE)
    return replace(sample, values=before.values, strata=before.strata, drawn=before.drawn)


def test_the_pilot_has_weight_zero() -> None:
    sample = pilot()
    assert sample.masks == 12
    assert sample.counts.tolist() == [0, 0]
    assert sample.remaining_weight.tolist() == [1, 1]
    assert sample.min_counts.tolist() == [2, 2]
    assert sample.variance_factor.tolist() == [0, 0]
    assert sample.means.tolist() == [[0, 0], [0, 0]]
    assert sample.means.dtype == torch.float64


def test_a_pilot_that_enumerates_gives_the_mean() -> None:
    sample = pilot(torch.tensor([True, False]))
    assert sample.masks == 12
    assert sample.counts.tolist() == [10, 0]
    assert sample.remaining_weight.tolist() == [0, 1]
    assert sample.min_counts.tolist() == [0, 2]
    assert sample.variance_factor.tolist() == [0, 0]
    assert sample.means.tolist() == [[1, 0], [-2, 0]]


def test_a_round_adds_its_share() -> None:
    sample = one_round()
    assert sample.masks == 15
    assert sample.counts.tolist() == [1, 2]
    assert sample.remaining_weight.tolist() == [0.75, 0.5]
    assert sample.min_counts.tolist() == [1, 1]
    assert sample.variance_factor.tolist() == SPREAD
    assert sample.means.tolist() == [[1, 1], [-2, -2]]
    shares = torch.tensor([0.75, 0.5]).double()
    sample = sample.with_round(*rows([5.0], [7.0]), shares, NONE)
    assert sample.means.tolist() == [[4.75, 4.5], [-9.5, -9]]
    assert sample.counts.tolist() == [2, 3]
    assert sample.min_counts.tolist() == [0, 0]
    assert sample.values[0, sample.strata == 1].tolist() == [0, 2, 7]
    assert sample.drawn.tolist() == [11, 3]


def test_a_round_without_the_values_of_a_stratum_is_refused() -> None:
    values, _ = rows([4.0])
    shares = torch.tensor([0.25, 0.5]).double()
    with pytest.raises(RuntimeError, match="index"):
        pilot().with_round(values, torch.tensor([1, 1]), shares, NONE)


def test_variances_are_pooled_with_those_of_the_neighbours() -> None:
    variances, kurtosis = pilot().variances
    first, second = variances.tolist()
    assert first == pytest.approx(VARIANCES)
    assert second == pytest.approx([4 * one for one in VARIANCES])
    assert kurtosis.flatten().tolist() == pytest.approx([KURTOSIS] * 4)
    values, counts = rows(*PILOT)
    small = StratifiedSample.of_pilot(WIDTHS, 1e-9 * values, counts, NONE)
    assert small.variances[1].flatten().tolist() == pytest.approx([KURTOSIS] * 4)
    flat = StratifiedSample.of_pilot(WIDTHS, *rows([0.0, 2.0], [0.0, 4.0]), NONE)
    assert flat.variances[1].tolist() == [[4, 4], [4, 4]]  # the least


def test_one_stratum_has_its_own_variance() -> None:
    alone = torch.tensor([False])
    sample = StratifiedSample.of_pilot(WIDTHS[:1], *rows([1.0, 2.0, 6.0]), alone)
    assert sample.variances[0].flatten().tolist() == pytest.approx([7, 28])
    equal = StratifiedSample.of_pilot(WIDTHS[:1], *rows([3.0, 3.0]), alone)
    assert equal.variances[0].tolist() == [[0], [0]]
    assert equal.variances[1].tolist() == [[4], [4]]


def test_estimates_of_each_stratum() -> None:
    sample = one_round()
    errors = [math.sqrt(v * spread) for v, spread in zip(VARIANCES, SPREAD, strict=True)]
    first, second = sample.estimates()
    assert [astuple(one)[:4] for one in first] == [
        pytest.approx((mean, factor * errors[0], 1, math.inf)) for mean, factor in ((1, 1), (-2, 2))
    ]
    assert [astuple(one)[:4] for one in second] == [
        pytest.approx((mean, factor * errors[1], 2, math.inf)) for mean, factor in ((1, 1), (-2, 2))
    ]


def test_interim_estimates_use_the_given_weights() -> None:
    sample = one_round()
    for share, stratum, so_far in zip(
        (0.25, 0.5), sample.estimates(), sample.estimates_so_far(), strict=True
    ):
        for one, given in zip(stratum, so_far, strict=True):
            assert one.std_err is not None
            assert (given.mean, given.std_err) == (one.mean / share, one.std_err / share)
            assert given.n == one.n


def test_the_sum_over_strata_and_its_degrees() -> None:
    """Welch and Satterthwaite's, where a variance from n draws moves by (κ − 1) / n."""
    parts = [w * w * v * s for w, v, s in zip((2, 3), VARIANCES, SPREAD, strict=True)]
    moves = [(KURTOSIS - 1) / 10, (KURTOSIS - 1) / 2]
    degrees = 2 * sum(parts) ** 2 / sum(p * p * m for p, m in zip(parts, moves, strict=True))
    own, other = one_round().total_estimates()
    assert astuple(own)[:4] == pytest.approx((5, math.sqrt(sum(parts)), 3, degrees))
    assert astuple(other)[:4] == pytest.approx((-10, 2 * math.sqrt(sum(parts)), 3, degrees))


def test_enumerated_strata_have_no_error_and_any_degrees_of_freedom() -> None:
    own, _ = pilot(~NONE).total_estimates()
    assert astuple(own)[:4] == (5, 0, 12, math.inf)


def test_means_over_neighbours() -> None:
    """Fewer at the ends; of an even number the one itself is in the middle all the same."""
    values = torch.tensor([[1.0, 3.0, 8.0, 6.0]], dtype=torch.float64)
    three = [2, 4, pytest.approx(17 / 3), 7]
    assert smoothed(values, 3)[0].tolist() == three
    assert smoothed(values, 2)[0].tolist() == three
    assert smoothed(values, 1)[0].tolist() == [1, 3, 8, 6]
    assert smoothed(values)[0].tolist() == pytest.approx([4, 4.5, 4.5, 17 / 3])
    assert smoothed(torch.ones(1, 50, dtype=torch.float64).cumsum(1))[0, 10].item() == 11


def test_neyman_by_hand() -> None:
    """Sizes are sd · Σ sd / variance, rounded up."""
    deviations = torch.tensor([1.0, 3.0, 0.0], dtype=torch.float64)
    assert neyman(deviations, 0.5).tolist() == [8, 24, 0]
    assert neyman(deviations, 0.51).tolist() == [8, 24, 0]
    assert neyman(deviations, 0.49).tolist() == [9, 25, 0]
    assert neyman(deviations, 1e-30).tolist() == [10**15, 10**15, 0]


def test_the_part_above_the_minimum_is_cut_in_proportion() -> None:
    counts, least = torch.tensor([2, 12, 42]), torch.tensor([2, 2, 2])
    assert affordable(counts, least, 56).tolist() == [2, 12, 42]
    assert affordable(counts, least, 55).tolist() == [2, 11, 41]
    assert affordable(counts, least, 31).tolist() == [2, 7, 22]
    assert affordable(least, least, 6).tolist() == [2, 2, 2]


PATTERN = [0.0, 2.0]
"""The scores of each draw, again and again: their kurtosis is the least."""


@dataclass
class Seen:
    """Record of the draws and plans of a sample with a target."""

    counts: list[list[int]] = field(default_factory=list)
    planned: list[int] = field(default_factory=list)

    def draw(self, counts: Tensor, enumerated: Tensor) -> Records[Tensor]:
        self.counts.append(counts.tolist())
        yield None
        return rows(*([PATTERN[i % 2] for i in range(n)] for n in counts.tolist()))[0]

    def sample(
        self, widths: Tensor, target: float, max_masks: int, pilot: int, **options: Any
    ) -> StratifiedSample:
        plan = MaskPlan(max_masks, max_masks)
        work = sample_to_target(self.draw, plan, widths, target, pilot, **options)

        def watched() -> Records[StratifiedSample]:
            while True:
                try:
                    step = next(work)
                except StopIteration as end:
                    self.planned.append(plan.planned)
                    return end.value  # type: ignore[no-any-return]
                self.planned.append(plan.planned)
                yield step

        return result_of(watched())


def masks_for(of_one: float, spent: float, least_left: float, least: int, variance: float) -> int:
    """Return the number of masks that reduces the variance to this value, given the variance of one
    mask and the part of earlier rounds."""
    return max(math.ceil(of_one / max(variance - spent, least_left)), least)


@pytest.mark.parametrize(
    ("target", "max_masks"), [(0.1, 10_000), (0.3, 10_000), (5.0, 10_000), (0.1, 70), (0.1, 10)]
)
@pytest.mark.parametrize("row", [0, 1])
def test_rounds_of_one_stratum_by_hand(target: float, max_masks: int, row: int) -> None:
    """Each plan uses variances that may still change by three standard deviations. It draws a
    quarter of the required masks, then half of the number required then, and then all."""
    seen = Seen()
    sample = seen.sample(WIDTHS[:1], target, max_masks, pilot=8, row=row)
    values, left, spread, mean = PATTERN * 4, 1.0, 0.0, 0.0
    counts, planned = [[8]], [max_masks]
    for least, share in zip((2, 1, 1), (0.25, 0.5, 1.0), strict=True):
        variance = (1, 4)[row] * 2**2 * statistics.variance(values)
        fewest = partial(masks_for, left**2 * variance, variance * spread, target**2 / 8, least)
        n, exact = len(values), fewest(target**2)
        moves = math.sqrt(3 * (1 / n - 1 / (n + exact)))
        wanted = min(fewest(target**2 / (1 + 3 * moves)), max(least, max_masks - n))
        count = math.ceil(share * wanted)
        weight = left * count / wanted
        own = [PATTERN[i % 2] for i in range(count)]
        values, left, spread = values + own, left - weight, spread + weight**2 / count
        mean += weight * fmean(own)
        counts.append([count])
        planned.append(n + wanted)
        if left <= 0:
            break
    assert seen.counts == counts
    assert seen.planned == [*planned, len(values)]
    assert sample.masks == len(values) <= max_masks
    assert sample.means.tolist() == [[pytest.approx(mean)], [pytest.approx(-2 * mean)]]
    assert sample.remaining_weight.tolist() == [0]


def test_the_first_plan_of_two_strata_by_hand() -> None:
    """The plan includes the possible change of the variance of the sum by later masks."""
    seen, target = Seen(), 0.3**2
    seen.sample(WIDTHS, 0.3, 10_000, pilot=4)
    deviations = [width * math.sqrt(4 / 3) for width in (2, 3)]
    exact = [math.ceil(own * sum(deviations) / target) for own in deviations]
    parts = [own**2 / n for own, n in zip(deviations, exact, strict=True)]
    moves = [3 * (1 / 4 - 1 / (4 + n)) for n in exact]
    squares = sum(part**2 * move for part, move in zip(parts, moves, strict=True))
    reduced = target / (1 + 3 * math.sqrt(squares) / sum(parts))
    wanted = [math.ceil(own * sum(deviations) / reduced) for own in deviations]
    assert seen.planned[1] == 8 + sum(wanted)
    assert seen.counts[1] == [math.ceil(n / 4) for n in wanted]


@pytest.mark.parametrize(("available", "first"), [(5, 5), (6, 6), (7, 4)])
def test_a_pilot_enumerates_strata_with_at_most_two_masks_more(available: int, first: int) -> None:
    """The other stratum has many; a plan that wants all of a stratum draws all."""
    seen = Seen()
    masks = torch.tensor([available, math.inf], dtype=torch.float64)
    sample = seen.sample(WIDTHS, 0.05, 2000, 4, available=masks)
    assert seen.counts[0] == [first, 4]
    assert seen.counts[1][0] == (7 if first == 4 else 0)
    assert seen.counts[2][0] == 0
    assert sample.variance_factor[0] == 0
    assert sample.means[0, 0] == fmean(PATTERN[i % 2] for i in range(available))
    assert sample.masks == sum(map(sum, seen.counts)) == seen.planned[-1]


def test_a_plan_of_all_masks_enumerates_them() -> None:
    """With one mask more, the plan would draw a quarter first."""
    planned = Seen()
    planned.sample(WIDTHS[:1], 0.3, 10_000, 8)
    wanted = planned.planned[1] - 8
    for more, count in ((0, wanted), (1, math.ceil(wanted / 4))):
        seen = Seen()
        available = torch.tensor([wanted + more], dtype=torch.float64)
        seen.sample(WIDTHS[:1], 0.3, 10_000, 8, available=available)
        assert seen.counts[1] == [count]


def test_interim_values_are_reported_after_each_round_except_the_last() -> None:
    def interim(sample: StratifiedSample) -> list[Record]:
        return [Log("info", f"{sample.masks}")]

    seen = Seen()
    work = sample_to_target(seen.draw, MaskPlan(2000, 2000), WIDTHS, 0.1, 4, interim=interim)
    records = [record for record in work if record is not None]
    drawn = list(accumulate(sum(counts) for counts in seen.counts))
    assert records == [Log("info", f"{masks}") for masks in drawn[1:-1]]
    assert len(records) == 2


LABELS: Labels = {"seed": 4}


def told(sample: StratifiedSample, target: float, scale: float = 1.0) -> list[Record]:
    return list(
        target_records(sample.total_estimates()[0].scaled(scale), sample.masks, target, LABELS)
    )


def test_an_error_equal_to_the_target_reaches_it() -> None:
    one = pilot(~NONE)
    sample = replace(
        one,
        variance_factor=torch.tensor([0.01, 0.01], dtype=torch.float64),
        values=one.values.repeat(1, 50),
        strata=one.strata.repeat(50),
        drawn=50 * one.drawn,
    )
    own = sample.total_estimates()[0].std_err
    assert own is not None
    reached = [Metric("masks", 12, 0.0, LABELS), Metric("target_reached", 1.0, 0.0, LABELS)]
    missed = [
        reached[0],
        Metric("target_reached", 0.0, 0.0, LABELS),
        Log(
            "warning",
            f"target_std_err {own / 2} was not reached: {own:.3g} after 12 masks: raise max_masks, "
            "or a slightly smaller target if masks were left",
        ),
    ]
    assert told(sample, own) == reached
    assert told(sample, own / 2) == missed
    assert told(sample, own / 2, scale=0.5) == reached
    assert told(sample, 2 * own, scale=2.0) == reached


def test_an_unknown_error_reaches_no_target() -> None:
    *_, missed, warning = told(one_round(), 100.0)
    assert missed == Metric("target_reached", 0.0, 0.0, LABELS)
    assert isinstance(warning, Log)
    assert "too few large scores for an error after 15 masks" in warning.message
