"""Texts as sequences of tokens."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mptcore.data.texts import Rows, texts
from mptcore.families.masked_lm.pretrained import Tokenizer
from mptcore.protocol.records import RunError
from mptcore.runtime.rng import generator_for
from mptcore.specs import TextSource

BATCH = 10_000
"""Texts given to the tokenizer at a time."""

_Tokens = tuple[list[int], list[int], list[bool]]
"""Ids, types, maskable."""


@dataclass(frozen=True)
class Corpus:
    """N sequences, one after the other. `maskable` leaves special tokens out; `left_out` counts the
    texts with fewer than two tokens that could be masked."""

    ids: Tensor  # (T,) int64
    types: Tensor  # (T,) int64, which of a pair of texts a token belongs to
    maskable: Tensor  # (T,) bool
    offsets: Tensor  # (N + 1,)
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Tensor:
        """Tokens of each sequence, special ones included, (N,)."""
        return self.offsets.diff()

    @property
    def sizes(self) -> Tensor:
        """D: the tokens of each sequence that can be masked, (N,)."""
        ends = torch.cat([torch.zeros(1, dtype=torch.long), self.maskable.long().cumsum(0)])
        return ends[self.offsets].diff()

    def subset(self, chosen: Tensor) -> "Corpus":
        """The chosen sequences, in that order."""
        lengths = self.lengths[chosen]
        offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
        places = torch.repeat_interleave(self.offsets[chosen] - offsets[:-1], lengths)
        places += torch.arange(int(offsets[-1]))
        parts = (self.ids[places], self.types[places], self.maskable[places])
        return Corpus(*parts, offsets, self.left_out)

    def rows(self, sequences: Tensor, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """Ids, types and maskable of some sequences, (n, length) each, padded at the end."""
        places = self.offsets[sequences][:, None] + torch.arange(length)
        present = torch.arange(length) < self.lengths[sequences][:, None]
        places = places.clamp(max=len(self.ids) - 1)
        ids, types = self.ids[places], self.types[places]
        return ids, types, self.maskable[places] & present


def read(spec: TextSource, tokenizer: Tokenizer, positions: int) -> Corpus:
    """The sequences of a source, of at most `positions` tokens. Raises RunError."""
    rows = texts(spec)
    if spec.n is not None and spec.n < len(rows):
        chosen = torch.randperm(len(rows), generator=generator_for(spec.seed, "texts"))[: spec.n]
        rows = [rows[i] for i in chosen.sort().values.tolist()]
    length = min(spec.max_length, positions)
    pack = _sentences if spec.packing == "sentences" else _blocks
    sequences = pack(rows, tokenizer, length)
    kept = [one for one in sequences if sum(one[2]) >= 2]  # those with two maskable tokens
    if not kept:
        detail = f"none of the {len(sequences)} sequences has two tokens that can be masked"
        raise RunError("invalid", f"the text gives nothing to score: {detail}")
    offsets = torch.tensor([0] + [len(ids) for ids, _, _ in kept]).cumsum(0)
    columns = [torch.tensor([x for one in kept for x in one[i]]) for i in range(3)]
    return Corpus(columns[0], columns[1], columns[2].bool(), offsets, len(sequences) - len(kept))


def _sentences(rows: Rows, tokenizer: Tokenizer, length: int) -> list[_Tokens]:
    special = _special(tokenizer)
    sequences = []
    for first in range(0, len(rows), BATCH):
        columns = [list(column) for column in zip(*rows[first : first + BATCH], strict=True)]
        encoded = tokenizer(*columns, truncation=True, max_length=length)
        for ids, types in zip(encoded["input_ids"], _types(encoded), strict=True):
            sequences.append((ids, types, [i not in special for i in ids]))
    return sequences


def _types(encoded: Any) -> list[list[int]]:
    if "token_type_ids" in encoded:
        types: list[list[int]] = encoded["token_type_ids"]
        return types
    return [[0] * len(ids) for ids in encoded["input_ids"]]


def _blocks(rows: Rows, tokenizer: Tokenizer, length: int) -> list[_Tokens]:
    special = _special(tokenizer)
    begin, end = _frame(tokenizer)
    separator = end[-1:] or begin[:1]
    joined: list[int] = []
    for first in range(0, len(rows), BATCH):
        texts = [" ".join(row) for row in rows[first : first + BATCH]]
        for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]:
            joined += ids + separator
    inner = length - len(begin) - len(end)
    sequences = []
    for start in range(0, len(joined), inner):
        ids = begin + joined[start : start + inner] + end
        sequences.append((ids, [0] * len(ids), [i not in special for i in ids]))
    return sequences


def _frame(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The special tokens that stand before and after a text."""
    framed = tokenizer("a")["input_ids"]
    inner = tokenizer("a", add_special_tokens=False)["input_ids"]
    for start in range(len(framed) - len(inner) + 1):
        if framed[start : start + len(inner)] == inner:
            return framed[:start], framed[start + len(inner) :]
    return [], []


def _special(tokenizer: Tokenizer) -> frozenset[int]:
    """Tokens that are never masked and never counted. The unknown token stands for text."""
    return frozenset(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
