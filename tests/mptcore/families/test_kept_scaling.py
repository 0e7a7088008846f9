"""Models of standardized data score other data with the shift and scale of their own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from mptcore.data.uploads import Upload, uploaded
from mptcore.protocol.records import Artifact, Log, Metric, Record, RunError
from mptcore.run import resumable, run
from mptcore.runtime.state import RunState
from mptcore.specs import UploadData
from tests.support.runs import metric, spec_of, value_of
from tests.support.vae_specs import deep_vae

PPCA: dict[str, Any] = {"family": "ppca", "latent_dim": 2}
VAE = deep_vae(latent_dim=2, width=8, draws=4, rounds=2)
FITS: dict[str, dict[str, Any]] = {
    "fitted": {"model": {**PPCA, "init": "maximum_likelihood"}},
    "trained": {"model": {**PPCA, "noise_precision": 1.0}, "train": {"epochs": 2}},
    "vae": {"model": VAE, "train": {"objective": ["elbo"], "epochs": 2, "batch_size": 20}},
}
ROWS, DIM = 60, 5


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MPT_STORE", str(tmp_path))
    return tmp_path


def upload(store: Path, name: str, x: Tensor, **more: Any) -> dict[str, Any]:
    folder = store / "datasets" / name
    folder.mkdir(parents=True)
    np.save(folder / "data.npy", x.numpy())
    return {"source": "upload", "dataset": name, "n": len(x), "dim": x.shape[1], **more}


def sample() -> Tensor:
    generator = torch.Generator().manual_seed(3)
    loadings = torch.randn(2, DIM, generator=generator, dtype=torch.float64)
    z = torch.randn(ROWS, 2, generator=generator, dtype=torch.float64)
    noise = torch.randn(ROWS, DIM, generator=generator, dtype=torch.float64)
    return (z @ loadings + 0.3 * noise) * torch.tensor([1.0, 2, 4, 8, 16]) + 50


def evaluated(spec: dict[str, Any]) -> dict[str, Any]:
    masks = {"schedule": "fixed", "size": 2, "per_size": 4}
    lml = {"lml": {"method": "iwae", "samples": 20}} if spec["model"] is VAE else {}
    return {**spec, "evaluate": {"masks": masks, **lml}}


def fit(store: Path, spec: dict[str, Any]) -> list[Record]:
    """Run a spec as the experiment "first", which keeps its weights."""
    state = RunState(work_dir=store / "artifacts" / "first")
    return [one for one in resumable(spec_of(evaluated(spec)), state) if one is not None]


@pytest.mark.parametrize("by", ["columns", True], ids=["columns", "all"])
@pytest.mark.parametrize("fitted", ["fitted", "trained"])
def test_the_held_out_rows_score_as_in_the_run_that_held_them_out(
    fitted: str, by: Any, store: Path
) -> None:
    x = sample()
    data = upload(store, "all", x, standardize=by, heldout=0.25)
    first = fit(store, {**FITS[fitted], "data": data})
    tensors = load_file(store / "artifacts/first/weights.safetensors")
    rows = tensors["data/heldout_rows"]
    kept = torch.ones(ROWS, dtype=torch.bool)
    kept[rows] = False
    assert rows.tolist() == sorted(set(rows.tolist()))
    assert len(rows) == 15
    scale = x[kept].std(0, correction=0) if by == "columns" else x[kept].std(correction=0)[None]
    assert tensors["data/scale"].tolist() == pytest.approx(scale.tolist())
    model = {**PPCA, "init": "experiment", "experiment": "first"}
    again = {"model": model, "data": upload(store, "new", x[rows], standardize=by)}
    scored = list(run(spec_of(evaluated(again))))
    found = value_of(metric(scored, "lml", seed=0))
    own, of_rows = (
        metric(one, name, seed=0)
        for one, name in ((first, "lml_heldout_population"), (scored, "lml_population"))
    )
    assert of_rows.value == pytest.approx(own.value, rel=1e-12)
    assert of_rows.std_err == pytest.approx(own.std_err, rel=1e-9)
    assert not any(isinstance(one, Metric) and one.name == "lml_population" for one in first)
    assert found == pytest.approx(value_of(metric(first, "lml_heldout", seed=0)), rel=1e-12)
    again["data"] = {**again["data"], "standardize": False}
    with pytest.raises(RunError, match="experiment first has a model of standardized data: set"):
        list(run(spec_of(evaluated(again))))


def test_parts_of_the_data_have_the_kl_divergence_that_a_vae_gave_the_whole(store: Path) -> None:
    x = sample()
    scaled = {"standardize": "columns"}
    first = fit(store, {**FITS["vae"], "data": upload(store, "all", x, **scaled)})
    spec = evaluated({"model": VAE})
    spec["model"] = {**VAE, "init": "experiment", "experiment": "first"}
    parts = [upload(store, f"part{i}", part, **scaled) for i, part in enumerate(torch.split(x, 20))]
    found = [list(run(spec_of({**spec, "data": part}))) for part in parts]
    mean = sum(value_of(metric(one, "kl", seed=0)) for one in found) / len(found)
    assert mean == pytest.approx(value_of(metric(first, "kl", seed=0)), rel=1e-9)
    refused = {**spec, "data": {**parts[0], "standardize": False}}
    with pytest.raises(RunError, match="standardized data"):
        list(run(spec_of(refused)))


@pytest.mark.parametrize("fitted", [*FITS])
def test_columns_of_other_names_or_in_another_order_are_refused(fitted: str, store: Path) -> None:
    """A model scored permuted columns in silence."""

    def table(name: str, letters: str, **more: Any) -> dict[str, Any]:
        folder = store / "datasets" / name
        folder.mkdir(parents=True)
        lines = [",".join(letters), *(",".join(map(str, row)) for row in sample().tolist())]
        (folder / "data.csv").write_text("\n".join(lines) + "\n")
        return {"source": "upload", "dataset": name, "n": ROWS, "dim": DIM, **more}

    fit(store, {**FITS[fitted], "data": table("all", "abcde")})
    model = {**(VAE if fitted == "vae" else PPCA), "init": "experiment", "experiment": "first"}
    spec = {**evaluated(FITS[fitted]), "model": model}
    spec.pop("train", None)
    told = (
        "first has a model of other columns, or of another order: give data.columns a, b, c, d, e"
    )
    for name in ("abced", "abcdf"):
        with pytest.raises(RunError, match=f"{told}$"):
            list(run(spec_of({**spec, "data": table(name, name)})))
    chosen = table("moved", "edcba", columns=[*"abcde"])
    assert metric(list(run(spec_of({**spec, "data": chosen}))), "lml", seed=0)
    records = list(run(spec_of({**spec, "data": upload(store, "bare", sample())})))
    assert metric(records, "lml", seed=0)
    order = "have no names of columns: the columns are taken in this order: a, b, c, d, e"
    assert [one.message for one in records if isinstance(one, Log) and order in one.message] == [
        f"these data {order}"
    ]
    fit(store, {**FITS[fitted], "data": upload(store, "unnamed", sample())})
    records = list(run(spec_of({**spec, "data": table("named", "abcde")})))
    assert [one.message for one in records if isinstance(one, Log) and order in one.message] == [
        f"the data of experiment first {order}"
    ]


def test_data_that_are_not_standardized_keep_nothing_but_the_rows_of_an_upload(
    store: Path,
) -> None:
    fit(store, {**FITS["fitted"], "data": upload(store, "all", sample(), heldout=0.25)})
    names = load_file(store / "artifacts/first/weights.safetensors").keys()
    assert {name for name in names if name.startswith("data/")} == {"data/heldout_rows"}
    fit(store, {**FITS["fitted"], "data": {"source": "digits", "heldout": 0.2}})
    names = load_file(store / "artifacts/first/weights.safetensors").keys()
    assert not any(name.startswith("data/") for name in names)


@pytest.mark.parametrize("fitted", [*FITS])
def test_the_ids_of_held_out_rows_are_kept(
    fitted: str, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_ids(spec: UploadData) -> Upload:
        return uploaded(spec)._replace(ids={"row": [f"s{i}" for i in range(ROWS)]})

    monkeypatch.setattr("mptcore.data.dataset.uploaded", with_ids)
    records = fit(store, {**FITS[fitted], "data": upload(store, "all", sample(), heldout=0.1)})
    assert "heldout_rows.csv" in [one.file for one in records if isinstance(one, Artifact)]
    rows = load_file(store / "artifacts/first/weights.safetensors")["data/heldout_rows"].tolist()
    text = (store / "artifacts/first/heldout_rows.csv").read_text()
    assert text == "row,row_id\n" + "".join(f"{row},s{row}\n" for row in rows)
