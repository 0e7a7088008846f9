"""Metrics that need as many masks of a sequence as it has tokens: random orders and the
pseudo-log-likelihood."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mptcore.estimation.estimate import Estimate
from mptcore.families.masked_lm.estimates import (
    DIFFERENCE,
    Noise,
    Report,
    degrees_of_spread,
    finite_mean,
    per_token,
    root,
    variance_of_variances,
)
from mptcore.families.masked_lm.masks import CHUNK_TOKENS, MaskedBatch, Masker, joined
from mptcore.families.masked_lm.network import ScoredBatch
from mptcore.protocol.records import Record
from mptcore.runtime.state import Records

FEW_ORDERS = "fewer than four orders do not tell how their variance varies"
ONE_SEQUENCE = "one sequence says nothing of the others"

Pass = tuple[int, int]
"""The index of a chosen sequence, and the number of its order."""
Score = Callable[
    [Iterable[tuple[MaskedBatch, list[Pass]]]], Iterator[ScoredBatch[list[Pass]] | None]
]
"""Score batches in order: the scores of masks and log p of their `next` tokens, (models, 2, B)."""


@dataclass(frozen=True)
class SequenceMetrics:
    """Metrics of whole sequences, of some or all of a corpus."""

    report: Report
    masker: Masker
    chosen: Tensor  # (n,), the sequences that are measured
    score: Score

    @property
    def sizes(self) -> Tensor:
        """D of each sequence, (n,)."""
        return self.masker.corpus.sizes[self.chosen]

    def orders(self, count: int, generator: torch.Generator) -> Records[None]:
        """Yield the cumulative score along random orders, and its spread over them."""
        shape = (len(self.report.model_names), count, len(self.chosen))
        cumulative = torch.zeros(shape, dtype=torch.float64)
        chain = torch.zeros(shape, dtype=torch.float64)
        plan = [(i, order) for i in range(len(self.chosen)) for order in range(count)]
        for scored in self._scored(plan, lambda i: self._along_order(i, generator)):
            if scored is None:
                yield None
                continue
            (i, order), values = scored
            cumulative[:, order, i] = values[:, 0].sum(1)
            chain[:, order, i] = values[:, 1].sum(1)
        for model, name in enumerate(self.report.model_names):
            noise = Noise(cumulative[model].var(0) / count, count - 1) if count > 1 else None
            mean = cumulative[model].mean(0)
            for record in self._sequence_metrics("cumulative", name, mean, noise):
                yield record
            if name != DIFFERENCE and count > 1:
                for record in self._spread(name, chain[model]):
                    yield record

    def pll(self) -> Records[None]:
        """Yield the pseudo-log-likelihood: each token given all others."""
        sums = torch.zeros(len(self.report.model_names), len(self.chosen), dtype=torch.float64)
        plan = [(i, 0) for i in range(len(self.chosen))]
        for scored in self._scored(plan, lambda i: self.masker.singles(int(self.chosen[i]))):
            if scored is None:
                yield None
                continue
            (i, _), values = scored
            sums[:, i] = values[:, 0].sum(1)
        exact = Noise(torch.zeros(len(self.chosen), dtype=torch.float64), math.inf)
        for model, name in enumerate(self.report.model_names):
            yield from self._sequence_metrics("pll", name, sums[model], exact)

    def _scored(
        self, plan: list[Pass], masks_of: Callable[[int], MaskedBatch]
    ) -> Iterator[tuple[Pass, Tensor] | None]:
        """Yield each pass of a plan with its D scores (models, 2, D), in order."""
        sizes = self.sizes.tolist()
        batches = ((joined([masks_of(i) for i, _ in group]), group) for group in self._groups(plan))
        for scored in self.score(batches):
            if scored is None:
                yield None
                continue
            lengths = [sizes[i] for i, _ in scored.given]
            yield from zip(scored.given, torch.split(scored.values, lengths, 2), strict=True)

    def _along_order(self, i: int, generator: torch.Generator) -> MaskedBatch:
        order = torch.randperm(int(self.sizes[i]), generator=generator)
        return self.masker.along_order(int(self.chosen[i]), order)

    def _sequence_metrics(
        self, of: str, name: str, values: Tensor, noise: Noise | None
    ) -> Iterator[Record]:
        """Yield a score of whole sequences (n,): its mean, the mean over the population, and the
        score per token."""
        population = len(self.masker.corpus)
        yield self.report.metric(of, name, finite_mean(values, noise, population))
        yield self.report.metric(of, name, Estimate.of(values), "_population")
        token = per_token(values, noise, self.sizes, population)
        yield from self.report.per_token(name, token, of)

    def _spread(self, name: str, chain: Tensor) -> Iterator[Record]:
        """Yield the standard deviation of the chain (R, n) over R orders: the root of the mean
        variance of the sequences."""
        (orders, n), population = chain.shape, len(self.masker.corpus)
        degrees = degrees_of_spread(n, orders, n == population)
        per_token = chain / self.sizes.double()
        spreads = {"any_order_spread": chain, "any_order_spread_per_token": per_token}
        for of, values in spreads.items():
            variances, noise = values.var(0), variance_of_variances(values)
            noise_of_square = None if noise is None else Noise(noise, degrees)
            square = replace(finite_mean(variances, noise_of_square, population), degrees=degrees)
            yield self.report.metric(of, name, root(square), reason=FEW_ORDERS)
            among = replace(Estimate.of(variances), degrees=degrees_of_spread(n, orders, False))
            yield self.report.metric(of, name, root(among), "_population", ONE_SEQUENCE)

    def _groups(self, plan: list[Pass]) -> Iterator[list[Pass]]:
        """Split a plan of (chosen sequence, order), D masks each, into parts of about
        CHUNK_TOKENS."""
        sizes = self.sizes.tolist()
        group: list[Pass] = []
        taken = 0
        for i, order in plan:
            if group and taken + sizes[i] ** 2 > CHUNK_TOKENS:
                yield group
                group, taken = [], 0
            group.append((i, order))
            taken += sizes[i] ** 2
        yield group
