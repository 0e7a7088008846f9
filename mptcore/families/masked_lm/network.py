"""Log probabilities of masked tokens by a masked language model, batch by batch."""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from mptcore.families.masked_lm.checkpoints import Network
from mptcore.families.masked_lm.corpus import repeated
from mptcore.families.masked_lm.masks import MaskedBatch, VariantBatch
from mptcore.families.masked_lm.packing import PACKED, Row, has_kernel, inputs_of
from mptcore.runtime.device import to_device
from mptcore.runtime.out_of_memory import halve_on_oom
from mptcore.runtime.state import RunState, Shape
from mptcore.specs.compute import GPU_SHARE
from mptcore.specs.families.masked_lm import GPU_PART_BYTES

GivenT = TypeVar("GivenT")

CPU_BYTES = {"scores": 64 * 2**20, "training": 256 * 2**20}
"""Memory for the activations and logits of one batch on a CPU. A larger batch exceeds its caches;
activations kept for a gradient exceed them anyway."""

ALIGNED = 8
"""Divisor of the width of the last product."""
LOGITS_AT_ONCE = 2**28
"""Maximum number of logits computed at a time, unless one token has more. This many are a
millisecond of work for a GPU, much longer than it takes to start that work."""
LOGITS_BYTES = 10 * LOGITS_AT_ONCE
"""Memory of these logits in bfloat16, in float32, and of their softmax."""


class MaskedLm:
    """A network on its device. The logits are computed only at masked positions, a limited number
    at a time: the hidden states are gathered there before the head, which treats every position
    independently."""

    def __init__(
        self,
        network: Network,
        device: torch.device,
        dtype: torch.dtype,
        memory_bytes: int | None = None,
        trained: bool = False,
    ):
        """Trained weights stay in float32, for any precision of the computation."""
        self.network = _placed(network, device, torch.float32 if trained else dtype)
        if device.type == "cuda" and not trained:
            _align_vocabulary(self.network)
        self.device = device
        self.config = network.config
        self._autocast_to = dtype if trained and dtype != torch.float32 else None
        self._memory = memory_bytes
        self._fits: int | None = None  # bytes of scores that fit, once some did not
        self._width = len(network.get_output_embeddings().weight)
        """Number of logits of a token."""
        network.set_attn_implementation(PACKED)
        self._head = _head_of(network)

    def scores(self, masks: MaskedBatch) -> Tensor:
        """Return the scores; 0 for a sequence without a masked token."""
        return self.scores_and_next(masks)[0]

    def scores_and_next(self, masks: MaskedBatch) -> Tensor:
        """Return the scores, and log p of the first masked token of each sequence, 0 if there is
        none: (2, B). Of variants, return the scores of their own tokens and of those of the
        sequence. The tensor is on the device, which may still be computing it."""
        values = torch.zeros(2, len(masks), dtype=torch.float64, device=self.device)
        return self._filled(values, masks, self._score, lambda chosen: chosen)

    def token_scores(self, masks: MaskedBatch) -> Tensor:
        """Return log p of each masked token in nats, sequence by sequence, as float32 (1, M). The
        tensor is on the device, which may still be computing it."""
        values = torch.zeros(1, len(masks.positions), device=self.device)
        return self._filled(values, masks, self._score_tokens, masks.entries_of)

    def _filled(
        self,
        values: Tensor,
        masks: MaskedBatch,
        compute: Callable[[MaskedBatch], Tensor],
        columns: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """Compute the masks part by part, and set the columns of their values."""
        parts: list[Tensor] = []
        scores: list[Tensor] = []
        for chosen in self.parts(masks, as_fits=True):
            parts.append(columns(chosen))
            scores.append(halve_on_oom(compute, masks[chosen], self.take_fewer))
        if not parts:
            return values
        return values.index_copy(1, to_device(torch.cat(parts), self.device), torch.cat(scores, 1))

    @torch.inference_mode()
    def _score_tokens(self, masks: MaskedBatch) -> Tensor:  # (1, M)
        return self.log_probs(masks)[None]

    @torch.inference_mode()
    def _score(self, masks: MaskedBatch) -> Tensor:  # (2, B)
        if isinstance(masks, VariantBatch):
            return self._score_variants(masks)
        row = self._row(masks)
        log_probs = self._log_probs(row).double()  # (M,), sequence by sequence
        sums = torch.segment_reduce(log_probs, "sum", lengths=row.counts, unsafe=True)
        first = row.counts.cumsum(0) - row.counts
        return torch.stack([sums / row.counts, log_probs[first]])

    def _score_variants(self, masks: VariantBatch) -> Tensor:
        """Return Σ log p of each variant's own tokens, and of those of the sequence, (2, B)."""
        inputs, of = masks.inputs()
        row = self._row(inputs)
        starts = (inputs.lengths.cumsum(0) - inputs.lengths)[of]
        positions = repeated(starts, masks.counts).add_(masks.positions)  # (M,), in the row
        tokens = repeated(masks.corpus.offsets[masks.sequences], masks.counts).add_(masks.positions)
        targets = torch.stack([masks.targets, masks.corpus.ids[tokens]])  # (2, M)
        masked = to_device(positions.repeat(2).int(), self.device)
        row = replace(row, masked=masked, targets=to_device(targets.flatten(), self.device))
        log_probs = self._log_probs(row).double().view(2, -1)
        counts = to_device(masks.counts, self.device)
        sums = [torch.segment_reduce(row, "sum", lengths=counts) for row in log_probs]
        return torch.stack(sums)

    def log_probs(self, masks: MaskedBatch) -> Tensor:
        """Return log p(x_j | x_R) of each masked token in nats, sequence by sequence, as float32
        (M,). The sequences must be sorted by length, the longest first."""
        return self._log_probs(self._row(masks))

    def _row(self, masks: MaskedBatch) -> Row:
        """Build the row of a batch. The gradient of attention, and its dropout, are computed in
        groups."""
        dtype = self._autocast_to or next(self.network.parameters()).dtype
        has_ends = not torch.is_grad_enabled() and has_kernel(self.device, dtype, self.config)
        return Row.of(masks, self.device, has_ends)

    def _log_probs(self, row: Row) -> Tensor:
        targets = row.targets.long()
        tokens = max(1, LOGITS_AT_ONCE // self._width)
        with self._autocast():
            below = self.network.base_model(**inputs_of(self.network, row))
            masked = below.last_hidden_state.index_select(1, row.masked)  # (1, M, H)
            del below
            parts = zip(torch.split(masked, tokens, 1), torch.split(targets, tokens), strict=True)
            return torch.cat([self._log_probs_of(*part) for part in parts])

    def _log_probs_of(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return log p of the targets (M,) by the hidden states (1, M, H) of their positions."""
        logits = self._head(hidden=hidden).logits[0]  # (M, V)
        return -torch.nn.functional.cross_entropy(logits.float(), targets, reduction="none")

    def bytes_of(self, masks: MaskedBatch) -> tuple[Tensor, Tensor]:
        """Return the approximate memory of each sequence's activations, and of its logits, (B,)
        each. In training, the activations of all layers are kept for the gradient."""
        config = self.config
        width = max(config.hidden_size, getattr(config, "intermediate_size", 0) or 0)
        number = next(self.network.parameters()).element_size()
        layers = config.num_hidden_layers if self.network.training else 1
        logits = 8 if number == 4 and self._autocast_to is None else 10  # bytes, with the softmax's
        hidden = 8 * number * int(layers) * int(width)
        return hidden * masks.lengths, logits * self._width * masks.logits

    def parts(self, masks: MaskedBatch, as_fits: bool = False) -> Iterator[Tensor]:
        """Yield indices of the sequences that are computed together, chosen by length to fit in
        memory. Sequences without a masked token are omitted. With `as_fits` parts are smaller
        after larger ones did not fit into memory. Otherwise parts are always the same, because
        other processes and resumed runs do not know which parts did not fit."""
        order = torch.argsort(masks.lengths, stable=True, descending=True)
        order = order[masks.counts[order] > 0]
        hidden, logits = (needed[order].cumsum(0) for needed in self.bytes_of(masks))
        training = self.network.training
        max_memory = self._memory or _part_bytes(self.device, training)
        at_once = int(logits[-1:].sum()) if training else LOGITS_BYTES  # training keeps them all
        start, before, before_logits = 0, 0, 0
        while start < len(order):
            smaller = self._fits if as_fits and not training else None  # learned so far
            memory = smaller or max_memory
            fit = before + memory
            with_all = torch.searchsorted(hidden + logits, fit + before_logits, right=True)
            in_turn = torch.searchsorted(hidden, fit - at_once, right=True)
            end = max(int(with_all), int(in_turn), start + 1)
            yield order[start:end]
            start, before, before_logits = end, int(hidden[end - 1]), int(logits[end - 1])

    def take_fewer(self, masks: MaskedBatch) -> None:
        """Halve the parts of scores from now on, because these did not fit in memory."""
        hidden, logits = (int(needed.sum()) for needed in self.bytes_of(masks))
        self._fits = (hidden + min(logits, LOGITS_BYTES)) // 2

    def _autocast(self) -> Any:
        if self._autocast_to is None:
            return nullcontext()
        return torch.autocast(self.device.type, self._autocast_to)


def _placed(network: Network, device: torch.device, dtype: torch.dtype) -> Network:
    """Move a network to a device, with its parameters in another number type. Buffers keep theirs:
    the frequencies of rotary positions need float32, as transformers loads them."""
    for parameter in network.parameters():
        parameter.data = parameter.data.to(dtype)
    return network.to(device)


def _align_vocabulary(network: Network) -> None:
    """Add rows to a network's last layer, up to a multiple of ALIGNED, whose probability is zero: a
    product of another width takes a GPU three times as long."""
    last = network.get_output_embeddings()
    missing = -len(last.weight) % ALIGNED
    if missing == 0 or last.bias is None:
        return
    pad = torch.nn.functional.pad
    last.weight = torch.nn.Parameter(pad(last.weight.detach(), (0, 0, 0, missing)))
    last.bias = torch.nn.Parameter(pad(last.bias.detach(), (0, missing), value=-math.inf))


class _Given(torch.nn.Module):
    """Returns the hidden states that it is given, in place of the layers below a head."""

    def forward(self, *_: Any, hidden: Tensor, **__: Any) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=hidden)


def _head_of(network: Network) -> Network:
    """Return a network with the same head, and weights, that takes `hidden` states (1, M, H)."""
    head = copy.copy(network)
    head._modules = {**network._modules, network.base_model_prefix: _Given()}
    return head


def _part_bytes(device: torch.device, training: bool) -> int:
    """Return the default memory for the sequences that are computed together."""
    use = "training" if training else "scores"
    if device.type != "cuda":
        return CPU_BYTES[use]
    return min(GPU_PART_BYTES[use], int(GPU_SHARE * torch.cuda.mem_get_info(device)[1]))


@dataclass
class ScoredBatch(Generic[GivenT]):
    """Masked sequences with their scores by each model, as `scores_and_next` or `token_scores`
    gives them: (models, 2, B) or (models, 1, M). `given` is what the caller needs with them."""

    masks: MaskedBatch
    given: GivenT
    values: Tensor


@dataclass(frozen=True)
class Part(Generic[GivenT]):
    """Sequences of a batch that are computed together."""

    batch: ScoredBatch[GivenT]
    of_tokens: bool
    chosen: Tensor | None  # (b,), indices of the sequences; None: all
    empty: int
    """Number of sequences without a masked token, which are counted before this part."""
    is_last: bool

    def __len__(self) -> int:
        return len(self.batch.masks) if self.chosen is None else len(self.chosen)

    @property
    def masks(self) -> MaskedBatch:
        return self.batch.masks if self.chosen is None else self.batch.masks[self.chosen]

    @property
    def shape(self) -> Shape:
        """Shape of the scores."""
        models, rows, columns = self.batch.values.shape
        if self.chosen is None:
            return models, rows, columns
        tokens = self.batch.masks.counts[self.chosen]
        return models, rows, int(tokens.sum()) if self.of_tokens else len(tokens)

    def set_scores(self, values: Tensor) -> None:
        values = values.double()
        if self.chosen is None:
            self.batch.values = values
            return
        of = self.batch.masks.entries_of(self.chosen) if self.of_tokens else self.chosen
        self.batch.values[:, :, of] = values


def score_batches(
    models: Mapping[str, MaskedLm],
    batches: Iterable[tuple[MaskedBatch, GivenT]],
    state: RunState,
    meanwhile: Callable[[], None] = lambda: None,
    of_tokens: bool = False,
) -> Iterator[ScoredBatch[GivenT] | None]:
    """Score batches in order; with `of_tokens` score each masked token. Yields None for each part
    that the first model computes together, and each batch once all its parts are scored. On a GPU a
    batch is one part: all results are fetched at once, and `meanwhile` is called while it
    computes."""
    in_order = list(models.values())

    def score(model: MaskedLm, masks: MaskedBatch) -> Tensor:
        return model.token_scores(masks) if of_tokens else model.scores_and_next(masks)

    def scored(part: Part[GivenT]) -> Tensor:
        masks = part.masks
        scores = torch.stack([score(model, masks) for model in in_order])
        meanwhile()
        return scores.cpu()

    def parts_of(masks: MaskedBatch, given: GivenT) -> Iterator[Part[GivenT]]:
        rows, columns = (1, len(masks.positions)) if of_tokens else (2, len(masks))
        values = torch.zeros(len(in_order), rows, columns, dtype=torch.float64)
        return _parts(in_order[0], ScoredBatch(masks, given, values), of_tokens)

    parts = (part for batch in batches for part in parts_of(*batch))
    for part, values in state.scored(parts, scored, lambda part: part.shape):
        part.set_scores(values)
        if part.empty:
            state.count(part.empty)
            yield None
        state.count(len(part))
        yield None
        if part.is_last:
            yield part.batch


def _parts(model: MaskedLm, batch: ScoredBatch[GivenT], of_tokens: bool) -> Iterator[Part[GivenT]]:
    masks = batch.masks
    empty = int((masks.counts == 0).sum())
    if model.device.type == "cuda" or empty == len(masks):
        yield Part(batch, of_tokens, None, 0, is_last=True)
        return
    n_remaining = len(masks) - empty
    for chosen in model.parts(masks):
        n_remaining -= len(chosen)
        yield Part(batch, of_tokens, chosen, empty, is_last=not n_remaining)
        empty = 0
