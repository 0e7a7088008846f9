"""The records of every family and of each preset's short form, compared with recorded ones: moving
code does not change them. `MPT_RECORD_GOLDENS=1` records those that differ."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from mptcore.protocol.records import Progress, encode
from mptcore.run import resumable
from mptcore.runtime.state import RunState
from mptcore.specs import ExperimentSpec, parse_spec
from tests.support import tiny_lm

GOLDENS = Path(__file__).parent / "goldens"
TOLERANCE = {"float64": 1e-6, "float32": 1e-5, "auto": 1e-5}
"""Relative tolerance: the difference between processors. Computations in float64 begin with draws
in float32, as published, and their last digit depends on the processor's vector width."""

ONE_THREAD = {"device": "cpu", "threads": 1}
PPCA: dict[str, Any] = {"family": "ppca", "latent_dim": 2, "noise_precision": 5.0}
FACTOR_ANALYSIS: dict[str, Any] = {**PPCA, "family": "factor_analysis"}
SIMULATED: dict[str, Any] = {
    "source": "ppca", "n": 30, "dim": 5, "latent_dim": 2, "noise_precision": 5.0,
}  # fmt: skip
SQUARE: dict[str, Any] = {**SIMULATED, "n": 60, "dim": 64}
"""Few observations with the shape of images; the digits are thirty times as many."""
DIGITS: dict[str, Any] = {"source": "digits", "seed": 3}
BINARY: dict[str, Any] = {**DIGITS, "binarize": "threshold"}
BERNOULLI = {"distribution": "bernoulli"}
GAUSSIAN = {"distribution": "gaussian", "noise_precision": 4.0}
GRID = {"method": "uniform_grid", "nodes": 6, "extent": 4.0}
LINEAR_VAE: dict[str, Any] = {
    "family": "linear_vae", "latent_dim": 2, "likelihood": BERNOULLI, "conditionals": GRID,
}  # fmt: skip
VAE: dict[str, Any] = {
    "family": "vae",
    "latent_dim": 3,
    "likelihood": GAUSSIAN,
    "network": {"layers": "dense", "widths": [8]},
    "conditionals": {"method": "recursive", "draws": 2, "rounds": 2},
}
SIZES = {"schedule": "sizes", "sizes": [3, 50], "per_size": 2}
IWAE = {"method": "iwae", "samples": 4}
LANGUAGE: dict[str, Any] = {"family": "masked_lm", "checkpoint": "tiny"}
NEW = {**LANGUAGE, "init": "random"}
SMALL_BERT = {
    "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12,
    "max_position_embeddings": 32,
}  # fmt: skip
LINES: dict[str, Any] = {"source": "text", "lines": tiny_lm.lines(12)}
RATES: dict[str, Any] = {
    "masks": {"schedule": "rates", "rates": [0.2, 0.4, 0.8]}, "dimensions": 10,
}  # fmt: skip


def ppca(per_size: int, n: int = 30, dim: int = 6, **rest: Any) -> dict[str, Any]:
    """PPCA as in the presets: the published generator, with two of its five seeds."""
    data = {**SIMULATED, "n": n, "dim": dim, "noise": "shared", "seed": 1991}
    evaluate = {"masks": {"schedule": "all", "per_size": per_size}}
    model = {**PPCA, "init": "generator"}
    return {"model": model, "data": data, "evaluate": evaluate, "seeds": [4, 44], **rest}


def trained(spec: dict[str, Any], **train: Any) -> dict[str, Any]:
    return {**spec, "model": {**spec["model"], "init": "random"}, "train": train}


LONG = ppca(3, data={**SIMULATED, "seed": "run", "noise": "shared"})
SPECS: dict[str, dict[str, Any]] = {
    "table1": ppca(2),
    "fig1-left": {**LONG, "evaluate": {**LONG["evaluate"], "convergence": True}},
    "fig1-right": ppca(
        2,
        dim=16,
        evaluate={
            "masks": {"schedule": "fixed", "rate": 0.15, "per_size": 4},
            "convergence": True,
        },
    ),
    "fig2-left": trained(ppca(2), epochs=4, masks={"schedule": "all", "per_size": 1}),
    "fig2-center": trained(
        ppca(2), epochs=4, masks={"schedule": "fixed", "size": 2, "per_size": 3}
    ),
    "fig3-linear": {
        "model": {**LINEAR_VAE, "conditionals": {"method": "gauss_hermite", "nodes": 4}},
        "data": BINARY,
        "train": {
            "objective": ["mpt", "elbo"],
            "epochs": 2,
            "masks": {"schedule": "fixed", "rate": 0.15, "per_size": 1},
            "lml_samples": 8,
        },
        "evaluate": {"masks": SIZES, "lml": GRID},
        "seeds": [4, 44],
    },
    "fig3-vae": {
        "model": VAE,
        "baseline": {**PPCA, "latent_dim": 3, "init": "maximum_likelihood"},
        "data": {**SQUARE, "heldout": 0.2},
        "train": {
            "objective": ["mpt"],
            "epochs": 2,
            "batch_size": 20,
            "lml_samples": 3,
            "masks": {"schedule": "fixed", "rate": 0.33, "per_size": 1},
            "curve_at": [1],
        },
        "evaluate": {
            "masks": SIZES,
            "lml": IWAE,
            "ais": {"temperatures": 4, "chains": 2, "observations": 4, "simulated": 3},
        },
    },
    "fig4-right": ppca(1, dim=20, model={**PPCA, "latent_dim": 2, "init": "generator"}),
    "fig5-left": trained(
        ppca(2, baseline={**PPCA, "init": "generator"}),
        epochs=4,
        masks={"schedule": "all", "per_size": 2},
        curve_at=[0, 2, 4],
    ),
    "fig5-right": {
        "model": {**NEW, "corruption": "bert"},
        "data": LINES,
        "evaluate": {"masks": {"schedule": "rates", "rates": [0.3, 0.5, 0.7, 0.9]}},
        "seeds": [4],
    },
    "ppca maximum": {
        "model": {**PPCA, "init": "maximum_likelihood", "noise_precision": None},
        "baseline": {**FACTOR_ANALYSIS, "latent_dim": 1, "init": "maximum_likelihood",
                     "noise_precision": None},
        "data": {**SIMULATED, "heldout": 0.2},
        "evaluate": {"masks": {"schedule": "all", "per_size": 4, "design": "balanced"}},
    },
    "bias": ppca(
        2, evaluate={"masks": {"schedule": "sizes", "sizes": [2, 4], "per_size": 3}, "bias": True}
    ),
    "nested": ppca(
        2,
        evaluate={
            "masks": {"schedule": "all", "per_size": 4, "design": "nested"},
            "convergence": True,
        },
    ),
    "exhaustive": ppca(2, evaluate={"masks": {"schedule": "all", "design": "exhaustive"}}),
    "target": ppca(2, evaluate={"target_std_err": 0.05, "max_masks": 20_000}),
    "target not reached": ppca(
        2,
        evaluate={"target_std_err": 0.001, "max_masks": 200},
        baseline={**PPCA, "init": "random"},
    ),
    "factor analysis": {
        "model": {**FACTOR_ANALYSIS, "init": "random"},
        "data": {**SIMULATED, "heldout": 0.2},
        "train": {
            "objective": "lml",
            "epochs": 3,
            "batch_size": 10,
            "evaluate_every": 2,
            "learn_mean": True,
            "learn_noise_precision": True,
        },
        "evaluate": {"masks": {"schedule": "all", "per_size": 2}},
    },
    "ramp": trained(
        {**ppca(2), "data": {**SIMULATED, "seed": 3, "heldout": 0.1}},
        epochs=4,
        batch_size=9,
        learn_noise_precision=True,
        masks={"schedule": "ramp", "start": 0.2, "end": 0.8, "per_size": 2},
    ),
    "grid": {
        "model": LINEAR_VAE,
        "data": {**BINARY, "heldout": 0.5},
        "train": {
            "objective": ["mpt", "elbo", "lml"],
            "epochs": 2,
            "batch_size": 400,
            "curve_at": [1],
            "masks": {"schedule": "uniform", "per_size": 1},
            "lml_samples": 8,
        },
        "evaluate": {
            "masks": {"schedule": "fixed", "size": 20, "per_size": 3},
            "convergence": True,
        },
    },
    "linear vae, sampled": {
        "model": {
            **LINEAR_VAE,
            "likelihood": GAUSSIAN,
            "conditionals": {"method": "importance", "draws": 4, "steps": 2},
        },
        "data": SQUARE,
        "evaluate": {"masks": SIZES, "lml": IWAE},
        "seeds": [1, 2],
    },
    "language": {"model": LANGUAGE, "baseline": NEW, "data": LINES, "evaluate": RATES,
                 "seeds": [4, 44]},
    "language, several masks": {
        "model": LANGUAGE,
        "data": LINES,
        "evaluate": {**RATES, "masks": {**RATES["masks"], "per_size": 3}},
    },
    "orders": {
        "model": LANGUAGE,
        "baseline": NEW,
        "data": LINES,
        "evaluate": {**RATES, "orders": 2, "pll": True, "sequences": 5},
    },
    "language target": {
        "model": LANGUAGE,
        "data": LINES,
        "evaluate": {**RATES, "target_std_err": 0.6, "max_masks": 400},
    },
    "language training": {
        "model": {**NEW, "architecture": SMALL_BERT},
        "data": {**LINES, "heldout": 0.3},
        "train": {
            "steps": 4,
            "batch_size": 4,
            "learning_rate": 0.01,
            "evaluate_every": 2,
            "curve_at": [0, 3],
            "masks": {"schedule": "uniform"},
        },
        "evaluate": RATES,
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_lm.checkpoint(tmp_path / "models" / "tiny")
    monkeypatch.setenv("MPT_MODELS_DIR", str(tmp_path / "models"))


def spec_named(name: str) -> ExperimentSpec:
    compute: dict[str, Any] = ONE_THREAD
    if SPECS[name]["model"]["family"] == "masked_lm":
        compute = {**ONE_THREAD, "memory_mib": 1}
    return parse_spec(json.dumps({**SPECS[name], "compute": compute}).encode())


def lines_of(spec: ExperimentSpec, work_dir: Path) -> list[dict[str, Any]]:
    """Return the decoded records of a run, without digests of files, which depend on rounding and
    versions, and without the first line, which names the machine."""
    state = RunState(work_dir=work_dir)
    lines = []
    for record in resumable(spec, state):
        if record is not None:
            is_numbered = not isinstance(record, Progress)
            state.seq += is_numbered
            line = encode(state.seq if is_numbered else None, record)
            text = re.sub(r"\b[0-9a-f]{64}\b", "<sha256>", line)
            lines.append(json.loads(text))
    return lines[1:]


@pytest.mark.parametrize("name", SPECS)
def test_records_equal_the_goldens(name: str, tmp_path: Path) -> None:
    spec = spec_named(name)
    lines = lines_of(spec, tmp_path / "work")
    file = GOLDENS / f"{name.replace(',', '').replace(' ', '-')}.ndjson"
    tolerance = TOLERANCE[spec.compute.precision]
    try:
        check_equal(lines, file, tolerance)
    except (AssertionError, FileNotFoundError):
        if os.environ.get("MPT_RECORD_GOLDENS") != "1":
            raise
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def check_equal(lines: list[dict[str, Any]], file: Path, tolerance: float) -> None:
    golden = [json.loads(line) for line in file.read_text().splitlines()]
    assert [words_of(line) for line in lines] == [words_of(line) for line in golden]
    for line, expected in zip(lines, golden, strict=True):
        for name in ("value", "std_err"):
            number = expected.get(name) or 0.0
            about = pytest.approx(number, rel=tolerance, abs=tolerance)
            assert (line.get(name) or 0.0) == about, expected


def words_of(line: dict[str, Any]) -> dict[str, Any]:
    """Return a record in which the two measured numbers are replaced by whether they are
    missing."""
    return {**line, **{name: line.get(name) is None for name in ("value", "std_err")}}
