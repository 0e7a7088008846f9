"""The spread over orders and the cumulative score of a language model, where all orders of all
sequences can be enumerated: its conditionals are a table, and come from no joint density."""

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from mptcore.families.masked_lm.corpus import Corpus
from mptcore.families.masked_lm.estimates import Report
from mptcore.families.masked_lm.masks import MaskedBatch, Masker, joined
from mptcore.families.masked_lm.network import ScoredBatch
from mptcore.families.masked_lm.sequences import Pass, SequenceMetrics
from mptcore.protocol.records import Metric

SEEDS = 1000
VOCABULARY, LONGEST = 9, 5
FRAME = 2
"""A token before and one after each sequence, which are never masked."""


def repeated(tokens: Tensor, sizes: Tensor) -> Corpus:
    """Return a corpus whose sequence i is token i, `sizes[i]` times."""
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), (sizes + FRAME).cumsum(0)])
    ids = tokens.repeat_interleave(sizes + FRAME)
    maskable = torch.ones(len(ids), dtype=torch.bool)
    maskable[offsets[:-1]] = maskable[offsets[1:] - 1] = False
    return Corpus(ids, torch.zeros_like(ids), maskable, offsets)


@dataclass(frozen=True)
class Toy:
    """Sequences of one token, 3 to 5 times or as given, under randomly drawn conditionals. Their
    spread depends on the token, so that sequences differ more than orders."""

    corpus: Corpus
    table: Tensor  # (V, L, 2^L), log p by token, place and which places are masked

    @classmethod
    def of(cls, sequences: int, shortest: int = 3, longest: int = LONGEST) -> "Toy":
        generator = torch.Generator().manual_seed(sequences)
        sizes = torch.randint(shortest, longest + 1, (sequences,), generator=generator)
        tokens = torch.randint(VOCABULARY, (sequences,), generator=generator)
        places = longest + FRAME
        shape = (VOCABULARY, places, 2**places)
        scales = torch.linspace(0.2, 2, VOCABULARY, dtype=torch.float64)[:, None, None]
        table = scales * torch.randn(shape, generator=generator, dtype=torch.float64) - 3
        return cls(repeated(tokens, sizes), table)

    @property
    def masker(self) -> Masker:
        return Masker(self.corpus, VOCABULARY, VOCABULARY)

    def score(
        self, batches: Iterable[tuple[MaskedBatch, list[Pass]]]
    ) -> Iterator[ScoredBatch[list[Pass]] | None]:
        """Score batches as a model does."""
        for masks, given in batches:
            yield None
            yield ScoredBatch(masks, given, self.scores(masks))

    def log_probs(self, masks: MaskedBatch) -> Tensor:
        """Return log p of each masked token, (M,)."""
        of = torch.repeat_interleave(torch.arange(len(masks)), masks.counts)  # (M,)
        code = torch.zeros(len(masks), dtype=torch.long).index_add_(0, of, 2**masks.positions)
        starts = masks.corpus.offsets[masks.sequences]
        tokens = masks.corpus.ids[starts[of] + masks.positions]
        return self.table[tokens, masks.positions, code[of]]

    def scores(self, masks: MaskedBatch) -> Tensor:
        """Return the scores in the shape of a model: (1, 2, B)."""
        log_probs = self.log_probs(masks)
        scores = torch.segment_reduce(log_probs, "mean", lengths=masks.counts)
        following = log_probs[masks.counts.cumsum(0) - masks.counts]
        return torch.stack([scores, following])[None]

    def truths(self) -> dict[str, float]:
        """Return the true values for all sequences, from all their orders."""
        parts = [self._of_all_orders(i) for i in range(len(self.corpus))]
        sizes = self.corpus.sizes.double()
        cumulative = torch.stack([scores.mean() for scores, _ in parts])
        variances = torch.stack([chain.var(correction=0) for _, chain in parts])
        return {
            "cumulative": cumulative.mean().item(),
            "any_order_spread": variances.mean().sqrt().item(),
            "any_order_spread_per_token": (variances / sizes**2).mean().sqrt().item(),
        }

    def _of_all_orders(self, sequence: int) -> tuple[Tensor, Tensor]:
        """The cumulative score and the chain rule along every order, (D!,) each."""
        size = int(self.corpus.sizes[sequence])
        orders = [torch.tensor(order) for order in itertools.permutations(range(size))]
        masks = joined([self.masker.along_order(sequence, order) for order in orders])
        (values,) = self.scores(masks).view(1, 2, len(orders), size).sum(-1)
        return values[0], values[1]

    def measured(self, orders: int, chosen: int, seed: int) -> dict[str, Metric]:
        """The metrics of `chosen` of its sequences, by name."""
        generator = torch.Generator().manual_seed(seed)
        which = torch.randperm(len(self.corpus), generator=generator)[:chosen]
        metrics = SequenceMetrics(Report(("model",), {}), self.masker, which, self.score)
        records = metrics.orders(orders, generator)
        return {record.name: record for record in records if isinstance(record, Metric)}


@dataclass(frozen=True)
class Calibration:
    """z = (estimate − truth) / standard error over independent repeats: mean 0 and sd 1."""

    what: str
    z: Tensor  # (repeats,)

    @property
    def sd(self) -> float:
        return self.z.std().item()

    @property
    def mean(self) -> float:
        return self.z.mean().item()

    @property
    def mean_error(self) -> float:
        return self.sd / math.sqrt(len(self.z))

    @property
    def sd_error(self) -> float:
        """Standard error of the standard deviation from the fourth moment; z need not be normal."""
        squares = (self.z - self.z.mean()).square()
        return (squares.std() / math.sqrt(len(self.z))).item() / (2 * self.sd)


CASES = {
    "all 20 sequences, 4 orders": (20, 20, 4),
    "all 20 sequences, 10 orders": (20, 20, 10),
    "40 of 120 sequences, 6 orders": (120, 40, 6),
}


def calibrations(case: str, repeats: int) -> Iterator[Calibration]:
    """Yield a calibration for each figure of a case."""
    sequences, chosen, orders = CASES[case]
    toy = Toy.of(sequences)
    runs = [toy.measured(orders, chosen, seed) for seed in range(repeats)]
    for name, truth in toy.truths().items():
        pairs = [(run[name].value or 0.0, run[name].std_err or 0.0) for run in runs]
        values, errors = torch.tensor(pairs, dtype=torch.float64).unbind(1)
        yield Calibration(name, (values - truth) / errors)


def main() -> None:
    print(f"| language model, {SEEDS} seeds | metric | mean z | sd z |\n|---|---|---|---|")
    for case in CASES:
        for one in calibrations(case, SEEDS):
            mean = f"{one.mean:+.2f} ± {one.mean_error:.2f}"
            print(f"| {case} | {one.what} | {mean} | {one.sd:.2f} ± {one.sd_error:.2f} |")


if __name__ == "__main__":
    main()
