"""Sequences of different lengths, packed into one row without padding.

Operations on single tokens are applied to the whole row. Only attention separates the sequences:
those of one length are a batch without a mask, and lengths with few sequences are padded. It is
installed through transformers' attention interface, for every architecture.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
import transformers
from torch import Tensor

from mptcore.families.masked_lm.corpus import counted_from, repeated
from mptcore.families.masked_lm.masked_batch import MaskedBatch
from mptcore.runtime.device import sent

PACKED = "mpt_packed"
"""Name under which transformers knows `attention`."""
GROUP_TOKENS = {"cpu": 1, "cuda": 4096}
"""Minimum number of tokens in a group. A smaller group also takes shorter sequences until half of
it is padding: on a GPU launching a kernel costs more than computing the padding. On a CPU padding
costs more, so there is none."""


@dataclass(frozen=True)
class Group:
    """Consecutive sequences of a row that attention computes together."""

    tokens: slice
    count: int
    length: int
    """Length of the longest sequence."""
    places: Tensor | None = (
        None  # (tokens,), indices among (count · length); None: all have this length
    )
    lengths: Tensor | None = None  # (count,)

    def padded(self, row: Tensor) -> Tensor:
        """Return the group's part of a row (T, …) as padded sequences: (count, length, …)."""
        own = row[self.tokens]
        if self.places is not None:
            wide = own.new_zeros(self.count * self.length, *own.shape[1:])
            own = wide.index_copy(0, self.places, own)
        return own.view(self.count, self.length, *own.shape[1:])

    def unpadded(self, sequences: Tensor) -> Tensor:
        """Remove the padding: (count, length, …) to (tokens, …)."""
        flat = sequences.flatten(0, 1)
        return flat if self.places is None else flat.index_select(0, self.places)

    @cached_property
    def present(self) -> Tensor | None:
        """Return which entries are tokens, (count, length), or None if there is no padding."""
        if self.lengths is None:
            return None
        return torch.arange(self.length, device=self.lengths.device) < self.lengths[:, None]

    def seen(self, window: int | None, device: torch.device) -> Tensor | None:
        """Return which tokens each token attends to, broadcastable to (count, heads, length,
        length), or None if all. `window` is the number of tokens on each side that are visible,
        including the token itself."""
        present = None if self.present is None else self.present[:, None, None]
        if window is None or window >= self.length:
            return present
        at = torch.arange(self.length, device=device)
        near = (at - at[:, None]).abs() < window
        return near if present is None else near & present


@dataclass(frozen=True)
class Row:
    """B masked sequences on a device, concatenated: T tokens, M of them masked."""

    ids: Tensor  # (T,) int32, as the model sees them
    positions: Tensor  # (T,) int32, from 0 in each sequence
    types: Tensor | None  # (T,) int32; None: all 0
    masked: Tensor  # (M,) int32, where the masked tokens are
    targets: Tensor  # (M,) int32, what they are
    counts: Tensor  # (B,) int32, masked tokens of each sequence
    groups: Sequence[Group]

    @classmethod
    def of(cls, masks: MaskedBatch, device: torch.device) -> "Row":
        """Build a row of sequences that are sorted by length, the longest first."""
        corpus, lengths, counts = masks.corpus, masks.lengths, masks.counts
        starts = lengths.cumsum(0) - lengths
        positions = counted_from(torch.zeros_like(starts), lengths)
        own = repeated(corpus.offsets[masks.sequences], lengths).add_(positions)
        ids = corpus.ids.index_select(0, own)
        masked = repeated(starts, counts).add_(masks.places)
        targets = ids.index_select(0, masked)
        if isinstance(masks.seen, int):
            ids.index_fill_(0, masked, masks.seen)
        else:
            ids.index_copy_(0, masked, masks.seen)
        groups = list(_groups(lengths, positions, GROUP_TOKENS[device.type]))
        types = [corpus.types.index_select(0, own)] if corpus.has_pairs else []
        layouts = [t for one in groups for t in (one.places, one.lengths) if t is not None]
        host = [ids, positions, masked, targets, counts, *types, *layouts]
        ids, positions, masked, targets, counts, *rest = _copied(host, device)
        left = iter(rest)
        types_there = next(left) if types else None
        groups = [
            replace(one, places=next(left).long(), lengths=next(left))
            if one.lengths is not None
            else one
            for one in groups
        ]
        return cls(ids, positions, types_there, masked, targets, counts, groups)


def _groups(lengths: Tensor, positions: Tensor, least: int) -> Iterator[Group]:
    """Yield groups of sequences with non-increasing lengths (B,), whose tokens have positions
    (T,)."""
    begin = token = 0
    for count, taken in _cuts(lengths, least):
        own, tokens = lengths[begin : begin + count], slice(token, token + taken)
        longest = int(own[0])
        group = Group(tokens, count, longest)
        if count * longest > taken:
            places = repeated(torch.arange(count) * longest, own).add_(positions[tokens])
            group = replace(group, places=places, lengths=own)
        yield group
        begin, token = begin + count, token + taken


def _cuts(lengths: Tensor, least: int) -> Iterator[tuple[int, int]]:
    """Yield the number of sequences in each group, and its number of tokens."""
    values, counts = (one.tolist() for one in torch.unique_consecutive(lengths, return_counts=True))
    longest, count, taken = values[0], 0, 0
    for length, more in zip(values, counts, strict=True):
        half_padding = (count + more) * longest > 2 * (taken + length * more)
        if count and (taken >= least or half_padding):
            yield count, taken
            longest, count, taken = length, 0, 0
        count, taken = count + more, taken + length * more
    yield count, taken


def _copied(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Copy integers (…,) to a device as int32, in one copy."""
    sizes = [len(one) for one in tensors]
    whole = torch.empty(sum(sizes), dtype=torch.int32)
    torch.cat(list(tensors), out=whole)
    return list(torch.split(sent(whole, device), sizes))


def attention(
    module: Any,
    query: Tensor,  # (1, heads, T, d), and so are key and value
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    *,
    groups: Sequence[Group],
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:  # (1, T, heads, d)
    """Attention with the signature that transformers expects. Each sequence of a row attends to
    itself."""
    row = [one[0].transpose(0, 1) for one in (query, key, value)]  # (T, heads, d) each
    found = []
    for group in groups:
        q, k, v = (group.padded(one).transpose(1, 2) for one in row)
        seen = group.seen(sliding_window, query.device)
        of_group = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, dropout_p=dropout, scale=scaling
        )  # (count, heads, length, d)
        found.append(group.unpadded(of_group.transpose(1, 2)))
    return torch.cat(found)[None], None


transformers.AttentionInterface.register(PACKED, attention)


def inputs_of(network: Any, row: Row) -> dict[str, Any]:
    """Return a network's keyword arguments for a row."""
    config = network.config
    inputs = {"position_ids": row.positions[None], "groups": row.groups}
    if config.model_type == "roberta":
        inputs["position_ids"] = inputs["position_ids"] + config.pad_token_id + 1
    if config.model_type == "esm":
        return inputs | {"inputs_embeds": _esm_embeddings(network.base_model, row)}
    if getattr(config, "type_vocab_size", 0) > 1:
        types = torch.zeros_like(row.ids) if row.types is None else row.types
        inputs["token_type_ids"] = types[None]
    return inputs | {"input_ids": row.ids[None]}


def _esm_embeddings(base_model: Any, row: Row) -> Tensor:  # (1, T, H)
    """Return ESM's embeddings, which it scales by the masked share of each sequence."""
    found = [
        group.unpadded(base_model.embeddings(group.padded(row.ids), attention_mask=group.present))
        for group in row.groups
    ]
    return torch.cat(found)[None]
