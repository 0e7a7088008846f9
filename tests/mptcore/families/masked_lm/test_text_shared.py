"""Masks that texts of a group share, and the errors of their differences and means."""

import math
import statistics
from collections import defaultdict, deque
from dataclasses import dataclass, field, replace
from itertools import islice, permutations
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch

from benchmarks.calibration.any_order import Toy
from benchmarks.calibration.texts import (
    ToyModel,
    decisions,
    difference_std_err,
    means_calibration,
    measured,
    members,
    pairs_calibration,
    truth,
)
from mptcore.families.masked_lm import text_cumulative
from mptcore.families.masked_lm.estimates import MaskErrors
from mptcore.families.masked_lm.masks import MaskedBatch
from mptcore.families.masked_lm.network import MaskedLm
from mptcore.families.masked_lm.text_cumulative import CumulativeScores
from mptcore.families.masked_lm.text_table import Member, is_decided, ranked
from mptcore.runtime.state import RunState
from tests.mptcore.families.masked_lm.test_text_scores import models, of, scored
from tests.support.runs import metric, std_err_of

__all__ = ["models"]  # the fixture


@dataclass(frozen=True)
class Watched(ToyModel):
    """The masks that are scored, by text, in their order."""

    masks: dict[int, list[tuple[int, ...]]] = field(default_factory=lambda: defaultdict(list))

    def token_scores(self, masks: MaskedBatch) -> torch.Tensor:
        places = torch.split(masks.positions, masks.counts.tolist())
        texts = masks.corpus.types[masks.corpus.offsets[masks.sequences]].tolist()
        for text, hidden in zip(texts, places, strict=True):
            self.masks[text].append(tuple(sorted(hidden.tolist())))
        return super().token_scores(masks)


def scores(model: ToyModel, groups: list[str], target: float, seed: int = 0) -> CumulativeScores:
    given = cast(MaskedLm, model), model.toy.masker, RunState(), groups, target, 100_000
    found = CumulativeScores(*given)
    plan = found.plan()
    deque(found.run(plan, seed), 0)
    assert found.state.masks == plan.planned == int(found.masks.sum())
    return found


def chosen(toy: Toy, texts: list[int]) -> Toy:
    """Some texts of a toy, whose numbers are in `types`."""
    corpus = toy.corpus.subset(torch.tensor(texts))
    types = torch.arange(len(texts)).repeat_interleave(corpus.lengths)
    return replace(toy, corpus=replace(corpus, types=types))


def first_masks(model: Watched, count: int = 32) -> list[list[tuple[int, ...]]]:
    """Each text's masks of the pilot and of the next round."""
    return [model.masks[text][:count] for text in range(len(model.toy.corpus))]


def of_sizes(*sizes: int) -> Toy:
    """Texts of these numbers of tokens."""
    toy = Toy.of(200, min(sizes), max(sizes))
    left = {size: (toy.corpus.sizes == size).nonzero().flatten().tolist() for size in {*sizes}}
    return chosen(toy, [left[size].pop() for size in sizes])


def test_only_texts_of_one_group_and_length_have_the_same_masks() -> None:
    watched = Watched(of_sizes(9, 9, 8, 9, 9, 8))
    scores(watched, ["a", "a", "a", "b", "row 4", "a"], 3.0)
    masks = first_masks(watched)
    same = [(i, j) for i in range(6) for j in range(i) if masks[i] == masks[j]]
    assert same == [(1, 0), (5, 2)]
    other = Watched(watched.toy)
    scores(other, ["a"] * 6, 3.0, seed=1)
    assert first_masks(other)[0] != masks[0]


def test_texts_of_a_group_with_other_lengths_have_independent_masks() -> None:
    """With one seed for all lengths, the first masks of most groups would hide the same places."""
    groups = 30
    watched = Watched(of_sizes(*[9, 10] * groups))
    scores(watched, [f"group {i // 2}" for i in range(2 * groups)], 3.0)
    masks = [of_text[0] for of_text in first_masks(watched, 1)]
    equal = sum(masks[i] == masks[i + 1] for i in range(0, 2 * groups, 2))
    assert equal < groups / 2


def test_the_masks_of_a_text_do_not_depend_on_other_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor on how many masks are drawn at a time."""
    toy = of_sizes(9, 9, 8, 9, 10)
    groups = ["a", "b", "a", "a", "c"]
    watched = Watched(toy)
    scores(watched, groups, 1.0)
    masks = first_masks(watched, 48)
    for texts in ([0], [1, 4], [4, 3, 2, 1]):
        for name, tokens in (("CHUNK_TOKENS", 100), ("GROUP_TOKENS", 20)):
            monkeypatch.setattr(text_cumulative, name, tokens)
        some = Watched(chosen(toy, texts))
        scores(some, [groups[text] for text in texts], 1.0)
        for own, expected in zip(
            first_masks(some, 48), [masks[text] for text in texts], strict=True
        ):
            assert own == expected[: len(own)]
            assert len(own) >= 32


def test_a_large_group_has_several_sets_of_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two texts of nine tokens have 18."""
    for tokens, sets in ((1, 4), (17, 4), (18, 2), (2**16, 1)):
        monkeypatch.setattr(text_cumulative, "GROUP_TOKENS", tokens)
        watched = Watched(of_sizes(9, 9, 9, 9))
        found = scores(watched, ["a"] * 4, 3.0)
        assert len({tuple(masks) for masks in first_masks(watched)}) == sets
        assert len(found.mask_errors) == (0 if sets == 4 else 4)
        assert len({one.stream for one in found.mask_errors.values()}) in (0, sets)


def test_texts_with_the_same_masks_have_equally_many() -> None:
    toy = of_sizes(9, 9, 9, 8)
    toy.table[:] = toy.table[4]  # the same for all tokens
    toy.corpus.ids[11:22] = 1
    toy.table[1] *= 3
    alone = scores(ToyModel(toy), ["a", "b", "c", "d"], 0.5).masks
    assert alone[1] > 1.5 * alone[0]
    masks = scores(ToyModel(toy), ["a", "a", "c", "a"], 0.5).masks
    assert masks[0] == masks[1] > 1.5 * alone[0]


@pytest.mark.parametrize("target", [0.5, 0.25])
def test_errors_of_differences_are_calibrated(target: float) -> None:
    """Against all masks. Both texts are mostly alike, so that the error is about a third. For some
    pairs it would be less, but for the minimum."""
    found = pairs_calibration(pairs := 250, target)
    z = found.differences
    count = len(z)
    assert count > 0.8 * pairs
    assert abs(z.mean()) < 4 / math.sqrt(count)
    assert 0.75 < z.std() < 1 + 4 / math.sqrt(2 * count)
    assert found.narrower < 0.15
    truths = truth(found.toy)
    z = (found.found.value - truths) / found.found.std_err
    assert abs(z.mean()) < 4 * math.sqrt(2 / len(z))  # the two of a pair are nearly one
    assert 0.8 < z.std() < 1.2
    pairs_found = decisions(found.found, truths)
    assert pairs_found.decided > 0
    assert pairs_found.wrong <= 0.05 * pairs_found.decided + 2


def test_errors_of_means_are_calibrated() -> None:
    """Against all masks, by seed. The scores of a group vary together, so that the error of their
    mean is far larger than that of independent ones."""
    found = means_calibration(0.5, seeds=120)
    z = found.means.z
    assert found.wider > 2
    assert abs(z.mean()) < 4 / math.sqrt(len(z))
    assert 0.75 < z.std() < 1 + 4 / math.sqrt(2 * len(z))


def test_equal_texts_of_a_group_have_equal_scores() -> None:
    toy = Toy.of(2, 9, 9)
    toy = replace(toy, table=toy.table[4] + 0.0 * toy.table)
    found = measured(toy, 0.2, 0, [[0, 1]])
    assert found.value[0] == found.value[1]
    assert difference_std_err(members(found)) == 0.0
    assert float(found.variances.sum()) == pytest.approx(4 * float(found.std_err[0]) ** 2)


def test_texts_that_differ_in_few_contexts_are_seldom_decided_wrongly() -> None:
    """The second text of each pair is better by 0.05 nats, but worse by 3 in one of all contexts of
    a token, so that it is the worse one. Many pairs of 60 masks have not seen that context."""
    pairs, token = 200, 5
    toy = Toy.of(2 * pairs, 10, 10)
    kinds = torch.arange(2).repeat(pairs)
    toy.corpus.ids[:] = kinds.repeat_interleave(12)
    alone = torch.arange(2**12) == 2**token  # no other token is masked
    toy.table[0] = 5 * toy.table[0] + 12  # log p is −3 ± 1
    toy.table[1] = toy.table[0]
    toy.table[1, token] += torch.where(alone, -3.0, 0.05)
    groups = [(i, i + 1) for i in range(0, 2 * pairs, 2)]
    first, second = truth(chosen(toy, [0, 1])).tolist()
    assert -0.3 < second - first < -0.2
    found = measured(toy, 1.0, 0, groups)
    unseen = (found.value.view(-1, 2).diff() > 0).double().mean()
    assert unseen > 0.3
    truths = torch.tensor([first, second]).repeat(pairs)
    assert decisions(found, truths).wrong <= 0.05 * pairs
    assert decisions(measured(toy, 0.2, 0, groups), truths).decided > 0.8 * pairs


@pytest.mark.parametrize("bad", [-math.inf, math.nan])
def test_a_score_that_is_no_number_concerns_only_its_text(bad: float) -> None:
    toy = Toy.of(4, 9, 9)

    class Model(ToyModel):
        def token_scores(self, masks: MaskedBatch) -> torch.Tensor:
            found = super().token_scores(masks)
            of = masks.sequences.repeat_interleave(masks.counts)
            return found.masked_fill((of == 1) & (masks.positions == 2), bad)

    found = scores(Model(toy), ["a", "a", "b", "b"], 0.3)
    whole = scores(ToyModel(toy), ["a", "c", "b", "b"], 0.3)
    assert found.value.isfinite().tolist() == [True, False, True, True]
    for i in (0, 2, 3):
        assert found.value[i] == whole.value[i]
        assert found.std_err[i] == whole.std_err[i]


def mask_errors(*values: float, stream: int = 0, masks: int = 1000) -> MaskErrors:
    return MaskErrors(stream, np.array([*values, *[0.0] * (masks - len(values))], np.float32))


@pytest.mark.parametrize(
    ("masks", "least"), [(8, 5.0), (16, 5.0), (64, 2.5), (256, 1.25), (2048, 1.25)]
)
def test_the_least_error_of_a_difference_by_hand(masks: int, least: float) -> None:
    """Independent scores differ by 5. Equal texts have no difference."""
    first, near = mask_errors(3, masks=masks), mask_errors(3, 0.1, masks=masks)
    large = mask_errors(0, 4, masks=masks)
    assert first.std_err_of_difference(large) == 5.0
    near = mask_errors(4, masks=masks)
    assert first.std_err_of_difference(near) == pytest.approx(max(1.0, least))
    assert first.std_err_of_difference(mask_errors(3, masks=masks)) == 0.0


def test_errors_of_places_by_hand() -> None:
    """The first three texts have the same masks, the last one others."""
    first = Member(0, 5.0, 3.0, mask_errors(3.0))
    second = Member(1, 4.0, 4.0, mask_errors(3.6, math.sqrt(16 - 3.6**2)))
    other = Member(3, 0.0, 4.0, mask_errors(4.0, stream=3))
    alone = Member(4, 1.0, 4.0)
    errors = [one.difference_std_err for one in ranked([first, second, other, alone])]
    paired = math.hypot(0.6, math.sqrt(16 - 3.6**2))
    assert errors == pytest.approx([0.0, paired, 5.0, 5.0])
    near = second._replace(mask_errors=mask_errors(3.2, 0.5))
    # the error of a pair is at least a quarter of that of independent masks
    assert not is_decided([first, near._replace(value=3.0)])
    assert is_decided([first, near._replace(value=2.8)])
    # neither is the first of the group
    assert is_decided([Member(9, 0.0, 1.0), first, near._replace(value=2.8)]) is False
    assert is_decided([Member(9, -9.0, 1.0), first, near._replace(value=2.8)])


def test_a_run_compares_texts_by_the_same_masks(tmp_path: Path) -> None:
    pair = ["the cats sat on unlikely mats", "the mats sat on unlikely cats"]
    given = of(pair, scores=["cumulative", "pll"], target_std_err=0.03, group_size=2)
    rows, found = scored(given, tmp_path / "shared")
    assert rows[0]["cumulative_masks"] > 64
    independent = math.hypot(*(row["cumulative_std_err"] for row in rows))
    apart = rows[1]["difference_std_err"]
    assert 0 < apart < 0.99 * independent
    assert rows[0]["cumulative_masks"] == rows[1]["cumulative_masks"]
    difference = rows[1]["cumulative"] - rows[0]["cumulative"]
    assert rows[1]["difference"] == pytest.approx(difference)
    # the variances of the sum and of the difference add up to twice those of the texts
    of_sum = 2 * (metric(found, "cumulative").std_err or 0.0)
    assert math.hypot(of_sum, apart) == pytest.approx(math.sqrt(2) * independent)
    texts = given["evaluate"]["texts"]
    texts["scores"] = ["pll", "cumulative"]
    by_pll, _ = scored(given, tmp_path / "alone")
    assert by_pll[1]["difference_std_err"] == 0.0
    assert by_pll[1]["cumulative"] == rows[1]["cumulative"]


def test_the_population_error_of_a_run_has_the_covariances(tmp_path: Path) -> None:
    orders = [*islice(permutations("the cats sat on unlikely mats".split()), 0, 720, 60)]
    count = len(orders)
    given = of(
        [" ".join(words) for words in orders],
        scores=["cumulative"], target_std_err=0.5, group_size=count,
    )  # fmt: skip
    rows, found = scored(given, tmp_path)
    values = [row["cumulative"] for row in rows]
    independent = statistics.mean(row["cumulative_std_err"] ** 2 for row in rows)
    of_mean = std_err_of(metric(found, "cumulative")) ** 2
    assert of_mean > independent / count
    population = std_err_of(metric(found, "cumulative_population")) ** 2
    covariances = (count * of_mean - independent) / (count - 1)
    assert population == pytest.approx(statistics.variance(values) / count + covariances)
