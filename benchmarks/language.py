"""Language models against the tools that one would use instead: transformers' Trainer."""

import importlib
import json
import math
import os
import time
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.table import Row, SkippedError
from mptcore.protocol.records import Metric
from mptcore.run import run
from mptcore.runtime.process import keep_freed_memory
from mptcore.specs import MaskedLmExperiment

SENTENCES = 1024
HOST_RATES = {"rates": [0.1, 0.3, 0.5, 0.7, 0.9]}
GPU_BYTES = 24 * 2**30
"""Memory for a batch on a GPU of 80 GB."""
STEP_BATCHES, STEPS = (32, 1024), 5
"""Sentences of a training step, and the measured steps."""
SORTED = "batches of 64 sorted by length"
PILOT, PILOT_RATES = 150, [round(0.025 + 0.05 * i, 3) for i in range(20)]
"""Sequences and rates of the pilot that measures the spread of the area over sequences."""
AREA_RATES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""The passes of the Trainer that are timed, of 99."""
BERT_BASE = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
}


def throughput(threads: int) -> Iterator[Row]:
    """One pass at 15 % over sentences, by a BERT of the base size with random weights."""
    spec = text_spec(
        {"checkpoint": "bert-uncased-tokenizer", "init": "random", "architecture": BERT_BASE},
        {"file": "rotten_tomatoes.txt", "n": SENTENCES},
        {"masks": {"schedule": "rates", "rates": [0.15]}},
        threads,
    )
    parts = _Parts(spec)
    ours, encoder = parts.time_of_pass(0.15), parts.encoder_rate()
    theirs = parts.time_of_trainer(0.15)
    rate = parts.tokens / ours
    ratio = theirs / ours
    work = f"bert-base (random), {SENTENCES} sentences at 15 %, float32"
    remark = f"{rate:.0f} tokens/s, {100 * rate / encoder:.0f} % of the encoder's own rate"
    against = f"Trainer.evaluate: {parts.tokens / theirs:.0f} tokens/s"
    yield Row("lm-throughput", work, ours, against, ratio, "2", ratio >= 2, remark)
    rival = parts.time_of_trainer(0.15, SORTED)
    against = f"Trainer.evaluate, {SORTED}: {parts.tokens / rival:.0f} tokens/s"
    yield Row("lm-throughput", "the same", ours, against, rival / ours, "", True)


def area(threads: int) -> Iterator[Row]:
    """The area under the curve of a real pretrained model to half a percent."""
    model, data = {"checkpoint": "rxnfp-bert"}, {"file": "nci_smiles.txt"}
    rough = _measured(
        text_spec(model, {**data, "n": 200}, {"masks": {"rates": [0.3, 0.7]}}, threads)
    )
    target = 0.005 * abs(rough["area"].value or math.nan) / 0.8  # the two cover 0.8 of the axis
    spec = text_spec(model, data, {"target_std_err": target}, threads)
    began = time.perf_counter()
    found = _measured(spec)
    seconds = time.perf_counter() - began
    parts = _Parts(spec)
    passes = sum(parts.time_of_trainer(rate) for rate in AREA_RATES)
    baseline = passes * 99 / len(AREA_RATES)
    value, error = found["area"].value or math.nan, found["area"].std_err or math.nan
    remark = f"{value:.1f} ± {error:.1f} from {found['masks'].value:.0f} masks"
    against = f"99 passes of Trainer.evaluate, from {len(AREA_RATES)} of them: {baseline:.0f} s"
    ratio = baseline / seconds
    work = "area of rxnfp-bert on 4,999 molecules to 0.5 %, all told"
    met = ratio >= 20 and error <= 0.0055 * abs(value)
    yield Row("lm-area", work, seconds, against, ratio, "20", met, remark)
    enough = _sequences_for(target, model, data, threads, len(parts.corpus))
    part = _Parts(text_spec(model, {**data, "n": enough}, {}, threads))
    rival = sum(part.time_of_trainer(r, SORTED) for r in AREA_RATES) * 99 / len(AREA_RATES)
    against = (
        f"99 passes over {enough} molecules, for the same error, of Trainer.evaluate, {SORTED}, "
        f"from {len(AREA_RATES)} of them: {rival:.0f} s"
    )
    yield Row("lm-area", "the same", seconds, against, rival / seconds, "", True)


def _sequences_for(
    std_err: float, model: dict[str, Any], data: dict[str, Any], threads: int, population: int
) -> int:
    """Return the number of sequences, each scored at all rates, that give the area this error about
    the text. It is computed from the spread of the area over some of them."""
    pilot = text_spec(model, {**data, "n": PILOT}, {"masks": {"rates": PILOT_RATES}}, threads)
    spread = (_measured(pilot)["area_population"].std_err or math.nan) * math.sqrt(PILOT)
    without_end = (spread / std_err) ** 2
    return math.ceil(without_end / (1 + without_end / population))


def host(_: int) -> Iterator[Row]:
    """Measure the processor's work for each token of a GPU: drawing masks, cutting them into
    batches for a GPU, layout for the copy, and combining the scores, without the network and on one
    thread."""
    for packing in ("blocks", "sentences"):
        data = {"file": "rotten_tomatoes.txt", "packing": packing}
        spec = text_spec({"checkpoint": "bert-uncased-tokenizer"}, data, {"masks": HOST_RATES}, 1)
        parts = _Parts(spec)
        seconds, tokens = parts.host_time(), parts.tokens * len(spec.evaluate.masks.rates)
        per_token = 1e9 * seconds / tokens
        work = f"host work for bert-base on a GPU, {packing}, {tokens / 1e6:.1f} M tokens"
        remark = f"{per_token:.0f} ns of processor time a token"
        yield Row("lm-host", work, seconds, "", None, "40 ns", per_token <= 40, remark)


def steps(_: int) -> Iterator[Row]:
    """In how many parts a training step is computed: packed, and as it would be if sequences of one
    length were a part."""
    spec = text_spec(
        {"checkpoint": "bert-uncased-tokenizer"}, {"file": "rotten_tomatoes.txt"}, {}, threads=1
    )
    parts = _Parts(spec)
    for batch in STEP_BATCHES:
        began = time.perf_counter()
        packed, alike = parts.parts_of_steps(batch)
        seconds = time.perf_counter() - began
        work = f"parts of a training step of bert-base on a GPU, {batch} sentences: {packed:.3g}"
        against = f"sentences of one length each: {alike:.3g}"
        yield Row("lm-steps", work, seconds, against, alike / packed, "2 parts", packed <= 2)


class _Parts:
    """The model and the text of a spec, for both ways."""

    def __init__(self, spec: MaskedLmExperiment):
        self.pretrained = importlib.import_module("mptcore.families.masked_lm.checkpoints")
        corpora = importlib.import_module("mptcore.families.masked_lm.corpus")
        self.spec = spec
        torch.set_num_threads(spec.compute.threads)
        self.tokenizer = self.pretrained.PretrainedSource.of(spec.model).tokenizer()
        self.corpus = corpora.read(spec.data, self.tokenizer, 512)

    @cached_property
    def network(self) -> Any:
        return self.pretrained.network_of(self.spec.model, self.tokenizer, 0).eval()

    @property
    def tokens(self) -> int:
        """Tokens that are no padding, in one pass."""
        return len(self.corpus.ids)

    def time_of_pass(self, rate: float) -> float:
        """Seconds for one pass as the runs make it, the masks included."""
        draws = importlib.import_module("mptcore.families.masked_lm.masks")
        lm = importlib.import_module("mptcore.families.masked_lm.network")
        masker = draws.Masker(self.corpus, self.tokenizer.mask_token_id, len(self.tokenizer))
        model = lm.MaskedLm(self.network, torch.device("cpu"), torch.float32)
        sequences = torch.arange(len(self.corpus))
        rates = torch.full((len(sequences),), rate, dtype=torch.float64)

        def one_pass(part: torch.Tensor) -> None:
            found, _ = masker.at_rates(part, rates[: len(part)], torch.Generator().manual_seed(1))
            for _ in lm.score_batches({"model": model}, [(found, None)], lm.RunState()):
                pass

        one_pass(sequences[:32])  # warm
        began = time.perf_counter()
        one_pass(sequences)
        return time.perf_counter() - began

    def bare_model(self) -> Any:
        """Model that cuts batches as bert-base does on a GPU, without a network."""
        lm = importlib.import_module("mptcore.families.masked_lm.network")
        bare = self.pretrained.transformers.BertForMaskedLM(
            self.pretrained.transformers.BertConfig(
                hidden_size=4, num_hidden_layers=0, num_attention_heads=1, intermediate_size=4
            )
        )
        model = lm.MaskedLm(bare.eval(), torch.device("cpu"), torch.float32, GPU_BYTES)
        model.config = self.pretrained.transformers.BertConfig(**BERT_BASE)
        return model

    def parts_of_steps(self, batch: int) -> tuple[float, float]:
        """Return the mean number of parts of training steps with this number of sentences, and
        their lengths."""
        draws = importlib.import_module("mptcore.families.masked_lm.masks")
        masker = draws.Masker(self.corpus, self.tokenizer.mask_token_id, len(self.tokenizer))
        model = self.bare_model()
        model.network.train()
        generator = torch.Generator().manual_seed(1)
        packed, alike = [], []
        order = torch.randperm(len(self.corpus), generator=generator)
        for chosen in torch.split(order, batch)[:STEPS]:
            rates = torch.full((len(chosen),), 0.15, dtype=torch.float64)
            masks, _ = masker.at_rates(chosen, rates, generator)
            packed.append(len(list(model.parts(masks))))
            alike.append(len(masks.lengths.unique()))
        return sum(packed) / len(packed), sum(alike) / len(alike)

    def host_time(self) -> float:
        """Seconds of processor time for the curve, the network left out: the best of three."""
        draws = importlib.import_module("mptcore.families.masked_lm.masks")
        lm = importlib.import_module("mptcore.families.masked_lm.network")
        evaluations = importlib.import_module("mptcore.families.masked_lm.curve")
        model = self.bare_model()

        def laid_out(masks: Any) -> torch.Tensor:
            row = lm.Row.of(masks, model.device)
            return torch.zeros(2, len(row.counts), dtype=torch.float64)

        model._score = laid_out
        keep_freed_memory()
        masker = draws.Masker(self.corpus, self.tokenizer.mask_token_id, len(self.tokenizer))
        evaluation = evaluations.CorpusEvaluation(
            self.spec.evaluate, {"model": model}, masker, {}, lm.RunState()
        )
        rates = torch.tensor(self.spec.evaluate.masks.rates, dtype=torch.float64)
        rates = rates.repeat_interleave(len(self.corpus))
        times = []
        for _ in range(3):
            began = time.process_time()
            plan, generator = torch.arange(len(rates)), torch.Generator().manual_seed(1)
            for masks, _ in evaluation._pieces(plan, rates, generator):
                model.scores_and_next(masks)
            times.append(time.process_time() - began)
        return min(times)

    def encoder_rate(self) -> float:
        """Tokens per second of the encoder alone, on full batches without padding."""
        length = int(self.corpus.lengths.double().mean())
        ids = torch.randint(1000, (2048 // length, length))
        self.network.set_attn_implementation("sdpa")
        with torch.inference_mode():
            self.network.base_model(input_ids=ids)
            began = time.perf_counter()
            for _ in range(8):
                self.network.base_model(input_ids=ids)
        return 8 * ids.numel() / (time.perf_counter() - began)

    def time_of_trainer(self, rate: float, way: str = "") -> float:
        """Seconds of Trainer.evaluate with the usual collator; at their defaults, or SORTED."""
        transformers = self.pretrained.transformers
        ends = self.corpus.offsets.tolist()
        ids = self.corpus.ids.tolist()
        rows = [{"input_ids": ids[a:b]} for a, b in pairwise(ends)]
        if way == SORTED:
            rows.sort(key=lambda row: -len(row["input_ids"]))
        collator = transformers.DataCollatorForLanguageModeling(
            self.tokenizer, mlm_probability=rate
        )
        with TemporaryDirectory() as folder:
            options: Any = {"report_to": [], "disable_tqdm": True, "use_cpu": True}
            if way == SORTED:
                options["per_device_eval_batch_size"] = 64
            self.network.set_attn_implementation("sdpa")  # our own would see no padding
            arguments = transformers.TrainingArguments(folder, **options)
            trainer = transformers.Trainer(
                self.network, arguments, data_collator=collator, eval_dataset=rows
            )
            trainer.evaluate(rows[:32])  # warm
            began = time.perf_counter()
            trainer.evaluate()
            return time.perf_counter() - began


def text_spec(
    model: dict[str, Any], data: dict[str, Any], evaluate: dict[str, Any], threads: int
) -> MaskedLmExperiment:
    folder = os.environ.get("MPT_MODELS_DIR", "")
    if not Path(folder, model["checkpoint"]).is_dir():
        raise SkippedError(f"{model['checkpoint']} is not in MPT_MODELS_DIR")
    value = {
        "model": {"family": "masked_lm", **model},
        "data": {"source": "text", **data},
        "evaluate": evaluate,
        "compute": {"threads": threads},
    }
    return MaskedLmExperiment.model_validate(json.loads(json.dumps(value)))


def _measured(spec: MaskedLmExperiment) -> dict[str, Metric]:
    return {r.name: r for r in run(spec) if isinstance(r, Metric)}


BENCHMARKS = {
    "lm-throughput": throughput,
    "lm-area": area,
    "lm-host": host,
    "lm-steps": steps,
}
