"""A masked language model that scores masked sequences."""

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from mptcore.estimation.model import Model
from mptcore.estimation.scores import cached_scores
from mptcore.families.masked_lm.masked_batch import MaskedBatch
from mptcore.families.masked_lm.pretrained import Network
from mptcore.runtime.out_of_memory import in_halves
from mptcore.runtime.session import ScoreCache, Step, Work

CPU_BYTES = 256 * 2**20
"""Memory for the activations and logits of one batch on a processor."""
GPU_SHARE = 0.3
"""Of the memory of a GPU: of all of it, so that a resumed run cuts the same batches."""
PADDING = 0.1
"""A batch that is far from full takes sequences that are so much shorter than its longest."""


class MaskedLm(Model[MaskedBatch]):
    """A network on its device. The logits are computed at masked positions alone: the base model's
    hidden states are gathered there before the head, which treats every position by itself."""

    def __init__(
        self,
        network: Network,
        device: torch.device,
        dtype: torch.dtype,
        memory_bytes: int | None = None,
    ):
        self.network = network.to(device)
        self.device = device
        self.config = network.config
        self._dtype = dtype
        self._memory = memory_bytes or _memory(device)
        self._masked: Tensor | None = None
        network.base_model.register_forward_hook(self._gather)

    def scores(self, masks: MaskedBatch) -> Tensor:
        """0 for a sequence without a masked token."""
        return self.scores_and_next(masks)[0]

    def scores_and_next(self, masks: MaskedBatch) -> Tensor:
        """The scores, and log p of the `next` token of each, 0 where there is none: (2, B)."""
        values = torch.zeros(2, len(masks), dtype=torch.float64)
        for chosen in self.parts(masks):
            values[:, chosen] = in_halves(self._score, masks[chosen])
        return values

    @torch.inference_mode()
    def _score(self, masks: MaskedBatch) -> Tensor:  # (2, B)
        log_probs = self.log_probs(masks).double().cpu()  # (M,), row by row
        rows, places = masks.masked.nonzero(as_tuple=True)  # (M,) each
        values = torch.zeros(2, len(masks), dtype=torch.float64)
        values[0].index_add_(0, rows, log_probs)
        values[0] /= masks.counts
        if masks.next is not None:
            values[1] = log_probs[places == masks.next[rows]]
        return values

    def log_probs(self, masks: MaskedBatch) -> Tensor:
        """log p(x_j | x_R) of each masked token, row by row, in nats, float32 (M,)."""
        to = self.device
        # Looked up on the CPU, which knows where the masks are: the device would be waited for.
        masked = masks.masked.nonzero().T.to(to)  # (2, M)
        targets = masks.targets[masks.masked].to(to)  # (M,)
        inputs: dict[str, Tensor | None] = {"input_ids": masks.inputs.to(to)}
        if getattr(self.config, "type_vocab_size", 0) > 1:
            inputs["token_type_ids"] = masks.types.to(to)
        length = masks.inputs.shape[1]
        present = torch.arange(length) < masks.lengths[:, None]  # (B, L)
        inputs["attention_mask"] = None if present.all() else present.long().to(to)
        self._masked = masked
        try:
            with self._autocast():
                logits = self.network(**inputs).logits[0]  # (1, M, V) to (M, V)
        finally:
            self._masked = None
        return -torch.nn.functional.cross_entropy(logits.float(), targets, reduction="none")

    def bytes_per_sequence(self, masks: MaskedBatch) -> Tensor:
        """About how much memory each sequence takes in a batch, (B,); what a layer holds is kept
        for the gradient in training."""
        config = self.config
        width = max(config.hidden_size, getattr(config, "intermediate_size", 0) or 0)
        layers = config.num_hidden_layers if self.network.training else 1
        hidden, logits = 8 * int(layers) * int(width), 2 * int(config.vocab_size)
        return 4 * (hidden * masks.lengths + logits * masks.counts)

    def parts(self, masks: MaskedBatch) -> Iterator[Tensor]:
        """Indices of the sequences that are computed together: by length, so that there is nearly
        no padding, and within the memory. Those without a masked token are left out."""
        counts = masks.counts
        order = torch.argsort(masks.lengths, stable=True, descending=True)
        order = order[counts[order] > 0]
        needed: list[float] = self.bytes_per_sequence(masks)[order].tolist()
        lengths = masks.lengths[order].tolist()
        start, taken = 0, 0.0
        for i, (length, size) in enumerate(zip(lengths, needed, strict=True)):
            if i > start and not self._fits(lengths[start], length, taken, size):
                yield order[start:i]
                start, taken = i, 0.0
            taken += size
        if start < len(order):
            yield order[start:]

    def _fits(self, longest: int, length: int, taken: float, size: float) -> bool:
        """Whether one more sequence goes into a batch."""
        if taken + size > self._memory:
            return False
        return length == longest or (length >= (1 - PADDING) * longest and taken < self._memory / 4)

    def _gather(self, module: Any, given: Any, output: Any) -> Any:
        if self._masked is not None:
            rows, places = self._masked
            output.last_hidden_state = output.last_hidden_state[rows, places][None]  # (1, M, H)
        return output

    def _autocast(self) -> Any:
        if self._dtype == torch.bfloat16:
            return torch.autocast(self.device.type, torch.bfloat16)
        return nullcontext()


def _memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(GPU_SHARE * torch.cuda.mem_get_info(device)[1])
    return CPU_BYTES


def score_sequences(
    models: Mapping[str, MaskedLm], masks: MaskedBatch, cache: ScoreCache
) -> Work[Tensor]:
    """The scores of masked sequences by each model, and log p of their `next` tokens: (models, 2,
    B). A step for each part that the first model computes together."""
    values = torch.zeros(len(models), 2, len(masks), dtype=torch.float64)
    in_order = list(models.values())
    empty = int((masks.counts == 0).sum())
    if empty:
        yield Step(masks=empty)
    for chosen in in_order[0].parts(masks):
        part = masks[chosen]
        values[:, :, chosen] = cached_scores(in_order, part, cache, MaskedLm.scores_and_next)
        yield Step(masks=len(chosen))
    return values
