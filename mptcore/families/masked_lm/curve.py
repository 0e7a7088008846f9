"""The score of a corpus as a function of the masking rate: rate by rate, or until the area below it
has a target error; with the metrics of whole sequences."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mptcore.estimation.allocation import (
    Draw,
    StratifiedSample,
    sample_to_target,
    target_records,
)
from mptcore.estimation.estimate import Estimate
from mptcore.estimation.prefetch import Prefetch
from mptcore.families.masked_lm.corpus import Corpus
from mptcore.families.masked_lm.estimates import (
    DIFFERENCE,
    FAR_APART,
    Area,
    RateScores,
    Report,
    cell_widths,
    mean_so_far,
)
from mptcore.families.masked_lm.masks import CHUNK_TOKENS, MaskedBatch, Masker
from mptcore.families.masked_lm.network import GivenT, MaskedLm, ScoredBatch, score_batches
from mptcore.families.masked_lm.sequences import SequenceMetrics
from mptcore.protocol.records import Labels, Record, RunError
from mptcore.runtime.state import Records, RunState
from mptcore.specs import MaskedLmEvaluate
from mptcore.specs.evaluate import pilot_masks
from mptcore.specs.families.masked_lm import CUMULATIVE_STRATA

PIECES = 10
"""Number of pieces in which a long curve is scored. An interim estimate follows each piece."""
PIECE_TOKENS = 2**17
"""Minimum number of tokens in a piece, so that its batches are full."""
MasksOf = Callable[[Tensor, Tensor, torch.Generator], tuple[MaskedBatch, Tensor]]
"""Draw masks of the strata (B,) for sequences (B,), and return them with the weight of each score.
"""


@dataclass(frozen=True)
class CorpusEvaluation:
    """Scores a corpus by models with the same masks: the model and, if there is one, the
    baseline."""

    spec: MaskedLmEvaluate
    models: Mapping[str, MaskedLm]
    masker: Masker
    labels: Labels
    state: RunState

    @property
    def corpus(self) -> Corpus:
        return self.masker.corpus

    @property
    def report(self) -> Report:
        return Report(tuple(self.models), self.labels)

    def records(self, generator: torch.Generator) -> Records[None]:
        """Score masks drawn from the generator, and yield the scores and the metrics derived from
        them."""
        spec = self.spec
        if spec.target_std_err is None:
            yield from self._score_rates(generator)
        else:
            yield from self._score_to_target(generator, spec.target_std_err)
        if not (spec.orders or spec.pll):
            return
        chosen = self._chosen(generator)
        sequences = SequenceMetrics(self.report, self.masker, chosen, self._scored)
        if spec.orders:
            yield from sequences.orders(spec.orders, generator)
        if spec.pll:
            yield from sequences.pll()

    def _chosen(self, generator: torch.Generator) -> Tensor:
        """Choose the sequences that are measured as a whole, (n,)."""
        n, max_sequences = len(self.corpus), self.spec.sequences
        if max_sequences is None or max_sequences >= n:
            return torch.arange(n)
        return torch.randperm(n, generator=generator)[:max_sequences].sort().values

    def _scored(
        self,
        batches: Iterable[tuple[MaskedBatch, GivenT]],
        meanwhile: Callable[[], None] = lambda: None,
    ) -> Iterator[ScoredBatch[GivenT] | None]:
        """Score batches in order, and add the row of the difference: values (model_names, 2, B)."""
        for scored in score_batches(self.models, batches, self.state, meanwhile):
            if isinstance(scored, ScoredBatch) and len(self.models) > 1:
                scored.values = torch.cat([scored.values, scored.values[:1] - scored.values[1:2]])
            yield scored

    def _score_rates(self, generator: torch.Generator) -> Records[None]:
        """Score all sequences at all rates, and yield the records of each rate as soon as it is
        scored."""
        spec, n, models = self.spec.masks, len(self.corpus), len(self.report.model_names)
        per_rate = spec.per_size * n
        rates = torch.tensor(spec.rates, dtype=torch.float64)
        curve = RateCurve(self.report, spec.rates, n, self.spec.dimensions)
        plan = torch.arange(len(rates) * per_rate)  # rate by rate, mask by mask, all sequences
        sums = torch.zeros(models, 0, dtype=torch.float64)
        weights = torch.zeros(0, dtype=torch.float64)
        remaining_rates = list(spec.rates)
        pieces = Prefetch(self._pieces(plan, rates[plan // per_rate], generator))
        for scored in self._scored(pieces, pieces.draw):
            if scored is None:
                yield None
                continue
            weight = scored.given
            sums = torch.cat([sums, scored.values[:, 0] * weight], 1)
            weights = torch.cat([weights, weight])
            while len(weights) >= per_rate:
                of_rate = sums[:, :per_rate].reshape(models, spec.per_size, n)
                weight_of_rate = weights[:per_rate].reshape(spec.per_size, n)
                rate = remaining_rates.pop(0)
                visible = self.masker.visible_chance(rate)
                yield from curve.add(RateScores(rate, of_rate, weight_of_rate, visible))
                sums, weights = sums[:, per_rate:], weights[per_rate:]
            if weights.sum() > 0:
                scores = mean_so_far(sums, weights, n)
                yield from self.report.interim_points(remaining_rates[0], len(weights), scores)
        yield from curve.end()

    def _pieces(
        self, plan: Tensor, rates: Tensor, generator: torch.Generator
    ) -> Iterator[tuple[MaskedBatch, Tensor]]:
        """Yield the masks of a plan and their weights in about ten pieces. The boundaries, and the
        interim records there, depend only on the text and the plan."""
        longest, n = int(self.corpus.lengths.max()), len(self.corpus)
        piece = max(1, math.ceil(len(plan) / PIECES), PIECE_TOKENS // longest)
        for indices in self._chunks(plan % n):
            masks, weights = self.masker.at_rates(plan[indices] % n, rates[indices], generator)
            if len(indices) <= piece:
                yield masks, weights
                continue
            for part in torch.split(torch.arange(len(indices)), piece):
                yield masks[part], weights[part]

    def _chunks(self, sequences: Tensor) -> Sequence[Tensor]:
        """Split the positions of sequences (B,) into chunks of about CHUNK_TOKENS."""
        tokens = self.corpus.lengths.index_select(0, sequences).cumsum(0)
        begins = torch.searchsorted(tokens, torch.arange(1, int(tokens[-1]) + 1, CHUNK_TOKENS))
        return torch.tensor_split(torch.arange(len(sequences)), torch.unique(begins)[1:])

    def _score_to_target(self, generator: torch.Generator, target: float) -> Records[None]:
        """Score masks until the area has the target standard error. The strata are the rates, or
        equal parts of the sizes from 1 to D."""
        spec, names = self.spec, self.report.model_names
        row = names.index(DIFFERENCE) if spec.target == "difference" else 0
        if spec.target == "cumulative":
            widths = torch.full((CUMULATIVE_STRATA,), 1 / CUMULATIVE_STRATA, dtype=torch.float64)
            scale, draw = self._mean_size, self._draw(generator, self._of_sizes)
        else:
            widths = torch.tensor(cell_widths(spec.masks.rates), dtype=torch.float64)
            scale, draw = spec.dimensions, self._draw(generator, self._at_rates)
        pilot = pilot_masks(len(widths), spec.max_masks)
        sample = yield from sample_to_target(
            draw,
            self.state.plan(spec.max_masks),
            widths,
            target / scale,
            pilot,
            row,
            interim=self._interim,
        )
        for record in self._sample_records(sample):
            yield record
        total = sample.total_estimates()[row].scaled(scale)
        for record in target_records(total, sample.masks, target, self.labels):
            yield record

    def _interim(self, sample: StratifiedSample) -> Iterator[Record]:
        """Yield interim points after a round of masks, if the strata are rates."""
        if self.spec.target == "cumulative":
            return
        for rate, scores in zip(self.spec.masks.rates, sample.estimates_so_far(), strict=True):
            yield from self.report.interim_points(rate, sample.masks, scores)

    @property
    def _mean_size(self) -> float:
        return self.corpus.sizes.double().mean().item()

    def _draw(self, generator: torch.Generator, masks_of: MasksOf) -> Draw:
        """Return a function that scores masks of each stratum. It draws sequences with a
        probability proportional to their length, so that the mean log probability estimates that of
        a token. No stratum is enumerated."""
        sizes = self.corpus.sizes.double()

        def batches_of(strata: Tensor) -> Iterator[tuple[MaskedBatch, Tensor]]:
            sequences = torch.multinomial(sizes, len(strata), True, generator=generator)
            for part in self._chunks(sequences):
                yield masks_of(strata[part], sequences[part], generator)

        def draw(counts: Tensor, _: Tensor) -> Records[Tensor]:
            plan = torch.repeat_interleave(torch.arange(len(counts)), counts)
            means = [torch.zeros(len(self.report.model_names), 0, dtype=torch.float64)]
            batches = Prefetch(batches_of(plan))
            for scored in self._scored(batches, batches.draw):
                if scored is None:
                    yield None
                else:
                    means.append(scored.values[:, 0] * scored.given)
            return torch.cat(means, 1)

        return draw

    def _at_rates(
        self, indices: Tensor, sequences: Tensor, generator: torch.Generator
    ) -> tuple[MaskedBatch, Tensor]:
        """Mask sequences (B,) at the rates with the given indices (B,), and return their
        weights."""
        rates = torch.tensor(self.spec.masks.rates, dtype=torch.float64)[indices]
        masks, weights = self.masker.at_rates(sequences, rates, generator)
        return masks, weights / (rates * self.corpus.sizes[sequences])

    def _of_sizes(
        self, strata: Tensor, sequences: Tensor, generator: torch.Generator
    ) -> tuple[MaskedBatch, Tensor]:
        """Mask sequences (B,) with sizes that are uniform from 1 to D over all parts. Part k of K
        (B,) covers the rates from k / K to (k + 1) / K."""
        within = torch.rand(len(strata), generator=generator, dtype=torch.float64)
        rates = (strata + 1 - within) / CUMULATIVE_STRATA  # above 0, at most 1
        sizes = (rates * self.corpus.sizes[sequences]).ceil().long()
        return self.masker.of_sizes(sequences, sizes, generator), torch.ones_like(rates)

    def _sample_records(self, sample: StratifiedSample) -> Iterator[Record]:
        rates, report = self.spec.masks.rates, self.report
        totals = sample.total_estimates()
        if self.spec.target == "cumulative":
            for name, total in zip(report.model_names, totals, strict=True):
                yield report.metric("cumulative", name, total.scaled(self._mean_size))
                yield from report.per_token(name, total, "cumulative")
            return
        for rate, estimates in zip(rates, sample.estimates(), strict=True):
            for name, estimate in zip(report.model_names, estimates, strict=True):
                yield report.point(name, rate, estimate)
        for name, area in zip(report.model_names, totals, strict=True):
            unknown = replace(area, std_err=None)
            width, tokens = sum(cell_widths(rates)), self.spec.dimensions
            yield from report.area(name, area, width, tokens, unknown)


class RateCurve:
    """Collects the scores rate by rate. The error at a rate uses its neighbours on both sides, so
    its points are emitted after the next rate was added."""

    def __init__(self, report: Report, rates: Sequence[float], sequences: int, tokens: int):
        self.report, self.tokens = report, tokens
        self._widths = cell_widths(rates)
        self._area = Area(len(report.model_names), sequences)
        self._held: list[RateScores] = []  # the last rates, three at most
        self._next_index = 0  # of the rate whose points come next

    def add(self, scores: RateScores) -> Iterator[Record]:
        """Add the scores of the next rate, and yield the records that are now complete."""
        if scores.total == 0:
            detail = f"at the rate {scores.rate} no token was drawn: raise per_size or n"
            raise RunError("invalid", f"the text is too short for its masks: {detail}")
        self._held = [*self._held[-2:], scores]
        if len(self._held) > 1:
            *before, ready, after = self._held
            yield from self._emit(ready, [*before, after])

    def end(self) -> Iterator[Record]:
        """Yield the remaining records after all rates."""
        *before, last = self._held
        yield from self._emit(last, before[-1:])
        for model, name in enumerate(self.report.model_names):
            area, population = self._area.estimate(model), self._area.population(model)
            width = sum(self._widths)
            yield from self.report.area(name, area, width, self.tokens, population, FAR_APART)

    def _emit(self, scores: RateScores, neighbours: list[RateScores]) -> Iterator[Record]:
        variance = scores.variance(neighbours)
        self._area.add(scores, variance, self._widths[self._next_index])
        self._next_index += 1
        for model, name in enumerate(self.report.model_names):
            mean = scores.means()[model].item()
            if variance is None:
                estimate = Estimate(mean, None, scores.n)
            else:
                estimate = variance.estimate(mean, scores.n, model)
            yield self.report.point(name, scores.rate, estimate, FAR_APART)


def total_masks(spec: MaskedLmEvaluate, corpus: Corpus) -> int:
    """Return the maximum number of masks scored for one curve and its metrics."""
    curve = len(spec.masks.rates) * spec.masks.per_size * len(corpus)
    if spec.target_std_err is not None:
        curve = spec.max_masks
    sizes = corpus.sizes.double()
    share = 1.0 if spec.sequences is None else min(1.0, spec.sequences / len(corpus))
    return curve + int((spec.orders + spec.pll) * share * sizes.sum().item())
