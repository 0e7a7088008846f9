"""The table of the log-likelihoods of rows, by a model of an earlier run."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.stats import chi2
from torch import Tensor
from torch.distributions import MultivariateNormal

from mptcore.data.uploads import Upload, uploaded
from mptcore.protocol.records import Artifact
from mptcore.run import resumable
from mptcore.runtime.state import RunState
from mptcore.specs import LinearGaussianExperiment, UploadData
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
    state = RunState(work_dir=store / "artifacts" / name)
    given = resumable(spec_of({**spec, "evaluate": EVALUATE}), state)
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


def with_ids(
    monkeypatch: pytest.MonkeyPatch, columns: Sequence[str], ids: Mapping[str, Sequence[str]]
) -> None:
    """Give every upload these names of columns and these ids."""

    def with_both(spec: UploadData) -> Upload:
        return Upload(uploaded(spec).x, tuple(columns), ids)

    monkeypatch.setattr("mptcore.data.dataset.uploaded", with_both)


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


FITTED = {**PPCA, "init": "maximum_likelihood"}


@pytest.mark.parametrize("by", [None, "columns"], ids=["as_they_are", "standardized"])
@pytest.mark.parametrize("family", ["ppca", "factor_analysis"])
def test_unusual_rows_name_their_columns(
    family: str, by: str | None, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The residual is that of a dense conditional of the observed values. The columns that the
    wrong value makes suspect are not named."""
    x = sample(40)
    units = {} if by is None else {"standardize": by}
    latent_dim = {"family": family, "latent_dim": 1}
    with_ids(monkeypatch, [*"abcd"], {"id": [f"s{i}" for i in range(40)]})
    fit = {**latent_dim, "init": "maximum_likelihood"}
    artifacts(store, "first", {"model": fit, "data": upload(store, "all", x, **units)})
    x[7, 1] += 9
    x[7, 3] = torch.nan
    again = {**latent_dim, "init": "experiment", "experiment": "first"}
    artifacts(store, "again", {"model": again, "data": upload(store, "new", x, **units)})
    rows, model = table(store), density(store, 0)
    seen = [0, 1, 2]
    row = x[7, seen]
    if by is not None:
        kept = load_file(store / "artifacts/first/weights.safetensors")
        row = (row - kept["data/center"][seen]) / kept["data/scale"][seen]
    precision = model.covariance_matrix[seen][:, seen].inverse()
    residuals = precision @ (row - model.loc[seen]) / precision.diagonal().sqrt()
    assert rows[7]["unusual_columns"] == f"b {residuals[1].item():+.3g}"
    assert rows[7]["id"] == "s7"
    for one in rows:
        assert (one["unusual_columns"] != "") == (float(one["p_value"]) < 0.05)


def test_ids_are_beside_the_rows_and_beside_the_held_out_ones(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An id column does not replace a column of the table that has its name."""
    plates = [f"p{i}, x" for i in range(30)]
    ids = {"seed": plates, "batch": [*"abc"] * 10, "": ["1"] * 30, "seed_id": ["2"] * 30}
    with_ids(monkeypatch, [*"abcd"], ids)
    data = upload(store, "all", sample(30), heldout=0.2)
    files = artifacts(store, "first", {"model": FITTED, "data": data})
    assert files == ["weights.safetensors", "heldout_rows.csv"]
    with (store / "artifacts/first/heldout_rows.csv").open(newline="") as file:
        heldout = [*csv.DictReader(file)]
    kept = load_file(store / "artifacts/first/weights.safetensors")
    assert [int(row["row"]) for row in heldout] == kept["data/heldout_rows"].tolist()
    assert len(heldout) == 6
    files = artifacts(store, "again", {"model": AGAIN, "data": data, "seeds": [0, 3]})
    assert files == ["rows.csv", "heldout_rows.csv"]
    rows = table(store)
    assert [*rows[0]][:6] == ["row", "seed_id_id", "batch", "_id", "seed_id", "seed"]
    assert [row["seed"] for row in rows] == ["0"] * 30 + ["3"] * 30
    assert [row["seed_id_id"] for row in rows] == plates * 2
    for row in heldout:
        assert row["seed"] == plates[int(row["row"])]
        assert row["batch"] == "abc"[int(row["row"]) % 3]


def test_files_without_ids_have_no_table_of_held_out_rows(store: Path) -> None:
    data = upload(store, "all", sample(30), heldout=0.2)
    assert artifacts(store, "first", {"model": FITTED, "data": data}) == ["weights.safetensors"]


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
    data = upload(store, "many", 9 * sample(2000))  # each row names columns
    spec = spec_of({"model": AGAIN, "data": data, "evaluate": EVALUATE})
    artifacts(store, "again", {"model": AGAIN, "data": data})
    size = (store / "artifacts/again/rows.csv").stat().st_size
    assert isinstance(spec, LinearGaussianExperiment)
    assert size <= spec.artifact_bytes() <= 2 * size
    fitting = spec_of({"model": model, "data": data, "evaluate": EVALUATE})
    assert fitting.artifact_bytes() == 0
