"""Masks that texts of a group share, and the errors of their differences."""

import math
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch

from benchmarks.calibration.any_order import Toy
from benchmarks.calibration.texts import (
    ToyModel,
    decisions,
    measured,
    pairs_calibration,
    truth,
)
from mptcore.families.masked_lm import text_cumulative
from mptcore.families.masked_lm.corpus import Corpus
from mptcore.families.masked_lm.masked_batch import MaskedBatch, Masker
from mptcore.families.masked_lm.model import MaskedLm
from mptcore.families.masked_lm.text_cumulative import CumulativeScores
from mptcore.families.masked_lm.text_groups import Member, is_decided, ranked
from mptcore.families.masked_lm.text_shared import Shared, owners_of
from mptcore.runtime.session import ScoreCache
from tests.mptcore.families.masked_lm.test_text_scores import models, of, scored

__all__ = ["models"]  # the fixture


def test_texts_of_one_length_have_the_masks_of_the_first() -> None:
    sizes = torch.tensor([9, 8, 9, 9, 8, 8])
    assert owners_of([[0, 1, 3], [2, 4]], sizes).tolist() == [0, 1, 2, 0, 4, 5]
    assert owners_of([], sizes).tolist() == [*range(6)]


def test_shared_masks_hide_the_same_tokens() -> None:
    """Counted among those of a text that may be hidden: the third text begins with two that may
    not. The second has masks of its own."""
    maskable = torch.tensor([True] * 3 + [True] * 4 + [False] * 2 + [True] * 3)
    ids = torch.zeros(12, dtype=torch.int32)
    corpus = Corpus(ids, ids, maskable, torch.tensor([0, 3, 7, 12]))
    shared = Shared(torch.tensor([0, 1, 0]))
    owned = Masker(corpus, 1, 2).hidden(
        torch.tensor([0, 0, 1]), torch.tensor([2, 1, 3]), torch.tensor([0, 2, 1, 0, 1, 3])
    )
    found = shared.masks(owned)
    assert found.sequences.tolist() == [0, 0, 1, 2, 2]
    assert found.counts.tolist() == [2, 1, 3, 2, 1]
    assert found.places.tolist() == [0, 2, 1, 0, 1, 3, 2, 4, 3]
    entries, values = shared.differences(found.sequences, torch.tensor([1.0, 2, 9, 4, 7]))
    assert entries.tolist() == [3, 3]
    assert values.tolist() == [3.0, 5.0]
    of_pilot = shared.with_differences(torch.tensor([[1.0, 2], [5, 6], [4, 7]]))
    assert of_pilot.tolist() == [[1, 2], [5, 6], [4, 7], [3, 5]]


@pytest.mark.parametrize("target", [2.0, 0.5])
def test_errors_of_differences_are_calibrated(target: float) -> None:
    """Against all masks. Both texts are mostly alike, so that the error is a third or less."""
    found = pairs_calibration(pairs := 250, target)
    z = found.differences
    count = len(z)
    assert count > 0.8 * pairs
    assert abs(z.mean()) < 4 / math.sqrt(count)
    assert 1 - 4 / math.sqrt(2 * count) < z.std() < 1 + 4 / math.sqrt(2 * count)
    assert found.narrower < 0.15
    truths = truth(found.toy)
    z = (found.found.value - truths) / found.found.std_err
    assert abs(z.mean()) < 4 * math.sqrt(2 / len(z))  # the two of a pair are nearly one
    assert 0.8 < z.std() < 1.2
    pairs_found = decisions(found.found, truths)
    assert pairs_found.decided > 0
    assert pairs_found.wrong <= 0.05 * pairs_found.decided + 2


def test_the_last_texts_of_a_group_are_compared_with_its_first() -> None:
    """The first, third and fourth text have 9 tokens, the second 8: its error is independent."""
    toy = Toy.of(40, 8, 9)
    sizes = toy.corpus.sizes
    long, short = ((sizes == size).nonzero().flatten().tolist() for size in (9, 8))
    group = [long[0], short[-1], long[1], long[2]]
    found = measured(toy, 0.5, 1, [group])
    alone = measured(toy, 0.5, 1)
    assert {*found.apart} == {*group} - {short[-1]}
    assert found.apart[long[0]] == 0
    masks = found.masks[[long[0], long[1], long[2]]]
    assert len({*masks.tolist()}) == 1
    assert masks[0] >= alone.masks.min()
    assert (found.std_err < 1.5 * found.target).all()
    for i in (long[1], long[2]):
        assert 0 < found.apart[i] <= (found.std_err[i] + found.std_err[long[0]]) * 1.001


@pytest.mark.parametrize("tokens", [1, 40, 2**16])
def test_texts_with_the_same_masks_are_scored_together(
    tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one part or in many, with their members far from them: all are measured, and the plan
    counts their masks."""
    monkeypatch.setattr(text_cumulative, "GROUP_TOKENS", tokens)
    toy = Toy.of(31, 9, 9)
    toy = replace(toy, table=toy.table[4] + 0.1 * toy.table)
    groups = [[i, 30 - i] for i in range(12)]
    given = cast(MaskedLm, ToyModel(toy)), toy.masker, ScoreCache(), 0.3, 100_000
    found = CumulativeScores(*given, groups=groups)
    plan = found.plan()
    steps = sum(step.masks for step in found.run(plan, torch.Generator().manual_seed(0)))
    assert steps == plan.masks == int(found.masks.sum())
    truths = truth(toy)
    z = (found.value - truths) / found.std_err
    assert z.abs().max() < 4.5
    for first, second in groups:
        assert found.masks[first] == found.masks[second]
        apart = float(found.value[second] - found.value[first] - truths[second] + truths[first])
        assert abs(apart) <= 4.5 * found.apart[second]
        assert found.apart[second] < 0.3 * found.std_err[second]


def test_parts_of_many_masks_share_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round whose masks do not fit in one batch."""
    monkeypatch.setattr(text_cumulative, "CHUNK_TOKENS", 100)
    batches = []

    class Model(ToyModel):
        def token_scores(self, masks: MaskedBatch) -> torch.Tensor:
            batches.append(len(masks))
            return super().token_scores(masks)

    toy = Toy.of(2, 9, 9)
    toy = replace(toy, table=toy.table[4] + 0.0 * toy.table)
    given = cast(MaskedLm, Model(toy)), toy.masker, ScoreCache(), 0.2, 100_000
    found = CumulativeScores(*given, groups=[[0, 1]])
    deque(found.run(found.plan(), torch.Generator().manual_seed(0)), 0)
    assert len(batches) > 8
    assert found.value[0] == found.value[1]
    assert found.apart == {0: 0.0, 1: 0.0}


def test_errors_of_places_by_hand() -> None:
    first, second = Member(0, 5.0, 3.0, None, 0.0), Member(1, 4.0, 4.0, None, 0.5)
    third, other = Member(2, 1.0, 1.0, None, 0.25), Member(3, 0.0, 4.0)
    errors = [one.difference_std_err for one in ranked([first, second, third, other])]
    assert errors == [0.0, 0.5, 0.25, 5.0]
    assert is_decided([first, second])
    assert not is_decided([Member(0, 4.9, 3.0, None, 0.0), second._replace(apart=0.5)])
    # neither is the first of the group: at most the sum
    assert is_decided([Member(0, 0.0, 1.0, None, 0.0), second, third])
    assert not is_decided([Member(0, 0.0, 1.0, None, 0.0), second._replace(value=2.4), third])


def test_a_run_compares_texts_by_the_same_masks(tmp_path: Path) -> None:
    """Only if `cumulative` comes first, because that orders a group."""
    pair = ["the cats sat on unlikely mats", "the mats sat on unlikely cats"]
    given = of(pair, scores=["cumulative", "pll"], target_std_err=0.3, group_size=2)
    rows, _ = scored(given, tmp_path / "shared")
    independent = math.hypot(*(row["cumulative_std_err"] for row in rows))
    assert 0 < rows[1]["difference_std_err"] < 0.99 * independent
    assert rows[0]["cumulative_masks"] == rows[1]["cumulative_masks"]
    apart = rows[1]["cumulative"] - rows[0]["cumulative"]
    assert rows[1]["difference"] == pytest.approx(apart)
    given["evaluate"]["texts"]["scores"] = ["pll", "cumulative"]
    by_pll, _ = scored(given, tmp_path / "alone")
    assert by_pll[1]["difference_std_err"] == 0.0
