"""Compare some seventy runs with recorded ones to the last bit: `python -m tests.pin`.

A run of the filter gives its numbered records and its artifacts; `pin.json` has their SHA-256. A
change of the code that is meant to change no number ends with `Pin: equal`. Another order of a sum
is enough for `Pin: changed NAMES`, so a pin is valid on the machine where it was recorded, with its
versions of the libraries. `--record` records it again.

Left out are the first record, which names the machine, and records without a number: progress,
checkpoints, the environment. No other record has a time, a duration or an amount of memory. The
digests of artifacts in records are left out too, because the artifacts are compared themselves.

The runs need no data set and no downloaded model, and one thread, except `two-threads`.
"""

import argparse
import csv
import hashlib
import json
import os
import platform
import random
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from itertools import islice, permutations
from pathlib import Path
from typing import Any

# Before transformers is imported.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"

import numpy as np
import torch

import mptcore.families.masked_lm.run  # noqa: F401  once, for all processes
from mptcore.protocol.code import LIBRARIES, package_versions
from mptcore.protocol.exit_codes import COMPLETE, STOPPED
from mptcore.protocol.orders import Order, parse_assignment
from mptcore.protocol.records import Record
from mptcore.run import resumable
from mptcore.runtime.runner import SpecRunner
from mptcore.runtime.state import RunState, TrainingState
from mptcore.specs import ExperimentSpec
from mptcore.specs.vectors import OPTIONS_FILE
from tests.mptcore import test_goldens
from tests.mptcore.test_goldens import (
    DIGITS,
    FACTOR_ANALYSIS,
    LANGUAGE,
    LINES,
    NEW,
    ONE_THREAD,
    PPCA,
    RATES,
    SIMULATED,
    SIZES,
    SMALL_BERT,
    SQUARE,
    VAE,
    ppca,
)
from tests.support import tiny_lm

PIN = Path(__file__).with_suffix(".json")
EQUAL, CHANGED, OTHER_MACHINE = 0, 1, 2

MAXIMUM: dict[str, Any] = {
    "latent_dim": 2, "init": "maximum_likelihood", "noise_precision": None,
}  # fmt: skip
FEW_SIZES = {"masks": {"schedule": "sizes", "sizes": [1, 5, 30], "per_size": 12}}
TABLE: dict[str, Any] = {"source": "upload", "dataset": "table", "n": 60, "dim": 6}
GAPS: dict[str, Any] = {**TABLE, "dataset": "gaps"}
IMAGES: dict[str, Any] = {
    **TABLE, "dataset": "images", "n": 40, "dim": 64, "binarize": "stochastic", "heldout": 0.2,
}  # fmt: skip
IMPORTANCE: dict[str, Any] = {
    **VAE,
    "likelihood": {"distribution": "bernoulli"},
    "network": {"layers": "convolutional", "channels": [2], "width": 6},
    "conditionals": {
        "method": "importance", "draws": 8, "steps": 3, "train_draws": 3, "train_steps": 2,
    },
}  # fmt: skip
PIECES: dict[str, Any] = {"family": "masked_lm", "checkpoint": "bert"}
SENTENCES: dict[str, Any] = {"source": "text", "dataset": "sentences"}
LONG = " ".join(tiny_lm.lines(9, seed=5))
ORDERS = [
    " ".join(words)
    for words in islice(
        permutations("the cats sat on unlikely mats in the sun".split()), 0, 720, 60
    )
]
MUTATIONS = ["K2A", "K2A:Y5W", "M1C", "T3T", "Q9E:R10K:A6V", "A1C", "no mutation"]


def texts(**scores: Any) -> dict[str, Any]:
    return {"model": PIECES, "data": SENTENCES, "evaluate": {"texts": scores}}


def language(**evaluate: Any) -> dict[str, Any]:
    return {"model": LANGUAGE, "data": LINES, "evaluate": {**RATES, **evaluate}}


CUMULATIVE = {"scores": ["cumulative"], "target_std_err": 0.8, "max_masks": 400}
SPECS: dict[str, dict[str, Any]] = {
    # linear Gaussians
    "two-threads": {**ppca(60, dim=40), "compute": {"device": "cpu", "threads": 2}},
    "float32": {**ppca(4), "compute": {**ONE_THREAD, "precision": "float32"}},
    "standardized": {
        "model": {**PPCA, **MAXIMUM},
        "data": {**DIGITS, "standardize": True, "heldout": 0.2},
        "evaluate": FEW_SIZES,
    },
    "wide": ppca(1, n=20, dim=3000, evaluate=FEW_SIZES),
    "dense": {
        "model": {**FACTOR_ANALYSIS, "latent_dim": 5, "init": "random"},
        "data": {**SIMULATED, "n": 300, "dim": 100},
        "evaluate": {"masks": {"schedule": "all", "per_size": 2}},
    },
    "latent-40": {
        "model": {**PPCA, "latent_dim": 40},
        "data": {**SQUARE, "n": 20},
        "evaluate": FEW_SIZES,
    },
    "latent-40-dense": {
        "model": {**FACTOR_ANALYSIS, "latent_dim": 40},
        "baseline": {**PPCA, "latent_dim": 3},
        "data": SQUARE,
        "evaluate": FEW_SIZES,
    },
    "latent-40-trained": {
        "model": {**PPCA, "latent_dim": 40},
        "data": SQUARE,
        "train": {"epochs": 3, "batch_size": 20, "masks": {"schedule": "all", "per_size": 1}},
        "evaluate": FEW_SIZES,
    },
    "factor-analysis-by-scores": {
        "model": {**FACTOR_ANALYSIS, "init": "random"},
        "data": {**SQUARE, "n": 400, "heldout": 0.1},
        "train": {
            "objective": "mpt",
            "epochs": 2,
            "batch_size": 150,
            "learn_mean": True,
            "learn_noise_precision": True,
            "masks": {"schedule": "uniform", "per_size": 3},
        },
        "evaluate": FEW_SIZES,
        "seeds": [3, 5],
    },
    "residuals": {
        "model": {**PPCA, "noise_precision": 1e12},
        "data": {**SQUARE, "n": 30},
        "evaluate": FEW_SIZES,
    },
    "rounds": ppca(2, dim=20, evaluate={"target_std_err": 0.05}),
    "difference": ppca(
        2,
        baseline={**FACTOR_ANALYSIS, "init": "random"},
        evaluate={"target_std_err": 0.02, "target": "difference", "max_masks": 4000},
    ),
    "upload": {
        "model": {**PPCA, **MAXIMUM},
        "data": {**TABLE, "standardize": "columns"},
        "evaluate": {"masks": {"schedule": "all", "per_size": 13}},
        "seeds": [4, 44],
    },
    "upload-columns": {
        "model": {**FACTOR_ANALYSIS, **MAXIMUM, "latent_dim": 1},
        "data": {**TABLE, "columns": ["f", "b", "c", "a"], "dim": 4, "heldout": 0.3},
        "evaluate": {"masks": {"schedule": "all", "design": "exhaustive"}},
    },
    "missing": {
        "model": {**FACTOR_ANALYSIS, **MAXIMUM},
        "baseline": {**PPCA, **MAXIMUM},
        "data": {**GAPS, "heldout": 0.2},
        "evaluate": {"masks": {"schedule": "all", "per_size": 3}},
    },
    "missing-target": {
        "model": PPCA,
        "data": GAPS,
        "evaluate": {"target_std_err": 0.05, "max_masks": 2000},
    },
    "saved-density": {
        "model": {**PPCA, "noise_precision": None, "init": "experiment", "experiment": "upload"},
        "data": {**TABLE, "standardize": "columns"},
        "evaluate": {"masks": {"schedule": "all", "design": "exhaustive"}},
        "seeds": [44, 5],
    },
    # VAEs
    "vae-importance": {
        "model": IMPORTANCE,
        "data": IMAGES,
        "train": {
            "objective": ["mpt", "elbo"],
            "epochs": 2,
            "batch_size": 12,
            "lml_samples": 4,
            "masks": {"schedule": "fixed", "rate": 0.3, "per_size": 2},
        },
        "evaluate": {"masks": SIZES, "lml": {"method": "iwae", "samples": 6}},
        "seeds": [2],
    },
    "vae-target": {
        "model": {**IMPORTANCE, "likelihood": VAE["likelihood"], "network": VAE["network"]},
        "baseline": {**PPCA, "latent_dim": 3, "init": "random"},
        "data": {**SIMULATED, "n": 8},
        "evaluate": {
            "target_std_err": 0.5,
            "target": "difference",
            "max_masks": 120,
            "lml": {"method": "iwae", "samples": 6},
        },
    },
    "saved-vae": {
        "model": {
            **IMPORTANCE, "init": "experiment", "experiment": "vae-importance",
            "trained_by": "elbo",
        },
        "data": IMAGES,
        "evaluate": {"masks": SIZES, "lml": {"method": "iwae", "samples": 6}},
        "seeds": [2],
    },
    # language models on a text
    "language-modernbert": {**language(), "model": {**LANGUAGE, "checkpoint": "modernbert"}},
    "language-albert": {**language(), "model": {**LANGUAGE, "checkpoint": "albert"}},
    "language-cumulative": language(target="cumulative", target_std_err=0.5, max_masks=400),
    "language-difference": {
        **language(target="difference", target_std_err=0.5, max_masks=400),
        "baseline": NEW,
    },
    "language-pairs": {
        **language(orders=2),
        "data": {**SENTENCES, "second_column": "second", "n": 10, "seed": 2},
    },
    "language-blocks": {
        "model": {**NEW, "architecture": SMALL_BERT, "corruption": "bert"},
        "data": {**LINES, "packing": "blocks", "max_length": 16, "heldout": 0.4},
        "train": {
            "steps": 4,
            "batch_size": 2,
            "evaluate_every": 2,
            "warmup_steps": 2,
            "masks": {"schedule": "ramp", "start": 0.2, "end": 0.6},
        },
        "evaluate": RATES,
    },
    "saved-language": {
        **language(),
        "model": {**LANGUAGE, "init": "experiment", "experiment": "language-training"},
    },
    # scores of each text
    "texts": texts(
        scores=["pll", "pll_word_l2r", "unmasked", "conditional"],
        per_token=True,
        prefix_column="prefix",
        group_column="pair",
        category_column="kind",
        label_column="label",
    ),
    "texts-cumulative": texts(**CUMULATIVE, group_size=2, category_column="kind"),
    "texts-with-shared-masks": {
        **texts(**CUMULATIVE, group_size=len(ORDERS)),
        "data": {"source": "text", "lines": ORDERS},
    },
    "texts-relative": texts(**{**CUMULATIVE, "target_std_err": 0.02, "relative": True}),
    "texts-in-windows": {
        **texts(scores=["pll", "pll_word_l2r", "unmasked"], per_token=True, window_overlap=4),
        "data": {"source": "text", "lines": [LONG, "the cats sat"], "max_length": 14},
    },
    "mutations": {
        "model": {"family": "masked_lm", "checkpoint": "esm"},
        "data": {"source": "text", "lines": MUTATIONS},
        "evaluate": {
            "texts": {
                "scores": ["masked_marginal", "wild_type_marginal"],
                "wild_type": "MKTAYIAKQR",
            }
        },
    },
}  # fmt: skip

BY_TORCH = ["table1", "fig2-left", "ramp", "rounds", "dense", "missing", "two-threads"]
"""Runs that are repeated without compiled kernels."""
RESUMED = {
    "ramp": [10, 40, 70],
    "rounds": [100, 400, 1200],
    "fig3-vae": [1, 5, 10],
    "language-training": [10, 30, 45],
    "texts-cumulative": [100, 300, 600],
}
"""Runs that are repeated with interruptions: the numbers of masks after which they stop, in
training, between two stages and in scoring."""


def all_specs() -> dict[str, dict[str, Any]]:
    """Return the specs of the goldens and of SPECS by name. A name is also the id of an
    experiment, whose weights later runs read."""
    goldens = {_id(name): spec for name, spec in test_goldens.SPECS.items()}
    assert not goldens.keys() & SPECS.keys()
    return {name: with_compute(spec) for name, spec in (goldens | SPECS).items()}


def _id(name: str) -> str:
    return name.replace(",", "").replace(" ", "-")


def with_compute(spec: dict[str, Any]) -> dict[str, Any]:
    is_language = spec["model"]["family"] == "masked_lm"
    compute = {**ONE_THREAD, "memory_mib": 1} if is_language else ONE_THREAD
    return {"compute": compute, **spec}


def write_inputs(folder: Path) -> None:
    """Write the checkpoints and the uploads that the specs name."""
    models, datasets = folder / "models", folder / "datasets"
    tiny_lm.checkpoint(models / "tiny")
    tiny_lm.checkpoint(models / "modernbert", "modernbert")
    for kind in ("bert", "albert", "esm"):
        tiny_lm.published_checkpoint(models / kind, kind)
    draws = random.Random(8)
    rows = []
    for i in range(60):
        common = draws.gauss(0, 1)
        values = [draws.gauss(3 * d + common * d, 0.5 + d) for d in range(6)]
        rows.append([f"row {i}", *(f"{value:.4f}" for value in values)])
    gaps = [[cell if draws.random() < 0.9 else "" for cell in row[1:]] for row in rows]
    for i, row in enumerate(gaps):
        row[i % 6] = rows[i][1 + i % 6]  # no row is empty
    sentences = [
        {
            "text": f"{line} cats dogs" if i % 2 else line,
            "second": second,
            "prefix": line.split()[0],
            "pair": f"pair {i // 2}",
            "kind": "short" if i % 4 < 2 else "long",
            "label": i % 5,
        }
        for i, (line, second) in enumerate(
            zip(tiny_lm.lines(14, seed=3), tiny_lm.lines(14, seed=4), strict=True)
        )
    ]
    for name in ("table", "gaps", "images", "sentences"):
        (datasets / name).mkdir(parents=True)
    _write_table(datasets / "table" / "data.csv", [["name", *"abcdef"], *rows])
    (datasets / "table" / OPTIONS_FILE).write_text(json.dumps({"index": ["name"]}))
    _write_table(datasets / "gaps" / "data.csv", [[*"abcdef"], *gaps])
    images = [[draws.random() * (d % 8 > i % 8) for d in range(64)] for i in range(40)]
    np.save(datasets / "images" / "data.npy", np.array(images))
    lines = "".join(json.dumps(sentence) + "\n" for sentence in sentences)
    (datasets / "sentences" / "data.jsonl").write_text(lines)


def _write_table(path: Path, rows: list[list[str]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def run(spec: dict[str, Any], folder: Path, stop_after: int | None = None) -> None:
    """Run the filter and append its records to a file in the folder. With `stop_after` it stops at
    the first safe point after so many masks."""
    envelope: dict[str, Any] = {"spec": spec, "work_dir": str(folder / "work")}
    if stop_after is not None or (folder / "checkpoints").exists():
        envelope["checkpoint_dir"] = str(folder / "checkpoints")

    def stopped(
        spec: ExperimentSpec, state: RunState, resumed: TrainingState | None
    ) -> Iterator[Record | None]:
        for record in resumable(spec, state, resumed):
            if stop_after is not None and state.masks >= stop_after:
                runner.obey(Order(stop="checkpoint"))
            yield record

    with (folder / "records.ndjson").open("a") as out:
        runner = SpecRunner(stopped, parse_assignment(json.dumps(envelope).encode()), out)
        status = runner.run()
    expected = COMPLETE if stop_after is None else STOPPED
    assert status == expected, f"exit status {status}: {(folder / 'records.ndjson').read_text()}"


def in_child(call: Callable[[], None], environment: Mapping[str, str]) -> None:
    """Make a call in a process of its own, so that no run depends on earlier ones."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.environ.update(environment)
            call()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        sys.exit("Pin: a run failed")


def run_all(folder: Path) -> Iterator[tuple[str, Path]]:
    """Run everything below a folder, and yield the name and the folder of each run."""
    for name in [name for name in os.environ if name.startswith("MPT_")]:
        del os.environ[name]
    in_child(lambda: write_inputs(folder), {})
    environment = {"MPT_STORE": str(folder), "MPT_MODELS_DIR": str(folder / "models")}
    specs = all_specs()
    by_torch = {**environment, "MPT_KERNELS": "torch"}
    runs: list[tuple[str, str, dict[str, str], list[int]]] = [
        *((name, name, environment, []) for name in specs),
        *((f"{name}-by-torch", name, by_torch, []) for name in BY_TORCH),
        *((f"{name}-resumed", name, environment, stops) for name, stops in RESUMED.items()),
    ]
    for name, spec_name, variables, stops in runs:
        there = folder / "artifacts" / name
        there.mkdir(parents=True)
        for stop_after in [*stops, None]:
            in_child(partial(run, specs[spec_name], there, stop_after), variables)
        yield name, there


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of the records and of each artifact of a run."""
    lines = (folder / "records.ndjson").read_text().splitlines()
    numbered = [line for line in lines if json.loads(line)["seq"] is not None]
    text = re.sub(r"\b[0-9a-f]{64}\b", "", "\n".join(numbered[1:]))
    artifacts = {json.loads(line)["file"] for line in numbered if '"record": "artifact"' in line}
    files = {file: (folder / "work" / file).read_bytes() for file in sorted(artifacts)}
    contents = {"records": text.encode(), **files}
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def machine() -> dict[str, str]:
    """Return what the last bits of a run depend on, beside its spec."""
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    versions = package_versions()
    return {
        "cpu": cpu[1] if cpu else platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "python": versions["python"],
        **{name: versions[name] for name in LIBRARIES},
    }


def main() -> int:
    """Run everything, compare, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.pin", description=__doc__)
    parser.add_argument("--record", action="store_true", help="record the runs again")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep records and artifacts here")
    options = parser.parse_args()
    pin = json.loads(PIN.read_text()) if PIN.exists() else {"machine": {}, "runs": {}}
    is_here = pin["machine"] == machine()
    if not is_here and not options.record:
        print("Pin: recorded on another machine or with other libraries:")
        for name, value in machine().items():
            if value != pin["machine"].get(name):
                print(f"  {name}: {pin['machine'].get(name)}; here {value}")
        print("record it here at the commit before the change: python -m tests.pin --record")
        return OTHER_MACHINE
    kept = nullcontext(options.keep) if options.keep else tempfile.TemporaryDirectory()
    with kept as folder:
        runs = {name: digests(there) for name, there in run_all(Path(folder).resolve())}
    changed = []
    for name in sorted(runs.keys() | pin["runs"].keys()):
        before, now = pin["runs"].get(name, {}), runs.get(name, {})
        parts = [part for part in before | now if before.get(part) != now.get(part)]
        if parts:
            changed.append(name)
            if is_here:
                print(f"{name}: {', '.join(parts)}")
    if options.record:
        text = json.dumps({"machine": machine(), "runs": runs}, indent=1, sort_keys=True)
        PIN.write_text(text + "\n")
    if not is_here:
        print(f"Pin: recorded {len(runs)} runs")
        return EQUAL
    print(f"Pin: changed {' '.join(changed)}" if changed else "Pin: equal")
    return CHANGED if changed and not options.record else EQUAL


if __name__ == "__main__":
    sys.exit(main())
