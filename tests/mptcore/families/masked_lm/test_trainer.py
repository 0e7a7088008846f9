"""The steps of a training, held against the same steps by hand: plain transformers, plain
formulas, no trainer."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.calibration.training import language_model
from mptcore.families.masked_lm.masks import MaskedBatch, Masker
from mptcore.families.masked_lm.network import MaskedLm
from mptcore.families.masked_lm.trainer import MaskedLmTrainer
from mptcore.specs import MaskedLmTrain
from tests.support import tiny_lm
from tests.support.texts import CPU, corpus_of, sequence

RATE = 0.25


def trainer(memory_bytes: int | None = None, **changes: Any) -> MaskedLmTrainer:
    spec = MaskedLmTrain.model_validate(
        {"steps": 10, "batch_size": 8, "masks": {"schedule": "fixed", "rate": RATE}} | changes
    )
    without_dropout: dict[str, Any] = {
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    network = tiny_lm.network(scale=4.0, **without_dropout)
    model = MaskedLm(network, CPU, torch.float32, memory_bytes)
    masker = Masker(corpus_of(tiny_lm.lines(12)), mask_id=4, vocabulary=15)
    return MaskedLmTrainer(spec, model, masker, None, seed=4)


def masks_of(ready: MaskedLmTrainer) -> MaskedBatch:
    """Return the masks of the next step without consuming its random numbers."""
    state, order = ready.generator.get_state(), ready._order
    masks = ready._masked(ready._next_sequences(ready.spec.batch_size))
    ready.generator.set_state(state)
    ready._order = order
    return masks


def plain_copy(network: Any) -> Any:
    """Copy of the network made by transformers, which processes one sequence at a time."""
    plain = copy.deepcopy(network)
    plain.base_model._forward_hooks.clear()
    plain.set_attn_implementation("sdpa")
    return plain


def loss_by_hand(network: Any, masks: MaskedBatch) -> Tensor:
    """−Σ D · (mean log p of the masked tokens), one sequence at a time, per token."""
    total = torch.zeros(())
    for i in range(len(masks)):
        inputs, targets, _, masked = sequence(masks, i)
        log_probs = network(input_ids=inputs[None]).logits[0].log_softmax(-1)
        own = log_probs[masked, targets[masked]]
        total = total - own.mean() * masks.sizes[i]
    return total / masks.sizes.sum()


@pytest.mark.parametrize("memory_bytes", [None, 1])
def test_a_step_by_hand(memory_bytes: int | None) -> None:
    """All sequences in one row, or in parts of one whose gradients are accumulated: the same AdamW
    step, in which vectors do not decay."""
    rate, decay = 0.01, 0.5
    ready = trainer(memory_bytes, learning_rate=rate, weight_decay=decay, max_grad_norm=1e6)
    parts = len(list(ready.model.parts(masks_of(ready))))
    assert parts == (8 if memory_bytes else 1)
    plain = plain_copy(ready.network)
    loss = loss_by_hand(plain, masks_of(ready))
    loss.backward()  # type: ignore[no-untyped-call]
    assert ready.step() == pytest.approx(loss.item(), rel=1e-5)
    for (name, new), old in zip(ready.network.named_parameters(), plain.parameters(), strict=True):
        # AdamW's first step: the mean over the root of the mean square is the sign.
        kept = old * (1 - rate * decay) if old.ndim > 1 else old
        assert old.grad is not None
        expected = kept - rate * old.grad / (old.grad.abs() + 1e-8)
        certain = old.grad.abs() > 1e-5
        assert torch.allclose(new[certain], expected[certain], atol=2e-5, rtol=0), name


def test_twenty_steps_of_plain_transformers() -> None:
    """Use warm-up, decay and clipping."""
    losses, weights, fallen = language_model(20)
    assert losses < 1e-5
    assert weights < 1e-6
    assert fallen > 0.1


def test_gradients_are_clipped_together() -> None:
    """The norm is over all parameters, so the second moments belong to clipped gradients."""
    ready = trainer(max_grad_norm=1e-3)
    ready.step()
    squares = [state["exp_avg_sq"].sum() for state in ready.adam.state.values()]
    norm = (sum(squares) / (1 - 0.999)) ** 0.5
    assert float(norm) == pytest.approx(1e-3, rel=1e-3)


def test_learning_rates_step_by_step() -> None:
    """Warm-up over 4 of 10 steps, then down to 0 after the last."""
    ready = trainer(warmup_steps=4, learning_rate=1.2e-3)
    rates = []
    for ready.epoch in range(10):
        ready.step()
        (rate,) = {group["lr"] for group in ready.adam.param_groups}
        rates.append(rate)
    shares = [1 / 4, 2 / 4, 3 / 4, 1, 6 / 6, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]
    assert rates == pytest.approx([1.2e-3 * share for share in shares])


def test_a_ramp_goes_from_its_start_to_its_end() -> None:
    """Sequences of 20 tokens: each step's rate is a whole number of them."""
    ready = trainer(
        batch_size=3, masks={"schedule": "ramp", "start": 0.1, "end": 0.6}, learning_rate=1e-6
    )
    ready.masker = Masker(corpus_of(["cat " * 20] * 3), mask_id=4, vocabulary=15)
    counts = []
    for ready.epoch in range(10):
        counts.append(sorted(set(masks_of(ready).counts.tolist())))
        ready.step()
    assert counts == [[2], [3], [4], [5], [6], [7], [8], [9], [10], [11]]


def test_every_sequence_is_used_before_any_is_repeated() -> None:
    ready = trainer()
    chosen = torch.cat([ready._next_sequences(8) for _ in range(3)])
    assert sorted(chosen[:12].tolist()) == sorted(chosen[12:].tolist()) == list(range(12))
    assert chosen[:12].tolist() != chosen[12:].tolist()
