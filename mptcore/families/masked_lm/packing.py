"""Sequences of different lengths, packed into one row without padding.

Operations on single tokens are applied to the whole row. Only attention separates the sequences. A
GPU has a kernel for sequences of different lengths, for scores in bfloat16. Otherwise sequences of
one length are a batch without a mask, and lengths with few sequences are padded. It is installed
through transformers' attention interface, for every architecture.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
import transformers
from torch import Tensor

from mptcore.families.masked_lm.corpus import counted_from, repeated
from mptcore.families.masked_lm.masks import MaskedBatch
from mptcore.runtime.device import to_device

PACKED = "mpt_packed"
"""Name under which transformers knows `attention`."""
GROUP_TOKENS = {"cpu": 1, "cuda": 4096}
"""Minimum number of tokens in a group. A smaller group also takes shorter sequences until half of
it is padding: on a GPU launching a kernel costs more than computing the padding. On a CPU padding
costs more, so there is none."""


@dataclass(frozen=True)
class Padding:
    """Indices of a group's tokens among its padded entries, as int32."""

    entries: Tensor  # (tokens,), the entry of each token
    tokens: Tensor  # (count · length,), the token in each entry; in padding its sequence's first
    lengths: Tensor  # (count,)


class _Padded(torch.autograd.Function):
    """Tokens (tokens, …) to entries (count · length, …). Both directions only read: a kernel that
    adds to given places would not be deterministic, or sort them first."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, padding: Padding) -> Tensor:
        ctx.padding = padding
        return tokens.index_select(0, padding.tokens)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """The gradient of padding is zero, because no token sees it."""
        return gradient.index_select(0, ctx.padding.entries), None


class _Unpadded(torch.autograd.Function):
    """Entries (count · length, …) to tokens (tokens, …)."""

    @staticmethod
    def forward(ctx: Any, entries: Tensor, padding: Padding) -> Tensor:
        ctx.padding = padding
        return entries.index_select(0, padding.entries)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        padding, count = ctx.padding, len(ctx.padding.lengths)
        at = torch.arange(len(padding.tokens) // count, device=gradient.device)
        absent = (at >= padding.lengths[:, None]).flatten()
        wide = gradient.index_select(0, padding.tokens)
        return wide.masked_fill_(absent.view(-1, *[1] * (wide.ndim - 1)), 0), None


@dataclass(frozen=True)
class AttentionGroup:
    """Consecutive sequences of a row that attention computes together."""

    tokens: slice
    count: int
    length: int
    """Length of the longest sequence."""
    padding: "Padding | None" = None
    """None: all have this length."""

    def padded(self, row: Tensor) -> Tensor:
        """Return the group's part of a row (T, …) as padded sequences: (count, length, …). Padding
        repeats a sequence's first token: its values are finite if those of the sequence are."""
        tokens = row[self.tokens]
        if self.padding is not None:
            tokens = _Padded.apply(tokens, self.padding)  # type: ignore[no-untyped-call]
        return tokens.view(self.count, self.length, *tokens.shape[1:])

    def unpadded(self, sequences: Tensor) -> Tensor:
        """Remove the padding: (count, length, …) to (tokens, …)."""
        flat = sequences.flatten(0, 1)
        if self.padding is None:
            return flat
        tokens: Tensor = _Unpadded.apply(flat, self.padding)  # type: ignore[no-untyped-call]
        return tokens

    @cached_property
    def present(self) -> Tensor | None:
        """Return which entries are tokens, (count, length), or None if there is no padding."""
        if self.padding is None:
            return None
        lengths = self.padding.lengths
        return torch.arange(self.length, device=lengths.device) < lengths[:, None]

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
    groups: Sequence[AttentionGroup]
    longest: int
    ends: Tensor | None  # (B + 1,) int32, where each sequence begins and the last one ends

    @classmethod
    def of(cls, masks: MaskedBatch, device: torch.device, has_ends: bool = False) -> "Row":
        """Build a row of sequences that are sorted by length, the longest first. With `has_ends`
        the kernel for sequences of different lengths computes their attention."""
        corpus, lengths, counts = masks.corpus, masks.lengths, masks.counts
        starts = lengths.cumsum(0) - lengths
        positions = counted_from(torch.zeros_like(starts), lengths)
        indices = repeated(corpus.offsets[masks.sequences], lengths).add_(positions)
        ids = corpus.ids.index_select(0, indices)
        masked = repeated(starts, counts).add_(masks.positions)
        targets = ids.index_select(0, masked)
        if isinstance(masks.seen, int):
            ids.index_fill_(0, masked, masks.seen)
        else:
            ids.index_copy_(0, masked, masks.seen)
        groups = list(_groups(lengths, positions, GROUP_TOKENS[device.type]))
        types = [corpus.types.index_select(0, indices)] if corpus.has_pairs else []
        ends = [torch.cat([starts, starts[-1:] + lengths[-1:]])] if has_ends else []
        paddings = [group.padding for group in groups if group.padding is not None]
        layouts = [
            part
            for padding in paddings
            for part in (padding.entries, padding.tokens, padding.lengths)
        ]
        host = [ids, positions, masked, targets, counts, *types, *ends, *layouts]
        ids, positions, masked, targets, counts, *optional = _copied(host, device)
        remaining = iter(optional)
        types_there = next(remaining) if types else None
        ends_there = next(remaining) if ends else None
        groups = [
            replace(group, padding=Padding(next(remaining), next(remaining), next(remaining)))
            if group.padding is not None
            else group
            for group in groups
        ]
        longest = int(lengths[0])
        inputs = ids, positions, types_there, masked, targets, counts
        return cls(*inputs, groups, longest, ends_there)


def _groups(lengths: Tensor, positions: Tensor, min_tokens: int) -> Iterator[AttentionGroup]:
    """Yield groups of sequences with non-increasing lengths (B,), whose tokens have positions
    (T,)."""
    begin = token = 0
    for count, taken in _cuts(lengths, min_tokens):
        group_lengths, tokens = lengths[begin : begin + count], slice(token, token + taken)
        longest = int(group_lengths[0])
        group = AttentionGroup(tokens, count, longest)
        if count * longest > taken:
            starts = repeated(torch.arange(count) * longest, group_lengths)
            entry_of_token = starts.add_(positions[tokens])
            firsts = group_lengths.cumsum(0) - group_lengths
            token_of_entry = repeated(firsts, torch.full((count,), longest))
            token_of_entry[entry_of_token] = torch.arange(taken)
            padding = Padding(entry_of_token, token_of_entry, group_lengths)
            group = replace(group, padding=padding)
        yield group
        begin, token = begin + count, token + taken


def _cuts(lengths: Tensor, min_tokens: int) -> Iterator[tuple[int, int]]:
    """Yield the number of sequences in each group, and its number of tokens."""
    values, counts = (
        column.tolist() for column in torch.unique_consecutive(lengths, return_counts=True)
    )
    longest, count, taken = values[0], 0, 0
    for length, more in zip(values, counts, strict=True):
        half_padding = (count + more) * longest > 2 * (taken + length * more)
        if count and (taken >= min_tokens or half_padding):
            yield count, taken
            longest, count, taken = length, 0, 0
        count, taken = count + more, taken + length * more
    yield count, taken


def _copied(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Copy integers (…,) to a device as int32, in one copy."""
    sizes = [len(tensor) for tensor in tensors]
    joined = torch.empty(sum(sizes), dtype=torch.int32)
    torch.cat(list(tensors), out=joined)
    return list(torch.split(to_device(joined, device), sizes))


def attention(
    module: Any,
    query: Tensor,  # (1, heads, T, d), and so are key and value
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    *,
    row: Row,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:  # (1, T, heads, d)
    """Attention with the signature that transformers expects. Each sequence of a row attends to
    itself."""
    tokens = [states[0].transpose(0, 1) for states in (query, key, value)]  # (T, heads, d) each
    if row.ends is not None and query.dtype == torch.bfloat16 and not dropout:
        return _of_different_lengths(tokens, row.ends, row.longest, scaling, sliding_window), None
    parts = []
    for group in row.groups:
        q, k, v = (group.padded(states).transpose(1, 2) for states in tokens)
        seen = group.seen(sliding_window, query.device)
        of_group = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, dropout_p=dropout, scale=scaling
        )  # (count, heads, length, d)
        parts.append(group.unpadded(of_group.transpose(1, 2)))
    return torch.cat(parts)[None], None


def _of_different_lengths(
    tokens: Sequence[Tensor],  # queries, keys and values: (T, heads, d) each
    ends: Tensor,
    longest: int,
    scaling: float | None,
    sliding_window: int | None,
) -> Tensor:  # (1, T, heads, d)
    """Attention in one launch, without a gradient. torch.nn.attention.varlen calls the same kernel,
    and its import takes a second."""
    near = -1 if sliding_window is None else sliding_window - 1
    output: Tensor = torch.ops.aten._flash_attention_forward(
        *tokens, ends, ends, longest, longest, 0.0, False, False, scale=scaling,
        window_size_left=near, window_size_right=near,
    )[0]  # fmt: skip
    return output[None]


def has_kernel(device: torch.device, dtype: torch.dtype, config: Any) -> bool:
    """Return whether a GPU has the kernel for attention of sequences of different lengths."""
    if device.type != "cuda" or dtype != torch.bfloat16:
        return False
    width = int(config.hidden_size) // int(config.num_attention_heads)
    return width % 8 == 0 and width <= 256 and torch.cuda.is_bf16_supported(False)


transformers.AttentionInterface.register(PACKED, attention)


def inputs_of(network: Any, row: Row) -> dict[str, Any]:
    """Return a network's keyword arguments for a row."""
    config = network.config
    inputs = {"position_ids": row.positions[None], "row": row}
    if config.model_type == "roberta":
        inputs["position_ids"] = _roberta_positions(row, config.pad_token_id)[None]
    if config.model_type == "esm":
        return inputs | {"inputs_embeds": _esm_embeddings(network.base_model, row)}
    if getattr(config, "type_vocab_size", 0) > 1:
        types = torch.zeros_like(row.ids) if row.types is None else row.types
        inputs["token_type_ids"] = types[None]
    return inputs | {"input_ids": row.ids[None]}


def _roberta_positions(row: Row, padding: int) -> Tensor:  # (T,)
    """Return RoBERTa's positions. They begin after the number of the padding token; a padding token
    that a text contains has that number, and is not counted."""
    is_token = (row.ids != padding).int()
    counts = is_token.cumsum(0)
    starts = torch.arange(len(row.ids), device=row.ids.device) - row.positions
    before = (counts - is_token).index_select(0, starts)
    return padding + is_token * (counts - before)


def _esm_embeddings(base_model: Any, row: Row) -> Tensor:  # (1, T, H)
    """Return ESM's embeddings, which it scales by the masked share of each sequence."""
    parts = []
    for group in row.groups:
        ids, present = group.padded(row.ids), group.present
        if present is not None:  # padding must not count as masked
            ids = ids.where(present, 0)
        parts.append(group.unpadded(base_model.embeddings(ids, attention_mask=present)))
    return torch.cat(parts)[None]
