"""The table of the log-likelihoods of rows, by a model of an earlier run."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.stats import chi2
from torch import Tensor
from torch.distributions import MultivariateNormal

from mptcore.protocol.records import Artifact
from mptcore.run import resumable
from mptcore.runtime.session import Session
from mptcore.specs import LinearGaussianExperiment
from tests.support.runs import spec_of

PPCA: dict[str, Any] = {"family": "ppca", "latent_dim": 2}
EVALUATE = {"masks": {"schedule": "fixed", "size": 2, "per_size": 4}}
AGAIN = {**PPCA, "init": "experiment", "experiment": "first"}


def sample(rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(rows, 4, generator=generator, dtype=torch.float64)
    return x + x[:, :1] + 3


def upload(store: Path, name: str, x: Tensor, **more: Any) -> dict[str, Any]:
    folder = store / "datasets" / name
    folder.mkdir(parents=True)
    np.save(folder / "data.npy", x.numpy())
    return {"source": "upload", "dataset": name, "n": len(x), "dim": 4, **more}


def artifacts(store: Path, name: str, spec: dict[str, Any]) -> list[str]:
    """Run a spec, and return the files that it leaves."""
    session = Session(work_dir=store / "artifacts" / name)
    given = resumable(spec_of({**spec, "evaluate": EVALUATE}), session)
    return [one.file for one in given if isinstance(one, Artifact)]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MPT_STORE", str(tmp_path))
    return tmp_path


def density(store: Path, seed: int) -> MultivariateNormal:
    kept = load_file(store / "artifacts/first/weights.safetensors")
    loadings, mean, noise = (
        kept[f"{seed}/{part}"] for part in ("loadings", "mean", "noise_variance")
    )
    return MultivariateNormal(mean, loadings @ loadings.mT + torch.diag(noise))


def log_probs(density: MultivariateNormal, x: Tensor) -> Tensor:
    found: Tensor = density.log_prob(x)  # type: ignore[no-untyped-call]
    return found


def table(store: Path) -> list[dict[str, str]]:
    with (store / "artifacts/again/rows.csv").open() as file:
        return [*csv.DictReader(file)]


def test_each_row_has_its_density_by_the_model_of_each_seed(store: Path) -> None:
    x = sample(30)
    train = {"model": {**PPCA, "noise_precision": 1.0}, "train": {"epochs": 2}, "seeds": [4, 5]}
    first = artifacts(store, "first", {**train, "data": upload(store, "all", x)})
    assert first == ["weights.safetensors"]
    others = upload(store, "others", x[:9] + 1, heldout=0.34)
    again = {"model": AGAIN, "data": others, "seeds": [4, 5]}
    assert artifacts(store, "again", again) == ["rows.csv"]
    found = table(store)
    assert [(row["seed"], row["row"]) for row in found] == [
        (seed, str(row)) for seed in "45" for row in range(9)
    ]
    for seed in (4, 5):
        own = [float(row["log_likelihood"]) for row in found if row["seed"] == str(seed)]
        model = density(store, seed)
        assert own == pytest.approx(log_probs(model, x[:9] + 1).tolist(), rel=1e-10)
        shift = x[:9] + 1 - model.loc
        squares = (shift @ model.precision_matrix * shift).sum(1)
        p_values = [float(row["p_value"]) for row in found if row["seed"] == str(seed)]
        assert p_values == pytest.approx(chi2.sf(squares.numpy(), 4).tolist(), rel=1e-9)
    assert {row["values"] for row in found} == {"4"}


def test_missing_values_are_integrated_out(store: Path) -> None:
    model = {**PPCA, "init": "maximum_likelihood"}
    artifacts(store, "first", {"model": model, "data": upload(store, "all", sample(30))})
    x = sample(3)
    x[1, 2] = torch.nan
    artifacts(store, "again", {"model": AGAIN, "data": upload(store, "gap", x)})
    found, whole = table(store), density(store, 0)
    seen = torch.tensor([0, 1, 3])
    part = MultivariateNormal(whole.loc[seen], whole.covariance_matrix[seen][:, seen])
    shift = x[1, seen] - part.loc
    squares = (shift @ part.precision_matrix * shift).sum()
    assert float(found[1]["p_value"]) == pytest.approx(chi2.sf(squares.item(), 3))
    assert [row["values"] for row in found] == ["4", "3", "4"]
    assert float(found[1]["log_likelihood"]) == pytest.approx(log_probs(part, x[1, seen]).item())


def test_simulated_data_have_no_table(store: Path) -> None:
    """With the seed of the run, each seed has other data."""
    model = {**PPCA, "init": "maximum_likelihood"}
    artifacts(store, "first", {"model": model, "data": upload(store, "all", sample(30))})
    data = {"source": "ppca", "n": 9, "dim": 4, "latent_dim": 2, "noise_precision": 1.0}
    again = {"model": AGAIN, "data": {**data, "seed": "run"}, "seeds": [1, 2]}
    assert artifacts(store, "again", again) == []


def test_the_estimated_bytes_hold_the_table(store: Path) -> None:
    model = {**PPCA, "init": "maximum_likelihood"}
    artifacts(store, "first", {"model": model, "data": upload(store, "all", sample(30))})
    data = upload(store, "many", sample(2000))
    spec = spec_of({"model": AGAIN, "data": data, "evaluate": EVALUATE})
    artifacts(store, "again", {"model": AGAIN, "data": data})
    size = (store / "artifacts/again/rows.csv").stat().st_size
    assert isinstance(spec, LinearGaussianExperiment)
    assert size <= spec.artifact_bytes() <= 2 * size
    fitting = spec_of({"model": model, "data": data, "evaluate": EVALUATE})
    assert fitting.artifact_bytes() == 0
