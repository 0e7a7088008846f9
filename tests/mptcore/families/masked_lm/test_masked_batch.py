"""Masks: how many tokens, which ones, and what stands in their place."""

import pytest
import torch

from mptcore.families.masked_lm.masked_batch import MaskedBatch, Masker
from tests.support import tiny_lm
from tests.support.texts import corpus_of


def masker(corruption: str = "mask") -> Masker:
    return Masker(corpus_of(tiny_lm.lines(20)), 4, 15, corruption)


def drawn(own: Masker, rate: float, times: int) -> tuple[MaskedBatch, torch.Tensor]:
    sequences = torch.arange(20).repeat(times)
    rates = torch.full((len(sequences),), rate, dtype=torch.float64)
    return own.at_rates(sequences, rates, torch.Generator().manual_seed(3))


@pytest.mark.parametrize("rate", [0.01, 0.15, 0.5, 0.99, 1.0])
def test_exact_numbers_of_tokens(rate: float) -> None:
    """m is rate × D rounded up or down, and never 0; weighted by rate × D the mean of anything over
    masked tokens is that of plain rounding."""
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


def test_each_token_is_as_likely() -> None:
    own = masker()
    draws, weights = drawn(own, 0.3, 2000)
    hidden = (draws.masked * (weights / draws.counts)[:, None]).double()
    first = hidden[torch.arange(0, len(draws), 20)]
    length = int(draws.lengths[0])
    share = first[:, 1 : length - 1].mean(0)
    assert torch.allclose(share, torch.full_like(share, 0.3), atol=4 * 0.5 / 2000**0.5)


@pytest.mark.parametrize("corruption", ["mask", "bert"])
def test_special_tokens_and_padding_are_never_masked(corruption: str) -> None:
    draws, _ = drawn(masker(corruption), 0.7, 50)
    assert not draws.masked[draws.targets < 5].any()
    places = torch.arange(draws.masked.shape[1])
    assert not draws.masked[places >= draws.lengths[:, None]].any()
    untouched = ~draws.masked
    assert (draws.inputs[untouched] == draws.targets[untouched]).all()


def test_mask_replaces_all_and_bert_four_fifths() -> None:
    draws, _ = drawn(masker(), 0.5, 50)
    assert (draws.inputs[draws.masked] == 4).all()
    draws, _ = drawn(masker("bert"), 0.5, 200)
    seen, target = draws.inputs[draws.masked], draws.targets[draws.masked]
    n = len(seen)
    assert float(draws.counts.sum() / draws.sizes.sum()) == pytest.approx(0.5, abs=2 / n**0.5)
    # A random token is the mask token or the true one now and then: one in fifteen each.
    assert float((seen == 4).double().mean()) == pytest.approx(0.8 + 0.1 / 15, abs=2 / n**0.5)
    assert float((seen == target).double().mean()) == pytest.approx(0.1 + 0.1 / 15, abs=2 / n**0.5)


def test_along_an_order_each_step_sees_one_more() -> None:
    own = masker()
    size = int(own.corpus.sizes[0])
    order = torch.randperm(size, generator=torch.Generator().manual_seed(1))
    draws = own.along_order(0, order)
    assert draws.counts.tolist() == list(range(size, 0, -1))
    assert draws.next is not None
    for step in range(size):
        assert draws.masked[step, draws.next[step]]
        assert step == 0 or not draws.masked[step, draws.next[step - 1]]
