"""The control variate of the cumulative score of a text."""

import math

import numpy as np
import pytest
import torch

from benchmarks.calibration.any_order import Toy
from mptcore.families.masked_lm.text_cumulative import STRATA, all_masks
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

SHORTEST, LONGEST = 3, 6


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
