"""A language model's log probabilities are those of plain transformers, whatever the batch."""

import sys
import threading
from itertools import permutations

import pytest
import torch

from mptcore.families.masked_lm.corpus import Corpus
from mptcore.families.masked_lm.masked_batch import MaskedBatch, Masker, joined
from mptcore.families.masked_lm.model import MaskedLm, score_sequences
from mptcore.families.masked_lm.pretrained import MASKED_LMS, preload
from mptcore.runtime.session import ScoreCache
from tests.support import tiny_lm
from tests.support.runs import result_of
from tests.support.texts import CPU, corpus_of


def scores(models: dict[str, MaskedLm], masks: MaskedBatch) -> torch.Tensor:
    """The sums over masked tokens, and the next tokens' log probabilities, (models, 2, B)."""
    values = result_of(score_sequences(models, masks, ScoreCache()))
    values[:, 0] *= masks.counts
    return values


def plain(network: object, draws: MaskedBatch, row: int) -> float:
    """Of one sequence by itself: the logits of all its positions, log-softmax, sum over masked."""
    length = int(draws.lengths[row])
    inputs = {"input_ids": draws.inputs[row : row + 1, :length]}
    if getattr(network.config, "type_vocab_size", 0) > 1:  # type: ignore[attr-defined]
        inputs["token_type_ids"] = draws.types[row : row + 1, :length]
    with torch.inference_mode():
        logits = network(**inputs).logits[0]  # type: ignore[operator]
    found = logits.log_softmax(-1)[torch.arange(length), draws.targets[row, :length]]
    return float(found[draws.masked[row, :length]].sum())


@pytest.mark.parametrize("kind", MASKED_LMS)
@pytest.mark.parametrize("memory", [1, 10_000, 2**30])
def test_scores_are_those_of_plain_transformers(kind: str, memory: int) -> None:
    text = corpus_of(tiny_lm.lines(12))
    masker = Masker(text, 4, 15)
    draws, _ = masker.at_rates(
        torch.arange(12), torch.full((12,), 0.4).double(), torch.Generator().manual_seed(1)
    )
    untouched = tiny_lm.network(kind, scale=3.0)
    model = MaskedLm(tiny_lm.network(kind, scale=3.0), CPU, torch.float32, memory)
    found = scores({"model": model}, draws)[0, 0]
    expected = [plain(untouched, draws, row) for row in range(12)]
    assert found.tolist() == pytest.approx(expected, abs=1e-5)
    assert len({round(x, 3) for x in expected}) > 6  # they do differ


def test_pairs_keep_their_token_types() -> None:
    text = corpus_of(["the cat sat"])
    ids, types, maskable = text.rows(torch.tensor([0]), 5)
    assert ids.tolist() == [[2, 5, 6, 8, 3]]
    assert maskable.tolist() == [[False, True, True, True, False]]
    assert types.sum() == 0


def test_all_orders_and_all_masks_give_one_cumulative_score() -> None:
    """A vocabulary of five words and four positions, enumerated: for conditionals that come from no
    joint density the mean over all orders of the chain is the sum over sizes of the mean over
    masks, and the orders differ."""
    words = ["a", "b", "c", "d", "e"]
    network = tiny_lm.network(words=words, scale=20.0)
    model = {"model": MaskedLm(network, CPU, torch.float32)}
    ids = torch.tensor([2, 5, 9, 7, 6, 3])
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
    for number in range(1, 16):
        chosen = torch.tensor([bool(number >> j & 1) for j in range(4)])
        masked = torch.zeros(1, 6, dtype=torch.bool)
        masked[0, 1:5] = chosen
        inputs = torch.where(masked, 4, ids)
        size = int(chosen.sum())
        own = MaskedBatch(
            inputs, ids[None], ids[None] * 0, masked, torch.tensor([6]), torch.tensor([4])
        )
        by_size[size].append(plain(again, own, 0) / size)
    cumulative = sum(sum(found) / len(found) for found in by_size.values())
    assert float(chains.mean()) == pytest.approx(cumulative, abs=1e-5)
    assert float(along.mean()) == pytest.approx(cumulative, abs=1e-5)
    singles = scores(model, masker.singles(0))[0, 0]
    assert float(singles.sum()) == pytest.approx(4 * sum(by_size[1]) / 4, abs=1e-5)


def test_two_halves_where_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for a GPU, which no test has: the first batch is refused, its halves are not."""
    text = corpus_of(tiny_lm.lines(8))
    draws, _ = Masker(text, 4, 15).at_rates(
        torch.arange(8), torch.full((8,), 0.5).double(), torch.Generator().manual_seed(1)
    )
    model = MaskedLm(tiny_lm.network(), CPU, torch.float32)
    expected = scores({"model": model}, draws)
    compute = model.log_probs
    refused: list[int] = []

    def log_probs(draws: MaskedBatch) -> torch.Tensor:
        if len(draws) > 1 and not refused:
            refused.append(len(draws))
            raise torch.OutOfMemoryError
        return compute(draws)

    monkeypatch.setattr(model, "log_probs", log_probs)
    assert torch.allclose(scores({"model": model}, draws), expected, atol=1e-5)
    assert refused


def test_what_is_imported_beforehand_is_each_model_and_touches_no_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that has a CUDA context, or another thread, cannot fork runs."""
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: pytest.fail("a CUDA context"))
    before = threading.active_count()
    preload()
    for model_type in MASKED_LMS:
        assert f"transformers.models.{model_type}.modeling_{model_type}" in sys.modules
    assert threading.active_count() == before
