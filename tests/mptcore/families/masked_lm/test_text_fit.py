"""The control variate of the cumulative score of a text, and the plan of its masks."""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.calibration.any_order import Toy
from mptcore.families.masked_lm import text_cumulative
from mptcore.families.masked_lm.corpus import Corpus
from mptcore.families.masked_lm.masks import MaskedBatch, Masker
from mptcore.families.masked_lm.network import MaskedLm
from mptcore.families.masked_lm.text_cumulative import CumulativeScores, all_masks
from mptcore.families.masked_lm.text_fit import (
    LEVEL_PRECISION,
    SIZE_POWER,
    SLOPE_PRECISION,
    TEXT_PRECISION,
    ScoredMasks,
    TokenFit,
    cross_fitted,
    sizes_at,
)
from mptcore.families.masked_lm.text_rounds import STRATA, Rounds, widening
from mptcore.runtime.state import RunState

SHORTEST, LONGEST = 3, 6
LOG_P = -3.0


def toy(texts: int = 4) -> Toy:
    return Toy.of(texts, SHORTEST, LONGEST)


def drawn(of: Toy, masks: int, seed: int = 1) -> ScoredMasks:
    """Masks of each text of a toy, text by text, with their scores."""
    generator = torch.Generator().manual_seed(seed)
    sequences = torch.arange(len(of.corpus)).repeat_interleave(masks)
    quantiles = 1 - torch.rand(len(sequences), generator=generator, dtype=torch.float64)
    sizes = sizes_at(quantiles, of.corpus.sizes[sequences])
    found = of.masker.of_sizes(sequences, sizes, generator)
    return ScoredMasks.of_tokens(found, of.log_probs(found))


def test_the_sizes_have_the_chances_that_their_weights_assume() -> None:
    quantiles = (torch.arange(100_000) + 0.5).double() / 100_000
    for size in (1, 2, 9, 300):
        found = sizes_at(quantiles, torch.full_like(quantiles, size).long())
        shares = torch.bincount(found, minlength=size + 1).double() / len(found)
        expected = (torch.arange(size + 1).double() / size) ** SIZE_POWER
        assert shares.cumsum(0).tolist() == pytest.approx(expected.tolist(), abs=2e-5)
    ends = sizes_at(torch.tensor([1e-300, 1.0], dtype=torch.float64), torch.tensor([7, 7]))
    assert ends.tolist() == [1, 7]


@pytest.mark.parametrize("scale", [0.0, 1.0, 100.0])
def test_the_mean_over_all_masks_is_the_cumulative_score_for_any_prediction(scale: float) -> None:
    of = toy()
    generator = torch.Generator().manual_seed(2)
    tokens = int(of.corpus.sizes.sum())
    coefficients = scale * torch.randn(tokens, 3, generator=generator, dtype=torch.float64)
    fit = TokenFit(of.corpus, coefficients)
    for text, size in enumerate(of.corpus.sizes.tolist()):
        subsets, sizes = all_masks(size)
        places = of.corpus.free[of.corpus.first_free[text] + subsets]
        masks = of.masker.hidden(torch.full_like(sizes, text), sizes, places)
        values = fit.values(ScoredMasks(masks, of.scores(masks)[0, 0] * masks.counts))
        edges = (torch.arange(size + 1).double() / size) ** SIZE_POWER
        of_size = torch.tensor([math.comb(size, m) for m in range(1, size + 1)])
        chances = (edges.diff() / of_size)[sizes - 1]
        exact = (of.scores(masks)[0, 0] / of_size[sizes - 1]).sum()
        assert float((chances * values).sum()) == pytest.approx(float(exact), abs=1e-9)


def dense(scored: ScoredMasks, text: int) -> np.ndarray:
    """The coefficients of the tokens of a text (D, 3) by one large ridge regression."""
    masks, size = scored.masks, int(scored.masks.corpus.sizes[text])
    assert scored.log_probs is not None
    first = int(masks.corpus.first_free[text])
    rows, targets, weights = [], [], []
    begin = 0
    for mask, count in enumerate(masks.counts.tolist()):
        if int(masks.sequences[mask]) == text:
            share = count / size
            chance = share**SIZE_POWER - (share - 1 / size) ** SIZE_POWER
            for at in range(begin, begin + count):
                row = np.zeros(3 + 2 * size)
                tau = share - 0.5
                row[:3] = 1, tau, tau**2
                token = int(masks.tokens[at]) - first
                row[3 + 2 * token : 5 + 2 * token] = 1, tau
                rows.append(row)
                targets.append(float(scored.log_probs[at]))
                weights.append(SIZE_POWER / (1 + SIZE_POWER) / (size * chance) / share)
        begin += count
    matrix, weight = np.array(rows), np.array(weights)[:, None]
    prior = np.diag([TEXT_PRECISION] * 3 + [LEVEL_PRECISION, SLOPE_PRECISION] * size)
    equations = matrix.T @ (weight * matrix) + prior
    found = np.linalg.solve(equations, matrix.T @ (weight[:, 0] * np.array(targets)))
    own = found[3:].reshape(size, 2)
    return np.column_stack([found[:2] + own, np.full(size, found[2])])


def test_the_prediction_is_a_ridge_regression() -> None:
    of = toy()
    scored = drawn(of, 9)
    fit = TokenFit.of(scored.sums(), of.corpus)
    expected = np.concatenate([dense(scored, text) for text in range(len(of.corpus))])
    np.testing.assert_allclose(fit.coefficients.numpy(), expected, atol=1e-9)


def test_a_fold_has_no_influence_on_its_own_fit() -> None:
    of = toy(2)
    folds = [drawn(of, STRATA, seed) for seed in range(4)]
    values = cross_fitted(folds)
    assert values.shape == (2, 4 * STRATA)
    lower = ScoredMasks.of_tokens(folds[2].masks, of.log_probs(folds[2].masks) - 5)
    moved = cross_fitted([*folds[:2], lower, folds[3]])
    own = slice(2 * STRATA, 3 * STRATA)
    fit = TokenFit.of(folds[0].sums() + folds[1].sums() + folds[3].sums(), of.corpus)
    torch.testing.assert_close(values[:, own].flatten(), fit.values(folds[2]))
    torch.testing.assert_close(moved[:, own].flatten(), fit.values(lower))
    for other in (slice(0, 2 * STRATA), slice(3 * STRATA, None)):  # predicted with its help
        assert not torch.isclose(values[:, other], moved[:, other]).any()


def pilot(values: list[float], target: float) -> tuple[Rounds, Tensor]:
    """Rounds that begin with a pilot of one text, which has these values four times."""
    found = Rounds.of_pilot(torch.tensor([values * 4], dtype=torch.float64))
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
        assert found.left.item() == 0
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
    """Log-probabilities that are a function of the token and the size, with little noise. Those of
    the text `broken` are infinite in some masks."""

    generator: torch.Generator
    broken: int = -1

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def token_scores(self, masks: MaskedBatch) -> Tensor:
        share = (masks.counts / masks.sizes).double().repeat_interleave(masks.counts)
        noise = torch.randn(len(share), generator=self.generator, dtype=torch.float64)
        found = LOG_P * (1 + masks.tokens % 4) - 2 * share + 0.05 * noise
        of = masks.sequences.repeat_interleave(masks.counts)
        found[(of == self.broken) & (masks.places == 2)] = -math.inf
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


def test_an_infinite_log_probability_concerns_only_its_text() -> None:
    texts = [20] * 3
    whole = scored(Predictable(torch.Generator().manual_seed(1)), texts, 5.0)
    found = scored(Predictable(torch.Generator().manual_seed(1), broken=1), texts, 5.0)
    assert not math.isfinite(found.value[1])
    for i in (0, 2):
        assert found.value[i].item() == whole.value[i].item()
        assert found.std_err[i].item() == whole.std_err[i].item()


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
