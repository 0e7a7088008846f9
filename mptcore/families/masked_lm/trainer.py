"""Train a masked language model."""

import math
from collections.abc import Mapping
from typing import Any, assert_never

import torch
from torch import Tensor

from mptcore.estimation.estimate import ONE_DRAW
from mptcore.families.masked_lm.masks import MaskedBatch, Masker
from mptcore.families.masked_lm.network import MaskedLm
from mptcore.protocol.records import Labels, Point
from mptcore.runtime.device import to_device
from mptcore.runtime.out_of_memory import halve_on_oom, split_on_oom
from mptcore.runtime.rng import generator_for
from mptcore.specs import FixedRate, MaskedLmTrain, RateChoice, RateRamp, UniformRate
from mptcore.training.learned import Learned
from mptcore.training.loop import DivergedError, Schedule, Trained

HELDOUT_DRAWS = 512
"""Number of held-out sequences for `loss_heldout`. Their masks are always the same."""


class MaskedLmTrainer:
    """Train one model by AdamW. The loss of a sequence is the mean over its masked tokens times its
    length, so that with uniform sizes the loss estimates −cumulative / tokens."""

    def __init__(
        self,
        spec: MaskedLmTrain,
        model: MaskedLm,
        masker: Masker,
        heldout: Masker | None,
        seed: int,
    ):
        self.spec, self.model, self.masker = spec, model, masker
        self.network = model.network
        # Weight decay does not apply to 1-d parameters: biases and the parameters of norms.
        decayed = [p for p in self.network.parameters() if p.ndim > 1]
        plain = [p for p in self.network.parameters() if p.ndim <= 1]
        groups: list[dict[str, Any]] = [
            {"params": decayed, "weight_decay": spec.weight_decay},
            {"params": plain, "weight_decay": 0.0},
        ]
        fused = model.device.type == "cuda"  # in one kernel for all, where launching them costs
        self.adam = torch.optim.AdamW(groups, lr=spec.learning_rate, fused=fused)
        self.generator = generator_for(seed, "train masks")
        self.learned = Learned(self._parameters(), self.adam, {"masks": self.generator})
        self.dropout = int(generator_for(seed, "dropout").initial_seed())
        self.labels: Labels = {"seed": seed}
        self.epoch = 0
        self._heldout = None if heldout is None else heldout_masks(heldout)
        self._order = torch.empty(0, dtype=torch.long)

    @property
    def schedule(self) -> Schedule:
        return self.spec

    @property
    def _recorded(self) -> bool:
        return self.epoch % self.spec.evaluate_every == 0 or self.epoch == self.spec.steps

    def heldout_points(self) -> list[Point]:
        if self._heldout is None or not self._recorded:
            return []
        loss, n = self.loss_on(self._heldout), len(self._heldout)
        return [Point("loss_heldout", self.epoch, loss, None, n, self.labels, ONE_DRAW)]

    def advance(self) -> list[Trained]:
        """Train one step."""
        if self.epoch == self.spec.steps:
            return [([], 0)]
        n = self.spec.batch_size
        loss = self.step()
        point = Point("loss", self.epoch, loss, None, n, self.labels, ONE_DRAW)
        if not math.isfinite(loss):
            detail = f"the loss is {loss} at step {self.epoch}: lower learning_rate"
            raise DivergedError(f"training diverged: {detail}", [point])
        return [([point] if self._recorded else [], n)]

    def step(self) -> float:
        """Descend once. Return the loss in nats per token, finite or not."""
        spec = self.spec
        self._set_learning_rate()
        masks = self._masked(self._next_sequences(spec.batch_size))
        self.network.train()
        with torch.random.fork_rng(devices=_devices(self.model.device)):
            parts = list(self.model.parts(masks))
            total = split_on_oom(lambda parts: self._gradient(masks, parts), parts)
        self.network.eval()
        if not math.isfinite(total):
            return total
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), spec.max_grad_norm)
        self.adam.step()
        return total

    def _gradient(self, masks: MaskedBatch, parts: list[Tensor]) -> float:
        """Return the loss, and add the gradient of all parts to the parameters, part by part."""
        torch.manual_seed((self.dropout + self.epoch) % 2**63)
        self.adam.zero_grad(set_to_none=True)
        weight = int(masks.sizes.sum())
        losses = []
        for chosen in parts:
            loss = self._loss(masks[chosen]) / weight
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        total = 0.0
        for value in torch.stack(losses).tolist() if losses else []:  # one wait for the device
            total += value
        return total

    def loss_on(self, masks: MaskedBatch) -> float:
        """Return the loss on given masks, without dropout."""
        with torch.inference_mode():
            parts = [
                halve_on_oom(
                    lambda part: self._loss(part)[None], masks[chosen], self.model.take_fewer
                ).sum()
                for chosen in self.model.parts(masks, as_fits=True)
            ]
        return math.fsum(torch.stack(parts).tolist()) / int(masks.sizes.sum())

    def tensors(self) -> dict[str, Tensor]:
        return self.learned.tensors() | {"order": self._order}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.learned.restore(tensors)
        self._order = tensors["order"].clone()

    def weights(self) -> dict[str, Tensor]:
        """Return the network's weights. Tied weights appear once, under their first name."""
        return {name: p.detach() for name, p in self._parameters().items()}

    def _parameters(self) -> dict[str, Tensor]:
        return dict(self.network.named_parameters())

    def _set_learning_rate(self) -> None:
        spec, step = self.spec, self.epoch
        if step < spec.warmup_steps:
            share = (step + 1) / spec.warmup_steps
        else:
            share = (spec.steps - step) / max(1, spec.steps - spec.warmup_steps)
        for group in self.adam.param_groups:
            group["lr"] = spec.learning_rate * share

    def _next_sequences(self, count: int) -> Tensor:  # (count,)
        """Return the next sequences of an endless random order over all sequences."""
        while len(self._order) < count:
            again = torch.randperm(len(self.masker.corpus), generator=self.generator)
            self._order = torch.cat([self._order, again])
        chosen, self._order = self._order[:count], self._order[count:]
        return chosen

    def _masked(self, chosen: Tensor) -> MaskedBatch:
        """Mask the sequences (B,) as the spec says for this step."""
        spec, generator = self.spec.masks, self.generator
        if isinstance(spec, UniformRate):
            return uniform_sizes(self.masker, chosen, generator)
        return self.masker.at_rates(chosen, self._rates(spec, len(chosen)), generator)[0]

    def _rates(self, spec: FixedRate | RateRamp | RateChoice, count: int) -> Tensor:  # (count,)
        match spec:
            case FixedRate():
                return torch.full((count,), spec.rate, dtype=torch.float64)
            case RateRamp():
                rate = spec.start + (spec.end - spec.start) * self.epoch / self.spec.steps
                return torch.full((count,), rate, dtype=torch.float64)
            case RateChoice():
                listed = torch.tensor(spec.rates, dtype=torch.float64)
                return listed[torch.randint(len(listed), (count,), generator=self.generator)]
            case _:
                assert_never(spec)

    def _loss(self, masks: MaskedBatch) -> Tensor:
        """Return −Σ over sequences of D times the mean log probability of the masked tokens. If
        their number is random, the mean is their sum divided by the expected number."""
        factor = (masks.sizes / masks.expected).float().repeat_interleave(masks.counts)  # (M,)
        log_probs = self.model.log_probs(masks)
        return -(log_probs * to_device(factor, self.model.device)).sum()


def uniform_sizes(masker: Masker, chosen: Tensor, generator: torch.Generator) -> MaskedBatch:
    """Mask the sequences (B,), each with a number of tokens that is uniform from 1 to D."""
    sizes = masker.corpus.sizes[chosen]
    uniform = torch.rand(len(chosen), generator=generator, dtype=torch.float64)
    return masker.of_sizes(chosen, (uniform * sizes).floor().long() + 1, generator)


def heldout_masks(heldout: Masker) -> MaskedBatch:
    """Mask held-out sequences with uniform sizes. −loss is the cumulative score per token."""
    chosen = torch.arange(len(heldout.corpus))[:HELDOUT_DRAWS]
    return uniform_sizes(heldout, chosen, generator_for(0, "heldout masks"))


def _devices(device: torch.device) -> list[torch.device]:
    return [device] if device.type == "cuda" else []
