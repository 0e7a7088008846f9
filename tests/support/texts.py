"""Texts and language models, in this process."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from mptcore.families.masked_lm import corpus
from mptcore.families.masked_lm.corpus import Corpus
from mptcore.families.masked_lm.masks import MaskedBatch
from mptcore.families.masked_lm.network import MaskedLm, score_batches
from mptcore.runtime.state import RunState
from mptcore.specs import PlainText
from tests.support import tiny_lm

CPU = torch.device("cpu")


def corpus_of(lines: list[str], **options: object) -> Corpus:
    spec = PlainText.model_validate({"source": "text", "lines": lines, **options})
    return corpus.read(spec, tiny_lm.tokenizer(), 40)


def corpus_of_pairs(count: int) -> Corpus:
    """Texts of two sentences each, which have different token types."""
    rows = list(zip(tiny_lm.lines(count), tiny_lm.lines(count, 1), strict=True))
    whole = corpus.of_sequences(corpus._sentences(rows, tiny_lm.tokenizer(), 40))
    assert set(whole.types.tolist()) == {0, 1}
    return whole


def scores_of(
    models: Mapping[str, MaskedLm],
    masks: MaskedBatch,
    meanwhile: Callable[[], None] = lambda: None,
) -> Tensor:
    """Return the scores of one batch, as `score_batches` computes them: (models, 2, B)."""
    batches = score_batches(models, [(masks, None)], RunState(), meanwhile)
    (batch,) = (batch for batch in batches if batch is not None)
    return batch.values


class Sequence(NamedTuple):
    """A masked sequence by itself, (L,) each."""

    inputs: Tensor
    targets: Tensor
    types: Tensor
    masked: Tensor


def sequence(masks: MaskedBatch, i: int) -> Sequence:
    """The i-th of a batch."""
    text, number = masks.corpus, masks.sequences[i]
    own = slice(int(text.offsets[number]), int(text.offsets[number + 1]))
    first = int(masks.counts[:i].sum())
    of_mask = slice(first, first + int(masks.counts[i]))
    places = masks.positions[of_mask]
    targets = text.ids[own].long()
    masked = torch.zeros(len(targets), dtype=torch.bool)
    masked[places] = True
    inputs = targets.clone()
    seen = masks.seen
    inputs[places] = seen[of_mask].long() if isinstance(seen, Tensor) else seen
    return Sequence(inputs, targets, text.types[own].long(), masked)
