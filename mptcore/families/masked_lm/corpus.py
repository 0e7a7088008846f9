"""Texts as sequences of tokens."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

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

    ids: Tensor  # (T,) int64
    types: Tensor  # (T,) int64, which of a pair of texts a token belongs to
    maskable: Tensor  # (T,) bool
    offsets: Tensor  # (N + 1,)
    left_out: int = 0
    cut: int = 0

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
        return Corpus(*parts, offsets, self.left_out, self.cut)

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
    kept = [one for one in sequences if sum(one.maskable) >= 2]
    if not kept:
        detail = f"none of the {len(sequences)} sequences has two tokens that can be masked"
        raise RunError("invalid", f"the text gives nothing to score: {detail}")
    offsets = torch.tensor([0] + [len(one.ids) for one in kept]).cumsum(0)
    ids = torch.tensor([i for one in kept for i in one.ids])
    types = torch.tensor([i for one in kept for i in one.types])
    maskable = torch.tensor([free for one in kept for free in one.maskable])
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
