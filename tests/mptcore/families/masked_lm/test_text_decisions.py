"""Decisions between texts from samples of their tokens: which tokens, their errors, and how often
they are wrong."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.calibration.decisions import decided
from mptcore.families.masked_lm.corpus import Corpus
from mptcore.families.masked_lm.text_decisions import LEAST, NEAR, Decisions, aligned
from mptcore.families.masked_lm.text_groups import Member, Sampled, is_decided, ranked
from mptcore.protocol.records import Metric
from mptcore.specs import SpecError
from tests.mptcore.families.masked_lm.test_text_scores import models, of, scored
from tests.support.runs import metric, spec_of, value_of

__all__ = ["models"]  # the fixture


@pytest.mark.parametrize(
    ("texts", "own", "shared"),
    [
        (["abcd", "axcy"], [[1, 3], [1, 3]], [[0, 2], [0, 2]]),
        (["abcd", "abxxcd"], [[], [2, 3]], [[0, 1, 2, 3], [0, 1, 4, 5]]),
        (["abd", "abcd", "ad"], [[1], [1, 2], []], [[0, 2], [0, 3], [0, 1]]),
        (["aaa", "aa"], [[2], []], [[0, 1], [0, 1]]),  # no token is shared twice
        (["ab", "ab"], [[], []], [[0, 1], [0, 1]]),
        (["a", "b"], [[0], [0]], [[], []]),
    ],
)
def test_texts_share_the_tokens_that_align(
    texts: list[str], own: list[list[int]], shared: list[list[int]]
) -> None:
    assert aligned([[*map(ord, one)] for one in texts], near=0) == (own, shared)


def test_tokens_near_a_difference_are_not_sampled() -> None:
    """Most of its effect is there."""
    ids = [[*range(20)], [*range(20)]]
    ids[1][9] = 99
    own, shared = aligned(ids, near=3)
    assert own == [[*range(6, 13)]] * 2
    assert shared == [[*range(6), *range(13, 20)]] * 2
    own, shared = aligned([[*range(20)], [*range(9), 98, 99, *range(10, 20)]], near=3)
    assert own == [[*range(6, 13)], [*range(6, 14)]]
    assert shared == [[*range(6), *range(13, 20)], [*range(6), *range(14, 21)]]


def corpus_of(texts: list[str]) -> Corpus:
    ids = torch.tensor([ord(letter) for text in texts for letter in text], dtype=torch.int32)
    offsets = torch.tensor([0, *map(len, texts)]).cumsum(0)
    return Corpus(ids, torch.zeros_like(ids), torch.ones(len(ids), dtype=torch.bool), offsets)


def prepared(texts: list[str], groups: list[list[int]]) -> Decisions:
    return Decisions.of(groups, corpus_of(texts), torch.Generator().manual_seed(0))


def test_the_first_round_scores_what_differs_and_a_small_sample() -> None:
    texts = ["a" * 30 + "b", "a" * 30 + "c", "alone", "ab", "ac"]
    found = prepared(texts, [[0, 1], [3, 4]])
    sizes = found.planned()
    assert sizes.tolist() == [LEAST, 0]
    chosen = found.chosen(sizes)
    by_text = torch.segment_reduce(chosen.double(), "sum", lengths=found.corpus.sizes)
    own = 1 + NEAR
    assert by_text.tolist() == [own + LEAST, own + LEAST, 5, 2, 2]
    assert chosen[31 - own : 31].all()
    in_first, in_second = (chosen[start : start + 30] for start in (0, 31))
    assert torch.equal(in_first, in_second)  # the same tokens of both


def test_an_undecided_group_grows_by_an_eighth_and_a_decided_one_does_not() -> None:
    texts = ["a" * 43 + "b", "a" * 43 + "c"] * 2
    found = prepared(texts, [[0, 1], [2, 3]])
    sizes = found.planned()
    chosen = found.chosen(sizes)
    draws = torch.Generator().manual_seed(4)
    scores = torch.full((176,), -1.0, dtype=torch.float64)
    scores[87] = -9  # the token of the second text that differs
    scores[88:131] += torch.randn(43, dtype=torch.float64, generator=draws)  # the second pair
    found.add(chosen, scores[chosen], sizes)
    assert found.planned().tolist() == [4, 5]
    for expected in (5, 6, 7, 8, 9, 11, 13, 15, 17, 20, 23, 26, 30, 34, 39, 42, 42):
        sizes = found.planned()
        assert sizes.tolist() == [4, expected]
        chosen = found.chosen(sizes)
        found.add(chosen, scores[chosen], sizes)
    assert not found.chosen(found.planned()).any()
    members = found.members()
    assert members[0].sampled is not None
    assert members[2].sampled is None
    assert members[2].value == pytest.approx(float(scores[88:132].sum()))
    assert members[3].std_err == 0.0


def test_errors_of_samples_by_hand() -> None:
    first, second = Sampled(np.array([1.0, 2.0, 6.0]), 12), Sampled(np.array([1.0, 1.0, 4.0]), 12)
    assert first.std_err() == pytest.approx(12 * math.sqrt(7 / 3 * 0.75))
    # the differences 0, 1, 2 have the variance 1
    assert first.std_err(second) == pytest.approx(12 * math.sqrt(1 / 3 * 0.75))
    assert first.reach == pytest.approx(9.9248, abs=1e-4)  # Student's t with two degrees
    places = [*ranked([Member(0, 30.0, 1.0, first), Member(1, 24.0, 2.0, second)])]
    assert places[1].difference == -6.0
    assert places[1].difference_std_err == pytest.approx(6.0)


def test_a_lead_is_decided_beyond_the_quantile() -> None:
    first, second = Sampled(np.array([0.0, 1.0, 2.0]), 12), Sampled(np.zeros(3), 12)
    error = first.std_err(second)
    for lead, expected in ((9.92 * error, False), (9.93 * error, True)):
        assert is_decided([Member(0, lead, 9, first), Member(1, 0.0, 9, second)]) is expected
    assert not is_decided([Member(0, None, 0.0), Member(1, 0.0, 0.0)])


@pytest.mark.parametrize(
    ("shared_only", "power", "expected"), [(False, 1, 0.05), (True, 1, 0.05), (True, 2, 0.07)]
)
def test_few_decisions_are_wrong(shared_only: bool, power: int, expected: float) -> None:
    """At most 5 % of those made from samples are wrong, also where the tokens that differ say
    nothing; a little more where the scores are as skewed as squares of exponentials."""
    pairs, length = 1500, 40
    draws = torch.Generator().manual_seed(1)
    texts = ["a" * length + "b", "a" * length + "c"] * pairs
    sizes = (2 * pairs, length + 1)
    scores = -(torch.empty(sizes, dtype=torch.float64).exponential_(1.0, generator=draws) ** power)
    leads = torch.randn(pairs, generator=draws, dtype=torch.float64)
    scores[1::2] = scores[::2] + 0.1 * scores[1::2] + 0.1 * leads[:, None]
    found = decided(corpus_of(texts), scores.flatten(), 0, shared_only=shared_only)
    assert found.early > pairs / 4
    wrong = 1 - found.right / found.early
    assert wrong < expected + 3 * math.sqrt(expected / found.early)
    assert found.share < 0.9


def test_a_run_decides_pairs(tmp_path: Path) -> None:
    """Its scored tokens are those of a run without a target, and its rest is estimated."""
    lines = ["the cat sat on the mat the cat sat on a mat on the mat", "the cats sat on the mat"]
    pairs = [lines[0], lines[0].replace("cat sat", "mat sat"), lines[1], "the cats on the mat sat"]
    given = of(pairs, group_size=2, per_token=True)
    whole, _ = scored(given, tmp_path / "whole")
    given["evaluate"]["texts"]["target"] = "decision"
    rows, records = scored(given, tmp_path / "decided")
    masks = 0
    for row, full in zip(rows, whole, strict=True):
        known = [one["pll"] is not None for one in row["by_token"]]
        masks += sum(known)
        assert row["pll_masks"] == sum(known)
        for one, other in zip(row["by_token"], full["by_token"], strict=True):
            assert one["pll"] is None or one["pll"] == pytest.approx(other["pll"], abs=1e-5)
        if all(known):
            assert row["pll"] == pytest.approx(full["pll"], abs=1e-5)
            assert row["pll_std_err"] == 0.0
    assert value_of(metric(records, "masks")) == masks
    names = {one.name for one in records if isinstance(one, Metric)}
    assert not names & {"pll", "pll_population", "perplexity"}  # their estimates would be biased
    assert masks <= sum(row["tokens"] for row in whole)


def test_texts_without_a_whole_group_are_scored_in_full(tmp_path: Path) -> None:
    lines = ["the cat sat on the mat", " ", "the cat", "the mat", "a"]
    given = of(lines, group_size=2, target="decision")
    rows, _ = scored(given, tmp_path)
    assert [row["pll_masks"] for row in rows if row["pll"] is not None] == [6, 2, 2, 1]
    assert rows[0]["difference"] is None


@pytest.mark.parametrize(
    "texts",
    [
        {"target": "decision"},
        {"target": "decision", "group_size": 2, "scores": ["unmasked"]},
        {"target": "decision", "group_size": 2, "scores": ["pll", "unmasked"]},
    ],
)
def test_a_decision_needs_groups_and_pll_alone(texts: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as refused:
        spec_of(of(["a", "b"], **texts))
    assert "/evaluate/texts/target" in [one.pointer for one in refused.value.problems]


def test_scores_that_are_no_numbers_end_a_decision() -> None:
    """A model whose weights overflow gives nothing else. All tokens are scored once."""
    found = prepared(["a" * 20 + "b", "a" * 20 + "c", "alone"], [[0, 1]])
    rounds = 0
    while bool((chosen := found.chosen(sizes := found.planned())).any()):
        found.add(chosen, torch.full((int(chosen.sum()),), math.nan).double(), sizes)
        rounds += 1
        assert rounds < 20
    assert found.is_scored.all()
    assert [one.value for one in found.members()] == [None] * 3
