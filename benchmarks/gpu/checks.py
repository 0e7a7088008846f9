"""Checks on a GPU within one process."""

import json
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
import transformers
from torch import Tensor

from benchmarks.gpu.inputs import (
    CPU,
    GPU,
    MASK_TOKEN,
    Sizes,
    blocks,
    corpus,
    masked,
    network,
    scored,
    sentences,
    vectors,
)
from benchmarks.gpu.lines import Line, within
from mptcore.families.masked_lm.checkpoints import MASKED_LMS
from mptcore.families.masked_lm.masks import MaskedBatch, Masker
from mptcore.families.masked_lm.network import MaskedLm
from mptcore.families.masked_lm.trainer import MaskedLmTrainer
from mptcore.protocol.records import Metric, Point
from mptcore.run import run
from mptcore.runtime.device import set_arithmetic
from mptcore.specs import MaskedLmTrain
from mptcore.specs.compute import Machine
from mptlab_contract import records
from tests.support.runs import spec_of
from tests.support.texts import sequence

EXACT = Machine(device="cuda")
NATS = 0.01
"""Largest mean difference of a score in bfloat16, in nats."""


def attention_of_new_shapes(sizes: Sizes) -> Iterator[Line]:
    """With cuDNN a plan would be built for every new shape."""
    for is_ours in (True, False):
        set_arithmetic(GPU, EXACT)
        if not is_ours:
            torch.backends.cuda.enable_cudnn_sdp(True)
        times = [_attention_time(length, sizes) for length in (32, 32, *range(33, 45))]
        who = "as runs set it" if is_ours else "with cuDNN"
        what = f"attention, bfloat16, {who}: first, second, a new shape"
        told = f"{1e3 * times[0]:.3g}, {1e3 * times[1]:.3g}, {1e3 * median(times[2:]):.3g} ms"
        new = median(times[2:])
        holds = new <= 0.005 if is_ours and sizes.is_timed else None
        yield Line(what, told, "≤ 5 ms for a new one", new / 0.005, holds)
    set_arithmetic(GPU, EXACT)


def _attention_time(length: int, sizes: Sizes) -> float:
    heads = sizes.bert["num_attention_heads"]
    width = sizes.bert["hidden_size"] // heads
    q = torch.randn(64, heads, length, width).to(GPU, torch.bfloat16)
    torch.cuda.synchronize()
    began = perf_counter()
    torch.nn.functional.scaled_dot_product_attention(q, q, q)
    torch.cuda.synchronize()
    return perf_counter() - began


def language_models_agree(sizes: Sizes) -> Iterator[Line]:
    """In float32 with a CPU; in bfloat16 with float32. Sentences and blocks."""
    set_arithmetic(GPU, EXACT)
    for name, text in (("sentences", sentences(sizes, 40)), ("blocks", _first(blocks(sizes), 4))):
        masks = masked(text, 0.3, sizes.vocabulary)
        expected = scored(MaskedLm(network(sizes), CPU, torch.float32), masks)
        exact = scored(MaskedLm(network(sizes), GPU, torch.float32), masks)
        rough = scored(MaskedLm(network(sizes), GPU, torch.bfloat16), masks)
        apart = float(((exact - expected) / expected).abs().max())
        yield within(f"{name}, float32, GPU against CPU, relative", apart, 1e-5, "")
        mean = float((rough - exact).abs().mean())
        yield within(f"{name}, bfloat16 against float32, mean", mean, NATS, "nats")


def _first(text: Any, count: int) -> Any:
    return text.subset(torch.arange(count))


def rotary_models_agree(sizes: Sizes) -> Iterator[Line]:
    """In bfloat16, with plain transformers in bfloat16, on the same GPU."""
    set_arithmetic(GPU, EXACT)
    length = min(2000, 4 * sizes.block_length)
    masks = masked(corpus(torch.full((4,), length), sizes.vocabulary), 0.2, sizes.vocabulary)
    for kind in ("modernbert", "esm"):
        extra: dict[str, Any] = {"num_hidden_layers": 4, "max_position_embeddings": length + 10}
        extra |= {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3}
        extra |= {"bos_token_id": 2, "eos_token_id": 3}
        if kind == "esm":
            extra |= {"mask_token_id": MASK_TOKEN, "token_dropout": True}
            extra |= {"position_embedding_type": "rotary"}
        with TemporaryDirectory() as folder:
            network(sizes, kind, **extra).save_pretrained(folder)
            load = getattr(transformers, MASKED_LMS[kind]).from_pretrained
            plain = load(folder, dtype=torch.bfloat16).eval().to(GPU)
            exact = load(folder, dtype=torch.float32).eval()
            ours = scored(MaskedLm(exact, GPU, torch.bfloat16), masks)
            reference = scored(MaskedLm(load(folder).float().eval(), GPU, torch.float32), masks)
        theirs = torch.tensor([_plain(plain, masks, row) for row in range(len(masks))])
        mean, error = (float((ours - one).abs().mean()) for one in (theirs, reference))
        of_theirs = float((theirs - reference).abs().mean())
        what = f"{kind}, {length} tokens, bfloat16, against plain transformers, mean"
        yield within(what, mean, NATS, "nats")
        told = f"{error:.2g} nats; plain transformers {of_theirs:.2g}"
        holds = error <= max(2 * of_theirs, 1e-3)
        yield Line(f"{kind}, bfloat16 against float32, mean", told, "no worse", holds=holds)


def _plain(model: Any, masks: MaskedBatch, row: int) -> float:
    """Return the mean log p of the masked tokens of one sequence by itself."""
    own = sequence(masks, row)
    with torch.inference_mode():
        logits = model(input_ids=own.inputs[None].to(GPU)).logits[0].float().cpu()
    found = logits.log_softmax(-1)[torch.arange(len(own.targets)), own.targets]
    return float(found[own.masked].mean())


def vectors_agree(sizes: Sizes) -> Iterator[Line]:
    """Linear Gaussians and a grid VAE in float64 against a CPU: all points and metrics."""
    grid = {"method": "uniform_grid", "nodes": 20, "extent": 4.0}
    likelihood = {"distribution": "bernoulli"}
    vae = {"family": "linear_vae", "latent_dim": 2, "likelihood": likelihood}
    digits = {"source": "digits", "binarize": "threshold"}
    ppca = {"family": "ppca", "latent_dim": 4, "noise_precision": 5.0, "init": "random"}
    fit = {"family": "ppca", "latent_dim": 4, "init": "maximum_likelihood"}
    training = {"epochs": 3, "batch_size": 50}
    one_mask = {"masks": {"schedule": "all", "per_size": 1}}
    two_masks = {"masks": {"schedule": "fixed", "rate": 0.4, "per_size": 2}}
    specs = {
        "PPCA, random": vectors(ppca, sizes),
        "PPCA, maximum likelihood": vectors(fit, sizes),
        "PPCA, trained": vectors(ppca, sizes, train=training, evaluate=one_mask),
        "grid VAE": vectors({**vae, "conditionals": grid}, sizes, data=digits, evaluate=two_masks),
    }
    for name, spec in specs.items():
        found, expected = (
            _values({**spec, "compute": {"device": device, "threads": 2}})
            for device in ("cuda", "cpu")
        )
        apart = max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(found, expected, strict=True))
        what = f"{name}, float64, GPU against CPU, {len(found)} numbers, relative"
        yield within(what, apart, 1e-8 if "trained" in name else 1e-10, "")


def _values(spec: dict[str, Any]) -> list[float]:
    """Return the numbers of a run, without its times."""
    return [
        number
        for record in run(spec_of(spec))
        if isinstance(record, Point | Metric)
        for number in (record.value, record.std_err)
        if number is not None and math.isfinite(number)
    ]


def pretrained_models_agree(_: Sizes) -> Iterator[Line]:
    """A real model on real molecules, as runs compute it, against a CPU."""
    if not Path(os.environ.get("MPT_MODELS_DIR", ""), "rxnfp-bert").is_dir():
        yield Line("rxnfp-bert on molecules", "not run: it is not in MPT_MODELS_DIR")
        return
    spec = {
        "model": {"family": "masked_lm", "checkpoint": "rxnfp-bert"},
        "data": {"source": "text", "file": "nci_smiles.txt", "n": 300},
        "evaluate": {
            "masks": {"schedule": "rates", "rates": [0.15, 0.5, 0.9]},
            "sequences": 20,
            "pll": True,
        },
    }
    found = {
        (device, precision): _values(
            {**spec, "compute": {"device": device, "precision": precision, "threads": 8}}
        )
        for device, precision in (("cpu", "float32"), ("cuda", "float32"), ("cuda", "bfloat16"))
    }
    for (device, precision), values in found.items():
        pairs = list(zip(values, found["cpu", "float32"], strict=True))
        apart = max(abs(a - b) / max(1.0, abs(b)) for a, b in pairs)
        what = (
            f"rxnfp-bert on 300 molecules, {precision}, {device} against CPU, {len(pairs)} numbers"
        )
        yield within(what, apart, 1e-5 if precision == "float32" else NATS, "")


def many_logits(sizes: Sizes) -> Iterator[Line]:
    """More logits than 32 bits count, in parts that are as large as may be, on a network that is
    small but for them."""
    set_arithmetic(GPU, EXACT)
    small = {**sizes.bert, "hidden_size": 64 if sizes.is_timed else 16, "num_hidden_layers": 1}
    small |= {"num_attention_heads": 1, "intermediate_size": 64}
    sizes = replace(sizes, bert=small)
    count = math.ceil(sizes.logits / sizes.vocabulary / (sizes.block_length - 2))
    text = corpus(torch.full((count,), sizes.block_length), sizes.vocabulary)
    masks = masked(text, 1.0, sizes.vocabulary)
    large, usual = (
        MaskedLm(network(sizes), GPU, torch.bfloat16, memory) for memory in (2**36, 2**28)
    )
    apart = float((scored(large, masks) - scored(usual, masks)).abs().max())
    what = f"{masks.logits.sum() * sizes.vocabulary / 2**31:.3g} · 2^31 logits"
    yield within(f"{what}, in the largest parts against small ones", apart, NATS, "nats")


def gradients_agree(sizes: Sizes) -> Iterator[Line]:
    """In bfloat16, by the kernel for all lengths, with float32 in padded groups."""
    set_arithmetic(GPU, EXACT, trains_network=True)
    masks = masked(sentences(sizes, 64), 0.3, sizes.vocabulary)
    masks = masks[torch.argsort(masks.lengths, stable=True, descending=True)]
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        model = MaskedLm(network(sizes), GPU, dtype, trained=True)
        model.log_probs(masks).mean().backward()  # type: ignore[no-untyped-call]
        gradients = [p.grad for p in model.network.parameters() if p.grad is not None]
        found.append(torch.cat([one.flatten().double() for one in gradients]).cpu())
    apart = float((found[1] - found[0]).norm() / found[0].norm())
    yield within("gradient, bfloat16 against float32, relative norm", apart, 0.03, "")
    set_arithmetic(GPU, EXACT)


def trainings_repeat(sizes: Sizes) -> Iterator[Line]:
    """Two trainings, and one that resumes, bit for bit."""
    told = set_arithmetic(GPU, EXACT, trains_network=True)
    (first, second, resumed) = (_trained(sizes, resume) for resume in (False, False, True))
    for name, other in (("again", second), ("resumed", resumed)):
        differ = sum(not torch.equal(a, b) for a, b in zip(first, other, strict=True))
        what = f"a training in bfloat16 ({told}), {name}: tensors that differ"
        yield within(what, differ, 0.5, f"of {len(first)}")
    set_arithmetic(GPU, EXACT)
    ppca = {"family": "ppca", "latent_dim": 4, "noise_precision": 5.0, "init": "random"}
    spec = spec_of(vectors(ppca, sizes, train={"epochs": 4, "batch_size": 50}))
    with TemporaryDirectory() as folder:
        whole, again = (records(spec, Path(folder, name)) for name in "ab")
        parts = records(spec, Path(folder, "c"), 4) + records(spec, Path(folder, "c"))
    yield Line("a training of PPCA, again", f"{whole == again}", "True", holds=whole == again)
    is_same = _without_logs(parts) == _without_logs(whole)
    yield Line("a training of PPCA, resumed", f"{is_same}", "True", holds=is_same)


def _without_logs(lines: list[str]) -> list[str]:
    return [line for line in lines if json.loads(line)["record"] != "log"]


def _trained(sizes: Sizes, resumes: bool) -> list[Tensor]:
    """Return the weights after six steps, on the CPU."""
    kept: dict[str, Tensor] | None = None
    for begin, end in ((0, 3), (3, 6)) if resumes else ((0, 6),):
        model = MaskedLm(network(sizes), GPU, torch.bfloat16, trained=True)
        text = sentences(sizes, 200)
        masker = Masker(text, MASK_TOKEN, sizes.vocabulary)
        spec = MaskedLmTrain(steps=6, batch_size=32, warmup_steps=1)
        trainer = MaskedLmTrainer(spec, model, masker, None, 1)
        if kept is not None:
            trainer.restore(kept)
        for trainer.epoch in range(begin, end):
            trainer.step()
        kept = {name: value.cpu() for name, value in trainer.tensors().items()}
    assert kept is not None
    return [value for _, value in sorted(kept.items())]


def scores_repeat(sizes: Sizes) -> Iterator[Line]:
    """The same bits again; and how far other cuts, and cuts after short memory, are from them."""
    set_arithmetic(GPU, EXACT)
    masks = masked(sentences(sizes, sizes.sentences // 4), 0.3, sizes.vocabulary)
    model = MaskedLm(network(sizes), GPU, torch.bfloat16)
    first, again = scored(model, masks), scored(model, masks)
    differ = int((first != again).sum())
    yield within("scores again: that differ", differ, 0.5, f"of {len(first)}")
    others = scored(MaskedLm(network(sizes), GPU, torch.bfloat16, 2**28), masks)
    told = f"{int((first != others).sum())}, by at most {(first - others).abs().max():.2g} nats"
    yield Line("scores by other cuts: that differ", told, "told, not decided")
    text = blocks(sizes)
    most = masked(text, 0.99, sizes.vocabulary)
    model = MaskedLm(network(sizes), GPU, torch.bfloat16)
    expected = scored(model, most)
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    taken = max(0, free - sizes.free_bytes) if sizes.free_bytes else 1
    hog = torch.empty(taken, dtype=torch.uint8, device=GPU)
    found = scored(model, most)
    del hog
    torch.cuda.empty_cache()
    apart = float((found - expected).abs().max())
    what = f"with {sizes.free_bytes / 2**30:.3g} GiB free, parts halved {model._fits is not None}"
    yield within(f"scores {what}", apart, NATS, "nats")


CHECKS = (
    attention_of_new_shapes,
    language_models_agree,
    rotary_models_agree,
    vectors_agree,
    pretrained_models_agree,
    gradients_agree,
    trainings_repeat,
    scores_repeat,
    many_logits,
)
