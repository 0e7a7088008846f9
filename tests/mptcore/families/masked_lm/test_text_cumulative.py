"""The plan of the masks of a text, and its estimate round by round."""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import pytest
import torch
from torch import Tensor

from mptcore.families.masked_lm import text_cumulative
from mptcore.families.masked_lm.corpus import Corpus
from mptcore.families.masked_lm.masks import MaskedBatch, Masker
from mptcore.families.masked_lm.network import MaskedLm
from mptcore.families.masked_lm.text_cumulative import (
    STRATA,
    CumulativeScores,
    SequentialEstimate,
    widening,
)
from mptcore.runtime.state import RunState

LOG_P = -3.0


def pilot(values: list[float], target: float) -> tuple[SequentialEstimate, Tensor]:
    """The estimate of one text from a pilot, which has these values four times."""
    found = SequentialEstimate.of_pilot(torch.tensor([values * 4], dtype=torch.float64))
    return found, torch.tensor([target], dtype=torch.float64)


def test_the_weights_of_all_rounds_add_up_to_one() -> None:
    """Equal values 7 in all rounds therefore give 7, wherever a plan ends."""
    for target in (0.01, 0.1, 1.0, 10.0):
        found, asked = pilot([7 - 3, 7 - 1, 7 + 1, 7 + 3], target)
        while True:
            before = found.count.clone()
            counts, wanted = found.planned(asked, 10**6)
            if not bool(counts.any()):
                break
            assert int(counts) <= max(int(wanted), 0)
            assert int(counts) <= int(before)
            assert int(counts) % STRATA == 0
            spread = torch.tensor([-2.0, 2.0], dtype=torch.float64).repeat(int(counts) // 2)
            found.add(torch.zeros(len(spread), dtype=torch.long), 7 + spread, wanted)
        assert found.value.item() == pytest.approx(7)
        assert found.remaining_weight.item() == 0
        assert found.count.item() >= 32
        assert found.variance.item() == pytest.approx(4.5, rel=0.2)
        assert found.std_err.item() <= target * 1.05


def test_a_plan_allows_for_a_variance_that_was_too_small() -> None:
    """100 masks of this variance have the target; the variance of 16 may be too small by a standard
    deviation, √(3 (1/16 − 1/116)), and Student's t is wider."""
    found, _ = pilot([-1.0, 1.0, -1.0, 1.0], 1.0)
    assert found.variance.item() == pytest.approx(16 / 15)
    asked = torch.tensor([math.sqrt(16 / 15 / 100)], dtype=torch.float64)
    wanted = 100 * (115 / 112) * (1 + math.sqrt(3 * (1 / 16 - 1 / 116)))
    assert found.planned(asked, 10**6).flatten().tolist() == [16, 4 * math.ceil(wanted / 4)]
    assert found.planned(10 * asked, 10**6).flatten().tolist() == [8, 16]
    assert widening(torch.tensor([32])).item() == pytest.approx(31 / 28)


def test_the_last_round_adds_at_most_half() -> None:
    found, asked = pilot([0.0, 0.0, 0.0, 0.0], 1.0)
    counts = []
    while int(found.planned(asked, 10**6)[0]):
        drawn, wanted = found.planned(asked, 10**6)
        found.add(
            torch.zeros(int(drawn), dtype=torch.long), torch.zeros(int(drawn)).double(), wanted
        )
        counts.append((int(drawn), int(wanted)))
    assert counts == [(8, 16), (8, 8)]


def test_moments_of_rounds_equal_those_of_all_their_values() -> None:
    generator = torch.Generator().manual_seed(5)
    first, second = (torch.randn(n, generator=generator, dtype=torch.float64) for n in (4, 12))
    found, _ = pilot(first.tolist(), 1.0)
    weights = found.add(torch.zeros(12, dtype=torch.long), 100 + second, torch.tensor([24]))
    assert weights.tolist() == pytest.approx([1 / 24] * 12)
    every = torch.cat([first.repeat(4), 100 + second])
    assert found.average.item() == pytest.approx(every.mean().item())
    assert found.variance.item() == pytest.approx(every.var().item())
    assert found.count.tolist() == [28]


@pytest.mark.parametrize("most", [32, 36, 44, 60, 1000])
def test_a_plan_keeps_to_the_maximum(most: int) -> None:
    found, asked = pilot([-9.0, -1.0, 1.0, 9.0], 1e-3)
    while True:
        counts, wanted = found.planned(asked, most)
        if not bool(counts.any()):
            break
        values = torch.zeros(int(counts), dtype=torch.float64)
        found.add(torch.zeros(int(counts), dtype=torch.long), values, wanted)
    assert found.count.tolist() == [most]


@dataclass(frozen=True)
class Predictable:
    """Log-probabilities that are a function of the token and the size, with little noise."""

    generator: torch.Generator

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def token_scores(self, masks: MaskedBatch) -> Tensor:
        share = (masks.counts / masks.sizes).double().repeat_interleave(masks.counts)
        noise = torch.randn(len(share), generator=self.generator, dtype=torch.float64)
        found = LOG_P * (1 + masks.tokens % 4) - 2 * share + 0.05 * noise
        return found[None]

    def scores_and_next(self, masks: MaskedBatch) -> Tensor:
        log_probs = self.token_scores(masks)[0]
        return torch.segment_reduce(log_probs, "mean", lengths=masks.counts).expand(2, -1)

    def parts(self, masks: MaskedBatch) -> Iterator[Tensor]:
        yield torch.arange(len(masks))


def scored(model: Predictable, sizes: list[int], target: float) -> CumulativeScores:
    found = prepared(model, sizes, target)
    deque(found.run(found.plan(), 0), 0)
    return found


def prepared(model: Predictable, sizes: list[int], target: float) -> CumulativeScores:
    """The scores of texts of these numbers of tokens, not yet measured."""
    maskable = [free for size in sizes for free in (False, *[True] * size, False)]
    ids = torch.zeros(len(maskable), dtype=torch.int32)
    offsets = torch.tensor([0, *(size + 2 for size in sizes)]).cumsum(0)
    masker = Masker(Corpus(ids, ids, torch.tensor(maskable), offsets), 1, 2)
    groups = [f"text {i}" for i in range(len(sizes))]
    return CumulativeScores(cast(MaskedLm, model), masker, RunState(), groups, target, 100_000)


def test_what_is_predicted_needs_no_masks() -> None:
    """The plain mean over masks, whose standard deviation is 27 nats, would need 3,000 of them."""
    found = scored(Predictable(torch.Generator().manual_seed(1)), [20] * 20, 0.5)
    assert found.masks.double().mean() < 40
    first = torch.arange(20) * 20
    levels = torch.stack([(1 + (first + i) % 4) for i in range(20)]).sum(0)
    exact = LOG_P * levels - 2 * 20 * (0.5 + 1 / 40)
    z = (found.value - exact) / found.std_err
    assert z.abs().max() < 4
    assert found.std_err.max() < 0.5


def test_a_text_of_seven_tokens_is_exact() -> None:
    found = scored(Predictable(torch.Generator().manual_seed(1)), [7, 8, 7], 5.0)
    assert found.masks.tolist() == [127, 32, 127]
    assert (found.std_err == 0).tolist() == [True, False, True]


@pytest.mark.parametrize("tokens", [1, 2**16])
def test_the_plan_counts_the_masks_of_all_groups(
    tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first text is enumerated; the others are in one group or in three."""
    monkeypatch.setattr(text_cumulative, "GROUP_TOKENS", tokens)
    found = prepared(Predictable(torch.Generator().manual_seed(1)), [3, 20, 21, 22], 5.0)
    plan = found.plan()
    assert (plan.planned, plan.max_masks) == (7 + 3 * 32, 7 + 3 * 100_000)
    for _ in found.run(plan, 0):
        assert plan.planned == 7 + 3 * 32
    assert found.state.masks == plan.planned == int(found.masks.sum())
