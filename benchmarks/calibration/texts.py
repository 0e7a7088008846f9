"""The cumulative score of each text and its error, where all masks of all texts can be enumerated;
the differences and means of texts that share their masks."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import cast

import torch
from torch import Tensor

from benchmarks.calibration.any_order import VOCABULARY, Calibration, Toy, repeated
from mptcore.families.masked_lm.estimates import population_mean
from mptcore.families.masked_lm.masks import MaskedBatch
from mptcore.families.masked_lm.network import MaskedLm
from mptcore.families.masked_lm.text_cumulative import CumulativeScores, all_masks
from mptcore.families.masked_lm.text_fit import SIZE_POWER
from mptcore.families.masked_lm.text_table import Member, ranked
from mptcore.runtime.state import RunState

TEXTS = 1000
SEEDS = 1000
"""Number of means over texts."""
POPULATION_TEXTS, POPULATION_SEEDS = 40, 500
POPULATION_OWN = 3.0
"""Part of the log-probabilities of a text that is its own: the choice of texts matters as much as
the masks."""
SHORTEST, LONGEST = 8, 10
TARGETS = (2.0, 0.5)
NOISY_TEXTS = 5000
ALIKE = 0.3
"""Part of the log-probabilities of a text that is its own, in pairs that are compared."""
NEEDED = (8, 32, 64, 200)
"""Numbers of masks that reach the targets for noise, where at least 32 are drawn."""


@dataclass(frozen=True)
class ToyModel:
    """The table of a toy as a model."""

    toy: Toy

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def token_scores(self, masks: MaskedBatch) -> Tensor:
        return self.toy.log_probs(masks)[None]

    def scores_and_next(self, masks: MaskedBatch) -> Tensor:
        return self.toy.scores(masks)[0]

    def parts(self, masks: MaskedBatch) -> Iterator[Tensor]:
        yield torch.arange(len(masks))


@dataclass(frozen=True)
class NoiseModel:
    """Normal noise as a model: log p of each token is drawn anew for each mask, with mean 0."""

    generator: torch.Generator

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def token_scores(self, masks: MaskedBatch) -> Tensor:
        return torch.randn(1, len(masks.positions), generator=self.generator, dtype=torch.float64)

    def scores_and_next(self, masks: MaskedBatch) -> Tensor:
        means = torch.segment_reduce(self.token_scores(masks)[0], "mean", lengths=masks.counts)
        return means.expand(2, -1)

    def parts(self, masks: MaskedBatch) -> Iterator[Tensor]:
        yield torch.arange(len(masks))


def truth(toy: Toy) -> Tensor:
    """Return the cumulative score of each text from all its masks, (N,)."""
    found = []
    for text, size in enumerate(toy.corpus.sizes.tolist()):
        places, counts = all_masks(size)
        places = toy.corpus.free[toy.corpus.first_free[text] + places]
        masks = toy.masker.hidden(torch.full_like(counts, text), counts, places)
        by_size = torch.zeros(size + 1, dtype=torch.float64)
        by_size.index_add_(0, counts, toy.scores(masks)[0, 0])
        found.append(sum(by_size[m].item() / math.comb(size, m) for m in range(1, size + 1)))
    return torch.tensor(found, dtype=torch.float64)


def measured(
    toy: Toy, target: float, seed: int, groups: Sequence[Sequence[int]] = ()
) -> CumulativeScores:
    """Return the scores of all texts of a toy. Those of a group share their masks."""
    return _measured(ToyModel(toy), toy, target, seed, groups)


def _measured(
    model: ToyModel | NoiseModel,
    toy: Toy,
    target: float,
    seed: int,
    groups: Sequence[Sequence[int]] = (),
) -> CumulativeScores:
    names = [f"text {i}" for i in range(len(toy.corpus))]
    for number, texts in enumerate(groups):
        for text in texts:
            names[text] = f"group {number}"
    given = cast(MaskedLm, model), toy.masker, RunState(), names, target, 100_000
    found = CumulativeScores(*given)
    for _ in found.run(found.plan(), seed):
        pass
    return found


def members(found: CumulativeScores) -> list[Member]:
    """Return the scores of texts to compare."""
    scores = zip(found.value.tolist(), found.std_err.tolist(), strict=True)
    return [Member(i, *score, found.mask_errors.get(i)) for i, score in enumerate(scores)]


@dataclass(frozen=True)
class Decisions:
    """Pairs of neighbouring texts: the number that is decided, and wrongly."""

    pairs: int
    decided: int
    wrong: int


def decisions(found: CumulativeScores, truths: Tensor) -> Decisions:
    """Compare the decided pairs with the truth."""
    texts = members(found)
    decided = wrong = 0
    for i in range(0, len(texts) - 1, 2):
        first, second = ranked(texts[i : i + 2])
        decided += bool(first.decided)
        is_better = second.rank == 1
        wrong += bool(first.decided) and is_better != bool(truths[i + 1] > truths[i])
    return Decisions(len(texts) // 2, decided, wrong)


def calibration(texts: int, target: float) -> tuple[Calibration, CumulativeScores, Tensor]:
    """Return z over texts, with the scores and their truth."""
    toy = Toy.of(texts, SHORTEST, LONGEST)
    truths, found = truth(toy), measured(toy, target, texts)
    name = f"cumulative, target {target}"
    return Calibration(name, (found.value - truths) / found.std_err), found, truths


@dataclass(frozen=True)
class Pairs:
    """Pairs of texts with the same masks."""

    toy: Toy
    found: CumulativeScores
    differences: Tensor
    """Differences minus the true ones, in standard errors, (pairs,)."""
    narrower: float
    """Mean square of the errors of differences, divided by that of independent scores."""


def pairs_calibration(pairs: int, target: float) -> Pairs:
    """Score pairs of texts of equal length, whose log-probabilities are mostly the same."""
    toy = Toy.of(2 * pairs, LONGEST, LONGEST)
    toy = replace(toy, table=toy.table[4] + ALIKE * toy.table)
    truths, groups = truth(toy), [(i, i + 1) for i in range(0, 2 * pairs, 2)]
    found = measured(toy, target, pairs, groups)
    texts = members(found)
    errors = torch.tensor([difference_std_err(texts[i : i + 2]) for i, _ in groups]).double()
    apart = (found.value - truths).view(-1, 2).diff()[:, 0]
    differ = truths.view(-1, 2).diff()[:, 0] != 0  # a pair of the same token has the same scores
    independent = found.std_err.square().view(-1, 2).sum(1)[differ].mean()
    narrower = float(errors[differ].square().mean() / independent)
    return Pairs(toy, found, apart[differ] / errors[differ], narrower)


def difference_std_err(pair: Sequence[Member]) -> float | None:
    """Return the standard error of the difference of two texts."""
    _, second = ranked(pair)
    return second.difference_std_err


@dataclass(frozen=True)
class Means:
    """Means over texts of groups of equal length, by seed."""

    means: Calibration
    wider: float
    """Mean square of their errors, divided by that without covariances."""


def means_calibration(
    target: float, seeds: int = SEEDS, groups: int = 4, texts: int = 3, alike: float = ALIKE
) -> Means:
    """Return z of the mean over all texts, whose log-probabilities are mostly the same, by seed."""
    count = groups * texts
    toy = Toy.of(count, LONGEST, LONGEST)
    toy = replace(toy, table=toy.table[4] + alike * toy.table)
    truths = truth(toy)
    names = torch.arange(count).view(groups, texts).tolist()
    z, squares, independent = [], 0.0, 0.0
    for seed in range(seeds):
        found = measured(toy, target, seed, names)
        square = float(found.variances.sum())
        z.append(float((found.value - truths).sum()) / math.sqrt(square))
        squares += square
        independent += float(found.std_err.square().sum())
    what = f"mean over {groups} groups of {texts}, target {target}"
    return Means(Calibration(what, torch.tensor(z)), squares / independent)


def population_calibration(
    target: float, seeds: int = POPULATION_SEEDS, texts: int = POPULATION_TEXTS
) -> Means:
    """Return z of the mean over the population, of which other texts are drawn for each seed. All
    of them share their masks."""
    toy = Toy.of(VOCABULARY, LONGEST, LONGEST)
    toy = replace(toy, table=toy.table[4] + POPULATION_OWN * toy.table)
    each = repeated(torch.arange(VOCABULARY), torch.full((VOCABULARY,), LONGEST))
    population = truth(replace(toy, corpus=each)).mean().item()
    generator, sizes = torch.Generator().manual_seed(texts), torch.full((texts,), LONGEST)
    z, squares, independent = [], 0.0, 0.0
    for seed in range(seeds):
        tokens = torch.randint(VOCABULARY, (texts,), generator=generator)
        sample = replace(toy, corpus=repeated(tokens, sizes))
        found = measured(sample, target, seed, [range(texts)])
        estimate = population_mean(found.value, found.std_err, found.variances)
        assert estimate.std_err is not None
        z.append((estimate.mean - population) / estimate.std_err)
        squares += estimate.std_err**2
        independent += found.value.var().item() / texts
    what = f"mean over the population from {texts} texts, target {target}"
    return Means(Calibration(what, torch.tensor(z)), squares / independent)


def noise_calibration(texts: int, needed: int) -> tuple[Calibration, CumulativeScores]:
    """Return z over texts of equal length whose scores are noise, for the target that `needed`
    masks reach, if nothing of the noise is predicted."""
    toy = Toy.of(texts, SHORTEST, SHORTEST)
    model = NoiseModel(torch.Generator().manual_seed(needed))
    shares = torch.arange(SHORTEST + 1, dtype=torch.float64) / SHORTEST
    chances = (shares**SIZE_POWER).diff()
    variance = (1 / (chances * torch.arange(1, SHORTEST + 1))).sum().item()
    found = _measured(model, toy, math.sqrt(variance / needed), texts)
    return Calibration(f"noise, {needed} masks needed", found.value / found.std_err), found


def main() -> None:
    header = "| score of a text | mean z | sd z | over target | masks a text | decided | wrong |"
    print(f"{header}\n|---|---|---|---|---|---|---|")
    for target in TARGETS:
        one, found, truths = calibration(TEXTS, target)
        over = (found.std_err > target).double().mean()
        pairs = decisions(found, truths)
        cells = [
            one.what,
            f"{one.mean:+.2f} ± {one.mean_error:.2f}",
            f"{one.sd:.2f} ± {one.sd_error:.2f}",
            f"{over:.1%}",
            f"{found.masks.double().mean():.0f}",
            f"{pairs.decided} of {pairs.pairs}",
            str(pairs.wrong),
        ]
        print(f"| {' | '.join(cells)} |")
    for target in TARGETS:
        given = pairs_calibration(TEXTS, target)
        one = Calibration(f"difference, target {target}", given.differences)
        mean, sd = f"{one.mean:+.2f} ± {one.mean_error:.2f}", f"{one.sd:.2f} ± {one.sd_error:.2f}"
        pairs = decisions(given.found, truth(given.toy))
        masks = f"{given.found.masks.double().mean():.0f}"
        what = f"{one.what}, {given.narrower:.2f} of its variance"
        ends = f"{pairs.decided} of {pairs.pairs} | {pairs.wrong} |"
        print(f"| {what} | {mean} | {sd} | | {masks} | {ends}")
    for given_means in chain(map(means_calibration, TARGETS), map(population_calibration, TARGETS)):
        one = given_means.means
        mean, sd = f"{one.mean:+.2f} ± {one.mean_error:.2f}", f"{one.sd:.2f} ± {one.sd_error:.2f}"
        what = f"{one.what}, {given_means.wider:.2f} of the variance without covariances"
        print(f"| {what} | {mean} | {sd} | | | | |")
    for needed in NEEDED:
        one, found = noise_calibration(NOISY_TEXTS, needed)
        over = (found.std_err > found.target).double().mean()
        mean, sd = f"{one.mean:+.2f} ± {one.mean_error:.2f}", f"{one.sd:.2f} ± {one.sd_error:.2f}"
        masks = f"{found.masks.double().mean():.0f}"
        print(f"| {one.what} | {mean} | {sd} | {over:.1%} | {masks} | | |")


if __name__ == "__main__":
    main()
