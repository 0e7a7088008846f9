"""Training a masked language model."""

import math
from collections.abc import Callable
from typing import Any, assert_never

import torch
from torch import Tensor

from mptcore.estimation.evaluate import Work
from mptcore.estimation.scores import ONE_DRAW
from mptcore.families.masked_lm.masked_batch import Draws, Masker
from mptcore.families.masked_lm.model import MaskedLm
from mptcore.protocol.records import Labels, Point, RunError
from mptcore.runtime.rng import stream
from mptcore.runtime.session import Session, TrainingState
from mptcore.specs import FixedRate, RateChoice, RateRamp, TextTrain, UniformRate

Curve = Callable[[int], Work]
"""The curve of the model as it stands at a step."""

HELDOUT_DRAWS = 512
"""Held-out sequences that `loss_heldout` is taken over, always under the same masks."""


class TextTrainer:
    """AdamW on one model. A sequence counts by the mean over its masked tokens times its length, so
    that with the schedule uniform the loss estimates −cumulative / tokens."""

    def __init__(self, spec: TextTrain, model: MaskedLm, masker: Masker, seed: int):
        self.spec, self.model, self.masker = spec, model, masker
        self.network = model.network
        # The 1-d parameters, biases and those of the norms, do not decay.
        decayed = [p for p in self.network.parameters() if p.ndim > 1]
        plain = [p for p in self.network.parameters() if p.ndim <= 1]
        groups: list[dict[str, Any]] = [
            {"params": decayed, "weight_decay": spec.weight_decay},
            {"params": plain, "weight_decay": 0.0},
        ]
        self.adam = torch.optim.AdamW(groups, lr=spec.learning_rate)
        self.draws = stream(seed, "train masks")
        self.dropout = int(stream(seed, "dropout").initial_seed())
        self.step_no = 0
        self._order = torch.empty(0, dtype=torch.long)

    def step(self) -> float:
        """Descend once; the loss that was seen, in nats per token, finite or not."""
        spec = self.spec
        self._set_learning_rate()
        self.adam.zero_grad(set_to_none=True)
        draws = self._masked(self._next_sequences(spec.batch_size))
        weight = int(draws.sizes.sum())
        total = 0.0
        self.network.train()
        with torch.random.fork_rng(devices=_devices(self.model.device)):
            torch.manual_seed((self.dropout + self.step_no) % 2**63)
            for chosen in self.model.batches(draws):
                loss = self._loss(draws.part(chosen)) / weight
                loss.backward()  # type: ignore[no-untyped-call]
                total += loss.item()
        self.network.eval()
        if not math.isfinite(total):
            return total
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), spec.max_grad_norm)
        self.adam.step()
        return total

    def loss_on(self, draws: Draws) -> float:
        """The loss on given masks, without dropout."""
        with torch.inference_mode():
            parts = [self._loss(draws.part(c)).item() for c in self.model.batches(draws)]
        return math.fsum(parts) / int(draws.sizes.sum())

    def state(self, seq: int, done: int) -> TrainingState:
        """All that the next step depends on."""
        tensors = {f"network/{k}": v.clone() for k, v in self.weights().items()}
        for i, own in self.adam.state_dict()["state"].items():
            tensors |= {f"adam/{i}/{name}": value for name, value in own.items()}
        tensors["draws"] = self.draws.get_state()
        tensors["order"] = self._order
        return TrainingState(self.step_no, seq, done, dict(tensors))

    def trained(self, seq: int, done: int) -> TrainingState:
        """The same once all steps are done."""
        tensors = {k: v for k, v in self.state(0, 0).tensors.items() if not k.startswith("adam/")}
        return TrainingState(self.step_no, seq, done, tensors)

    def restore(self, state: TrainingState) -> None:
        self.step_no = state.epoch
        self.draws.set_state(state.tensors["draws"].clone())
        self._order = state.tensors["order"].clone()
        self.load(_under("network/", state.tensors))
        own: dict[int, dict[str, Tensor]] = {}
        for name, value in _under("adam/", state.tensors).items():
            index, _, what = name.partition("/")
            own.setdefault(int(index), {})[what] = value
        groups = self.adam.state_dict()["param_groups"]
        if own:
            self.adam.load_state_dict({"state": own, "param_groups": groups})

    def weights(self) -> dict[str, Tensor]:
        """The network's weights, each once: what is tied goes by its first name."""
        return {name: p.detach() for name, p in self.network.named_parameters()}

    def load(self, weights: dict[str, Tensor]) -> None:
        self.network.load_state_dict(weights, strict=False)

    def _set_learning_rate(self) -> None:
        spec, step = self.spec, self.step_no
        if step < spec.warmup_steps:
            share = (step + 1) / spec.warmup_steps
        else:
            share = (spec.steps - step) / max(1, spec.steps - spec.warmup_steps)
        for group in self.adam.param_groups:
            group["lr"] = spec.learning_rate * share

    def _next_sequences(self, count: int) -> Tensor:
        """All sequences in a random order, again and again."""
        while len(self._order) < count:
            again = torch.randperm(len(self.masker.corpus), generator=self.draws)
            self._order = torch.cat([self._order, again])
        chosen, self._order = self._order[:count], self._order[count:]
        return chosen

    def _masked(self, chosen: Tensor) -> Draws:
        spec, masker = self.spec.masks, self.masker
        sizes = masker.corpus.sizes[chosen]
        match spec:
            case UniformRate():
                uniform = torch.rand(len(chosen), generator=self.draws, dtype=torch.float64)
                wanted = (uniform * sizes).floor().long() + 1
                return masker.of_sizes(chosen, wanted, self.draws)
            case FixedRate():
                rates = torch.full((len(chosen),), spec.rate, dtype=torch.float64)
            case RateRamp():
                rate = spec.start + (spec.end - spec.start) * self.step_no / self.spec.steps
                rates = torch.full((len(chosen),), rate, dtype=torch.float64)
            case RateChoice():
                listed = torch.tensor(spec.rates, dtype=torch.float64)
                rates = listed[torch.randint(len(listed), (len(chosen),), generator=self.draws)]
            case _:
                assert_never(spec)
        return masker.at_rates(chosen, rates, self.draws)[0]

    def _loss(self, draws: Draws) -> Tensor:
        """−Σ over sequences of D times the mean log probability of its masked tokens; where their
        number is left to chance, D times their sum over the number expected."""
        counts = draws.counts
        factor = (draws.sizes / draws.expected).repeat_interleave(counts)
        found = self.model.log_probs(draws)
        return -(found * factor.to(found)).sum()


def train(
    trainer: TextTrainer,
    session: Session,
    resumed: TrainingState | None,
    curve: Curve,
    heldout: Masker | None,
    labels: Labels,
) -> Work:
    """The records of a training, each with the number of masks scored so far. The session may be
    saved between steps. Raises RunError where the loss is no number, after the records so far."""
    spec = trainer.spec
    fixed = _heldout_draws(heldout)
    done = 0
    if resumed is not None:
        trainer.restore(resumed)
        done = resumed.done
        yield done, None  # before the leap, so that no progress is told of what was skipped
        session.seq = resumed.seq
    while trainer.step_no <= spec.steps:
        session.training = lambda: trainer.state(session.seq, done)  # noqa: B023
        session.at_rest = True
        yield done, None
        session.at_rest = False
        step = trainer.step_no
        recorded = step % spec.evaluate_every == 0 or step == spec.steps
        if recorded and fixed is not None:
            value = trainer.loss_on(fixed)
            yield done, Point("loss_heldout", step, value, None, len(fixed), labels, ONE_DRAW)
        if step in spec.curve_at:
            before = done
            for scored, record in curve(step):
                done = before + scored
                yield done, record
        if step < spec.steps:
            loss = trainer.step()
            done += spec.batch_size
            if recorded or not math.isfinite(loss):
                yield done, Point("loss", step, loss, None, spec.batch_size, labels, ONE_DRAW)
            if not math.isfinite(loss):
                detail = f"the loss is {loss} at step {step}: lower learning_rate"
                raise RunError("error", f"training diverged: {detail}")
            yield done, None  # progress is told of here, and not at the place of rest
        trainer.step_no += 1


def _heldout_draws(heldout: Masker | None) -> Draws | None:
    """Held-out sequences under masks of uniform sizes: −loss is the cumulative score per token."""
    if heldout is None:
        return None
    draws = stream(0, "heldout masks")
    chosen = torch.arange(len(heldout.corpus))[:HELDOUT_DRAWS]
    sizes = heldout.corpus.sizes[chosen]
    uniform = torch.rand(len(chosen), generator=draws, dtype=torch.float64)
    return heldout.of_sizes(chosen, (uniform * sizes).floor().long() + 1, draws)


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _devices(device: torch.device) -> list[torch.device]:
    return [device] if device.type == "cuda" else []
