"""Runs on data with missing values, and what they refuse."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mptcore.data.dataset import Dataset, binarized, refuse_missing, scaling_of, standardized
from mptcore.families.linear_gaussian import fit
from mptcore.families.linear_gaussian.run import NOT_CONVERGED, refuse_constant_columns
from mptcore.protocol.records import Log, Record, RunError
from mptcore.run import run
from mptcore.specs import UploadData
from mptcore.specs.families.linear_gaussian import MAX_FIT_POINTS
from tests.mptcore.families.linear_gaussian.test_missing import FACTOR_ANALYSIS, PPCA, sample
from tests.support.runs import metric, points, spec_of, std_err_of, value_of

Uploaded = Callable[..., dict[str, Any]]


@pytest.fixture
def upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Uploaded:
    """Write an upload and return its source."""
    monkeypatch.setenv("MPT_STORE", str(tmp_path))

    def made(x: Tensor, **more: Any) -> dict[str, Any]:
        (tmp_path / "datasets/a").mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / "datasets/a/data.npy", x.numpy())
        n, dim = x.shape
        return {"source": "upload", "dataset": "a", "n": n, "dim": dim, **more}

    return made


def is_warning(record: Record) -> bool:
    return isinstance(record, Log) and record.level == "warning"


ONE = {"threads": 1}
EXHAUSTIVE = {"masks": {"schedule": "all", "design": "exhaustive"}}


@pytest.mark.parametrize("model", [PPCA, FACTOR_ANALYSIS], ids=lambda model: model["family"])
def test_a_run_fits_and_scores_them(model: dict[str, Any], upload: Uploaded) -> None:
    data = upload(sample(300, 0.2, 6), heldout=0.25)
    spec = spec_of({"model": model, "data": data, "evaluate": EXHAUSTIVE, "compute": ONE})
    found = [*run(spec)]
    for suffix in ("", "_heldout"):
        mpt, lml = metric(found, f"mpt{suffix}"), metric(found, f"lml{suffix}")
        assert value_of(mpt) == pytest.approx(value_of(lml), rel=1e-9)
        assert std_err_of(mpt) == 0
    assert value_of(points(found, "lml_fitting")[-1]) == pytest.approx(
        value_of(metric(found, "lml")), rel=1e-9
    )
    assert not [*filter(is_warning, found)]


def test_drawn_masks_have_an_error(upload: Uploaded) -> None:
    evaluate = {"masks": {"schedule": "all", "per_size": 60}}
    start = {"family": "ppca", "latent_dim": 2, "noise_precision": 1.0}
    found = [*run(spec_of({"model": start, "data": upload(sample(60)), "evaluate": evaluate}))]
    mpt, lml = metric(found, "mpt"), metric(found, "lml")
    assert 0 < abs(value_of(mpt) - value_of(lml)) < 3 * std_err_of(mpt)


def test_an_unconverged_fit_gives_a_warning(
    upload: Uploaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit, "MAX_ITERATIONS", 20)
    simulated = {"source": "ppca", "n": 60, "dim": 6, "latent_dim": 2, "noise_precision": 2.0}
    for data in (upload(sample(60)), simulated):
        found = [*run(spec_of({"model": FACTOR_ANALYSIS, "data": data, "evaluate": EXHAUSTIVE}))]
        assert [*filter(is_warning, found)] == [Log("warning", f"seed 0: {NOT_CONVERGED}")]
        assert [one.x for one in points(found, "lml_fitting")] == [10, 20]


GRID = {"method": "gauss_hermite", "nodes": 20}
VAE = {"family": "linear_vae", "latent_dim": 1, "conditionals": GRID,
       "likelihood": {"distribution": "gaussian", "noise_precision": 1.0}}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": VAE}, "columns 1, 3 are incomplete.* this family needs every value"),
        ({"model": PPCA, "train": {"epochs": 1}}, "columns 1, 3 are incomplete.* leave train out"),
    ],
    ids=["vae", "train"],
)
def test_missing_values_are_refused_by_other_families(
    changes: dict[str, Any], words: str, upload: Uploaded
) -> None:
    x = sample(60, 0.0)[2:]
    x[3, 1] = x[7, 3] = torch.nan
    with pytest.raises(RunError, match=words):
        [*run(spec_of({"data": upload(x), **changes}))]


def test_missing_values_of_heldout_observations_alone_are_refused() -> None:
    x = sample(8, 0.0)[2:]
    data = Dataset(x[2:], heldout=x[:2].index_fill(1, torch.tensor([3]), torch.nan))
    refuse_missing(data, None)
    with pytest.raises(RunError, match=r"^column 3 is incomplete \(counted from 0\), .*: why$"):
        refuse_missing(data, "why")


def test_the_points_of_a_fit_to_an_upload_are_counted(upload: Uploaded) -> None:
    """A PPCA is included, because EM may fit it."""
    start = {"family": "ppca", "latent_dim": 2, "noise_precision": 1.0}
    data = upload(sample(60))
    fitted, started = (spec_of({"model": model, "data": data}) for model in (PPCA, start))
    assert fitted.point_count().total == started.point_count().total + MAX_FIT_POINTS


def test_columns_that_are_held_out_or_constant_are_refused(upload: Uploaded) -> None:
    x = sample(60, 0.0)[2:]
    x[1:, 1] = torch.nan
    with pytest.raises(RunError, match=r"^column 1 is constant"):
        [*run(spec_of({"model": FACTOR_ANALYSIS, "data": upload(x)}))]
    refuse_constant_columns(Dataset(x[:, 2:]))
    held = next(seed for seed in range(99) if Dataset(x).held_out(29, seed).x[:, 1].isnan().all())
    data = upload(x, heldout=0.5, seed=held)
    with pytest.raises(RunError, match=r"^column 1 is empty .*: no value is left that is not held"):
        [*run(spec_of({"model": PPCA, "data": data}))]


def test_prepared_values_stay_missing() -> None:
    x = torch.tensor([[0.0, 1.0], [torch.nan, 0.2], [0.9, torch.nan]])
    upload = UploadData(source="upload", dataset="a", n=3, dim=2)
    binary = binarized(Dataset(x), upload.model_copy(update={"binarize": "threshold"})).x
    assert binary.nan_to_num(7).tolist() == [[0, 1], [7, 0], [1, 7]]
    scaled = standardized(Dataset(x), scaling_of(Dataset(x), by_column=False)).x
    known = scaled[~x.isnan()]
    assert torch.equal(scaled.isnan(), x.isnan())
    assert known.mean().item() == pytest.approx(0, abs=1e-6)
    assert known.std(correction=0).item() == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize(
    ("ratio", "more", "warned"),
    [(11, {}, 1), (9, {}, 0), (11, {"standardize": "columns"}, 0), (11, {"standardize": True}, 1)],
)
def test_columns_of_very_different_scale_give_ppca_a_warning(
    upload: Uploaded, ratio: float, more: dict[str, Any], warned: int
) -> None:
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = (x - x.mean(0)) / x.std(0, correction=0) * torch.tensor([ratio, 1.0, 2.0])
    x[0, 1] = torch.nan
    model = {**PPCA, "latent_dim": 1}
    evaluate = {"masks": {"schedule": "sizes", "sizes": [1], "per_size": 1}}
    data = upload(x, **more)
    for family, count in (("ppca", warned), ("factor_analysis", 0)):
        spec = {"model": {**model, "family": family}, "data": data, "evaluate": evaluate}
        found = [*filter(is_warning, run(spec_of({**spec, "seeds": [1, 2]})))]
        assert len(found) == count


def test_the_warning_names_the_columns_and_their_scales(upload: Uploaded) -> None:
    x = torch.tensor([[1.0, 20.0, 3.0], [3.0, 60.0, 1.0], [1.0, 20.0, 3.5]])
    evaluate = {"masks": {"schedule": "sizes", "sizes": [1], "per_size": 1}}
    spec = {"model": {**PPCA, "latent_dim": 1}, "data": upload(x), "evaluate": evaluate}
    (found,) = filter(is_warning, run(spec_of(spec)))
    assert isinstance(found, Log)
    assert "columns: 0.943 in 0, 18.9 in 1. PPCA has the same noise" in found.message
