"""Models and data of the checks and measurements: random weights and random tokens, so that no file
is needed."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor

from benchmarks.language import BERT_BASE
from mptcore.families.masked_lm.checkpoints import fresh
from mptcore.families.masked_lm.corpus import Corpus
from mptcore.families.masked_lm.masks import MaskedBatch, Masker
from mptcore.families.masked_lm.network import MaskedLm
from tests.support.texts import scores_of

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
MASK_TOKEN = 4
TINY_BERT = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}


@dataclass(frozen=True)
class Sizes:
    """Sizes of everything. The defaults are for a GPU of 80 GB."""

    bert: Mapping[str, int] = field(default_factory=lambda: BERT_BASE)
    vocabulary: int = 30_522
    sentences: int = 9_000
    """Number of sentences of 27 tokens on average: a quarter of a million tokens."""
    blocks: int = 512
    block_length: int = 512
    dimensions: int = 784
    """D of the vectors."""
    masks_per_size: int = 8
    logits: int = 2**31 + 2**27
    free_bytes: int = 4 * 2**30
    """Memory that is left in the check of short memory."""
    forks: int = 20
    product: int = 8192
    """Rows and columns of the matrix products."""
    repeats: int = 5
    batches: tuple[int, ...] = (32, 1024)
    """Sentences of a training step."""
    is_timed: bool = True
    """Decide by times too. False on a GPU that is none."""
    device: str = "cuda"
    """Device of the runs in other processes."""


FULL = Sizes()
TINY = Sizes(
    bert=TINY_BERT,
    vocabulary=41,
    sentences=60,
    blocks=6,
    block_length=24,
    dimensions=12,
    masks_per_size=1,
    logits=2_000,
    free_bytes=0,
    forks=2,
    product=8,
    repeats=1,
    batches=(4, 8),
    is_timed=False,
    device="cpu",
)


def network(sizes: Sizes, kind: str = "bert", **options: Any) -> Any:
    """Return a network with random weights, in evaluation mode."""
    config = transformers.AutoConfig.for_model(
        kind, vocab_size=sizes.vocabulary, **{**sizes.bert, **options}
    )
    return fresh(config, 1).eval()


def sentences(sizes: Sizes, count: int | None = None) -> Corpus:
    """Return sentences of 5 to 70 tokens, or shorter ones if blocks are short."""
    count = sizes.sentences if count is None else count
    draws = torch.Generator().manual_seed(1)
    lengths = (27 + 12 * torch.randn(count, generator=draws)).round().long()
    return corpus(lengths.clamp(5, min(70, sizes.block_length)), sizes.vocabulary)


def blocks(sizes: Sizes) -> Corpus:
    """Return sequences of one length."""
    return corpus(torch.full((sizes.blocks,), sizes.block_length), sizes.vocabulary)


def corpus(lengths: Tensor, vocabulary: int) -> Corpus:
    """Return random tokens in sequences of the lengths (N,). The first and the last of each
    sequence cannot be masked."""
    draws = torch.Generator().manual_seed(2)
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    total = int(offsets[-1])
    ids = torch.randint(5, vocabulary, (total,), generator=draws, dtype=torch.int32)
    maskable = torch.ones(total, dtype=torch.bool)
    maskable[offsets[:-1]] = maskable[offsets[1:] - 1] = False
    return Corpus(ids, torch.zeros_like(ids), maskable, offsets)


def masked(text: Corpus, rate: float, vocabulary: int) -> MaskedBatch:
    """Return one mask of each sequence at a rate."""
    masker = Masker(text, MASK_TOKEN, vocabulary)
    rates = torch.full((len(text),), rate, dtype=torch.float64)
    found, _ = masker.at_rates(torch.arange(len(text)), rates, torch.Generator().manual_seed(3))
    return found


def scored(model: MaskedLm, masks: MaskedBatch) -> Tensor:
    """Return the scores of the masks, (B,), on the CPU."""
    return scores_of({"model": model}, masks)[0, 0]


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the seconds of some work on the GPU, the least of some repeats after one to warm."""
    work()
    found = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return min(found)


def vectors(model: Mapping[str, Any], sizes: Sizes, **changes: Any) -> dict[str, Any]:
    """Return a spec of a model of vectors on the GPU, without its training."""
    return {
        "model": dict(model),
        "data": {
            "source": "ppca",
            "n": 200,
            "dim": sizes.dimensions,
            "latent_dim": 4,
            "noise_precision": 5.0,
        },
        "evaluate": {"masks": {"schedule": "all", "per_size": sizes.masks_per_size}},
        "compute": {"device": "cuda", "threads": 2},
        **changes,
    }
