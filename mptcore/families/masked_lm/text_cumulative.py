"""The cumulative score of each text, with its own error and number of masks."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mptcore.families.masked_lm.corpus import repeated
from mptcore.families.masked_lm.masked_batch import CHUNK_TOKENS, MaskedBatch, Masker, joined
from mptcore.families.masked_lm.model import MaskedLm, score_batches
from mptcore.families.masked_lm.text_fit import ScoredMasks, TokenFit, cross_fitted, sizes_at
from mptcore.families.masked_lm.text_rounds import FOLDS, STRATA, Rounds, Values
from mptcore.families.masked_lm.text_shared import Shared, homes_of, owners_of
from mptcore.runtime.session import MaskPlan, ScoreCache, Step, Work
from mptcore.specs.texts import MIN_TEXT_MASKS

ENUMERATED = 7
"""Maximum number of tokens of a text whose masks are all scored."""
FITTED = 64
"""Number of masks of a text after which its fit stays as it is: it hardly gains by more, and log p
of all their tokens would take much memory."""
GROUP_TOKENS = 2**16
"""Approximate number of tokens of the texts that are scored together; a fit needs about 1 KiB for
each."""


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
    groups: Sequence[Sequence[int]] = ()
    """Texts that are compared with the first one of their group."""
    decides: bool = False
    """True if masks of a group are only drawn until its best text is told from each other one, or
    the error of the difference of its best two is the target."""
    value: Tensor = field(init=False)  # (N,)
    std_err: Tensor = field(init=False)  # (N,)
    apart: dict[int, float] = field(init=False)
    """Standard error of the difference to the first text of its group, for each text that shares
    its masks; 0 for that text."""
    masks: Tensor = field(init=False)  # (N,)

    def plan(self) -> MaskPlan:
        """Return the plan before any mask was scored."""
        sizes = self.masker.corpus.sizes
        exact = int((2 ** sizes[sizes <= ENUMERATED] - 1).sum())
        sampled = int((sizes > ENUMERATED).sum())
        return MaskPlan(exact + sampled * self.max_masks, exact + sampled * MIN_TEXT_MASKS)

    def run(self, plan: MaskPlan, generator: torch.Generator) -> Work[None]:
        """Score all masks of short texts, and rounds of masks of the others."""
        sizes = self.masker.corpus.sizes
        self.value, self.std_err = (torch.zeros(len(sizes), dtype=torch.float64) for _ in "ab")
        self.apart = {}
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
        """Score the chosen texts, part by part. A text is in the part of the text whose masks it
        shares, after it."""
        before = plan.masks - len(chosen) * MIN_TEXT_MASKS
        most = self.max_masks // STRATA * STRATA
        sizes = self.masker.corpus.sizes
        owners = owners_of(self.groups, sizes, GROUP_TOKENS)
        sampled = torch.where(sizes > ENUMERATED, sizes, 0)
        homes = homes_of(self.groups, sampled, GROUP_TOKENS)
        after = torch.where(homes == torch.arange(len(homes)), owners, homes)
        chosen = chosen[owners[chosen].argsort(stable=True)]
        chosen = chosen[after[chosen].argsort(stable=True)]
        places = torch.empty_like(owners)
        places[chosen] = torch.arange(len(chosen))
        ends = sizes[chosen].cumsum(0)[places[after[chosen]]]
        parts = torch.unique_consecutive(ends // GROUP_TOKENS, return_counts=True)[1].tolist()
        to_come = len(chosen)
        for part in torch.split(chosen, parts):
            to_come -= len(part)
            corpus = self.masker.corpus.subset(part)
            shared = Shared(*(places[of[part]] - places[part[0]] for of in (owners, homes)))
            masker = replace(self.masker, corpus=corpus)
            draws = Draws(self.model, masker, self.cache, generator, shared)
            folds = []
            for _ in range(FOLDS):
                folds.append((yield from draws.fold()))
            found = Rounds.of_pilot(shared.with_differences(cross_fitted(folds)))
            floor = self.target_of(found.average[: len(part)])
            sums = torch.stack([fold.sums() for fold in folds]).sum(0)
            while True:
                counts, wanted = shared.planned(found, floor, most, self.decides)
                masks = (found.count + wanted)[: len(part)]
                plan.masks = before + int(masks.sum()) + to_come * MIN_TEXT_MASKS
                if not bool(counts.any()):
                    break
                drawn = yield from draws.values(counts[: len(part)], found, sums)
                found.add(drawn, wanted)
            self._keep(part, shared, found)
            before += int(self.masks[part].sum())

    def _keep(self, part: Tensor, shared: Shared, found: Rounds) -> None:
        """Keep the results of the texts of a part, and of their differences."""
        texts = slice(len(part))
        self.value[part], self.std_err[part] = found.value[texts], found.std_err[texts]
        self.masks[part] = found.count[texts]
        self.apart |= dict.fromkeys(part[shared.owners[shared.members]].tolist(), 0.0)
        errors = shared.cautious(found).std_err[len(part) :].tolist()
        self.apart |= zip(part[shared.members].tolist(), errors, strict=True)


@dataclass(frozen=True)
class Draws:
    """Draws masks on the texts of a corpus, and scores them."""

    model: MaskedLm
    masker: Masker
    cache: ScoreCache
    generator: torch.Generator
    shared: Shared

    def fold(self) -> Work[ScoredMasks]:
        """Return a replicate of each text."""
        masks, log_probs = [], []
        for scored in self.scored(torch.full_like(self.masker.corpus.sizes, STRATA), True):
            if isinstance(scored, Step):
                yield scored
            elif scored.log_probs is not None:
                masks.append(scored.masks)
                log_probs.append(scored.log_probs)
        return ScoredMasks.of_tokens(joined(masks), torch.cat(log_probs))

    def values(self, counts: Tensor, found: Rounds, sums: Tensor) -> Work[Values]:
        """Return the values of counts[i] masks of each text by a fit to `sums`, and add the masks
        of texts with fewer than FITTED so far to the sums."""
        fit, drawn = TokenFit.of(sums, self.masker.corpus), Values.none(found.average)
        is_fitted = found.count[: len(counts)] >= FITTED
        for of_tokens in (True, False):
            some = torch.where(is_fitted == of_tokens, 0, counts)
            for scored in self.scored(some, of_tokens):
                if isinstance(scored, Step):
                    yield scored
                    continue
                sequences, values = scored.masks.sequences, fit.values(scored)
                drawn.add(sequences, values)
                drawn.add(*self.shared.differences(sequences, values))
                if of_tokens:
                    sums += scored.sums()
        return drawn

    def scored(self, counts: Tensor, of_tokens: bool) -> Iterator[Step | ScoredMasks]:
        """Yield counts[i] masks of each text, in replicates, text by text, in parts of about
        CHUNK_TOKENS; with log p of each token, or only their sum."""
        batches = ((masks, None) for masks in self._masks(counts))
        models = {"model": self.model}
        for scored in score_batches(models, batches, self.cache, of_tokens=of_tokens):
            if isinstance(scored, Step):
                yield scored
            elif of_tokens:
                yield ScoredMasks.of_tokens(scored.masks, scored.values[0, 0])
            else:
                yield ScoredMasks(scored.masks, scored.values[0, 0] * scored.masks.counts)

    def _masks(self, counts: Tensor) -> Iterator[MaskedBatch]:
        corpus, owners = self.masker.corpus, self.shared.owners
        texts = torch.bincount(owners, minlength=len(owners))  # that have each text's masks
        plan = repeated(torch.arange(len(corpus)), torch.where(texts > 0, counts // STRATA, 0))
        begins = (corpus.lengths[plan] * texts[plan] * STRATA).cumsum(0) // CHUNK_TOKENS
        parts = torch.unique_consecutive(begins, return_counts=True)[1].tolist()
        for part in torch.split(plan, parts):
            sequences = part.repeat_interleave(STRATA)
            strata = torch.arange(STRATA).repeat(len(part))
            within = torch.rand(len(sequences), generator=self.generator, dtype=torch.float64)
            quantiles = (strata + 1 - within) / STRATA  # above 0, at most 1
            sizes = sizes_at(quantiles, corpus.sizes[sequences])
            yield self.shared.masks(self.masker.of_sizes(sequences, sizes, self.generator))


def all_masks(size: int) -> tuple[Tensor, Tensor]:
    """Return all nonempty subsets of `size` places, one after another, and the number of places in
    each."""
    hidden = (torch.arange(1, 2**size)[:, None] >> torch.arange(size)) & 1  # (2^D − 1, D)
    return hidden.nonzero()[:, 1], hidden.sum(1)
