"""Masked sequences: which tokens are hidden, and what the model then sees."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mptcore.families.masked_lm.corpus import Corpus

CHUNK_TOKENS = 2**20
"""Masks are drawn for so many tokens at a time: enough to fill batches of equal lengths."""
HIDDEN, RANDOM = 0.8, 0.1
"""Of the tokens that BERT's corruption selects: replaced by the mask token, by a random one."""


@dataclass(frozen=True)
class MaskedBatch:
    """B masked sequences, padded to the longest. `targets` holds the tokens as they were, `inputs`
    what the model sees; `next` is one masked position of each whose log probability is asked for by
    itself; `chances` the rates at which each token was drawn by itself, if so."""

    inputs: Tensor  # (B, L)
    targets: Tensor  # (B, L)
    types: Tensor  # (B, L)
    masked: Tensor  # (B, L) bool
    lengths: Tensor  # (B,)
    sizes: Tensor  # (B,), the tokens that could be masked
    next: Tensor | None = None  # (B,)
    chances: Tensor | None = None  # (B,)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def expected(self) -> Tensor:
        """The number of masked tokens of each: expected, where it was left to chance; (B,)."""
        if self.chances is None:
            return self.counts.clamp(min=1)
        return self.chances * self.sizes

    def __getitem__(self, chosen: Tensor) -> "MaskedBatch":
        """Some of them, by their indices (b,), padded to the longest."""
        longest = int(self.lengths[chosen].max())
        padded = (self.inputs, self.targets, self.types, self.masked)
        inputs, targets, types, masked = (tensor[chosen, :longest] for tensor in padded)
        following = None if self.next is None else self.next[chosen]
        chances = None if self.chances is None else self.chances[chosen]
        rest = (self.lengths[chosen], self.sizes[chosen], following, chances)
        return MaskedBatch(inputs, targets, types, masked, *rest)

    @property
    def counts(self) -> Tensor:
        """Masked tokens of each, (B,)."""
        return self.masked.sum(1)


@dataclass(frozen=True)
class Masker:
    """Draws masks on the sequences of a corpus."""

    corpus: Corpus
    mask_id: int
    vocabulary: int
    corruption: str = "mask"

    def at_rates(
        self, sequences: Tensor, rates: Tensor, generator: torch.Generator
    ) -> tuple[MaskedBatch, Tensor]:
        """Masks (B,) sequences at (B,) rates; also the weight of each mask's score in a mean over
        tokens, (B,): its expected or drawn number of masked tokens.

        With the corruption mask, rate × D is rounded to m tokens, up or down at random, so that its
        mean is right. Sizes are drawn with a probability proportional to m times that of such a
        rounding, and count rate × D each: so no sequence goes to waste with m = 0, and the mean
        over masked tokens is estimated as by plain rounding, with less variance. With the
        corruption bert each token is drawn by itself.
        """
        if self.corruption == "bert":
            batch = self._bernoulli(sequences, rates, generator)
            return batch, batch.counts.double()
        expected = rates * self.corpus.sizes[sequences]
        low = (expected + 1e-9).floor()
        up_chance = (expected - low).clamp(min=0) * (low + 1) / expected
        chance = torch.rand(len(sequences), generator=generator, dtype=torch.float64)
        sizes = low + ((chance < up_chance) | (low == 0))
        return self.of_sizes(sequences, sizes.long(), generator), expected

    def of_sizes(self, sequences: Tensor, sizes: Tensor, generator: torch.Generator) -> MaskedBatch:
        """Masks (B,) of these numbers of tokens, uniform over the subsets of that size."""
        ids, types, maskable, lengths = self._rows(sequences)
        keys = torch.rand(ids.shape, generator=generator, dtype=torch.float64)  # (B, L)
        keys.masked_fill_(~maskable, 2.0)
        last = keys.sort(1).values.gather(1, (sizes - 1).clamp(min=0)[:, None])
        masked = (keys <= last) & maskable & (sizes > 0)[:, None]
        return self._hidden(ids, types, masked, lengths, maskable)

    def along_order(self, sequence: int, order: Tensor) -> MaskedBatch:
        """The D masks of one sequence along an order of its maskable tokens (D,): first all are
        hidden, then the order's first is seen, and so on; `next` is the next one to be seen."""
        size = len(order)
        ids, types, maskable, lengths = self._rows(torch.full((size,), sequence))
        place = torch.full((ids.shape[1],), -1)
        places = maskable[0].nonzero().flatten()
        place[places[order]] = torch.arange(size)
        masked = place >= torch.arange(size)[:, None]
        return self._hidden(ids, types, masked, lengths, maskable, places[order])

    def singles(self, sequence: int) -> MaskedBatch:
        """The D masks of one sequence that hide one token each."""
        size = int(self.corpus.sizes[sequence])
        ids, types, maskable, lengths = self._rows(torch.full((size,), sequence))
        places = maskable[0].nonzero().flatten()
        masked = torch.arange(ids.shape[1]) == places[:, None]
        return self._hidden(ids, types, masked, lengths, maskable)

    def _bernoulli(
        self, sequences: Tensor, rates: Tensor, generator: torch.Generator
    ) -> MaskedBatch:
        ids, types, maskable, lengths = self._rows(sequences)
        chance = torch.rand(ids.shape, generator=generator, dtype=torch.float64)
        masked = (chance < rates[:, None]) & maskable
        fate = torch.rand(ids.shape, generator=generator, dtype=torch.float64)
        random = torch.randint(self.vocabulary, ids.shape, generator=generator)
        inputs = torch.where(masked & (fate < HIDDEN + RANDOM), random, ids)
        inputs = torch.where(masked & (fate < HIDDEN), self.mask_id, inputs)
        return MaskedBatch(inputs, ids, types, masked, lengths, maskable.sum(1), chances=rates)

    def _rows(self, sequences: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        lengths = self.corpus.lengths[sequences]
        longest = int(lengths.max())
        ids, types, maskable = self.corpus.rows(sequences, longest)
        return ids, types, maskable, lengths

    def _hidden(
        self,
        ids: Tensor,
        types: Tensor,
        masked: Tensor,
        lengths: Tensor,
        maskable: Tensor,
        following: Tensor | None = None,
    ) -> MaskedBatch:
        inputs = torch.where(masked, self.mask_id, ids)
        return MaskedBatch(inputs, ids, types, masked, lengths, maskable.sum(1), following)


def joined(parts: list[MaskedBatch]) -> MaskedBatch:
    """Batches of different lengths as one, all with `next` or none."""
    longest = max(part.inputs.shape[1] for part in parts)

    def padded(name: str) -> Tensor:
        values = [getattr(part, name) for part in parts]
        wide = [torch.nn.functional.pad(v, (0, longest - v.shape[1])) for v in values]
        return torch.cat(wide)

    following = [part.next for part in parts if part.next is not None]
    return MaskedBatch(
        padded("inputs"),
        padded("targets"),
        padded("types"),
        padded("masked"),
        torch.cat([part.lengths for part in parts]),
        torch.cat([part.sizes for part in parts]),
        torch.cat(following) if following else None,
    )
