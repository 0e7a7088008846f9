"""Measure scores of texts beside minicons, in an environment of its own:
`MINICONS=/path/to/its/python python -m benchmarks minicons`. It needs minicons 0.3.39 and
transformers 4, which this project's environment does not have."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.language import text_spec
from benchmarks.table import Row, SkippedError
from mptcore.run import resumable
from mptcore.runtime.state import RunState
from mptcore.specs import MaskedLmExperiment

N, WARM = 300, 20
METRICS = {"pll": "original", "pll_word_l2r": "within_word_l2r"}
"""Names of minicons for our scores."""
BATCHES = (1, 8, 32)
"""Texts of a batch of minicons. The fastest is taken, from the first texts."""
TRIED = 40
MAX_DIFFERENCE = 1e-4
PROGRAM = """
import json, sys, time
import torch
from minicons import scorer

asked = json.load(sys.stdin)
torch.set_num_threads(asked["threads"])
model = scorer.MaskedLMScorer(asked["model"], "cpu")

def scored(texts, size):
    began, found = time.perf_counter(), []
    for i in range(0, len(texts), size):
        found += model.sequence_score(
            texts[i : i + size], reduction=lambda x: x.sum(0).item(), PLL_metric=asked["metric"]
        )
    return found, time.perf_counter() - began

texts = asked["texts"]
scored(texts[: asked["warm"]], 1)
size = min(asked["batches"], key=lambda one: scored(texts[: asked["tried"]], one)[1])
found, seconds = scored(texts, size)
print(json.dumps({"scores": found, "seconds": seconds, "size": size}))
"""


def texts(threads: int) -> Iterator[Row]:
    """Measure the time and the largest difference of pseudo-log-likelihoods of molecules by a
    pretrained model."""
    python = os.environ.get("MINICONS")
    if python is None:
        raise SkippedError("MINICONS does not name a Python with minicons 0.3.39")
    for score, metric in METRICS.items():
        spec = text_spec(
            {"checkpoint": "rxnfp-bert"},
            {"file": "nci_smiles.txt", "n": N},
            {"texts": {"scores": [score]}},
            threads,
        )
        ours, seconds = _ours(spec, score)
        asked = {
            "threads": threads, "metric": metric, "texts": [row["text"] for row in ours],
            "warm": WARM, "tried": TRIED, "batches": BATCHES,
        }  # fmt: skip
        theirs = _theirs(python, Path(os.environ["MPT_MODELS_DIR"], "rxnfp-bert"), asked)
        pairs = zip(ours, theirs["scores"], strict=True)
        difference = max(abs(row[score] - other) for row, other in pairs)
        ratio = theirs["seconds"] / seconds
        work = f"{score} of {N} molecules by rxnfp-bert, {N / seconds:.1f} texts/s"
        against = f"minicons, {theirs['size']} a batch: {N / theirs['seconds']:.1f} texts/s"
        remark = f"largest difference {difference:.1g} nats"
        met = ratio >= 4 and difference <= MAX_DIFFERENCE
        yield Row("minicons", work, seconds, against, ratio, "4", met, remark)


def _ours(spec: MaskedLmExperiment, score: str) -> tuple[list[dict[str, float]], float]:
    """Return the rows of a run and its seconds, with the time to load model and texts."""
    with TemporaryDirectory() as folder:
        began = time.perf_counter()
        for _ in resumable(spec, RunState(work_dir=Path(folder))):
            pass
        seconds = time.perf_counter() - began
        table = Path(folder, "texts.jsonl")
        return [json.loads(line) for line in table.read_text().splitlines()], seconds


def _theirs(python: str, checkpoint: Path, asked: dict[str, Any]) -> dict[str, Any]:
    """Return what minicons computes, by a copy of the checkpoint whose tokenizer has the name of
    transformers 4."""
    with TemporaryDirectory() as folder:
        for file in checkpoint.iterdir():
            Path(folder, file.name).symlink_to(file.resolve())
        settings = Path(folder, "tokenizer_config.json")
        found = json.loads(settings.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
        settings.unlink()
        settings.write_text(json.dumps(found))
        told = subprocess.run(
            [python, "-c", PROGRAM], input=json.dumps({**asked, "model": folder}), text=True,
            check=True, stdout=subprocess.PIPE,
        )  # fmt: skip
    answer: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
    return answer


BENCHMARKS = {"minicons": texts}
