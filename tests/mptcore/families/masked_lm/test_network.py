"""A language model's log probabilities equal those of plain transformers, for any batch."""

import sys
import threading
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from mptcore.families.masked_lm import network as lm
from mptcore.families.masked_lm import packing
from mptcore.families.masked_lm.checkpoints import MASKED_LMS, preload
from mptcore.families.masked_lm.corpus import Corpus, repeated
from mptcore.families.masked_lm.masks import MaskedBatch, Masker, joined
from mptcore.families.masked_lm.network import (
    MaskedLm,
    score_batches,
)
from mptcore.runtime.state import RunState
from tests.support import tiny_lm
from tests.support.texts import CPU, corpus_of, corpus_of_pairs, scores_of, sequence


def scores(models: dict[str, MaskedLm], masks: MaskedBatch) -> torch.Tensor:
    """The sums over masked tokens, and the next tokens' log probabilities, (models, 2, B)."""
    values = scores_of(models, masks)
    values[:, 0] *= masks.counts
    return values


def plain(network: object, draws: MaskedBatch, row: int) -> float:
    """Score one sequence alone: logits of all positions, log-softmax, sum over masked tokens."""
    own = sequence(draws, row)
    inputs = {"input_ids": own.inputs[None]}
    if getattr(network.config, "type_vocab_size", 0) > 1:  # type: ignore[attr-defined]
        inputs["token_type_ids"] = own.types[None]
    with torch.inference_mode():
        logits = network(**inputs).logits[0]  # type: ignore[operator]
    found = logits.log_softmax(-1)[torch.arange(len(own.targets)), own.targets]
    return float(found[own.masked].sum())


@pytest.mark.parametrize("kind", MASKED_LMS)
@pytest.mark.parametrize("memory", [1, 10_000, 2**30])
def test_scores_are_those_of_plain_transformers(
    kind: str, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use pairs of sentences: one by one, some together, all in one row, and with padded attention
    as on a GPU."""
    if memory == 2**30:
        monkeypatch.setitem(packing.GROUP_TOKENS, "cpu", packing.GROUP_TOKENS["cuda"])
    text = corpus_of_pairs(12)
    masker = Masker(text, 4, 15)
    draws, _ = masker.at_rates(
        torch.arange(12), torch.full((12,), 0.4).double(), torch.Generator().manual_seed(1)
    )
    untouched = tiny_lm.network(kind, scale=3.0)
    model = MaskedLm(tiny_lm.network(kind, scale=3.0), CPU, torch.float32, memory)
    assert (len(list(model.parts(draws))) == 1) == (memory == 2**30)
    found = scores({"model": model}, draws)[0, 0]
    expected = [plain(untouched, draws, row) for row in range(12)]
    assert found.tolist() == pytest.approx(expected, abs=1e-5)
    assert len({round(x, 3) for x in expected}) > 6  # they do differ


@pytest.mark.parametrize("memory", [10_000, 2**30])
def test_log_probabilities_of_tokens_add_up_to_the_scores(memory: int) -> None:
    """They are in the order of the masks, however these are cut, with some masks that are empty;
    saved ones are not computed again."""
    masker = Masker(corpus_of(tiny_lm.lines(12)), 4, 15)
    sizes = torch.arange(12) % 4
    draws = masker.of_sizes(torch.arange(12), sizes, torch.Generator().manual_seed(1))
    model = MaskedLm(tiny_lm.network("bert", scale=3.0), CPU, torch.float32, memory)
    assert (len(list(model.parts(draws))) == 1) == (memory == 2**30)
    state = RunState(at_safe_point=True)
    found = of_tokens(model, draws, state)
    assert torch.equal(found, model.token_scores(draws).double())
    sums = torch.segment_reduce(found[0], "sum", lengths=draws.counts)
    expected = scores({"model": model}, draws)[0, 0]
    assert sums.tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    assert len(set(found[0].tolist())) > 6
    resumed = RunState(scores=state.scores, at_safe_point=True)
    with pytest.MonkeyPatch.context() as none:
        none.delattr(MaskedLm, "token_scores")
        assert torch.equal(of_tokens(model, draws, resumed), found)


def of_tokens(model: MaskedLm, masks: MaskedBatch, state: RunState) -> torch.Tensor:
    """Log p of each masked token of one batch, (1, M)."""
    steps = list(score_batches({"model": model}, [(masks, None)], state, of_tokens=True))
    assert state.masks == len(masks)
    (found,) = (batch.values for batch in steps if batch is not None)
    return found[0]


@pytest.mark.parametrize("tokens", [10**6, 100, 1])
def test_padded_and_unpadded_groups(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All padded together, some, and a group for each length: ModernBERT's layers see all of a
    sequence or a window of it."""
    monkeypatch.setitem(packing.GROUP_TOKENS, "cpu", tokens)
    draws = Masker(corpus_of(tiny_lm.lines(20)), 4, 15).of_sizes(
        torch.arange(20), torch.full((20,), 2), torch.Generator().manual_seed(1)
    )
    sizes: dict[str, Any] = {"scale": 3.0, "local_attention": 4}
    model = MaskedLm(tiny_lm.network("modernbert", **sizes), CPU, torch.float32)
    (chosen,) = model.parts(draws)
    lengths = set(draws.lengths.tolist())
    made = packing.Row.of(draws[chosen], CPU).groups
    assert len(made) == {10**6: 1, 100: 2, 1: len(lengths)}[tokens]
    assert [one.padding is None for one in made] == [tokens == 1] * len(made)
    untouched = tiny_lm.network("modernbert", **sizes)
    expected = [plain(untouched, draws, row) for row in range(20)]
    assert scores({"model": model}, draws)[0, 0].tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("kind", ["bert", "esm", "modernbert"])
def test_padding_does_not_change_the_gradient(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All padded together, against a group for each length."""
    draws = Masker(corpus_of(tiny_lm.lines(20)), 4, 15).of_sizes(
        torch.arange(20), torch.full((20,), 2), torch.Generator().manual_seed(1)
    )
    draws = draws[torch.argsort(draws.lengths, stable=True, descending=True)]
    found = []
    for tokens in (10**6, 1):
        monkeypatch.setitem(packing.GROUP_TOKENS, "cpu", tokens)
        model = MaskedLm(tiny_lm.network(kind, scale=3.0).double(), CPU, torch.float64)
        model.log_probs(draws).sum().backward()  # type: ignore[no-untyped-call]
        gradients = {n: p.grad for n, p in model.network.named_parameters() if p.grad is not None}
        found.append(gradients)
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)
    assert len(found[0]) > 15


def test_padding_repeats_its_own_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequence whose numbers are not finite leaves the others alone."""
    monkeypatch.setitem(packing.GROUP_TOKENS, "cpu", 10**6)
    masks = Masker(corpus_of(tiny_lm.lines(5)), 4, 15).of_sizes(
        torch.arange(5), torch.ones(5, dtype=torch.long), torch.Generator().manual_seed(1)
    )
    masks = masks[torch.argsort(masks.lengths, stable=True, descending=True)]
    (group,) = packing.Row.of(masks, CPU).groups
    of_token = repeated(torch.arange(5), masks.lengths)
    entries = group.padded(of_token)
    assert entries.tolist() == [[i] * group.length for i in range(5)]
    assert group.unpadded(entries).tolist() == of_token.tolist()


def test_padding_does_not_count_as_masked_in_esm(monkeypatch: pytest.MonkeyPatch) -> None:
    """It scales the embeddings by the masked share, and each first token here is masked."""
    monkeypatch.setitem(packing.GROUP_TOKENS, "cpu", 10**6)
    whole = corpus_of(tiny_lm.lines(8))
    text = replace(whole, maskable=torch.ones_like(whole.maskable))
    masks = Masker(text, 4, 15).of_sizes(
        torch.arange(8), text.lengths - 1, torch.Generator().manual_seed(1)
    )
    assert any(int(sequence(masks, i).inputs[0]) == 4 for i in range(8))
    untouched = tiny_lm.network("esm", scale=3.0)
    expected = [plain(untouched, masks, row) for row in range(8)]
    model = MaskedLm(tiny_lm.network("esm", scale=3.0), CPU, torch.float32)
    assert scores({"model": model}, masks)[0, 0].tolist() == pytest.approx(expected, abs=1e-5)


def test_at_most_half_of_a_group_is_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """One long sequence among short ones is a group by itself."""
    monkeypatch.setitem(packing.GROUP_TOKENS, "cpu", 4096)
    lines = ["cat " * 30, *["the cat sat"] * 20, "a dog"]
    draws = Masker(corpus_of(lines), 4, 15).of_sizes(
        torch.arange(22), torch.ones(22, dtype=torch.long), torch.Generator().manual_seed(1)
    )
    groups = packing.Row.of(draws, CPU).groups
    assert [(one.count, one.length, one.padding is None) for one in groups] == [
        (1, 32, True),
        (21, 5, False),
    ]


def test_training_is_cut_into_larger_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lm, "CPU_BYTES", {"scores": 1, "training": 2**30})
    model = MaskedLm(tiny_lm.network(), CPU, torch.float32)
    draws = Masker(corpus_of(tiny_lm.lines(1)), 4, 15).singles(0)
    for training, parts in ((False, len(draws)), (True, 1)):
        model.network.train(training)
        assert len(list(model.parts(draws))) == parts
    model.take_fewer(draws)  # too little memory for scores does not change the parts of a step
    assert len(list(model.parts(draws))) == 1


def test_parts_of_a_run_do_not_depend_on_what_fitted() -> None:
    """Otherwise a resumed run would not use all saved scores. Scores are computed in smaller parts
    all the same."""
    model = MaskedLm(tiny_lm.network(), CPU, torch.float32, 40_000)
    draws = Masker(corpus_of(tiny_lm.lines(8)), 4, 15).singles(0)
    before = [part.tolist() for part in model.parts(draws)]
    smaller = draws[torch.tensor(before[0])]
    model.take_fewer(smaller)
    assert [part.tolist() for part in model.parts(draws)] == before
    assert len(list(model.parts(smaller, as_fits=True))) > 1


def test_training_keeps_the_activations_of_all_layers() -> None:
    model = MaskedLm(tiny_lm.network(), CPU, torch.float32)
    draws = Masker(corpus_of(tiny_lm.lines(3)), 4, 15).singles(0)
    config = model.config
    width = max(config.hidden_size, config.intermediate_size)
    layer, logits = 32 * width * draws.lengths, 8 * config.vocab_size * draws.counts
    for training, layers in ((False, 1), (True, config.num_hidden_layers)):
        model.network.train(training)
        assert list(map(torch.equal, model.bytes_of(draws), (layers * layer, logits))) == [True] * 2
    assert layers > 1
    smaller = MaskedLm(tiny_lm.network(), CPU, torch.bfloat16).bytes_of(draws)
    assert list(map(torch.equal, smaller, (layer // 2, logits // 8 * 10))) == [True] * 2
    trained = MaskedLm(tiny_lm.network(), CPU, torch.bfloat16, trained=True).bytes_of(draws)
    assert list(map(torch.equal, trained, (layer, logits // 8 * 10))) == [True] * 2


def test_attention_dropout_is_used_only_in_training() -> None:
    sizes: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.5}
    model = MaskedLm(tiny_lm.network(scale=3.0, **sizes), CPU, torch.float32)
    draws = Masker(corpus_of(tiny_lm.lines(1)), 4, 15).singles(0)
    for training in (False, True):
        model.network.train(training)
        found = [model.log_probs(draws) for _ in range(2)]
        assert found[0].equal(found[1]) != training


def test_all_orders_and_all_masks_give_the_same_cumulative_score() -> None:
    """A vocabulary of five words and four positions, enumerated: for conditionals that come from no
    joint density the mean over all orders of the chain is the sum over sizes of the mean over
    masks, and the orders differ."""
    words = ["a", "b", "c", "d", "e"]
    network = tiny_lm.network(words=words, scale=20.0)
    model = {"model": MaskedLm(network, CPU, torch.float32)}
    ids = torch.tensor([2, 5, 9, 7, 6, 3], dtype=torch.int32)
    maskable = torch.tensor([False, True, True, True, True, False])
    text = Corpus(ids, torch.zeros_like(ids), maskable, torch.tensor([0, 6]))
    masker = Masker(text, 4, 10)
    draws = joined([masker.along_order(0, torch.tensor(o)) for o in permutations(range(4))])
    values = scores(model, draws)[0]
    chains = values[1].reshape(24, 4).sum(1)
    along = (values[0] / draws.counts).reshape(24, 4).sum(1)
    assert chains.std() > 0.1

    again = tiny_lm.network(words=words, scale=20.0)
    by_size = {m: [] for m in range(1, 5)}  # type: ignore[var-annotated]
    first = torch.zeros(1, dtype=torch.long)
    for number in range(1, 16):
        chosen = torch.tensor([bool(number >> j & 1) for j in range(4)])
        places = 1 + chosen.nonzero().flatten()
        size = len(places)
        own = MaskedBatch(text, first, torch.tensor([size]), places, 4)
        by_size[size].append(plain(again, own, 0) / size)
    cumulative = sum(sum(found) / len(found) for found in by_size.values())
    assert float(chains.mean()) == pytest.approx(cumulative, abs=1e-5)
    assert float(along.mean()) == pytest.approx(cumulative, abs=1e-5)
    singles = scores(model, masker.singles(0))[0, 0]
    assert float(singles.sum()) == pytest.approx(4 * sum(by_size[1]) / 4, abs=1e-5)


def test_a_batch_is_halved_if_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces a GPU, which tests do not have: the first batch is refused, its halves are not."""
    text = corpus_of(tiny_lm.lines(8))
    draws, _ = Masker(text, 4, 15).at_rates(
        torch.arange(8), torch.full((8,), 0.5).double(), torch.Generator().manual_seed(1)
    )
    model = MaskedLm(tiny_lm.network(), CPU, torch.float32)
    expected = scores({"model": model}, draws)
    compute = model._log_probs
    refused: list[int] = []

    def log_probs(row: packing.Row) -> torch.Tensor:
        if len(row.counts) > 1 and not refused:
            refused.append(len(row.counts))
            raise torch.OutOfMemoryError
        return compute(row)

    monkeypatch.setattr(model, "_log_probs", log_probs)
    assert torch.allclose(scores({"model": model}, draws), expected, atol=1e-5)
    assert refused


def test_preloading_imports_each_model_and_touches_no_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that has a CUDA context, or another thread, cannot fork runs."""
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: pytest.fail("a CUDA context"))
    before = threading.active_count()
    preload()
    for model_type in MASKED_LMS:
        assert f"transformers.models.{model_type}.modeling_{model_type}" in sys.modules
    assert threading.active_count() == before


@pytest.mark.parametrize("kind", ["esm", "modernbert"])
def test_rotary_positions_keep_their_digits_in_bfloat16(kind: str, tmp_path: Path) -> None:
    """In bfloat16 a frequency would be off by up to 0.4 %. Transformers loads frequencies in
    float32 for any number type of the weights."""
    tiny_lm.checkpoint(tmp_path, kind)
    load = getattr(transformers, MASKED_LMS[kind]).from_pretrained
    draws = Masker(corpus_of(tiny_lm.lines(20)), 4, 15).of_sizes(
        torch.arange(20), torch.full((20,), 2), torch.Generator().manual_seed(1)
    )
    untouched = load(tmp_path, dtype=torch.bfloat16).eval()
    model = MaskedLm(load(tmp_path, dtype=torch.float32).eval(), CPU, torch.bfloat16)
    assert {parameter.dtype for parameter in model.network.parameters()} == {torch.bfloat16}
    frequencies = dict(untouched.named_buffers())
    for name, buffer in model.network.named_buffers():
        torch.testing.assert_close(buffer, frequencies[name], rtol=0, atol=0)
    found = scores({"model": model}, draws)[0, 0]
    expected = [plain(untouched, draws, row) for row in range(20)]
    assert found.tolist() == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize("kind", MASKED_LMS)
@pytest.mark.parametrize("logits", [3 * 15 - 1, 7 * 15, 14])
def test_logits_are_computed_some_at_a_time(
    kind: str, logits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tokens of 15 words, seven, and one, which is the least. The scores are the same."""
    draws = Masker(corpus_of(tiny_lm.lines(20)), 4, 15).of_sizes(
        torch.arange(20), torch.full((20,), 3), torch.Generator().manual_seed(1)
    )
    model = MaskedLm(tiny_lm.network(kind), CPU, torch.float32, 2**30)
    together = scores({"model": model}, draws)
    monkeypatch.setattr(lm, "LOGITS_AT_ONCE", logits)
    seen: list[int] = []
    last = model.network.get_output_embeddings()
    last.register_forward_hook(lambda *given: seen.append(given[-1].shape[1]))
    torch.testing.assert_close(scores({"model": model}, draws), together, rtol=1e-5, atol=1e-6)
    most = max(1, logits // 15)
    assert seen == [most] * (60 // most) + [60 % most] * (60 % most > 0)


def test_parts_of_scores_keep_only_the_logits_that_are_computed_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """20 sentences of the same length. A part has the most that fit, by all their logits or by
    those at a time. In training all logits are kept."""
    draws = Masker(corpus_of(["the cat sat"] * 20), 4, 15).of_sizes(
        torch.arange(20), torch.full((20,), 3), torch.Generator().manual_seed(1)
    )
    model = MaskedLm(tiny_lm.network(), CPU, torch.float32)
    hidden, logits = (int(one[0]) for one in model.bytes_of(draws))

    def parts_in(memory: int) -> list[int]:
        model._memory = memory
        return [len(part) for part in model.parts(draws)]

    assert parts_in(7 * (hidden + logits) - 1) == [6, 6, 6, 2]
    monkeypatch.setattr(lm, "LOGITS_BYTES", 2 * logits)
    assert parts_in(7 * hidden + 2 * logits) == [7, 7, 6]
    assert parts_in(7 * hidden + 2 * logits - 1) == [6, 6, 6, 2]
    assert parts_in(hidden + logits) == [1] * 20
    model.take_fewer(draws)
    assert model._fits == (20 * hidden + 2 * logits) // 2
    model.take_fewer(draws[torch.tensor([0])])
    assert model._fits == (hidden + logits) // 2
    model.network.train()
    both = model.config.num_hidden_layers * hidden + logits
    assert parts_in(7 * both) == [7, 7, 6]
    assert parts_in(7 * both - 1) == [6, 6, 6, 2]


def test_a_gradient_by_logits_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = Masker(corpus_of(tiny_lm.lines(20)), 4, 15).singles(0)
    found = []
    for logits in (lm.LOGITS_AT_ONCE, 2 * 15):
        monkeypatch.setattr(lm, "LOGITS_AT_ONCE", logits)
        model = MaskedLm(tiny_lm.network(), CPU, torch.float32, trained=True)
        model.log_probs(draws).sum().backward()  # type: ignore[no-untyped-call]
        found.append([parameter.grad for parameter in model.network.parameters()])
    for one, other in zip(*found, strict=True):
        assert one is not None
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
