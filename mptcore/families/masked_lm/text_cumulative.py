"""The cumulative score of each text, with its own error and number of masks: rounds of masks until
the target error of the text is reached."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import torch
from torch import Tensor

from mptcore.estimation.estimate import MIN_KURTOSIS
from mptcore.families.masked_lm.corpus import repeated
from mptcore.families.masked_lm.estimates import MaskErrors
from mptcore.families.masked_lm.masks import (
    CHUNK_TOKENS,
    KEY_BITS,
    MaskedBatch,
    Masker,
    joined,
)
from mptcore.families.masked_lm.network import MaskedLm, score_batches
from mptcore.families.masked_lm.text_fit import ScoredMasks, TokenFit, cross_fitted, sizes_at
from mptcore.runtime.rng import generator_for
from mptcore.runtime.state import MaskPlan, Records, RunState
from mptcore.specs.text_scores import MIN_TEXT_MASKS

ENUMERATED = 7
"""Maximum number of tokens of a text whose masks are all scored."""
FITTED = 64
"""Number of masks of a text after which its fit stays as it is: it hardly gains by more, and log p
of all their tokens would take much memory."""
GROUP_TOKENS = 2**16
"""Approximate number of tokens of the texts that are scored together; a fit needs about 1 KiB for
each."""
STRATA = 4
"""Masks of a replicate: their sizes are drawn from as many equally likely parts of the sizes."""
FOLDS = 4
"""Replicates of the pilot."""
LAST = 1 / 2
"""A round is the last one if it adds at most this fraction to the masks so far."""
SAFETY = 1.0
"""Number of standard deviations by which a variance may still grow before the target is missed."""
MIN_REMAINING = 1 / 8
"""Smallest share of the target variance that is left for the next rounds."""


@dataclass
class SequentialEstimate:
    """Estimates of N texts from rounds of masks, each with an estimate of the score (its value).

    The weight of a round is fixed before it is drawn, and so is the fit that its values need: the
    estimate is unbiased, although the scores choose the plan. The pilot is the first round. Its
    weight is 0: any other would have to be chosen before anything is known of the text.
    """

    count: Tensor  # (N,), masks so far
    average: Tensor  # (N,), the mean of their values
    squares: Tensor  # (N,), sum of their squared deviations from it
    value: Tensor  # (N,), Σ_k λ_k · mean of round k
    remaining_weight: Tensor  # (N,), the part of λ that is not assigned yet
    variance_factor: Tensor  # (N,), Σ_k λ_k² / n_k

    @classmethod
    def of_pilot(cls, values: Tensor) -> "SequentialEstimate":
        """Begin with the values of a pilot, (N, n)."""
        texts, masks = values.shape
        zero = torch.zeros(texts, dtype=torch.float64)
        average = values.mean(1)
        squares = (values - average[:, None]).square().sum(1)
        return cls(torch.full((texts,), masks), average, squares, zero, zero + 1, zero.clone())

    @property
    def variance(self) -> Tensor:
        """Variance of a value, (N,)."""
        return self.squares / (self.count - 1)

    @property
    def std_err(self) -> Tensor:
        return (self.variance * self.variance_factor * widening(self.count)).sqrt()

    def add(self, texts: Tensor, values: Tensor, wanted: Tensor) -> Tensor:
        """Add the values (B,) of a round's masks of these texts (B,), as a part of the masks that
        were wanted (N,). Return the weight of each of the masks, (B,)."""
        zero = torch.zeros_like(self.average)
        deviations = values - self.average[texts]
        counts = torch.bincount(texts, minlength=len(zero))
        sums = zero.index_add(0, texts, deviations)
        squares = zero.index_add(0, texts, deviations.square())
        divisor, total = counts.clamp(min=1), self.count + counts
        shift = sums / divisor  # from the average before to the mean of the round
        self.squares += squares - sums.square() / divisor
        self.squares += shift.square() * self.count * counts / total
        # The last weight is exactly the remaining one.
        weight = self.remaining_weight * (counts / wanted.clamp(min=1))
        self.value += weight * (self.average + shift)
        self.remaining_weight -= weight
        self.variance_factor += weight.square() / divisor
        self.average = self.average + shift * counts / total
        self.count = total
        return (weight / divisor)[texts]

    def planned(self, target: Tensor, max_masks: int) -> Tensor:
        """Return how many masks of each text the next round draws, and how many are wanted in all
        until its target (N,) is reached: (2, N). Both are 0 at the end. A round at most doubles the
        masks of a text: later ones have a better fit."""
        min_masks = (MIN_TEXT_MASKS - self.count).clamp(min=STRATA)
        last = self.count + torch.maximum(self._wanted(target.square()), min_masks)
        moves = (MIN_KURTOSIS - 1) * (1 / self.count - 1 / last)
        growth = widening(last) * (1 + SAFETY * moves.sqrt())
        wanted = torch.maximum(self._wanted(target.square() / growth), min_masks)
        wanted = torch.minimum(wanted, (max_masks - self.count).clamp(min=STRATA))
        wanted = torch.where(self.remaining_weight > 0, -(-wanted // STRATA) * STRATA, 0)
        part = torch.minimum(-(-wanted // (2 * STRATA)) * STRATA, self.count)
        return torch.stack([torch.where(wanted <= LAST * self.count, wanted, part), wanted])

    def _wanted(self, target: Tensor) -> Tensor:
        so_far = self.variance * self.variance_factor
        remaining_variance = torch.maximum(target - so_far, MIN_REMAINING * target)
        masks = self.remaining_weight.square() * self.variance / remaining_variance
        return masks.nan_to_num(0).clamp(max=1e12).ceil().long()


def widening(count: Tensor) -> Tensor:
    """Return the factor of a squared error whose variance is from `count` masks: the variance of
    Student's t, ν / (ν − 2) with ν = 2 (count − 1) / (MIN_KURTOSIS − 1). A text whose variance is
    too small by chance stops early, so few masks also mean a variance that is more often too small
    than too large."""
    return (count - 1) / (count - MIN_KURTOSIS)


@dataclass
class CumulativeScores:
    """Measures the cumulative score of each text of a corpus of N."""

    model: MaskedLm
    masker: Masker
    state: RunState
    groups: Sequence[str]
    """The name of each text's group, (N,). Texts of one group with equally many tokens have the
    same masks, in sets of at most GROUP_TOKENS tokens: as many as the text that needs most."""
    target: float
    max_masks: int
    """Maximum number of masks of a text."""
    is_relative: bool = False
    """True if the target is a fraction of each score."""
    value: Tensor = field(init=False)  # (N,)
    std_err: Tensor = field(init=False)  # (N,)
    masks: Tensor = field(init=False)  # (N,)
    mask_errors: dict[int, MaskErrors] = field(init=False)
    """Errors of the texts that have the masks of others."""
    variances: Tensor = field(init=False)
    """Parts of the texts in the variance of the sum of their scores, (N,): the variance of the sum
    of those with the same masks is divided equally among them."""

    def passes(self, of_text: int) -> int:
        """Return the number of masks of all texts, of which a long one has `of_text`."""
        sizes = self.masker.corpus.sizes
        exact = int((2 ** sizes[sizes <= ENUMERATED] - 1).sum())
        sampled = int((sizes > ENUMERATED).sum())
        return exact + sampled * of_text

    def plan(self) -> MaskPlan:
        """Begin the plan of the masks. Before any was scored, long texts need few."""
        plan = self.state.plan(self.passes(self.max_masks))
        plan.planned = self.passes(MIN_TEXT_MASKS)
        return plan

    def run(self, plan: MaskPlan, seed: int) -> Records[None]:
        """Score all masks of short texts, and rounds of masks of the others."""
        sizes = self.masker.corpus.sizes
        self.value = torch.zeros(len(sizes), dtype=torch.float64)
        self.std_err, self.variances = self.value.clone(), self.value.clone()
        self.mask_errors = {}
        self.masks = torch.zeros_like(sizes)
        for size in range(1, ENUMERATED + 1):
            chosen = (sizes == size).nonzero().flatten()
            if len(chosen):
                yield from self._enumerate(chosen, size)
        chosen = (sizes > ENUMERATED).nonzero().flatten()
        if len(chosen):
            yield from self._sample(chosen, plan, seed)
        plan.planned = int(self.masks.sum())

    def target_of(self, scores: Tensor) -> Tensor:
        """Return the target of each text with a score, (N,)."""
        return (
            self.target * scores.abs() if self.is_relative else torch.full_like(scores, self.target)
        )

    def _enumerate(self, chosen: Tensor, size: int) -> Records[None]:
        """Score all masks of the chosen texts, which have `size` tokens."""
        subsets, sizes = all_masks(size)
        weights = torch.tensor([1 / math.comb(size, int(m)) for m in sizes], dtype=torch.float64)

        def batches() -> Iterator[tuple[MaskedBatch, Tensor]]:
            for part in torch.split(chosen, max(1, CHUNK_TOKENS // (len(sizes) * (size + 2)))):
                yield self._of_subsets(part, subsets, sizes), part

        for scored in score_batches({"model": self.model}, batches(), self.state):
            if scored is None:
                yield None
                continue
            scores = scored.values[0, 0].view(-1, len(sizes))
            self.value[scored.given] = (scores * weights).sum(1)
            self.masks[scored.given] = len(sizes)

    def _of_subsets(self, chosen: Tensor, subsets: Tensor, counts: Tensor) -> MaskedBatch:
        """Mask each chosen text by each subset of its tokens, (Σ counts,) places."""
        first = self.masker.corpus.first_free[chosen]
        free = (first[:, None] + subsets).flatten()
        sequences = chosen.repeat_interleave(len(counts))
        positions = self.masker.corpus.free[free]
        return self.masker.hidden(sequences, counts.repeat(len(chosen)), positions)

    def _sample(self, chosen: Tensor, plan: MaskPlan, seed: int) -> Records[None]:
        """Score the chosen texts, part by part."""
        before = plan.planned - len(chosen) * MIN_TEXT_MASKS
        max_masks = self.max_masks // STRATA * STRATA
        to_come = len(chosen)
        for streams in self._parts(chosen):
            part = torch.tensor([text for stream in streams for text in stream.texts])
            sharing = torch.tensor([len(stream.texts) for stream in streams])
            stream_of = torch.arange(len(streams)).repeat_interleave(sharing)
            to_come -= len(part)
            corpus = self.masker.corpus.subset(part)
            masker = replace(self.masker, corpus=corpus)
            generators = [stream.generator(seed) for stream in streams for _ in stream.texts]
            draws = Draws(self.model, masker, self.state, generators)
            folds = []
            for _ in range(FOLDS):
                folds.append((yield from draws.fold()))
            estimate = SequentialEstimate.of_pilot(cross_fitted(folds))
            target = self.target_of(estimate.average)
            sums = torch.stack([fold.sums() for fold in folds]).sum(0)
            shared: list[tuple[Tensor, Tensor, Tensor]] = []
            while True:
                counts, wanted = max_of_stream(stream_of, estimate.planned(target, max_masks))
                in_part = int((estimate.count + wanted).sum())
                plan.planned = before + in_part + to_come * MIN_TEXT_MASKS
                if not bool(counts.any()):
                    break
                texts, values = yield from draws.values(counts, estimate, sums)
                weights = estimate.add(texts, values, wanted)
                kept = (sharing > 1)[stream_of[texts]]
                shared.append((texts[kept], values[kept], weights[kept]))
            self.value[part], self.std_err[part] = estimate.value, estimate.std_err
            self.masks[part] = estimate.count
            self.variances[part] = estimate.std_err.square()
            by_text = errors_of_masks(estimate, *map(torch.cat, zip(*shared, strict=True)))
            self._keep_shared(part, streams, by_text)
            before += int(estimate.count.sum())

    def _parts(self, chosen: Tensor) -> Iterator[list["MaskStream"]]:
        """Yield the masks of the chosen texts, in parts with about GROUP_TOKENS tokens."""
        texts_of: dict[tuple[str, int], list[int]] = {}
        sizes = self.masker.corpus.sizes[chosen].tolist()
        for text, size in zip(chosen.tolist(), sizes, strict=True):
            texts_of.setdefault((self.groups[text], size), []).append(text)
        part: list[MaskStream] = []
        tokens = 0
        for (group, size), texts in texts_of.items():
            max_texts = max(1, GROUP_TOKENS // size)
            for first in range(0, len(texts), max_texts):
                stream = MaskStream(group, size, first, texts[first : first + max_texts])
                if part and tokens + size * len(stream.texts) > GROUP_TOKENS:
                    yield part
                    part, tokens = [], 0
                part.append(stream)
                tokens += size * len(stream.texts)
        yield part

    def _keep_shared(
        self, part: Tensor, streams: list["MaskStream"], by_text: Sequence[Tensor]
    ) -> None:
        """Keep the errors of the texts of a part that have the masks of others."""
        errors = iter(zip(part.tolist(), by_text, strict=True))
        for stream in streams:
            of_stream = dict(islice(errors, len(stream.texts)))
            if len(of_stream) == 1:
                continue
            total = sum(of_stream.values(), torch.zeros(1))
            self.variances[stream.texts] = total.square().sum() / len(of_stream)
            for text, values in of_stream.items():
                self.mask_errors[text] = MaskErrors(stream.texts[0], values.float().numpy())


@dataclass(frozen=True)
class MaskStream:
    """The masks that texts of one group with equally many tokens have in common."""

    group: str
    size: int
    first: int
    """Number of texts of the group with as many tokens that have other masks and come before."""
    texts: list[int]

    def generator(self, seed: int) -> torch.Generator:
        """Return a generator of the masks of one of the texts."""
        return generator_for(seed, f"masks {self.first} of {self.size} tokens of {self.group}")


def max_of_stream(stream_of: Tensor, values: Tensor) -> Tensor:
    """Return for each text the largest value of the texts of its stream, (2, N) to (2, N)."""
    streams = stream_of.expand_as(values)
    max_values = torch.zeros_like(values).scatter_reduce(1, streams, values, "amax")
    return max_values.gather(1, streams)


def errors_of_masks(
    estimate: SequentialEstimate, texts: Tensor, values: Tensor, weights: Tensor
) -> tuple[Tensor, ...]:
    """Return the error of each text's score (N,), mask by mask, from the values and weights of its
    masks (B,) in the order in which they were drawn. The squares sum to the squared standard
    error."""
    deviations = weights * (values - estimate.average[texts])
    squares = torch.zeros_like(estimate.value).index_add(0, texts, deviations.square())
    scale = torch.where(squares > 0, estimate.std_err / squares.sqrt(), 0)
    order = texts.argsort(stable=True)
    counts = torch.bincount(texts, minlength=len(squares))
    return torch.split((deviations * scale[texts])[order], counts.tolist())


@dataclass(frozen=True)
class Draws:
    """Draws masks on the texts of a corpus, and scores them."""

    model: MaskedLm
    masker: Masker
    state: RunState
    generators: Sequence[torch.Generator]
    """A generator of the masks of each text, (N,)."""

    def fold(self) -> Records[ScoredMasks]:
        """Return a replicate of each text."""
        masks, log_probs = [], []
        for scored in self.scored(torch.full_like(self.masker.corpus.sizes, STRATA), True):
            if scored is None:
                yield None
            elif scored.log_probs is not None:
                masks.append(scored.masks)
                log_probs.append(scored.log_probs)
        return ScoredMasks.of_tokens(joined(masks), torch.cat(log_probs))

    def values(
        self, counts: Tensor, estimate: SequentialEstimate, sums: Tensor
    ) -> Records[tuple[Tensor, Tensor]]:
        """Return the texts and the values of counts[i] masks of each text by a fit to `sums`, (B,)
        each, and add the masks of texts with fewer than FITTED so far to the sums."""
        fit = TokenFit.of(sums, self.masker.corpus)
        is_fitted = estimate.count >= FITTED
        texts, values = [], []
        for of_tokens in (True, False):
            some = torch.where(is_fitted == of_tokens, 0, counts)
            for scored in self.scored(some, of_tokens):
                if scored is None:
                    yield None
                    continue
                texts.append(scored.masks.sequences)
                values.append(fit.values(scored))
                if of_tokens:
                    sums += scored.sums()
        return torch.cat(texts), torch.cat(values)

    def scored(self, counts: Tensor, of_tokens: bool) -> Iterator[ScoredMasks | None]:
        """Yield counts[i] masks of each text, in replicates, text by text, in parts of about
        CHUNK_TOKENS; with log p of each token, or only their sum."""
        batches = ((masks, None) for masks in self._masks(counts))
        models = {"model": self.model}
        for scored in score_batches(models, batches, self.state, of_tokens=of_tokens):
            if scored is None:
                yield None
            elif of_tokens:
                yield ScoredMasks.of_tokens(scored.masks, scored.values[0, 0])
            else:
                yield ScoredMasks(scored.masks, scored.values[0, 0] * scored.masks.counts)

    def _masks(self, counts: Tensor) -> Iterator[MaskedBatch]:
        corpus = self.masker.corpus
        plan = repeated(torch.arange(len(corpus)), counts // STRATA)
        begins = (corpus.lengths[plan] * STRATA).cumsum(0) // CHUNK_TOKENS
        parts = torch.unique_consecutive(begins, return_counts=True)[1].tolist()
        for part in torch.split(plan, parts):
            sequences = part.repeat_interleave(STRATA)
            strata = torch.arange(STRATA).repeat(len(part))
            numbers, keys = self._numbers(part)
            quantiles = (strata + 1 - numbers.double() / 2**KEY_BITS) / STRATA  # in (0, 1]
            sizes = sizes_at(quantiles, corpus.sizes[sequences])
            yield self.masker.with_least_keys(sequences, sizes, keys)

    def _numbers(self, replicates: Tensor) -> tuple[Tensor, Tensor]:
        """Draw a random number for the size of each mask of some replicates, and one for each token
        of it. So the masks of a text do not depend on how many are drawn at a time."""
        texts, counts = torch.unique_consecutive(replicates, return_counts=True)
        sizes = self.masker.corpus.sizes[texts]
        of_masks, of_tokens = [], []
        for text, count, size in zip(*map(Tensor.tolist, (texts, counts, sizes)), strict=True):
            numbers = torch.empty(count * STRATA, 1 + size, dtype=torch.int32)
            numbers.random_(0, 2**KEY_BITS - 1, generator=self.generators[text])
            of_masks.append(numbers[:, 0])
            of_tokens.append(numbers[:, 1:].flatten())
        return torch.cat(of_masks), torch.cat(of_tokens)


def all_masks(size: int) -> tuple[Tensor, Tensor]:
    """Return all nonempty subsets of `size` places, one after another, and the number of places in
    each."""
    hidden = (torch.arange(1, 2**size)[:, None] >> torch.arange(size)) & 1  # (2^D − 1, D)
    return hidden.nonzero()[:, 1], hidden.sum(1)
