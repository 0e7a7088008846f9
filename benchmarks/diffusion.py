"""Compare `cumulative` with the likelihood of LLaDA: the passes for the same error.

`python -m benchmarks diffusion` first trains a small BERT, in some six minutes, and measures it and
`rxnfp-bert`. With `DIFFUSION=NAME` only the checkpoint NAME in MPT_MODELS_DIR is measured."""

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.language import text_spec
from benchmarks.table import Row
from mptcore.data.texts import texts
from mptcore.families.masked_lm import corpus
from mptcore.families.masked_lm.checkpoints import PretrainedSource, network_of
from mptcore.families.masked_lm.masks import Masker
from mptcore.families.masked_lm.network import MaskedLm
from mptcore.families.masked_lm.text_cumulative import CumulativeScores, all_masks
from mptcore.presets import PRESETS
from mptcore.run import resumable
from mptcore.runtime.state import RunState
from mptcore.specs import MaskedLmExperiment

TEXTS, SHORT_TEXTS, SHORT = 16, 4, (8, 10)
"""Held-out molecules: longer ones, and some with few enough tokens to score all their masks."""
REPEATS, OWN_REPEATS = 6, 24
BATCH, PASSES = 16, 128
"""Defaults of LLaDA's likelihood."""
FILE, TRAINED_ON, STEPS = "nci_smiles.txt", 4699, 3500
RUN = "d" * 32  # id of the training run
Draw = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]
"""Function that draws a batch of masks (BATCH, D) of D tokens, and their rates (BATCH,)."""
MIN_RATE = 1e-3
"""Smallest rate of the plain estimator, as in MDLM: without it the variance is infinite."""


def passes(threads: int) -> Iterator[Row]:
    """Count the passes of each estimator until its error is that of LLaDA's 128 passes."""
    torch.set_num_threads(threads)
    if "DIFFUSION" not in os.environ:
        with TemporaryDirectory() as store:
            os.environ["MPT_STORE"] = store
            _train(Path(store, "artifacts", RUN))
            model = {"checkpoint": "rxnfp-bert", "init": "experiment", "experiment": RUN}
            yield from _compare("a BERT trained here with uniform sizes", model, threads)
    name = os.environ.get("DIFFUSION", "rxnfp-bert")
    yield from _compare(name, {"checkpoint": name}, threads)


def _spec(model: dict[str, Any], data: dict[str, Any], threads: int) -> MaskedLmExperiment:
    return text_spec(model, {"file": FILE, "max_length": 128, **data}, {}, threads)


def _train(folder: Path) -> None:
    value = PRESETS["uniform-against-fixed"].specs[0].model_dump(mode="json")
    value["data"] |= {"n": TRAINED_ON, "seed": 0, "heldout": None}
    value["train"]["steps"] = STEPS
    value["evaluate"] = {"masks": {"rates": [0.5]}}
    deque(resumable(MaskedLmExperiment.model_validate(value), RunState(work_dir=folder)), 0)


@dataclass
class Estimates:
    """Repeated estimates of the likelihood of one text."""

    values: Tensor  # (repeats,)
    std_err: float
    """Standard deviation of an estimate over its repeats."""
    passes: float
    seconds: float

    def z(self, other: float, std_err: float = 0.0) -> float:
        """Return the difference of the mean from another value, in standard errors."""
        own = self.std_err / math.sqrt(len(self.values))
        error = math.hypot(own, std_err / math.sqrt(REPEATS))
        return (self.values.mean().item() - other) / error


class Likelihoods:
    """Estimates the likelihood of held-out molecules by one model."""

    def __init__(self, model: dict[str, Any], threads: int):
        spec = _spec(model, {}, threads)
        tokenizer = PretrainedSource.of(spec.model).tokenizer()
        self.network, own = (network_of(spec.model, tokenizer, 0).eval() for _ in "ab")
        self.model = MaskedLm(own, torch.device("cpu"), torch.float32)
        self.text = corpus.read(spec.data, tokenizer, 128)
        self.masker = Masker(self.text, tokenizer.mask_token_id, len(tokenizer))
        trained = corpus.chosen_rows(
            _spec(model, {"n": TRAINED_ON}, threads).data, texts(spec.data)
        )
        self.generator, sizes = torch.Generator().manual_seed(1), self.text.sizes
        order = torch.randperm(len(self.text), generator=self.generator).tolist()
        heldout = [i for i in order if i not in {*trained}]
        self.short = [i for i in heldout if SHORT[0] <= sizes[i] <= SHORT[1]][:SHORT_TEXTS]
        self.texts = [i for i in heldout if sizes[i] > SHORT[1]][:TEXTS]

    def cumulative(self, text: int, std_err: float) -> Estimates:
        """Estimate by this project, with a target error."""
        repeats = self.text.subset(torch.full((OWN_REPEATS,), text))
        masker = replace(self.masker, corpus=repeats)
        names = [f"repeat {i}" for i in range(OWN_REPEATS)]
        found = CumulativeScores(self.model, masker, RunState(), names, std_err, 100_000)
        began = time.perf_counter()
        deque(found.run(found.plan(), text), 0)
        seconds, passes = time.perf_counter() - began, found.masks.double().mean().item()
        seconds *= REPEATS / OWN_REPEATS
        return Estimates(found.value, found.value.std().item(), passes, seconds)

    def exact(self, text: int) -> float:
        """Return the cumulative score from all masks."""
        size = int(self.text.sizes[text])
        subsets, sizes = all_masks(size)
        places = self.masker.singles(text).positions[subsets]
        scores = self.model.scores(self.masker.hidden(sizes * 0 + text, sizes, places))
        weights = torch.tensor([1 / math.comb(size, int(m)) for m in sizes], dtype=torch.float64)
        return float((scores * weights).sum())

    def batches(self, text: int, draw: Draw) -> Estimates:
        """Estimate by batches of masked copies of a text, as published with LLaDA: the sum over
        masked tokens of log p / rate, averaged over masks."""
        began, values = time.perf_counter(), []
        ids = self.text.ids[int(self.text.offsets[text]) : int(self.text.offsets[text + 1])].long()
        free = self.masker.singles(text).positions
        for _ in range(REPEATS * PASSES // BATCH):
            hidden, rates = draw(len(free), self.generator)  # (BATCH, D), (BATCH,)
            masked = torch.zeros(BATCH, len(ids), dtype=torch.bool)
            masked[:, free] = hidden
            with torch.inference_mode():
                logits = self.network(input_ids=ids.where(~masked, self.masker.mask_id)).logits
            targets, of = ids.expand(BATCH, -1)[masked], hidden.nonzero()[:, 0]
            loss = cross_entropy(logits[masked], targets, reduction="none") / rates[of]
            values.append(-loss.sum().item() / BATCH)
        each = torch.tensor(values, dtype=torch.float64).view(REPEATS, -1)
        std_err = each.std().item() / math.sqrt(PASSES / BATCH)
        return Estimates(each.mean(1), std_err, PASSES, time.perf_counter() - began)


def llada(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw the masks of LLaDA's `forward_process` (Nie et al. 2025), (BATCH, D), and their rates:
    evenly spaced sizes that begin at a random one, rounded, and random positions."""
    first = int(torch.randint(1, size + 1, (), generator=generator))
    last = first + (BATCH - 1) * (size / BATCH)
    sizes = (torch.linspace(first, last, BATCH).round().long() - 1) % size + 1
    ranks = torch.rand(BATCH, size, generator=generator).argsort(1).argsort(1)
    return ranks < sizes[:, None], sizes / size


def plain(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw masks at random rates, (BATCH, D), each token by itself, and their rates."""
    rates = MIN_RATE + (1 - MIN_RATE) * torch.rand(BATCH, generator=generator)
    return torch.rand(BATCH, size, generator=generator) < rates[:, None], rates


def _compare(name: str, model: dict[str, Any], threads: int) -> Iterator[Row]:
    by = Likelihoods(model, threads)
    theirs = [by.batches(text, llada) for text in by.texts]
    ours = [by.cumulative(i, one.std_err) for i, one in zip(by.texts, theirs, strict=True)]
    pairs = list(zip(ours, theirs, strict=True))
    used = Tensor([one.passes / PASSES for one in ours])
    errors = Tensor([one.std_err / other.std_err for one, other in pairs])
    z = [one.z(other.values.mean().item(), other.std_err) for one, other in pairs]
    others = [by.batches(text, plain) for text in by.texts]
    wider = Tensor([one.std_err / other.std_err for one, other in zip(others, theirs, strict=True)])
    squared = errors.square().mean().item()
    same = used.mean().item() * squared
    remark = (
        f"{_spread(used)} of LLaDA's passes, {math.sqrt(squared):.2f} times its error, so "
        f"{same:.2f} of its passes for the same error; "
        f"z between both {_z(z)}; random rates: {_spread(wider)} times its error"
    )
    seconds, ratio = sum(one.seconds for one in ours), 1 / same
    work = f"cumulative of {TEXTS} molecules by {name}, {REPEATS} times"
    against = f"LLaDA, {PASSES} passes each: {sum(one.seconds for one in theirs):.3g} s"
    yield Row("diffusion", work, seconds, against, ratio, "4", ratio >= 4, remark)
    yield _short(name, by)


def _short(name: str, by: Likelihoods) -> Row:
    """Compare both with the exact value of short texts."""
    began, ours, theirs = time.perf_counter(), [], []
    for text in by.short:
        exact, batches = by.exact(text), by.batches(text, llada)
        ours.append(by.cumulative(text, batches.std_err).z(exact))
        theirs.append(batches.z(exact))
    remark = f"z {_z(ours)}; of LLaDA {_z(theirs)}"
    work = f"{SHORT_TEXTS} molecules of {SHORT[0]} to {SHORT[1]} tokens against all masks, {name}"
    return Row("diffusion", work, time.perf_counter() - began, "", None, "", True, remark)


def _spread(values: Tensor) -> str:
    low, high = values.aminmax()
    return f"{values.median():.2f} ({low:.2f} to {high:.2f}, mean {values.mean():.2f})"


def _z(values: list[float]) -> str:
    return f"{Tensor(values).mean():+.2f} on average, sd {Tensor(values).std():.2f}"


BENCHMARKS = {"diffusion": passes}
