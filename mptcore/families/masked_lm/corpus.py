"""Texts as sequences of tokens."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mptcore.data.texts import Rows, texts
from mptcore.families.masked_lm.pretrained import Tokenizer
from mptcore.protocol.records import RunError
from mptcore.runtime.rng import generator_for
from mptcore.specs import TextSource

BATCH = 10_000
"""Texts given to the tokenizer at a time."""


class _Sequence(NamedTuple):
    ids: list[int]
    types: list[int]
    maskable: list[bool]
    cut: bool = False


@dataclass(frozen=True)
class Corpus:
    """N sequences, one after the other. `maskable` leaves special tokens out; `left_out` counts the
    texts with fewer than two tokens that could be masked, `cut` those that were longer."""

    ids: Tensor  # (T,) int32
    types: Tensor  # (T,) int32, which of a pair of texts a token belongs to
    maskable: Tensor  # (T,) bool
    offsets: Tensor  # (N + 1,)
    left_out: int = 0
    cut: int = 0

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def lengths(self) -> Tensor:
        """Tokens of each sequence, special ones included, (N,)."""
        return self.offsets.diff()

    @cached_property
    def sizes(self) -> Tensor:
        """D: the tokens of each sequence that can be masked, (N,)."""
        ends = torch.cat([torch.zeros(1, dtype=torch.long), self.maskable.long().cumsum(0)])
        return ends[self.offsets].diff()

    @cached_property
    def has_pairs(self) -> bool:
        """Whether any token is of a second text."""
        return bool(self.types.any())

    @cached_property
    def free(self) -> Tensor:
        """Where in its sequence each token is that can be masked, sequence by sequence, (ΣD,)."""
        found = self.maskable.nonzero().flatten()
        return found - repeated(self.offsets[:-1], self.sizes)

    @cached_property
    def first_free(self) -> Tensor:
        """Where in `free` each sequence begins, (N,)."""
        return self.sizes.cumsum(0) - self.sizes

    def subset(self, chosen: Tensor) -> "Corpus":
        """The chosen sequences, in that order."""
        lengths = self.lengths[chosen]
        offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
        places = counted_from(self.offsets[chosen], lengths)
        parts = (self.ids[places], self.types[places], self.maskable[places])
        return Corpus(*parts, offsets, self.left_out, self.cut)


def repeated(values: Tensor, counts: Tensor) -> Tensor:
    """Each value counts[i] times, one after the other: (Σ counts,). As torch's repeat_interleave,
    in a third of its time."""
    return torch.from_numpy(np.repeat(values.numpy(), counts.numpy()))


def counted_from(starts: Tensor, counts: Tensor) -> Tensor:
    """For each i, starts[i] and the numbers that follow it, counts[i] in all: (Σ counts,)."""
    found = repeated(starts - counts.cumsum(0) + counts, counts)
    return found.add_(torch.arange(len(found)))


def read(spec: TextSource, tokenizer: Tokenizer, positions: int) -> Corpus:
    """The sequences of a source, of at most `positions` tokens. Raises RunError."""
    rows = texts(spec)
    if spec.n is not None and spec.n < len(rows):
        chosen = torch.randperm(len(rows), generator=generator_for(spec.seed, "texts"))[: spec.n]
        rows = [rows[i] for i in chosen.sort().values.tolist()]
    length = min(spec.max_length, positions)
    pack = _sentences if spec.packing == "sentences" else _blocks
    sequences = pack(rows, tokenizer, length)
    found = of_sequences(sequences)
    if not len(found):
        detail = f"none of the {len(sequences)} sequences has two tokens that can be masked"
        raise RunError("invalid", f"the text gives nothing to score: {detail}")
    return found


def of_sequences(sequences: list[_Sequence]) -> Corpus:
    """Of those with two tokens or more that can be masked."""
    kept = [one for one in sequences if sum(one.maskable) >= 2]
    offsets = torch.tensor([0] + [len(one.ids) for one in kept]).cumsum(0)
    ids = torch.tensor([i for one in kept for i in one.ids], dtype=torch.int32)
    types = torch.tensor([i for one in kept for i in one.types], dtype=torch.int32)
    maskable = torch.tensor([free for one in kept for free in one.maskable], dtype=torch.bool)
    left_out, cut = len(sequences) - len(kept), sum(one.cut for one in sequences)
    return Corpus(ids, types, maskable, offsets, left_out, cut)


def _sentences(rows: Rows, tokenizer: Tokenizer, length: int) -> list[_Sequence]:
    """A sequence for each text, cut where it is longer."""
    sequences = list(_encoded(rows, tokenizer))
    long = [i for i, one in enumerate(sequences) if len(one.ids) > length]
    limit = {"truncation": True, "max_length": length}
    for i, one in zip(long, _encoded([rows[i] for i in long], tokenizer, **limit), strict=True):
        sequences[i] = one._replace(cut=True)
    return sequences


def _blocks(rows: Rows, tokenizer: Tokenizer, length: int) -> list[_Sequence]:
    """All texts as they are encoded, special tokens included, one after the other and cut into
    blocks, as group_texts of transformers' run_mlm does; but the rest, a shorter block, is kept."""
    ids: list[int] = []
    types: list[int] = []
    maskable: list[bool] = []
    for one in _encoded(rows, tokenizer):
        ids += one.ids
        types += one.types
        maskable += one.maskable
    cuts = [slice(start, start + length) for start in range(0, len(ids), length)]
    return [_Sequence(ids[cut], types[cut], maskable[cut]) for cut in cuts]


def _encoded(rows: Rows, tokenizer: Tokenizer, **limit: Any) -> Iterator[_Sequence]:
    """Each text, or pair, with its special tokens."""
    special = _special(tokenizer)
    for first in range(0, len(rows), BATCH):
        columns = [list(column) for column in zip(*rows[first : first + BATCH], strict=True)]
        encoded = tokenizer(*columns, verbose=False, **limit)
        for ids, types in zip(encoded["input_ids"], _types(encoded), strict=True):
            yield _Sequence(ids, types, [i not in special for i in ids])


def _types(encoded: Any) -> list[list[int]]:
    if "token_type_ids" in encoded:
        types: list[list[int]] = encoded["token_type_ids"]
        return types
    return [[0] * len(ids) for ids in encoded["input_ids"]]


def _special(tokenizer: Tokenizer) -> frozenset[int]:
    """Tokens that are never masked and never counted. The unknown token stands for text."""
    return frozenset(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
