"""Masks: number and choice of the masked tokens, and their replacements."""

import pytest
import torch

from mptcore.families.masked_lm import masks
from mptcore.families.masked_lm.masks import MaskedBatch, Masker
from tests.support import tiny_lm
from tests.support.texts import corpus_of, sequence


def masker(corruption: str = "mask") -> Masker:
    return Masker(corpus_of(tiny_lm.lines(20)), 4, 15, corruption)


def drawn(own: Masker, rate: float, times: int) -> tuple[MaskedBatch, torch.Tensor]:
    sequences = torch.arange(20).repeat(times)
    rates = torch.full((len(sequences),), rate, dtype=torch.float64)
    return own.at_rates(sequences, rates, torch.Generator().manual_seed(3))


@pytest.mark.parametrize("rate", [0.01, 0.15, 0.5, 0.99, 1.0])
def test_exact_numbers_of_tokens(rate: float) -> None:
    """The number of masked tokens is rate × D rounded up or down, and never 0.

    Weighted by rate × D, the mean of anything over masked tokens is that of plain rounding."""
    own = masker()
    draws, weights = drawn(own, rate, 500)
    expected = rate * draws.sizes.double()
    assert (draws.counts >= 1).all()
    assert ((draws.counts - expected).abs() < 1).logical_or(draws.counts == 1).all()
    assert torch.allclose(weights, expected)
    # Plain rounding has E[f(m)] = Σ f(m) P(m); here E[w · f(m) / m] must be the same.
    low = expected.floor()
    plain = ((expected - low) * (low + 1) ** 2 + (1 - expected + low) * low**2).sum()
    ours = (weights / draws.counts * draws.counts.double() ** 2).sum()
    assert float(ours / plain) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("rate", [0.01, 0.5, 0.85, 0.99, 1.0])
def test_the_chance_that_a_mask_leaves_a_token_visible(rate: float) -> None:
    """Compare with 4,000 masks of texts of one to six tokens. The chance is exact where it is 0 or
    1, and otherwise within four standard errors."""
    own = Masker(corpus_of([" ".join(["cat"] * size) for size in range(1, 7)]), 4, 15)
    rates = torch.full((6 * 4000,), rate, dtype=torch.float64)
    masks, _ = own.at_rates(torch.arange(6).repeat(4000), rates, torch.Generator().manual_seed(8))
    share = (masks.counts < masks.sizes).double().view(4000, 6).mean(0)
    chance = own.visible_chance(rate)
    assert chance[0] == 0
    error = (chance * (1 - chance) / 4000).sqrt()
    assert ((share - chance).abs() <= 4 * error + 1e-12).all()


def test_tokens_and_pairs_are_masked_equally_often() -> None:
    """With m of D tokens masked, each token is in m of D masks and each pair in m (m − 1) of D (D −
    1)."""
    own, m = masker(), 3
    size, times = int(own.corpus.sizes[0]), 4000
    sequences, counts = torch.zeros(times, dtype=torch.long), torch.full((times,), m)
    draws = own.of_sizes(sequences, counts, torch.Generator().manual_seed(3))
    hidden = torch.zeros(times, size, dtype=torch.float64)
    hidden.scatter_(1, draws.positions.view(times, m) - 1, 1.0)  # behind [CLS]
    assert (hidden.sum(1) == m).all()
    together = hidden.mT @ hidden / times
    expected = torch.full((size, size), m * (m - 1) / (size * (size - 1)), dtype=torch.float64)
    expected.fill_diagonal_(m / size)
    assert torch.allclose(together, expected, atol=4 * 0.5 / times**0.5)


def test_many_sequences_leave_few_bits_for_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keys that are the same are no tokens more."""
    monkeypatch.setattr(masks, "KEY_BITS", 1)
    own = masker()
    counts = own.corpus.sizes - 1
    draws = own.of_sizes(torch.arange(20), counts, torch.Generator().manual_seed(3))
    for i, count in enumerate(counts.tolist()):
        assert int(sequence(draws, i).masked.sum()) == count


@pytest.mark.parametrize("corruption", ["mask", "bert"])
def test_special_tokens_are_never_masked(corruption: str) -> None:
    draws, _ = drawn(masker(corruption), 0.7, 50)
    for i in range(len(draws)):
        inputs, targets, _, masked = sequence(draws, i)
        assert not masked[targets < 5].any()
        assert (inputs[~masked] == targets[~masked]).all()


def test_mask_replaces_all_and_bert_four_fifths() -> None:
    draws, _ = drawn(masker(), 0.5, 50)
    assert draws.seen == 4
    draws, _ = drawn(masker("bert"), 0.5, 200)
    starts = draws.corpus.offsets[draws.sequences].repeat_interleave(draws.counts)
    seen, target = draws.seen, draws.corpus.ids[starts + draws.positions]
    assert isinstance(seen, torch.Tensor)
    n = len(seen)
    assert float(draws.counts.sum() / draws.sizes.sum()) == pytest.approx(0.5, abs=2 / n**0.5)
    # A random token is the mask token or the true one now and then: one in fifteen each.
    assert float((seen == 4).double().mean()) == pytest.approx(0.8 + 0.1 / 15, abs=2 / n**0.5)
    assert float((seen == target).double().mean()) == pytest.approx(0.1 + 0.1 / 15, abs=2 / n**0.5)


def test_selected_rows_of_a_batch_are_unchanged() -> None:
    draws, _ = drawn(masker("bert"), 0.3, 3)
    chosen = torch.tensor([7, 0, 31])
    part = draws[chosen]
    for i, j in enumerate(chosen.tolist()):
        for found, expected in zip(sequence(part, i), sequence(draws, j), strict=True):
            assert found.equal(expected)
    assert part.expected.equal(draws.expected[chosen])


def test_each_step_of_an_order_sees_one_token_more() -> None:
    """Each step reveals the first of the masked tokens to the next step."""
    own = masker()
    size = int(own.corpus.sizes[0])
    order = torch.randperm(size, generator=torch.Generator().manual_seed(1))
    draws = own.along_order(0, order)
    assert draws.counts.tolist() == list(range(size, 0, -1))
    first = draws.positions[draws.counts.cumsum(0) - draws.counts]
    assert first.tolist() == (order + 1).tolist()  # behind [CLS]
    for step in range(size):
        masked = sequence(draws, step).masked
        assert masked[first[step:]].all()
        assert int(masked.sum()) == size - step


def test_single_masks_hide_each_token_once() -> None:
    own = masker()
    masked = torch.stack([sequence(own.singles(0), i).masked for i in range(own.corpus.sizes[0])])
    assert masked[:, 1:-1].equal(torch.eye(len(masked), dtype=torch.bool))
    assert not masked[:, [0, -1]].any()
