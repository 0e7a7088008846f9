"""Random numbers: those of torch, bit by bit, and the same state of the generator after them."""

import numpy as np
import pytest
import torch

from mptcore.estimation.random_numbers import MIN_KEYS, random_keys, random_words

BEFORE = [0, 1, 623, 624, 625, 1300]
"""Numbers of words drawn before: a state has 624."""


def two_generators(words_before: int) -> tuple[torch.Generator, torch.Generator]:
    """Return two generators in the same state."""
    ours, theirs = (torch.Generator().manual_seed(2**63 + 5) for _ in range(2))
    for generator in (ours, theirs):
        torch.randperm(words_before + 1, generator=generator)
    return ours, theirs


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("before", BEFORE)
def test_words_are_those_of_torch(
    before: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr("mptcore.estimation.random_numbers.kernels", lambda name: None)
    for count in (2, 624, 1250, 5000):
        ours, theirs = two_generators(before)
        words = random_words(count, ours)
        assert words.dtype == np.uint32
        expected = torch.empty(count // 2, dtype=torch.int64).random_(
            -(2**63), None, generator=theirs
        )
        pairs = words.astype(np.uint64).reshape(-1, 2)  # torch joins two words, the first above
        joined = (pairs[:, 0] << 32) | pairs[:, 1]
        assert joined.tolist() == expected.numpy().view(np.uint64).tolist()
        assert torch.equal(ours.get_state(), theirs.get_state())


@pytest.mark.parametrize("count", [1, 3, 623, 625, 1249])
def test_odd_numbers_of_words_go_on_where_they_ended(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = two_generators(7)
    words = [*random_words(count, ours), *random_words(count, ours)]
    assert words == random_words(2 * count, theirs).tolist()
    assert torch.equal(ours.get_state(), theirs.get_state())
    monkeypatch.setattr("mptcore.estimation.random_numbers.kernels", lambda name: None)
    assert random_words(count, ours).tolist() == random_words(count, theirs).tolist()
    assert torch.equal(ours.get_state(), theirs.get_state())


def test_no_words_leave_the_generator_as_it_is() -> None:
    ours, theirs = two_generators(0)
    assert len(random_words(0, ours)) == 0
    assert torch.equal(ours.get_state(), theirs.get_state())


def test_a_normal_number_kept_for_the_next_call_remains() -> None:
    ours, theirs = two_generators(0)
    for generator in (ours, theirs):
        torch.randn(1, generator=generator, dtype=torch.float64)  # makes two and keeps one
    random_words(2, ours)
    torch.empty(1, dtype=torch.int64).random_(-(2**63), None, generator=theirs)
    assert torch.equal(ours.get_state(), theirs.get_state())


@pytest.mark.parametrize("before", BEFORE)
def test_keys_are_those_of_torch(before: int) -> None:
    for count in (1, 7, MIN_KEYS - 1, MIN_KEYS, MIN_KEYS + 311):
        ours, theirs = two_generators(before)
        keys = torch.full((1, count), -1.0, dtype=torch.float64)
        random_keys(keys, ours)
        assert torch.equal(keys, torch.rand(1, count, generator=theirs, dtype=torch.float64))
        assert torch.equal(ours.get_state(), theirs.get_state())
