"""The cumulative score of each text, with its own error and number of masks."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from mptcore.estimation.estimate import MIN_KURTOSIS
from mptcore.families.masked_lm.corpus import repeated
from mptcore.families.masked_lm.masked_batch import CHUNK_TOKENS, MaskedBatch, Masker
from mptcore.families.masked_lm.model import MaskedLm, score_batches
from mptcore.runtime.session import MaskPlan, ScoreCache, Step, Work

STRATA = 8
"""Masks of a replicate: one from each eighth of the sizes from 1 to D."""
PILOT = 8
"""Replicates of the pilot, and the minimum number of later ones."""
ENUMERATED = 7
"""Maximum number of tokens of a text whose masks are all scored. The pilot and the minimum after it
would draw as many masks or more."""
SHARES = (0.5, 1.0)
"""Fraction of the replicates still planned that each round draws."""
SAFETY = 2.0
"""Number of standard deviations by which a variance may still grow before the target is missed."""
MIN_LEFT = 1 / 8
"""Smallest share of the target variance that is left for the last round."""


@dataclass
class Replicates:
    """Estimates of N texts from rounds of replicates.

    A replicate is the mean of D · score over one mask of each stratum, so its expectation is the
    cumulative score. As in StratifiedSample, the weight of a round is fixed before it is drawn, and
    that of the pilot is 0: the estimate is unbiased, although the scores choose the plan.
    """

    count: Tensor  # (N,), replicates so far, with those of the pilot
    average: Tensor  # (N,), their mean
    squares: Tensor  # (N,), sum of their squared deviations from it
    value: Tensor  # (N,), Σ_k λ_k · mean of round k
    left: Tensor  # (N,), the part of λ that is not assigned yet
    spread: Tensor  # (N,), Σ_k λ_k² / n_k

    @classmethod
    def none(cls, texts: int) -> "Replicates":
        zero = torch.zeros(texts, dtype=torch.float64)
        return cls(zero.long(), zero, zero, zero, zero + 1, zero)

    @property
    def variance(self) -> Tensor:
        """Variance of a replicate, (N,)."""
        return self.squares / (self.count - 1).clamp(min=1)

    @property
    def std_err(self) -> Tensor:
        return (self.variance * self.spread * widening(self.count)).sqrt()

    def add(self, values: Tensor, counts: Tensor, weight: Tensor) -> None:
        """Add a round: counts[i] replicates of text i with the weight λ (N,), text by text."""
        texts = repeated(torch.arange(len(counts)), counts)
        drawn = counts.clamp(min=1)
        mean = torch.zeros_like(self.value).index_add_(0, texts, values) / drawn
        within = torch.zeros_like(mean).index_add_(0, texts, (values - mean[texts]).square())
        whole = (self.count + counts).clamp(min=1)
        apart = torch.where(counts > 0, mean - self.average, 0)
        self.squares = self.squares + within + apart.square() * self.count * counts / whole
        self.average = self.average + apart * counts / whole
        self.count = self.count + counts
        self.value = self.value + weight * mean
        self.left = self.left - weight
        self.spread = self.spread + weight.square() / drawn

    def planned(self, target: float | Tensor, most: int) -> Tensor:
        """Return how many replicates of each text are still to be drawn, (N,). The target is that
        of each text if it is (N,)."""
        least = (2 * PILOT - self.count).clamp(min=1)
        last = self.count + torch.maximum(self._wanted(target**2), least)
        moves = (MIN_KURTOSIS - 1) * (1 / self.count - 1 / last)
        growth = widening(last) * (1 + SAFETY * moves.sqrt())
        counts = torch.maximum(self._wanted(target**2 / growth), least)
        return torch.where(self.left > 0, counts.clamp(max=(most - self.count).clamp(min=1)), 0)

    def _wanted(self, target: float | Tensor) -> Tensor:
        rest = (target - self.variance * self.spread).clamp(min=MIN_LEFT * target)
        return (self.left.square() * self.variance / rest).clamp(max=1e12).ceil().long()


@dataclass
class CumulativeScores:
    """Measures the cumulative score of each text of a corpus of N."""

    model: MaskedLm
    masker: Masker
    cache: ScoreCache
    target: float
    max_masks: int
    """Maximum number of masks of a text."""
    is_relative: bool = False
    """True if the target is a fraction of each score."""
    value: Tensor = field(init=False)  # (N,)
    std_err: Tensor = field(init=False)  # (N,)
    masks: Tensor = field(init=False)  # (N,)

    def plan(self) -> MaskPlan:
        """Return the plan before any mask was scored."""
        sizes = self.masker.corpus.sizes
        exact = int((2 ** sizes[sizes <= ENUMERATED] - 1).sum())
        sampled = int((sizes > ENUMERATED).sum())
        return MaskPlan(exact + sampled * self.max_masks, exact + sampled * 2 * PILOT * STRATA)

    def run(self, plan: MaskPlan, generator: torch.Generator) -> Work[None]:
        """Score all masks of short texts, and rounds of masks of the others."""
        sizes = self.masker.corpus.sizes
        self.value, self.std_err = (torch.zeros(len(sizes), dtype=torch.float64) for _ in "ab")
        self.masks = torch.zeros_like(sizes)
        for size in range(1, ENUMERATED + 1):
            chosen = (sizes == size).nonzero().flatten()
            if len(chosen):
                yield from self._enumerate(chosen, size)
        chosen = (sizes > ENUMERATED).nonzero().flatten()
        if len(chosen):
            yield from self._sample(chosen, plan, generator)
        plan.masks = int(self.masks.sum())

    def target_of(self, scores: Tensor) -> Tensor:
        """Return the target of each text with a score, (N,)."""
        return (
            self.target * scores.abs() if self.is_relative else torch.full_like(scores, self.target)
        )

    def _enumerate(self, chosen: Tensor, size: int) -> Work[None]:
        """Score all masks of the chosen texts, which have `size` tokens."""
        subsets, sizes = all_masks(size)
        weights = torch.tensor([1 / math.comb(size, int(m)) for m in sizes], dtype=torch.float64)

        def batches() -> Iterator[tuple[MaskedBatch, Tensor]]:
            for part in torch.split(chosen, max(1, CHUNK_TOKENS // (len(sizes) * (size + 2)))):
                yield self._of_subsets(part, subsets, sizes), part

        for scored in score_batches({"model": self.model}, batches(), self.cache):
            if isinstance(scored, Step):
                yield scored
                continue
            scores = scored.values[0, 0].view(-1, len(sizes))
            self.value[scored.given] = (scores * weights).sum(1)
            self.masks[scored.given] = len(sizes)

    def _of_subsets(self, chosen: Tensor, subsets: Tensor, counts: Tensor) -> MaskedBatch:
        """Mask each chosen text by each subset of its tokens, (Σ counts,) places."""
        first = self.masker.corpus.first_free[chosen]
        free = (first[:, None] + subsets).flatten()
        sequences = chosen.repeat_interleave(len(counts))
        places = self.masker.corpus.free[free]
        return self.masker.hidden(sequences, counts.repeat(len(chosen)), places)

    def _sample(self, chosen: Tensor, plan: MaskPlan, generator: torch.Generator) -> Work[None]:
        found = Replicates.none(len(chosen))
        counts = torch.full_like(chosen, PILOT)
        values = yield from self._draw(chosen, counts, generator)
        found.add(values, counts, torch.zeros_like(found.value))
        most, enumerated = self.max_masks // STRATA, int(self.masks.sum())
        for share in SHARES:
            target = self.target_of(found.average)
            wanted = yield from self.cache.plan(partial(found.planned, target, most))
            plan.masks = enumerated + STRATA * int((found.count + wanted).sum())
            counts = (share * wanted).ceil().long()
            values = yield from self._draw(chosen, counts, generator)
            found.add(values, counts, found.left * (counts / wanted.clamp(min=1)))
        self.value[chosen], self.std_err[chosen] = found.value, found.std_err
        self.masks[chosen] = STRATA * found.count

    def _draw(self, chosen: Tensor, counts: Tensor, generator: torch.Generator) -> Work[Tensor]:
        """Return counts[i] replicates of each chosen text, text by text: (Σ counts,)."""
        plan = repeated(chosen, counts)
        found = [torch.zeros(0, dtype=torch.float64)]
        batches = self._batches(plan, generator)
        for scored in score_batches({"model": self.model}, batches, self.cache):
            if isinstance(scored, Step):
                yield scored
            else:
                means = scored.values[0, 0].view(-1, STRATA).mean(1)
                found.append(means * self.masker.corpus.sizes[scored.given])
        return torch.cat(found)

    def _batches(
        self, plan: Tensor, generator: torch.Generator
    ) -> Iterator[tuple[MaskedBatch, Tensor]]:
        """Yield the masks of the replicates of a plan of sequences (R,), in parts of about
        CHUNK_TOKENS."""
        corpus = self.masker.corpus
        begins = (corpus.lengths[plan] * STRATA).cumsum(0) // CHUNK_TOKENS
        parts = torch.unique_consecutive(begins, return_counts=True)[1].tolist()
        for part in torch.split(plan, parts):
            sequences = part.repeat_interleave(STRATA)
            strata = torch.arange(STRATA).repeat(len(part))
            within = torch.rand(len(sequences), generator=generator, dtype=torch.float64)
            rates = (strata + 1 - within) / STRATA  # above 0, at most 1
            sizes = (rates * corpus.sizes[sequences]).ceil().long()
            yield self.masker.of_sizes(sequences, sizes, generator), part


def widening(count: Tensor) -> Tensor:
    """Return the factor of a squared error whose variance is from `count` replicates, at least
    2 · PILOT: the variance of Student's t, ν / (ν − 2) with ν = 2 (count − 1) / (MIN_KURTOSIS − 1).
    A text whose variance is too small by chance stops early, so few replicates also mean a
    variance that is more often too small than too large."""
    return (count - 1) / (count - MIN_KURTOSIS)


def all_masks(size: int) -> tuple[Tensor, Tensor]:
    """Return all nonempty subsets of `size` places, one after another, and the number of places in
    each."""
    hidden = (torch.arange(1, 2**size)[:, None] >> torch.arange(size)) & 1  # (2^D − 1, D)
    return hidden.nonzero()[:, 1], hidden.sum(1)
