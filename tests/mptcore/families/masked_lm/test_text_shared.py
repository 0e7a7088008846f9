"""Masks that texts of a group share, and the errors of their differences."""

import math
from collections import deque
from dataclasses import dataclass, replace
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
from mptcore.families.masked_lm.text_rounds import Rounds
from mptcore.families.masked_lm.text_shared import Shared, homes_of, owners_of
from mptcore.protocol.records import Metric
from mptcore.runtime.session import ScoreCache
from tests.mptcore.families.masked_lm.test_text_scores import models, of, scored
from tests.support.runs import metric, value_of

__all__ = ["models"]  # the fixture


def test_texts_of_one_length_have_the_masks_of_the_first() -> None:
    sizes = torch.tensor([9, 8, 9, 9, 8, 8])
    groups = [[0, 1, 3], [2, 4]]
    assert owners_of(groups, sizes, 100).tolist() == [0, 1, 2, 0, 4, 5]
    assert owners_of([], sizes, 100).tolist() == [*range(6)]
    # two texts of nine tokens have 18
    for most, expected in ((17, [0, 1, 2, 3]), (18, [0, 1, 0, 3]), (27, [0, 1, 0, 0])):
        assert owners_of([[0, 2, 3]], sizes, most)[:4].tolist() == expected


def test_a_group_is_scored_together_unless_it_is_too_large() -> None:
    sizes = torch.tensor([9, 8, 9, 9, 8, 0])
    groups = [[0, 1, 3], [2, 4], [5]]
    assert homes_of(groups, sizes, 26).tolist() == [0, 0, 2, 0, 2, 5]
    assert homes_of(groups, sizes, 25).tolist() == [0, 1, 2, 3, 2, 5]
    assert homes_of([[2, 5]], sizes, 100).tolist() == [*range(6)]


def test_shared_masks_hide_the_same_tokens() -> None:
    """Counted among those of a text that may be hidden: the third text begins with two that may
    not. The second has masks of its own."""
    maskable = torch.tensor([True] * 3 + [True] * 4 + [False] * 2 + [True] * 3)
    ids = torch.zeros(12, dtype=torch.int32)
    corpus = Corpus(ids, ids, maskable, torch.tensor([0, 3, 7, 12]))
    shared = Shared(torch.tensor([0, 1, 0]), torch.tensor([0, 0, 0]))
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


@pytest.mark.parametrize("target", [0.5, 0.25])
def test_errors_of_differences_are_calibrated(target: float) -> None:
    """Against all masks. Both texts are mostly alike, so that the error is about a third. For some
    pairs it would be less, but for the least variance."""
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


def test_the_last_texts_of_a_group_are_compared_with_its_first() -> None:
    """The first, third and fourth text have 9 tokens, the second 8: its error is independent."""
    toy = Toy.of(40, 8, 9)
    sizes = toy.corpus.sizes
    long, short = ((sizes == size).nonzero().flatten().tolist() for size in (9, 8))
    group = [long[0], short[-1], long[1], long[2]]
    found = measured(toy, 0.5, 1, [group])
    assert {*found.apart} == {*group} - {short[-1]}
    assert found.apart[long[0]] == 0
    masks = found.masks[[long[0], long[1], long[2]]]
    assert len({*masks.tolist()}) == 1
    assert (found.std_err < 1.5 * found.target).all()
    for i in (long[1], long[2]):
        assert 0 < found.apart[i] <= (found.std_err[i] + found.std_err[long[0]]) * 1.001


@pytest.mark.parametrize("tokens", [18, 40, 2**16])
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
        independent = math.hypot(*found.std_err[[first, second]].tolist())
        least = max(16 / int(found.masks[first]), 1 / 16)
        is_equal = truths[first] == truths[second]
        expected = 0 if is_equal else pytest.approx(math.sqrt(least) * independent, rel=0.02)
        assert found.apart[second] == expected


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
    first, second = truth(replace(toy, corpus=toy.corpus.subset(torch.tensor([0, 1])))).tolist()
    assert -0.3 < second - first < -0.2
    found = measured(toy, 1.0, 0, groups)
    unseen = (found.value.view(-1, 2).diff() > 0).double().mean()
    assert unseen > 0.3
    truths = torch.tensor([first, second]).repeat(pairs)
    assert decisions(found, truths).wrong <= 0.05 * pairs
    assert decisions(measured(toy, 0.2, 0, groups), truths).decided > 0.8 * pairs


def shared_of(groups: list[list[int]], sizes: list[int]) -> Shared:
    of = torch.tensor(sizes)
    return Shared(owners_of(groups, of, 1000), homes_of(groups, of, 1000))


def rounds(averages: list[float], std_errs: list[float], count: int = 16) -> Rounds:
    """Estimates from some masks, whose means have these standard errors."""
    values = torch.tensor(averages).double()
    squares = torch.tensor(std_errs).double().square() * count * (count - 1)
    zero = torch.zeros_like(values)
    return Rounds(torch.full((len(values),), count), values, squares, zero, zero + 1, zero)


@pytest.mark.parametrize(
    ("count", "least"), [(8, 5.0), (16, 5.0), (64, 2.5), (256, 1.25), (2048, 1.25)]
)
def test_the_least_error_of_a_difference_by_hand(count: int, least: float) -> None:
    """Independent scores differ by 5. Equal texts have no difference."""
    found = shared_of([[0, 1], [2, 3]], [9] * 5)
    given = rounds([0] * 7, [3, 4, 3, 4, 3, 0.1, 6], count)
    squares = found.cautious(given).squares / count / (count - 1)
    assert squares.sqrt().tolist() == pytest.approx([3, 4, 3, 4, 3, least, 6])
    equal = rounds([0] * 7, [3, 3, 3, 4, 3, 0, 6], count)
    assert found.cautious(equal).squares[5] == 0


def test_target_errors_of_differences_by_hand() -> None:
    """Errors of texts with masks of their own add up as squares; those of two texts with the masks
    of a third are at most their sum. A text that is not compared has its own target."""
    inf, half = math.inf, 2 / math.sqrt(2)

    def targets(
        groups: list[list[int]], sizes: list[int], best: list[int], given: list[float]
    ) -> list[float]:
        shared, errors = shared_of(groups, sizes), torch.tensor(given).double()
        return cast(list[float], shared._of_entries(errors, torch.tensor(best)).tolist())

    assert targets([[0, 1]], [9, 9, 9], [0, 0, 2], [2, 2, 5]) == [inf, inf, 5, 2]
    assert targets([[0, 1]], [9, 9, 9], [1, 1, 2], [2, 7, 5]) == [inf, inf, 5, 2]
    three = [[0, 1, 2]]
    assert targets(three, [9, 9, 9], [0] * 3, [9, 2, 5]) == [inf] * 3 + [2, 5]
    assert targets(three, [9, 9, 9], [1] * 3, [2, 9, 6]) == [inf] * 3 + [2, 3]
    assert targets(three, [9, 9, 9], [1] * 3, [8, 9, 6]) == [inf] * 3 + [3, 3]
    assert targets([[0, 1]], [9, 8], [0, 0], [9, 2]) == pytest.approx([half, half])
    own = targets(three, [9, 8, 9], [0] * 3, [9, 2, 6])
    assert own == pytest.approx([half, half, inf, 6])
    own = targets(three, [9, 8, 9], [1] * 3, [2, 9, 6])
    assert own == pytest.approx([half, half, 3 * half, inf])


def test_the_best_two_texts_and_their_leads_by_hand() -> None:
    """Half a standard error is taken off; the error is that of the difference."""

    def found(shared: Shared, given: Rounds) -> tuple[list[int], list[int], list[float]]:
        best, second = shared._best_two(given)
        return best.tolist(), second.tolist(), shared._leads(given, best).tolist()

    pair = shared_of([[0, 1]], [9, 9])
    best, second, leads = found(pair, rounds([-5, -13, -8], [9, 9, 2]))
    assert (best, second, leads[1]) == ([0, 0], [1, 1], 7.0)
    best, second, leads = found(pair, rounds([-13, -5, 8], [9, 9, 2]))
    assert (best, second, leads[0]) == ([1, 1], [0, 0], 7.0)
    # the two best are not the first
    three = shared_of([[0, 1, 2]], [9, 9, 9])
    best, second, leads = found(three, rounds([-20, -4, -12, 16, 8], [9, 9, 9, 1, 3]))
    assert (best, second) == ([1] * 3, [2] * 3)
    assert (leads[0], leads[2]) == (15.5, 6.0)
    alone = shared_of([[1, 2]], [9, 9, 8])
    best, second, leads = found(alone, rounds([-1, -4, -12], [9, 3, 4]))
    assert (best, second) == ([0, 1, 1], [0, 2, 2])
    assert leads[2] == pytest.approx(5.5)
    # the best has masks of its own
    mixed = shared_of([[0, 1, 2]], [9, 8, 9])
    best, second, leads = found(mixed, rounds([-30, -4, -12, -18], [1.2, 1.6, 1.2, 1]))
    assert (best, second) == ([1] * 3, [2] * 3)
    assert leads[::2] == pytest.approx([25.0, 7.0])


def test_a_group_is_decided_by_a_last_round_that_suffices() -> None:
    """A lead of 22 takes hardly any mask. A lead of 4 takes more than the masks so far, and gets
    the plan for the target. Groups have a plan each."""
    shared = shared_of([[0, 1], [2, 3]], [9] * 4)
    given = rounds([-5, -27, -5, -9, -22, -4], [2] * 6, 512)
    target = torch.full((4,), 0.1, dtype=torch.float64)
    counts, wanted = shared.planned(given, target, 10**7, True)
    assert [int(counts[i]) for i in (0, 1, 4)] == [int(wanted[i]) for i in (0, 1, 4)]
    assert 4 <= wanted[0] <= 512
    assert len({int(wanted[i]) for i in (2, 3, 5)}) == 1
    assert wanted[2] > 50_000
    # without decisions a target is for the scores
    counts, wanted = shared.planned(given, target, 10**7, False)
    assert (wanted == wanted[0]).all()
    assert wanted[0] > 50_000


def test_texts_of_a_group_with_masks_of_their_own_end_together() -> None:
    """The first text needs few masks more for the lead, the second more than it has."""
    target = torch.full((2,), 0.1, dtype=torch.float64)

    def wanted(second: float) -> int:
        given = rounds([-5, -9], [0.3, second], 64)
        return int(shared_of([[0, 1]], [9, 8]).planned(given, target, 10**7, True)[1, 0])

    assert wanted(0.3) < 64
    assert wanted(2.0) > 1000


@dataclass(frozen=True)
class Groups:
    """Groups of texts, all alike. Text i of a group differs from the first by differences[i]."""

    toy: Toy
    texts: list[list[int]]
    best: int

    @classmethod
    def of(cls, count: int, sizes: list[int], differences: list[float], alike: float) -> "Groups":
        """Draw tables of which `alike` is own, shifted so that the differences are exact."""
        kinds = len(sizes)
        toy = Toy.of(count, max(sizes), max(sizes))
        table = toy.table[4] + alike * toy.table
        lengths = torch.tensor(sizes).repeat(count) + 2
        offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
        ids = torch.arange(kinds).repeat(count).repeat_interleave(lengths)
        maskable = torch.ones(len(ids), dtype=torch.bool)
        maskable[offsets[:-1]] = maskable[offsets[1:] - 1] = False
        corpus = Corpus(ids, torch.zeros_like(ids), maskable, offsets)
        first = replace(toy, corpus=corpus.subset(torch.arange(kinds)), table=table)
        shifts = truth(first)[0] + torch.tensor(differences) - truth(first)
        table[:kinds] += (shifts / torch.tensor(sizes))[:, None, None]
        texts = torch.arange(count * kinds).view(count, kinds).tolist()
        best = differences.index(max(differences))
        return cls(replace(toy, corpus=corpus, table=table), texts, best)

    def decided(self, target: float) -> tuple[CumulativeScores, float, int]:
        """Return the scores, the share of decided groups, and the number of wrong decisions."""
        given = cast(MaskedLm, ToyModel(self.toy)), self.toy.masker, ScoreCache(), target, 100_000
        found = CumulativeScores(*given, groups=self.texts, decides=True)
        deque(found.run(found.plan(), torch.Generator().manual_seed(0)), 0)
        decided = wrong = 0
        for group in self.texts:
            members = [
                Member(i, float(found.value[i]), float(found.std_err[i]), None, found.apart.get(i))
                for i in group
            ]
            if is_decided(members):
                decided += 1
                wrong += max(group, key=lambda i: found.value[i]) != group[self.best]
        return found, decided / len(self.texts), wrong


def test_a_text_far_behind_takes_few_masks() -> None:
    """With masks of its own or those of the best text. The others take as many as without it."""
    pairs, _, _ = Groups.of(60, [9, 9], [0, 0.4], 0.3).decided(0.05)
    for sizes in ([9, 9, 8], [9, 9, 9]):
        found, decided, wrong = Groups.of(60, sizes, [0, 0.4, -10], 0.3).decided(0.05)
        assert (decided > 0.9, wrong) == (True, 0)
        first, _, third = found.masks.view(-1, 3).double().mean(0).tolist()
        assert first < 1.5 * float(pairs.masks.double().mean())
        if sizes[2] == 8:
            assert third < 50


def test_a_group_with_a_text_of_few_tokens_is_scored_to_the_target() -> None:
    """All masks of that text are scored, so that the other texts need no difference to it."""
    groups = Groups.of(60, [9, 9, 7], [0, -3, -0.6], 0.3)
    found, decided, wrong = groups.decided(0.1)
    assert (decided, wrong) == (1.0, 0)
    everywhere = measured(groups.toy, 0.1, 0, groups.texts)
    assert torch.equal(found.masks, everywhere.masks)


@pytest.mark.parametrize("count", [2, 3])
def test_decisions_take_few_masks_and_are_seldom_wrong(count: int) -> None:
    """Against all masks, for groups of texts that are mostly alike."""
    toy, target = Toy.of(300, 9, 9), 0.1
    toy = replace(toy, table=toy.table[4] + 0.6 * toy.table)
    groups = [[*range(i, i + count)] for i in range(0, 300, count)]
    given = cast(MaskedLm, ToyModel(toy)), toy.masker, ScoreCache(), target, 100_000
    found, truths = CumulativeScores(*given, groups=groups, decides=True), truth(toy)
    deque(found.run(found.plan(), torch.Generator().manual_seed(0)), 0)
    clear: list[bool] = []
    right = []
    for group in groups:
        texts = [
            Member(i, float(found.value[i]), float(found.std_err[i]), None, found.apart.get(i))
            for i in group
        ]
        best, second = truths[group].sort(descending=True).values[:2]
        decided = is_decided(texts)
        if best - second > 4 * target:
            clear.append(decided)
        if decided:
            values = [one.value or 0.0 for one in texts]
            right.append(values.index(max(values)) == int(truths[group].argmax()))
    assert len(clear) > 10
    assert sum(clear) > 0.85 * len(clear)
    assert sum(right) >= 0.95 * len(right)
    if count == 2:
        everywhere = measured(toy, target, 0, groups)
        assert found.masks.sum() < 0.9 * everywhere.masks.sum()


@pytest.mark.parametrize("bad", [-math.inf, math.nan])
def test_a_group_with_a_score_that_is_no_number_takes_few_masks(bad: float) -> None:
    """Other groups are decided as before."""
    toy = Toy.of(4, 9, 9)

    class Model(ToyModel):
        def token_scores(self, masks: MaskedBatch) -> torch.Tensor:
            found = super().token_scores(masks)
            of = masks.sequences.repeat_interleave(masks.counts)
            return found.masked_fill((of == 1) & (masks.places == 2), bad)

    given = cast(MaskedLm, Model(toy)), toy.masker, ScoreCache(), 0.3, 100_000
    found = CumulativeScores(*given, groups=[[0, 1], [2, 3]], decides=True)
    deque(found.run(found.plan(), torch.Generator().manual_seed(0)), 0)
    assert found.masks[:2].tolist() == [32, 32]
    assert found.value.isfinite().tolist() == [True, False, True, True]
    assert (found.std_err[2:] > 0).all()


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
    given = of(pair, scores=["cumulative", "pll"], target_std_err=0.03, group_size=2)
    rows, _ = scored(given, tmp_path / "shared")
    assert rows[0]["cumulative_masks"] > 64
    independent = math.hypot(*(row["cumulative_std_err"] for row in rows))
    assert 0 < rows[1]["difference_std_err"] < 0.99 * independent
    assert rows[0]["cumulative_masks"] == rows[1]["cumulative_masks"]
    apart = rows[1]["cumulative"] - rows[0]["cumulative"]
    assert rows[1]["difference"] == pytest.approx(apart)
    texts = given["evaluate"]["texts"]
    decided = {**texts, "scores": ["cumulative"], "target_std_err": 0.01, "target": "decision"}
    few, found = scored({**given, "evaluate": {"texts": decided}}, tmp_path / "decided")
    assert 32 <= few[0]["cumulative_masks"] == few[1]["cumulative_masks"] < 10_000
    assert few[0]["decided"]
    assert metric(found, "masks").value == 2 * few[0]["cumulative_masks"]
    assert value_of(metric(found, "cumulative")) < 0  # its mean is unbiased
    assert not [one for one in found if isinstance(one, Metric) and one.name == "texts_over_target"]
    texts["scores"] = ["pll", "cumulative"]
    by_pll, _ = scored(given, tmp_path / "alone")
    assert by_pll[1]["difference_std_err"] == 0.0
