"""Masks of tokens: drawn, enumerated, and as the model's input."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from mptcore.families.masked_lm.corpus import Corpus, counted_from, repeated

CHUNK_TOKENS = 2**18
"""Approximate number of tokens for which masks are drawn at a time: enough to fill a large GPU, few
enough for a CPU's cache."""
HIDDEN, RANDOM = 0.8, 0.1
"""Shares of BERT's corruption: of the selected tokens, these become the mask token, or a random
token."""
KEY_BITS = 31
"""Number of bits of the random keys that select the tokens of a mask."""


@dataclass(frozen=True)
class MaskedBatch:
    """B masked sequences of a corpus: the M masked tokens, and the model's input in their place.
    `chances` are the rates at which tokens were selected independently, if they were."""

    corpus: Corpus
    sequences: Tensor  # (B,)
    counts: Tensor  # (B,), masked tokens of each
    positions: Tensor  # (M,), where in its sequence each is, sequence by sequence
    seen: Tensor | int  # (M,) int32, or one token for all of them
    chances: Tensor | None = None  # (B,)

    def __len__(self) -> int:
        return len(self.sequences)

    @cached_property
    def lengths(self) -> Tensor:
        """Number of tokens of each sequence, (B,)."""
        return self.corpus.lengths.index_select(0, self.sequences)

    @cached_property
    def sizes(self) -> Tensor:
        """Number of maskable tokens of each sequence, (B,)."""
        return self.corpus.sizes.index_select(0, self.sequences)

    @property
    def expected(self) -> Tensor:
        """Number of masked tokens of each sequence, or its expectation if it is random, (B,)."""
        if self.chances is None:
            return self.counts.clamp(min=1)
        return self.chances * self.sizes

    @property
    def logits(self) -> Tensor:
        """Number of tokens of each sequence whose logits are computed, (B,)."""
        return self.counts

    @property
    def tokens(self) -> Tensor:
        """Index of each masked token among all maskable tokens of the corpus, (M,)."""
        starts = repeated(self.corpus.offsets[self.sequences], self.counts)
        return self.corpus.index_of[starts + self.positions]

    def entries_of(self, chosen: Tensor) -> Tensor:
        """Return the indices of the masked tokens of the masks with the given indices (b,)."""
        counts = self.counts[chosen]
        return counted_from((self.counts.cumsum(0) - self.counts)[chosen], counts)

    def __getitem__(self, chosen: Tensor) -> "MaskedBatch":
        """Return the masks with the given indices (b,)."""
        counts, of_chosen = self.counts[chosen], self.entries_of(chosen)
        positions = self.positions.index_select(0, of_chosen)
        seen = self.seen
        if isinstance(seen, Tensor):
            seen = seen.index_select(0, of_chosen)
        chances = None if self.chances is None else self.chances[chosen]
        return MaskedBatch(self.corpus, self.sequences[chosen], counts, positions, seen, chances)


@dataclass(frozen=True, kw_only=True)
class VariantBatch(MaskedBatch):
    """B variants of one sequence that differ in M tokens. Consecutive variants of the same context
    have the same model input: it is computed once for all of them."""

    targets: Tensor  # (M,), the tokens that the variants have in these positions
    contexts: Tensor  # (B,)
    masked: bool
    """True if the positions are masked in the input, false if the input is the sequence itself."""

    @cached_property
    def lengths(self) -> Tensor:
        """Number of tokens of the input divided among the variants of its context, (B,)."""
        _, of, counts = torch.unique(self.contexts, return_inverse=True, return_counts=True)
        tokens = self.corpus.lengths.index_select(0, self.sequences)
        shares: Tensor = (tokens / counts[of]).ceil().long()
        return shares

    @property
    def logits(self) -> Tensor:
        """Number of computed logits, (B,): those of a variant's token and of the sequence's."""
        return 2 * self.counts

    def __getitem__(self, chosen: Tensor) -> "VariantBatch":
        """Return the variants with the given indices (b,)."""
        counts, of_chosen = self.counts[chosen], self.entries_of(chosen)
        return replace(
            self,
            sequences=self.sequences[chosen],
            counts=counts,
            positions=self.positions.index_select(0, of_chosen),
            targets=self.targets.index_select(0, of_chosen),
            contexts=self.contexts[chosen],
        )

    def inputs(self) -> tuple[MaskedBatch, Tensor]:
        """Return the C different inputs, and the place of each variant's input among them, (B,)."""
        _, of, counts = torch.unique_consecutive(
            self.contexts, return_inverse=True, return_counts=True
        )
        firsts = self[counts.cumsum(0) - counts]
        inputs = MaskedBatch(
            self.corpus, firsts.sequences, firsts.counts, firsts.positions, self.seen
        )
        if not self.masked:
            none = torch.zeros_like(firsts.counts)
            inputs = replace(inputs, counts=none, positions=firsts.positions[:0])
        return inputs, of


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
        """Draw masks (B,) of sequences (B,) at rates (B,). Also return the weight of each mask's
        score in a mean over tokens, (B,): its expected or drawn number of masked tokens.

        With the corruption mask, rate × D is rounded to m tokens, up or down. Random rounding with
        the mean rate × D would often give m = 0 for short sequences. So m is drawn with that
        probability times m, divided by rate × D, and each mask has the weight rate × D. The
        expected sums over masked tokens are those of the random rounding, with less variance.

        With the corruption bert each token is drawn by itself."""
        if self.corruption == "bert":
            batch = self._bernoulli(sequences, rates, generator)
            return batch, batch.counts.double()
        expected = rates * self.corpus.sizes[sequences]
        low, up_chance = _rounding(expected)
        chance = torch.rand(len(sequences), generator=generator, dtype=torch.float64)
        sizes = low + (chance < up_chance)
        return self.of_sizes(sequences, sizes.long(), generator), expected

    def visible_chance(self, rate: float) -> Tensor:
        """Return the chance that a mask at a rate leaves a token of a sequence visible, (N,). With
        the corruption bert it is 1: hidden tokens are replaced at random."""
        sizes = self.corpus.sizes.double()
        if self.corruption == "bert":
            return torch.ones_like(sizes)
        low, up_chance = _rounding(rate * sizes)
        return torch.where(low == sizes, 0, torch.where(low == sizes - 1, 1 - up_chance, 1))

    def of_sizes(
        self, sequences: Tensor, counts: Tensor, generator: torch.Generator
    ) -> MaskedBatch:
        """Draw masks (B,) of these numbers of tokens, uniform over the subsets of that size."""
        sizes = self.corpus.sizes[sequences]
        position_bits = int(sizes.max()).bit_length()
        key_bits = min(KEY_BITS, 63 - position_bits - len(sequences).bit_length())
        keys = torch.empty(int(sizes.sum()), dtype=torch.int32)
        keys.random_(0, 2**key_bits - 1, generator=generator)
        return self.with_least_keys(sequences, counts, keys, key_bits)

    def with_least_keys(
        self, sequences: Tensor, counts: Tensor, keys: Tensor, key_bits: int = KEY_BITS
    ) -> MaskedBatch:
        """Mask the counts[i] tokens of each sequence (B,) with the smallest keys. `keys` has a key
        of `key_bits` bits for each maskable token of the first sequence, then those of the second,
        and so on.

        Each maskable token gets a number, made of its sequence, its key, and its position among the
        sequence's maskable tokens. After sorting, the tokens of a sequence are adjacent and in the
        order of their keys. Its mask is the first of them."""
        sizes = self.corpus.sizes[sequences]
        position_bits = int(sizes.max()).bit_length()
        assert key_bits + position_bits + len(sequences).bit_length() <= 63
        numbers = counted_from(torch.arange(len(sequences)) << (key_bits + position_bits), sizes)
        numbers.add_(keys, alpha=2**position_bits)
        numbers.numpy().sort()  # torch's takes six times as long
        hidden = numbers.index_select(0, counted_from(sizes.cumsum(0) - sizes, counts))
        hidden.bitwise_and_(2**position_bits - 1)
        hidden += repeated(self.corpus.first_free[sequences], counts)
        return self.hidden(sequences, counts, self.corpus.free.index_select(0, hidden))

    def along_order(self, sequence: int, order: Tensor) -> MaskedBatch:
        """Return the D masks of one sequence along an order of its maskable tokens (D,): first all
        are hidden, then the first of the order is visible, and so on. The first masked token of
        each mask is the next one to become visible."""
        rank = torch.arange(len(order))
        counts = len(order) - rank
        positions = self.corpus.free[self.corpus.first_free[sequence] + order]
        hidden = positions[counted_from(rank, counts)]
        return self.hidden(torch.full_like(rank, sequence), counts, hidden)

    def singles(self, sequence: int) -> MaskedBatch:
        """Return the D masks of one sequence that hide one token each."""
        start, size = self.corpus.first_free[sequence], int(self.corpus.sizes[sequence])
        positions = self.corpus.free[start : start + size]
        of = torch.full((size,), sequence)
        return self.hidden(of, torch.ones_like(of), positions)

    def _bernoulli(
        self, sequences: Tensor, rates: Tensor, generator: torch.Generator
    ) -> MaskedBatch:
        sizes = self.corpus.sizes[sequences]
        chance = torch.rand(int(sizes.sum()), generator=generator, dtype=torch.float64)
        masked = chance < repeated(rates, sizes)  # (ΣD,)
        ends = torch.nn.functional.pad(masked.cumsum(0), (1, 0))[sizes.cumsum(0)]
        counts = ends.diff(prepend=ends.new_zeros(1))
        free = counted_from(self.corpus.first_free[sequences], sizes)
        positions = self.corpus.free[free[masked]]
        tokens = repeated(self.corpus.offsets[sequences], counts) + positions
        fate = torch.rand(len(positions), generator=generator, dtype=torch.float64)
        random = torch.randint(
            self.vocabulary, (len(positions),), generator=generator, dtype=torch.int32
        )
        seen = torch.where(fate < HIDDEN + RANDOM, random, self.corpus.ids[tokens])
        seen.masked_fill_(fate < HIDDEN, self.mask_id)
        return MaskedBatch(self.corpus, sequences, counts, positions, seen, rates)

    def hidden(self, sequences: Tensor, counts: Tensor, positions: Tensor) -> MaskedBatch:
        """Return the masks of sequences (B,). `positions` has the counts[0] positions of the first
        sequence, then the counts[1] of the second, and so on."""
        return MaskedBatch(self.corpus, sequences, counts, positions, self.mask_id)


def _rounding(expected: Tensor) -> tuple[Tensor, Tensor]:
    """Return numbers of tokens (B,) rounded down, and the chance to mask one more."""
    low = (expected + 1e-9).floor()
    up_chance = (expected - low).clamp(min=0) * (low + 1) / expected
    return low, torch.where(low == 0, 1, up_chance)


def joined(parts: list[MaskedBatch]) -> MaskedBatch:
    """Join masks of one corpus that have exact numbers of tokens."""
    sequences = torch.cat([part.sequences for part in parts])
    counts = torch.cat([part.counts for part in parts])
    positions = torch.cat([part.positions for part in parts])
    return MaskedBatch(parts[0].corpus, sequences, counts, positions, parts[0].seen)
