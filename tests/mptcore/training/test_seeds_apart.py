"""A seed gives the same numbers with any other seeds in any order. A loss from a batch has no
error."""

from pathlib import Path
from typing import Any

import pytest

from mptcore.protocol.records import Metric, Point
from mptcore.run import run
from tests.support import tiny_lm
from tests.support.runs import points, spec_of
from tests.support.vae_specs import deep_vae

SIMULATED = {"source": "ppca", "n": 40, "latent_dim": 2, "noise_precision": 5.0}
FEW = {"epochs": 3, "batch_size": 7}
PPCA: dict[str, Any] = {
    "model": {"family": "ppca", "latent_dim": 2, "noise_precision": 5.0, "init": "random"},
    "data": {**SIMULATED, "dim": 6},
    "train": FEW,
    "evaluate": {"masks": {"schedule": "all", "per_size": 2}},
}
DIGITS = {"source": "digits", "heldout": 0.95}
LATENT = {"masks": {"schedule": "fixed", "rate": 0.3, "per_size": 1}, **FEW}
FAMILIES: dict[str, dict[str, Any]] = {
    "ppca": PPCA,
    "ppca, lml": {**PPCA, "train": {**FEW, "objective": "lml", "learn_noise_precision": True}},
    "ppca, many dimensions": {**PPCA, "data": {**SIMULATED, "dim": 70, "noise": "shared"}},
    "ppca, full rank": {**PPCA, "data": {**SIMULATED, "dim": 70}},
    "ppca, own data": {**PPCA, "data": {**SIMULATED, "dim": 6, "seed": "run"}},
    "factor analysis": {**PPCA, "model": {**PPCA["model"], "family": "factor_analysis"}},
    "linear vae": {
        "model": {
            "family": "linear_vae",
            "latent_dim": 1,
            "likelihood": {"distribution": "bernoulli"},
            "conditionals": {"method": "uniform_grid", "nodes": 8},
        },
        "data": {**DIGITS, "binarize": "threshold"},
        "train": {
            **LATENT,
            "objective": ["mpt", "elbo", "lml"],
            "lml_samples": 3,
            "batch_size": 30,
            "evaluate_every": 3,
        },
        "evaluate": {"masks": {"schedule": "fixed", "rate": 0.3, "per_size": 2}},
    },
    "vae": {
        "model": deep_vae(latent_dim=2, width=8, draws=2, rounds=2),
        "data": {**SIMULATED, "dim": 6, "heldout": 0.5},
        "train": {**LATENT, "objective": ["mpt", "elbo"], "lml_samples": 3, "evaluate_every": 3},
        "evaluate": {
            "masks": {"schedule": "fixed", "rate": 0.3, "per_size": 2},
            "lml": {"method": "iwae", "samples": 4},
        },
    },
    "masked lm": {  # its training is of one seed
        "model": {"family": "masked_lm", "checkpoint": "tiny", "init": "random"},
        "data": {"source": "text", "lines": tiny_lm.lines(12)},
        "evaluate": {"masks": {"schedule": "rates", "rates": [0.3, 0.7]}, "orders": 2},
    },
}
Numbers = dict[tuple[Any, ...], float]


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_lm.checkpoint(tmp_path / "tiny")
    monkeypatch.setenv("MPT_MODELS_DIR", str(tmp_path))


def numbers_of(spec: dict[str, Any], seeds: list[int]) -> Numbers:
    """Return the recorded values for seed 44 that are finite and final."""
    found: Numbers = {}
    for record in run(spec_of({**spec, "seeds": seeds, "compute": {"threads": 1}})):
        if isinstance(record, Point | Metric) and record.labels.get("seed") == 44:
            key = frozenset(record.labels.items())
            name = (record.series, record.x) if isinstance(record, Point) else (record.name,)
            if record.value is not None:
                found[*name, key] = record.value
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_a_seed_gives_the_same_numbers_in_any_batch(family: str) -> None:
    spec = FAMILIES[family]
    first = numbers_of(spec, [44, 4])
    tolerance = 1e-8 if spec["model"]["family"] in ("ppca", "factor_analysis") else 1e-5
    for seeds in ([4, 44], [44]):
        assert numbers_of(spec, seeds) == pytest.approx(first, rel=tolerance, abs=tolerance)


@pytest.mark.parametrize("family", ["ppca, lml", "linear vae"])
@pytest.mark.parametrize("batch_size", [7, None])
def test_the_lml_of_a_batch_is_not_called_exact(family: str, batch_size: int | None) -> None:
    spec = FAMILIES[family]
    train = {**spec["train"], "objective": "lml", "batch_size": batch_size}
    found = points(list(run(spec_of({**spec, "train": train}))), "loss")
    assert len(found) > 1
    for point in found:
        if batch_size is None:
            assert (point.std_err, point.n, point.reason) == (0.0, 0, None)
        else:
            assert (point.std_err, point.n) == (None, 7)
            assert point.reason == "the observations of one step"
