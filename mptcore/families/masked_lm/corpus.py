"""Texts as sequences of tokens."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mptcore.data.texts import Rows, texts
from mptcore.families.masked_lm.checkpoints import Tokenizer
from mptcore.protocol.records import RunError
from mptcore.runtime.rng import generator_for
from mptcore.specs import PlainText, TextSource

BATCH = 10_000
"""Number of texts passed to the tokenizer at a time."""


class Sequence(NamedTuple):
    """The tokens of a text."""

    ids: list[int]
    types: list[int]
    maskable: list[bool]
    unknown: list[bool]
    """Tokens that the tokenizer does not know, and those with the name of a special token."""
    cut: bool = False


@dataclass(frozen=True)
class Corpus:
    """N sequences, concatenated. `maskable` excludes special tokens. `left_out` counts the texts
    without a maskable token and the rows without a text, `cut` the truncated texts, `unknown` the
    sequences with unknown tokens."""

    ids: Tensor  # (T,) int32
    types: Tensor  # (T,) int32, which of a pair of texts a token belongs to
    maskable: Tensor  # (T,) bool
    offsets: Tensor  # (N + 1,)
    left_out: int = 0
    cut: int = 0
    unknown: int = 0

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def lengths(self) -> Tensor:
        """Number of tokens of each sequence, including special ones, (N,)."""
        return self.offsets.diff()

    @cached_property
    def sizes(self) -> Tensor:
        """Number of maskable tokens of each sequence, (N,): its D."""
        ends = torch.cat([torch.zeros(1, dtype=torch.long), self.maskable.long().cumsum(0)])
        return ends[self.offsets].diff()

    @cached_property
    def has_pairs(self) -> bool:
        """True if any token belongs to a second text."""
        return bool(self.types.any())

    @cached_property
    def free(self) -> Tensor:
        """Position of each maskable token within its sequence, sequence by sequence, (ΣD,)."""
        positions = self.maskable.nonzero().flatten()
        return positions - repeated(self.offsets[:-1], self.sizes)

    @cached_property
    def index_of(self) -> Tensor:
        """Index of each token among the maskable tokens, (T,); of others that of the one before."""
        return self.maskable.long().cumsum(0) - 1

    @cached_property
    def first_free(self) -> Tensor:
        """Index in `free` at which each sequence begins, (N,)."""
        return self.sizes.cumsum(0) - self.sizes

    def subset(self, sequences: Tensor) -> "Corpus":
        """Return the chosen sequences, in that order."""
        lengths = self.lengths[sequences]
        offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
        tokens = counted_from(self.offsets[sequences], lengths)
        parts = (self.ids[tokens], self.types[tokens], self.maskable[tokens])
        return Corpus(*parts, offsets, self.left_out, self.cut, self.unknown)


def repeated(values: Tensor, counts: Tensor) -> Tensor:
    """Repeat each value counts[i] times: (Σ counts,). Equal to torch's repeat_interleave, in a
    third of its time."""
    return torch.from_numpy(np.repeat(values.numpy(), counts.numpy()))


def counted_from(starts: Tensor, counts: Tensor) -> Tensor:
    """Return counts[i] consecutive numbers from starts[i], for each i: (Σ counts,)."""
    numbers = repeated(starts - counts.cumsum(0) + counts, counts)
    return numbers.add_(torch.arange(len(numbers)))


def read(spec: TextSource, tokenizer: Tokenizer, positions: int) -> Corpus:
    """Read the sequences of a source, truncated to `positions` tokens. Raises RunError."""
    all_rows = texts(spec)
    rows = [all_rows[i] for i in chosen_rows(spec, all_rows)]
    if spec.n is not None and spec.n > len(rows):
        detail = f"the text has {len(rows)} lines that are not empty, fewer than n, {spec.n}"
        raise RunError("invalid", detail)
    length = min(spec.max_length, positions)
    pack = _sentences if spec.packing == "sentences" else _blocks
    sequences = pack(rows, tokenizer, length)
    corpus = of_sequences(sequences)
    if not len(corpus):
        detail = f"none of the {len(sequences)} sequences has a token that can be masked"
        raise RunError("invalid", f"the text gives nothing to score: {detail}")
    empty = 0 if spec.n is not None else len(all_rows) - len(rows)
    return replace(corpus, left_out=corpus.left_out + empty)


def chosen_rows(spec: TextSource, rows: Rows) -> list[int]:
    """Return the indices of the texts that a source chooses. Texts of a row of a table stay
    together; none of them is chosen if one is empty."""
    together = len(spec.text_columns) if isinstance(spec, PlainText) else 1
    groups = [range(first, first + together) for first in range(0, len(rows), together)]
    groups = [group for group in groups if all(all(rows[i]) for i in group)]
    if spec.n is not None and spec.n < together * len(groups):
        order = torch.randperm(len(groups), generator=generator_for(spec.seed, "texts"))
        groups = [groups[i] for i in order[: spec.n // together].sort().values.tolist()]
    return [i for group in groups for i in group]


def of_sequences(sequences: list[Sequence]) -> Corpus:
    """Build a corpus of the sequences with a maskable token."""
    kept = [sequence for sequence in sequences if any(sequence.maskable)]
    offsets = torch.tensor([0] + [len(sequence.ids) for sequence in kept]).cumsum(0)
    ids = torch.tensor([i for sequence in kept for i in sequence.ids], dtype=torch.int32)
    types = torch.tensor([i for sequence in kept for i in sequence.types], dtype=torch.int32)
    maskable = torch.tensor(
        [free for sequence in kept for free in sequence.maskable], dtype=torch.bool
    )
    left_out, cut = len(sequences) - len(kept), sum(sequence.cut for sequence in sequences)
    unknown = sum(any(sequence.unknown) for sequence in kept)
    return Corpus(ids, types, maskable, offsets, left_out, cut, unknown)


def _sentences(rows: Rows, tokenizer: Tokenizer, length: int) -> list[Sequence]:
    """Return a sequence for each text, truncated to `length`."""
    sequences = list(_encoded(rows, tokenizer))
    long = [i for i, sequence in enumerate(sequences) if len(sequence.ids) > length]
    limit = {"truncation": True, "max_length": length}
    for i, sequence in zip(
        long, _encoded([rows[i] for i in long], tokenizer, **limit), strict=True
    ):
        sequences[i] = sequence._replace(cut=True)
    return sequences


def _blocks(rows: Rows, tokenizer: Tokenizer, length: int) -> list[Sequence]:
    """Concatenate all encoded texts, including special tokens, and cut them into blocks, as
    group_texts in transformers' run_mlm does. Unlike there, the shorter last block is kept."""
    ids: list[int] = []
    types: list[int] = []
    maskable: list[bool] = []
    unknown: list[bool] = []
    for sequence in _encoded(rows, tokenizer):
        ids += sequence.ids
        types += sequence.types
        maskable += sequence.maskable
        unknown += sequence.unknown
    cuts = [slice(start, start + length) for start in range(0, len(ids), length)]
    return [Sequence(ids[cut], types[cut], maskable[cut], unknown[cut]) for cut in cuts]


def _encoded(rows: Rows, tokenizer: Tokenizer, **limit: Any) -> Iterator[Sequence]:
    """Yield each text, or pair of texts, with its special tokens."""
    special = special_tokens(tokenizer)
    for first in range(0, len(rows), BATCH):
        columns = [list(column) for column in zip(*rows[first : first + BATCH], strict=True)]
        encoded = tokenizer(*columns, verbose=False, **limit)
        for encoding, types in zip(encoded.encodings, types_of(encoded), strict=True):
            yield sequence_of(encoding, types, special, tokenizer.unk_token_id)


def sequence_of(
    encoding: Any, types: list[int], special: frozenset[int], unknown_id: int | None
) -> Sequence:
    """Return the tokens of an encoded text."""
    ids: list[int] = encoding.ids
    maskable = [i not in special for i in ids]
    is_frame = encoding.special_tokens_mask  # 1 for [CLS], [SEP] etc. around a text
    tokens = zip(ids, maskable, is_frame, strict=True)
    unknown = [i == unknown_id or not (is_free or frame) for i, is_free, frame in tokens]
    return Sequence(ids, types, maskable, unknown)


def types_of(encoded: Any) -> list[list[int]]:
    """Return which of a pair of texts each token belongs to, for each encoded text."""
    if "token_type_ids" in encoded:
        types: list[list[int]] = encoded["token_type_ids"]
        return types
    return [[0] * len(ids) for ids in encoded["input_ids"]]


def special_tokens(tokenizer: Tokenizer) -> frozenset[int]:
    """Return the tokens that are never masked and never counted. The unknown token represents text,
    so it is masked and counted."""
    return frozenset(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
