"""The training of a language model: its steps, held against the same steps by hand (plain
transformers, plain formulas, no trainer), its records, saved state and resuming."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.calibration.training import language_model
from mptcore.estimation.estimate import ONE_DRAW
from mptcore.families.masked_lm.masks import MaskedBatch, Masker
from mptcore.families.masked_lm.network import MaskedLm
from mptcore.families.masked_lm.trainer import (
    MaskedLmTrainer,
    _devices,
    heldout_masks,
    uniform_sizes,
)
from mptcore.protocol.records import Labels, Point
from mptcore.runtime.rng import generator_for
from mptcore.specs import MaskedLmTrain
from mptcore.training.loop import DivergedError
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


@pytest.mark.parametrize(
    ("masks", "counts"),
    [
        ({"schedule": "fixed", "rate": 0.3}, [6] * 10),
        ({"schedule": "ramp", "start": 0.1, "end": 0.6}, [*range(2, 12)]),
    ],
)
def test_the_rate_of_each_step(masks: dict[str, Any], counts: list[int]) -> None:
    """Sequences of 20 tokens: each step's rate is a whole number of them."""
    ready = trainer(batch_size=3, masks=masks, learning_rate=1e-6)
    ready.masker = Masker(corpus_of(["cat " * 20] * 3), mask_id=4, vocabulary=15)
    found = []
    for ready.epoch in range(10):
        found.append(set(masks_of(ready).counts.tolist()))
        ready.step()
    assert found == [{count} for count in counts]


def test_every_sequence_is_used_before_any_is_repeated() -> None:
    ready = trainer()
    chosen = torch.cat([ready._next_sequences(8) for _ in range(3)])
    assert sorted(chosen[:12].tolist()) == sorted(chosen[12:].tolist()) == list(range(12))
    assert chosen[:12].tolist() != chosen[12:].tolist()


def masker(count: int, seed: int = 0) -> Masker:
    return Masker(corpus_of(tiny_lm.lines(count, seed)), mask_id=4, vocabulary=15)


def with_dropout(heldout: Masker | None = None, seed: int = 4, **changes: Any) -> MaskedLmTrainer:
    """Trainer with dropout."""
    given = {"steps": 5, "batch_size": 3, "learning_rate": 0.01, "evaluate_every": 2}
    masks = {"masks": {"schedule": "fixed", "rate": 0.25}}
    spec = MaskedLmTrain.model_validate(given | masks | changes)
    model = MaskedLm(tiny_lm.network(scale=4.0), CPU, torch.float32, None)
    return MaskedLmTrainer(spec, model, masker(12), heldout, seed)


def weights_of(ready: MaskedLmTrainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in ready.network.parameters()]).clone()


def test_every_second_step_and_the_last_are_recorded() -> None:
    """The last is of a step that is not taken."""
    ready = with_dropout()
    for step in range(5):
        ready.epoch = step
        [(points, masks)] = ready.advance()
        assert masks == 3
        assert len(points) == (step % 2 == 0)
        for point in points:
            assert point.value is not None
            labels: Labels = {"seed": 4}
            assert point == Point("loss", step, point.value, None, 3, labels, ONE_DRAW)
    ready.epoch, before = 5, weights_of(ready)
    assert ready.advance() == [([], 0)]
    assert torch.equal(weights_of(ready), before)


def test_the_heldout_loss_always_uses_the_same_masks() -> None:
    """Without dropout, and where losses are recorded."""
    held = masker(7, seed=1)
    ready = with_dropout(held)
    masks = heldout_masks(held)
    expected = loss_by_hand(plain_copy(ready.network).eval(), masks).item()
    for epoch in (0, 2, 5):
        ready.epoch = epoch
        (point,) = ready.heldout_points()
        assert point.value == pytest.approx(expected, rel=1e-5)
        labels: Labels = {"seed": 4}
        assert point == Point("loss_heldout", epoch, point.value, None, 7, labels, ONE_DRAW)
    for ready.epoch in (1, 3):
        assert ready.heldout_points() == []
    assert with_dropout().heldout_points() == []


def test_the_number_of_heldout_sequences_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mptcore.families.masked_lm.trainer.HELDOUT_DRAWS", 3)
    held = masker(7)
    assert heldout_masks(held).sizes.tolist() == held.corpus.sizes[:3].tolist()


def test_the_masks_of_held_out_sequences_are_always_the_same_and_their_own() -> None:
    held = masker(7)
    own = uniform_sizes(held, torch.arange(7), generator_for(0, "heldout masks"))
    assert torch.equal(heldout_masks(held).positions, own.positions)


def test_uniform_sizes_range_from_one_to_all_tokens() -> None:
    """The sizes are computed from the first uniform numbers: floor(u · D) + 1 of D tokens."""
    own, chosen = masker(12), torch.arange(12).repeat(20)
    found = uniform_sizes(own, chosen, torch.Generator().manual_seed(3))
    uniform = torch.rand(240, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    sizes = own.corpus.sizes[chosen]
    assert found.counts.tolist() == [int(u * d) + 1 for u, d in zip(uniform, sizes, strict=True)]
    assert set((found.counts == sizes).tolist()) == {True, False}


def test_a_non_finite_loss_ends_the_training_after_its_point() -> None:
    """Before the step is taken."""
    ready = with_dropout()
    ready.epoch = 3  # which is not recorded otherwise
    with torch.no_grad():
        next(ready.network.parameters()).fill_(math.inf)
    with pytest.raises(DivergedError) as caught:
        ready.advance()
    message = "training diverged: the loss is nan at step 3: lower learning_rate"
    assert str(caught.value) == message
    (point,) = caught.value.points
    assert (point.series, point.x, point.n, point.reason) == ("loss", 3, 3, ONE_DRAW)
    assert not ready.adam.state


def test_dropout_depends_only_on_the_seed_and_the_step() -> None:
    def losses(seed: int, epoch: int, drawn: int) -> float:
        ready = with_dropout(seed=seed)
        ready.epoch = epoch
        torch.manual_seed(0)
        torch.rand(drawn)
        state = torch.get_rng_state()
        ready.generator.manual_seed(1)  # the same masks
        loss = ready.step()
        assert torch.equal(torch.get_rng_state(), state)
        assert not ready.network.training
        return loss

    first = losses(4, 0, 0)
    assert losses(4, 0, 5) == first
    assert losses(4, 1, 0) != first
    assert losses(44, 0, 0) != first


def test_a_resumed_training_equals_an_uninterrupted_one() -> None:
    """Weights, moments, masks and the order of the sequences."""
    first, again = with_dropout(), with_dropout(seed=5)
    for first.epoch in range(2):
        first.advance()
    kept = {name: tensor.clone() for name, tensor in first.tensors().items()}
    again.restore(kept)
    again.dropout = first.dropout
    assert torch.equal(masks_of(first).positions, masks_of(again).positions)
    for ready in (first, again):
        for ready.epoch in range(2, 4):
            ready.advance()
    assert torch.equal(weights_of(first), weights_of(again))
    assert torch.equal(first.tensors()["order"], again.tensors()["order"])
    assert kept["order"].tolist() != first.tensors()["order"].tolist()


def test_each_weight_of_the_network_is_saved_once() -> None:
    ready = with_dropout()
    found = ready.weights()
    assert list(found) == [name for name, _ in ready.network.named_parameters()]
    assert all(not tensor.requires_grad for tensor in found.values())
    assert "cls.predictions.decoder.weight" not in found  # tied to the embeddings


def test_listed_rates_are_drawn_for_each_sequence() -> None:
    ready = with_dropout(masks={"schedule": "rates", "rates": [0.1, 0.5, 0.9]})
    state = ready.generator.get_state()
    found = ready._rates(ready.spec.masks, 50)  # type: ignore[arg-type]
    ready.generator.set_state(state)
    places = torch.randint(3, (50,), generator=ready.generator).tolist()
    assert found.tolist() == [[0.1, 0.5, 0.9][place] for place in places]
    assert set(places) == {0, 1, 2}


def test_masks_and_dropout_have_separate_generators() -> None:
    ready = with_dropout(seed=44)
    assert ready.generator.initial_seed() == generator_for(44, "train masks").initial_seed()
    assert ready.dropout == generator_for(44, "dropout").initial_seed()


def test_a_batch_of_all_sequences_draws_one_order() -> None:
    ready = with_dropout(batch_size=12)
    assert sorted(ready._next_sequences(12).tolist()) == list(range(12))
    assert len(ready._order) == 0


def test_uniform_masks_of_a_step() -> None:
    ready = with_dropout(masks={"schedule": "uniform"})
    state = ready.generator.get_state()
    found = masks_of(ready)
    ready.generator.set_state(state)
    expected = uniform_sizes(ready.masker, ready._next_sequences(3), ready.generator)
    assert torch.equal(found.sequences, expected.sequences)
    assert torch.equal(found.positions, expected.positions)


def test_the_random_state_of_a_gpu_is_saved() -> None:
    gpu = torch.device("cuda", 0)
    assert _devices(gpu) == [gpu]
    assert _devices(CPU) == []
