"""Times on a GPU, beside what arithmetic expects."""

import sys
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import pairwise
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from torch import Tensor

from benchmarks.gpu.inputs import (
    GPU,
    MASK_TOKEN,
    Sizes,
    blocks,
    masked,
    network,
    scored,
    seconds,
    sentences,
    vectors,
)
from benchmarks.gpu.lines import Line
from benchmarks.gpu.processes import finished
from mptcore.families.masked_lm import packing
from mptcore.families.masked_lm.corpus import Corpus
from mptcore.families.masked_lm.curve import CorpusEvaluation
from mptcore.families.masked_lm.masks import Masker
from mptcore.families.masked_lm.network import MaskedLm
from mptcore.families.masked_lm.trainer import MaskedLmTrainer
from mptcore.run import run
from mptcore.runtime.device import set_arithmetic
from mptcore.runtime.state import RunState
from mptcore.specs import MaskedLmEvaluate, MaskedLmTrain, RateMasks
from mptcore.specs.compute import GPU_SHARE, Machine
from mptcore.specs.families.masked_lm import GPU_PART_BYTES
from tests.support.runs import spec_of
from worker.children import Spawned
from worker.runner import Runner

EXACT, FAST = (Machine(device="cuda", determinism=one) for one in ("exact", "fast"))
RATES = (0.15, 0.5, 0.99)
EXPECTED_MFU = {"blocks": 0.45, "sentences": 0.3}
"""Share of the rate of a large product that scores should reach."""
TOP = 12
"""Number of kernels of which the profile is told."""


@cache
def product_rate(n: int, dtype: torch.dtype, repeats: int) -> float:
    """Return the floating-point operations a second of a product of n rows and columns."""
    a = torch.randn(n, n).to(GPU, dtype)
    return 2 * n**3 / seconds(lambda: a @ a, repeats)


def ceilings(sizes: Sizes) -> Iterator[Line]:
    """The rates of a large product, and of a copy, by which all else is judged."""
    expected = {torch.bfloat16: 990e12, torch.float32: 67e12, torch.float64: 67e12}
    set_arithmetic(GPU, EXACT)
    for dtype, nominal in expected.items():
        n = sizes.product if dtype == torch.bfloat16 else sizes.product // 2
        rate = product_rate(n, dtype, sizes.repeats)
        name = str(dtype).removeprefix("torch.")
        told = f"{rate / 1e12:.3g} TFLOP/s"
        yield Line(f"product of {n}, {name}", told, f"{nominal / 1e12:.0f}", rate / nominal)
    x = torch.empty(sizes.product**2 * 16, dtype=torch.uint8, device=GPU)
    rate = 2 * x.numel() / seconds(x.clone, sizes.repeats)
    yield Line("copy within the GPU", f"{rate / 1e12:.3g} TB/s", "3.35", rate / 3.35e12)


def flops_per_pass(sizes: Sizes, text: Corpus, rate: float) -> float:
    """Return the floating-point operations to score one mask of each sequence: the products of
    the encoder, of attention, and of the head at the masked tokens."""
    width, layers = sizes.bert["hidden_size"], sizes.bert["num_hidden_layers"]
    lengths = text.lengths.double()
    products = 2 * layers * (4 * width**2 + 2 * width * sizes.bert["intermediate_size"])
    attention = 4 * layers * width * float((lengths**2).sum())
    head = 2 * (width**2 + width * sizes.vocabulary) * rate * float(text.sizes.sum())
    return products * float(lengths.sum()) + attention + head


def scoring(sizes: Sizes) -> Iterator[Line]:
    """Scores of bert-base in bfloat16, with masks drawn, as a run computes them."""
    set_arithmetic(GPU, EXACT)
    model = MaskedLm(network(sizes), GPU, torch.bfloat16)
    if sizes.is_timed:
        torch.cuda.reset_peak_memory_stats()
    for name, text in (("blocks", blocks(sizes)), ("sentences", sentences(sizes))):
        for rate in RATES:
            took = _time_of_curve(model, text, rate, sizes)
            tokens = 2 * int(text.lengths.sum())
            mfu = (
                2
                * flops_per_pass(sizes, text, rate)
                / took
                / product_rate(sizes.product, torch.bfloat16, sizes.repeats)
            )
            what = f"{name} at {100 * rate:.0f} %"
            told = f"{tokens / took / 1e3:.4g} thousand tokens/s, {100 * mfu:.3g} % of a product"
            expected = EXPECTED_MFU[name]
            yield Line(what, told, f"{100 * expected:.0f} %", mfu / expected)
    if sizes.is_timed:
        yield _peak("of these scores", "scores")
    larger = MaskedLm(network(sizes), GPU, torch.bfloat16, 4 * GPU_PART_BYTES["scores"])
    text, rate = sentences(sizes), RATES[-1]
    took, with_larger = (_time_of_curve(one, text, rate, sizes) for one in (model, larger))
    told = f"{took:.3g} s; in parts four times as large {with_larger:.3g} s"
    yield Line(f"sentences at {100 * rate:.0f} %, again", told, "1", took / with_larger)


def _peak(what: str, use: str) -> Line:
    peak, whole = torch.cuda.max_memory_reserved(), torch.cuda.mem_get_info()[1]
    most = min(GPU_PART_BYTES[use], GPU_SHARE * whole)
    told, expected = (f"{one / 2**30:.3g} GiB" for one in (peak, most))
    return Line(f"peak memory {what}", told, expected, peak / most)


def _time_of_curve(model: MaskedLm, text: Corpus, rate: float, sizes: Sizes) -> float:
    """Return the seconds of two masks of each sequence."""
    spec = MaskedLmEvaluate(masks=RateMasks(rates=(rate,), per_size=2))
    masker = Masker(text, MASK_TOKEN, sizes.vocabulary)
    evaluation = CorpusEvaluation(spec, {"model": model}, masker, {}, RunState())

    def curve() -> None:
        for _ in evaluation.records(torch.Generator().manual_seed(1)):
            pass

    return seconds(curve, 1)


def profile(sizes: Sizes) -> Iterator[Line]:
    """A batch and a training step: kernels, the time that the GPU computes, and what takes it."""
    if not sizes.is_timed:
        yield Line("profile", "needs a GPU")
        return
    set_arithmetic(GPU, EXACT)
    model = MaskedLm(network(sizes), GPU, torch.bfloat16)
    for name, text in (("sentences", sentences(sizes)), ("blocks", blocks(sizes))):
        masks = masked(text, 0.15, sizes.vocabulary)
        what = f"a batch of {name}, {int(text.lengths.sum())} tokens"
        yield _profile(what, partial(scored, model, masks))
    set_arithmetic(GPU, EXACT, trains_network=True)
    for batch in sizes.batches:
        what = f"a training step of {batch} sentences, exact"
        yield _profile(what, _trainer(sizes, batch).step)
    set_arithmetic(GPU, EXACT)


def _profile(what: str, work: Callable[[], object]) -> Line:
    took = seconds(work, 2)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as seen:
        work()
        torch.cuda.synchronize()
    kernels: dict[str, list[float]] = {}
    for event in seen.events():
        if str(event.device_type) == "DeviceType.CUDA":
            kernels.setdefault(event.name, []).append(event.device_time_total / 1e6)
    busy, launches = sum(map(sum, kernels.values())), sum(map(len, kernels.values()))
    for kernel, times in sorted(kernels.items(), key=lambda one: -sum(one[1]))[:TOP]:
        print(f"  {1e3 * sum(times):.3g} ms, {len(times)} × {kernel[:100]}", file=sys.stderr)
    for one in sorted(seen.key_averages(), key=lambda one: -one.self_cpu_time_total)[:TOP]:
        took_ms = one.self_cpu_time_total / 1e3
        print(f"  CPU {took_ms:.3g} ms, {one.count} × {one.key[:80]}", file=sys.stderr)
    told = f"{launches} kernels, busy for {1e3 * busy:.3g} of {1e3 * took:.3g} ms"
    return Line(what, told, "95 % busy", busy / took / 0.95)


def _trainer(sizes: Sizes, batch: int) -> MaskedLmTrainer:
    model = MaskedLm(network(sizes), GPU, torch.bfloat16, trained=True)
    masker = Masker(sentences(sizes), MASK_TOKEN, sizes.vocabulary)
    spec = MaskedLmTrain(steps=100, batch_size=batch, warmup_steps=1)
    return MaskedLmTrainer(spec, model, masker, None, 1)


def attention(sizes: Sizes) -> Iterator[Line]:
    """Attention of one layer on a batch of sentences: by the kernel for sequences of different
    lengths, and in padded groups."""
    set_arithmetic(GPU, EXACT)
    text = sentences(sizes)
    masks = masked(text, 0.15, sizes.vocabulary)
    masks = masks[torch.argsort(masks.lengths, stable=True, descending=True)]
    heads = sizes.bert["num_attention_heads"]
    width = sizes.bert["hidden_size"] // heads
    shape = 1, heads, int(text.lengths.sum()), width
    q, k, v = (torch.randn(shape).to(GPU, torch.bfloat16) for _ in range(3))
    for window in (None, 9):
        found, times = [], []
        for has_ends in (True, False):
            row = packing.Row.of(masks, GPU, has_ends)

            def attend(row: packing.Row = row, window: int | None = window) -> Tensor:
                return packing.attention(None, q, k, v, None, row=row, sliding_window=window)[0]

            found.append(attend())
            times.append(seconds(attend, sizes.repeats))
        apart = float((found[0] - found[1]).abs().max())
        what = f"attention, window {window}, in one launch against {len(row.groups)} padded groups"
        told = f"{1e3 * times[0]:.3g} ms, apart by {apart:.2g}"
        ratio = times[0] / times[1]
        yield Line(what, told, f"{1e3 * times[1]:.3g} ms", ratio, apart < 0.05)


def trainer_of_transformers(sizes: Sizes) -> Iterator[Line]:
    """Trainer.evaluate in bfloat16, with batches of 64 sorted by length."""
    if not sizes.is_timed:
        yield Line("Trainer.evaluate", "needs a GPU")
        return
    text = sentences(sizes, sizes.sentences // 4)
    rows = [
        {"input_ids": text.ids[a:b].tolist(), "labels": text.ids[a:b].tolist()}
        for a, b in pairwise(text.offsets.tolist())
    ]
    rows.sort(key=lambda row: -len(row["input_ids"]))
    set_arithmetic(GPU, EXACT)
    model = MaskedLm(network(sizes), GPU, torch.bfloat16)
    ours = len(text.ids) * 2 / _time_of_curve(model, text, 0.15, sizes)
    with TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, report_to=[], disable_tqdm=True, bf16_full_eval=True,
            prediction_loss_only=True, per_device_eval_batch_size=64,
        )  # fmt: skip
        trainer = transformers.Trainer(
            network(sizes).to(torch.bfloat16), arguments, data_collator=_collated,
            eval_dataset=rows,
        )  # fmt: skip
        trainer.evaluate(rows[:64])
        began = time.perf_counter()
        trainer.evaluate()
        theirs = len(text.ids) / (time.perf_counter() - began)
    told = f"{ours / 1e3:.4g} thousand tokens/s"
    yield Line("sentences, a quarter of them", told, f"Trainer: {theirs / 1e3:.4g}", ours / theirs)


def _collated(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Pad, and mask 15 %."""
    ids, labels = (
        torch.nn.utils.rnn.pad_sequence(
            [torch.tensor(row["input_ids"]) for row in rows], True, padding
        )
        for padding in (0, -100)
    )
    is_masked = (torch.rand(ids.shape) < 0.15) & (labels != -100)
    return {
        "input_ids": ids.masked_fill(is_masked, MASK_TOKEN),
        "attention_mask": (labels != -100).long(),
        "labels": labels.masked_fill(~is_masked, -100),
    }


def training_steps(sizes: Sizes) -> Iterator[Line]:
    """Steps of bert-base, in the deterministic kernels and in the fastest. An operation of the
    forward pass counts three times."""
    text = sentences(sizes)
    if sizes.is_timed:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    for compute, name in ((EXACT, "exact"), (FAST, "fast")):
        set_arithmetic(GPU, compute, trains_network=True)
        for batch in sizes.batches:
            took = seconds(_trainer(sizes, batch).step, 3)
            share = batch / len(text)
            flops = 3 * share * flops_per_pass(sizes, text, 0.15)
            mfu = flops / took / product_rate(sizes.product, torch.bfloat16, sizes.repeats)
            told = f"{1e3 * took:.3g} ms, {100 * mfu:.3g} % of a product"
            yield Line(f"a training step of {batch} sentences, {name}", told, "30 %", mfu / 0.3)
    set_arithmetic(GPU, EXACT)
    if sizes.is_timed:
        yield _peak("of these steps", "training")


def vectors_on_both(sizes: Sizes) -> Iterator[Line]:
    """Runs on vectors on the GPU and on the CPU: whole runs, the second of two."""
    ppca = {"family": "ppca", "latent_dim": 50, "init": "maximum_likelihood"}
    ppca["latent_dim"] = min(50, sizes.dimensions - 2)
    table1 = vectors(
        {"family": "ppca", "latent_dim": 5, "noise_precision": 5.0, "init": "random"},
        sizes,
        data={
            "source": "ppca", "n": 1000, "dim": min(200, sizes.dimensions), "latent_dim": 5,
            "noise_precision": 5.0,
        },
        evaluate={"masks": {"schedule": "all", "per_size": 100 if sizes.is_timed else 1}},
    )  # fmt: skip
    curve = vectors(ppca, sizes)
    curve["data"] |= {"n": 10_000 if sizes.is_timed else 50}
    for name, spec in (("Table 1", table1), ("a curve of D = 784, K = 50", curve)):
        times = {}
        for device in ("cuda", "cpu"):
            one = spec_of({**spec, "compute": {"device": device, "threads": 8}})
            times[device] = seconds(lambda one=one: list(run(one)), 1)  # type: ignore[misc]
        gpu, cpu = times.values()
        yield Line(name, f"{gpu:.3g} s", f"on the CPU: {cpu:.3g} s", gpu / cpu)


def vae_masks(sizes: Sizes) -> Iterator[Line]:
    """The time of a mask of a VAE whose latent variables are sampled."""
    conditionals: tuple[dict[str, Any], ...] = (
        {"method": "importance"} | ({} if sizes.is_timed else {"draws": 4, "steps": 1}),
        {"method": "recursive", "draws": 4, "rounds": 3},
    )
    for one in conditionals:
        times = []
        for per_size in (1, 1, 4):  # the first is to warm
            model = {
                "family": "vae", "latent_dim": 8, "conditionals": one,
                "likelihood": {"distribution": "gaussian", "noise_precision": 4.0},
                "network": {"layers": "dense", "widths": [256]},
            }  # fmt: skip
            masks = {"schedule": "fixed", "rate": 0.33, "per_size": per_size}
            spec = vectors(model, sizes, evaluate={"masks": masks})
            spec["data"] |= {"n": 50 if sizes.is_timed else 5}
            spec["compute"] |= {"precision": "float32"}
            began = time.perf_counter()
            list(run(spec_of(spec)))
            times.append(time.perf_counter() - began)
        told = f"{1e3 * (times[2] - times[1]) / 3:.3g} ms; the run with one {times[1]:.3g} s"
        yield Line(f"a mask of a VAE, {one['method']}", told)


def workers_together(sizes: Sizes) -> Iterator[Line]:
    """Small runs of 1, 2 and 4 processes on one GPU at a time."""
    ppca = {"family": "ppca", "latent_dim": 4, "noise_precision": 5.0, "init": "random"}
    spec = vectors(ppca, sizes)
    spec["evaluate"]["masks"]["per_size"] = 40 if sizes.is_timed else 1
    spec["compute"] = {"device": sizes.device, "threads": 1}
    alone = 0.0
    for count in (1, 2, 4) if sizes.is_timed else (2,):
        runners = [Runner(Spawned) for _ in range(count)]
        while not all(runner.ready for runner in runners):
            for runner in runners:
                runner.wait(0.1)
                runner.next_record()
        began = time.perf_counter()
        for runner in runners:
            runner.start({"spec": spec})
        statuses = [finished(runner)[1] for runner in runners]
        took = time.perf_counter() - began
        alone = alone or took
        told = f"{took:.3g} s, statuses {statuses}"
        holds = not any(statuses)
        yield Line(f"{count} runs at a time", told, f"{alone:.3g} s", took / alone, holds)


MEASURES = (
    ceilings,
    scoring,
    attention,
    profile,
    training_steps,
    vectors_on_both,
    workers_together,
    vae_masks,
    trainer_of_transformers,
)
