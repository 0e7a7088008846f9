"""A masked language model that scores masked sequences."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mptcore.families.masked_lm.checkpoints import Network
from mptcore.families.masked_lm.masked_batch import Draws
from mptcore.runtime.session import Tape

CPU_BYTES = 256 * 2**20
"""Memory for the activations and logits of one batch on a processor."""
GPU_SHARE = 0.3
"""Of the memory of a GPU: of all of it, so that a resumed run cuts the same batches."""
PADDING = 0.1
"""A batch that is far from full takes sequences that are so much shorter than its longest."""


class MaskedLm:
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

    def log_probs(self, draws: Draws) -> Tensor:
        """log p(x_j | x_R) of each masked token, row by row, in nats, float32 (M,)."""
        to = self.device
        masked = draws.masked.to(to)
        inputs: dict[str, Tensor | None] = {"input_ids": draws.inputs.to(to)}
        if getattr(self.config, "type_vocab_size", 0) > 1:
            inputs["token_type_ids"] = draws.types.to(to)
        length = draws.inputs.shape[1]
        present = torch.arange(length) < draws.lengths[:, None]
        inputs["attention_mask"] = None if present.all() else present.long().to(to)
        self._masked = masked
        try:
            with self._autocast():
                logits = self.network(**inputs).logits[0]
        finally:
            self._masked = None
        targets = draws.targets.to(to)[masked]
        found: Tensor = -torch.nn.functional.cross_entropy(
            logits.float(), targets, reduction="none"
        )
        return found

    def bytes_per_sequence(self, draws: Draws) -> Tensor:
        """About how much memory each sequence takes in a batch, (B,); what a layer holds is kept
        for the gradient in training."""
        config = self.config
        width = max(config.hidden_size, getattr(config, "intermediate_size", 0) or 0)
        layers = config.num_hidden_layers if self.network.training else 1
        hidden, logits = 8 * int(layers) * int(width), 2 * int(config.vocab_size)
        return 4 * (hidden * draws.lengths + logits * draws.counts)

    def batches(self, draws: Draws) -> Iterator[Tensor]:
        """Indices of the sequences that are computed together: by length, so that there is nearly
        no padding, and within the memory. Those without a masked token are left out."""
        counts = draws.counts
        order = torch.argsort(draws.lengths, stable=True, descending=True)
        order = order[counts[order] > 0]
        needed: list[float] = self.bytes_per_sequence(draws)[order].tolist()
        lengths = draws.lengths[order].tolist()
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
            output.last_hidden_state = output.last_hidden_state[self._masked][None]
        return output

    def _autocast(self) -> Any:
        if self._dtype == torch.bfloat16:
            return torch.autocast(self.device.type, torch.bfloat16)
        return nullcontext()


def _memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(GPU_SHARE * torch.cuda.mem_get_info(device)[1])
    return CPU_BYTES


Scoring = Generator[int, None, Tensor]
"""Yields how many masks were scored more, and returns the scores (rows, 2, B)."""


def score(models: Mapping[str, MaskedLm], draws: Draws, tape: Tape) -> Scoring:
    """Scores the draws by each model: the sum of the log probabilities of the masked tokens and,
    where the draws have a `next`, its own. What there is not is 0."""
    values = torch.zeros(len(models), 2, len(draws), dtype=torch.float64)
    every = list(models.values())
    empty = int((draws.counts == 0).sum())
    if empty:
        yield empty
    for chosen in every[0].batches(draws):
        part = draws.part(chosen)
        values[:, :, chosen] = tape.scored(partial(_scored, every, part), len(chosen))
        yield len(chosen)
    return values


def _scored(models: Sequence[MaskedLm], draws: Draws) -> Tensor:
    """(models, 2, B); in two halves where the device has no memory for the whole."""
    try:
        return torch.stack([_sums(model, draws) for model in models])
    except torch.OutOfMemoryError:
        if len(draws) < 2:
            raise
    torch.cuda.empty_cache()
    half = torch.arange(len(draws)).chunk(2)
    return torch.cat(
        [torch.stack([_sums(model, draws.part(h)) for model in models]) for h in half], dim=2
    )


@torch.inference_mode()
def _sums(model: MaskedLm, draws: Draws) -> Tensor:  # (2, B)
    found = model.log_probs(draws).double().cpu()
    rows, places = draws.masked.nonzero(as_tuple=True)
    sums = torch.zeros(2, len(draws), dtype=torch.float64)
    sums[0].index_add_(0, rows, found)
    if draws.next is not None:
        sums[1] = found[places == draws.next[rows]]
    return sums
