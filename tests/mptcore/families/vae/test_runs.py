"""Experiments on VAEs from spec to records: short forms of Fig. 3, resuming, keeping, refusing."""

import io
import math
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from mptcore.data.dataset import load_arrays
from mptcore.families.linear_gaussian.initial import initial_density
from mptcore.families.vae.build import build_vae
from mptcore.families.vae.networks import Encoder
from mptcore.families.vae.run import collapse
from mptcore.families.vae.trainer import VaeTrainer
from mptcore.protocol.records import Artifact, Log, Metric, Point, Record, RunError
from mptcore.run import resumable, run
from mptcore.runtime.checkpoint import files, first_whole
from mptcore.runtime.state import RunState
from mptcore.specs import VaeExperiment
from mptcore.specs.families.vae.models import Objective
from mptlab_contract import records
from tests.support.runs import spec_of, std_err_of, value_of
from tests.support.vae_specs import DEEP, LINEAR, changed, deep_vae


def ran(value: dict[str, Any]) -> list[Record]:
    return list(run(spec_of(value)))


def curve(found: list[Record], series: str, **labels: Any) -> list[float]:
    return [
        value_of(p)
        for p in found
        if isinstance(p, Point) and p.series == series and dict(p.labels) == labels
    ]


def metric(found: list[Record], name: str, **labels: Any) -> Metric:
    (one,) = (
        r for r in found if isinstance(r, Metric) and r.name == name and dict(r.labels) == labels
    )
    return one


@pytest.mark.slow
def test_fig3_linear_in_short() -> None:
    """MPT and the ELBO from the same starts end at a similar LML, close to that of maximizing the
    LML itself. The ELBO is below the LML at every recorded epoch."""
    seeds = [4, 44]
    train = {"objective": ["mpt", "elbo", "lml"], "epochs": 60, "learning_rate": 0.05,
             "evaluate_every": 10}  # fmt: skip
    evaluate = {"masks": {"schedule": "sizes", "sizes": [8, 64], "per_size": 2}}
    model = changed(LINEAR, "model/conditionals/nodes", 12)
    found = ran({**model, "train": train, "seeds": seeds, "evaluate": evaluate})
    ends = {}
    for objective in ("mpt", "elbo", "lml"):
        curves = [curve(found, "lml", seed=seed, objective=objective) for seed in seeds]
        assert all(len(values) == 7 for values in curves)
        assert all(values[-1] > values[0] + 2 for values in curves)
        ends[objective] = [values[-1] for values in curves]
    assert abs(median(ends["mpt"]) - median(ends["elbo"])) < 1
    assert 0 < median(ends["lml"]) - median(ends["mpt"]) < 1
    starts = [curve(found, "lml", seed=4, objective=o)[0] for o in ("mpt", "elbo", "lml")]
    assert max(starts) == min(starts)
    for seed in seeds:
        labels = {"seed": seed, "objective": "elbo"}
        lml = curve(found, "lml", **labels)
        bounds = [p for p in found if isinstance(p, Point) and p.series == "elbo"]
        own = [p for p in bounds if dict(p.labels) == labels]
        assert all(value_of(p) - 4 * std_err_of(p) < v for p, v in zip(own, lml, strict=True))
        assert all(p.std_err for p in own)
        shift = metric(found, "lml_quadrature_shift", seed=seed, objective="mpt").value
        final = metric(found, "lml", seed=seed, objective="mpt").value
        assert (final is not None) == (abs(shift or 0) <= 0.05)


@pytest.mark.slow
def test_all_sizes_of_a_linear_vae_sum_to_its_lml() -> None:
    masks = {"schedule": "all", "per_size": 12}
    found = ran({**LINEAR, "evaluate": {"masks": masks}})
    gap = metric(found, "difference", seed=0)
    assert gap.std_err is not None
    assert abs(value_of(gap)) < 4 * gap.std_err


@pytest.mark.slow
def test_fig3_vae_in_short() -> None:
    """MPT training raises the LML of held-out images, past that of a PPCA of as many latent
    dimensions and the same noise."""
    ppca = {"latent_dim": 4, "init": "maximum_likelihood", "noise_precision": 4.0}
    train = {"objective": ["mpt"], "epochs": 12, "batch_size": 50, "learning_rate": 0.01,
             "masks": {"schedule": "fixed", "rate": 0.33, "per_size": 1},
             "evaluate_every": 12}  # fmt: skip
    spec = changed(DEEP, "data/heldout", 0.7)  # five hundred images to train on
    found = ran({**spec, "train": train, "baseline": {"family": "ppca", **ppca}})
    held = curve(found, "lml_heldout", seed=0)
    assert held[-1] > held[0] + 3
    own = metric(found, "lml_heldout", seed=0, model="model")
    linear = metric(found, "lml_heldout", seed=0, model="baseline")
    assert value_of(own) > value_of(linear)
    assert metric(found, "active_units", seed=0).value == 4
    assert value_of(metric(found, "lml_ess", seed=0, model="model")) > 30
    assert metric(found, "lml", seed=0, model="model").value is not None
    bound = curve(found, "elbo", seed=0)
    assert all(b < v for b, v in zip(bound, curve(found, "lml", seed=0), strict=True))


FEW: dict[str, Any] = {
    **DEEP,
    "data": {"source": "ppca", "n": 60, "dim": 64, "latent_dim": 2, "noise_precision": 2.0,
             "heldout": 0.3},
}  # fmt: skip
SMALL: dict[str, Any] = {
    **FEW,
    "data": {**FEW["data"], "n": 20, "dim": 16},
    "model": deep_vae(latent_dim=2, width=8, draws=4, rounds=3),
}
RESUMED = {
    "grid": {
        **changed(LINEAR, "model/conditionals/nodes", 6),
        "data": {**LINEAR["data"], "heldout": 0.5},
        "train": {"objective": ["elbo", "mpt"], "epochs": 2, "batch_size": 300, "curve_at": [1],
                  "lml_samples": 4},
        "evaluate": {"masks": {"schedule": "sizes", "sizes": [3, 50], "per_size": 2}},
        "seeds": [1, 2],
    },
    "deep": {
        **SMALL,
        "train": {"objective": ["mpt"], "epochs": 5, "batch_size": 6, "curve_at": [2],
                  "lml_samples": 4},
        "evaluate": {"masks": {"schedule": "sizes", "sizes": [3, 12], "per_size": 2},
                     "lml": {"method": "iwae", "samples": 8, "steps": 1},
                     "ais": {"temperatures": 4, "observations": 5}},
    },
    "sampled scores": {
        **SMALL,
        "model": {**SMALL["model"], "conditionals": {
            "method": "importance", "draws": 4, "steps": 1}},
        "evaluate": {"masks": {"schedule": "sizes", "sizes": [3, 8, 12], "per_size": 2},
                     "lml": {"method": "iwae", "samples": 2, "steps": 1}},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", RESUMED)
def test_resumed_records_are_those_of_an_undisturbed_run(name: str, tmp_path: Path) -> None:
    spec = spec_of(RESUMED[name])
    whole = records(spec, tmp_path / "whole")
    for i, stop_after in enumerate(range(1, len(whole), max(1, len(whole) // 2))):
        folder = tmp_path / str(i)
        first = records(spec, folder, stop_after)
        assert len(first) < len(whole)
        assert first_whole(spec, files(folder)) is not None
        assert first + records(spec, folder) == whole


def test_a_resumed_training_does_not_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, advance = spec_of(RESUMED["deep"]), VaeTrainer.advance
    epochs: list[int] = []

    def counted(trainer: VaeTrainer) -> Any:
        epochs.append(trainer.epoch)
        return advance(trainer)

    monkeypatch.setattr(VaeTrainer, "advance", counted)
    records(spec, tmp_path, stop_after=12)
    assert 0 < epochs[-1] < 5
    records(spec, tmp_path)
    assert epochs == [0, 1, 2, 3, 4, 5]


def test_weights_and_pictures_are_saved_and_weights_reused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPT_STORE", str(tmp_path))
    train = {"objective": ["elbo", "mpt"], "epochs": 3, "batch_size": 20}
    quick = {**DEEP["evaluate"], "lml": {"method": "iwae", "samples": 4, "steps": 2}}
    deep = {**FEW, "evaluate": quick}
    spec = spec_of({**deep, "train": {**train, "lml_samples": 4}, "seeds": [7, 8]})
    folder = tmp_path / "artifacts" / "earlier"
    found = [r for r in resumable(spec, RunState(work_dir=folder)) if r is not None]
    kept = {r.file: r for r in found if isinstance(r, Artifact)}
    assert set(kept) == {"weights.safetensors"} | {
        f"{what}-{objective}.png"
        for what in ("reconstructions", "samples")
        for objective in ("mpt", "elbo")
    }
    picture = Image.open(io.BytesIO((folder / "reconstructions-mpt.png").read_bytes()))
    assert picture.size == (3 * 10 * 8, 3 * 3 * 8)
    ends = {
        (seed, objective): metric(found, "kl", seed=seed, objective=objective).value
        for seed in (7, 8)
        for objective in ("mpt", "elbo")
    }
    assert len(set(ends.values())) == 4
    model = {**DEEP["model"], "init": "experiment", "experiment": "earlier"}
    for trained_by, objective in (("mpt", "mpt"), ("elbo", "elbo"), (None, "mpt")):
        again = ran({**deep, "model": {**model, "trained_by": trained_by}, "seeds": [7, 8]})
        for seed in (7, 8):
            assert metric(again, "kl", seed=seed).value == ends[seed, objective]
    # A seed or an objective that was not trained takes the first that was.
    taken, x = spec_of({**deep, "model": model}), torch.zeros(4, 64)
    assert isinstance(taken, VaeExperiment)
    assert kept_loadings(taken, x, 9, "lml") == kept_loadings(taken, x, 7, "elbo")
    assert kept_loadings(taken, x, 9, "mpt") == kept_loadings(taken, x, 7, "mpt")
    assert kept_loadings(taken, x, 9, "mpt") != kept_loadings(taken, x, 8, "mpt")
    binary = {"source": "digits", "binarize": "threshold"}
    others: list[tuple[str, Any, str]] = [
        ("latent_dim", 3, "weights of other shapes"),
        ("network", {"layers": "dense", "widths": [32]}, r"model\.network is .*64.*, not .*32"),
        ("likelihood", {"distribution": "bernoulli"}, r"model\.likelihood is gaussian"),
        ("trained_by", "lml", r"was trained by elbo, mpt, not by lml.*model\.trained_by"),
    ]
    for name, value, reason in others:
        other = spec_of({**DEEP, "model": {**model, name: value}, "data": binary})
        assert isinstance(other, VaeExperiment)
        with pytest.raises(RunError, match=reason):
            build_vae(other, x, 7, "mpt")
    ppca = {"family": "ppca", "latent_dim": 4, "init": "experiment", "experiment": "earlier"}
    with pytest.raises(RunError, match="another family, vae"):
        ran({"model": ppca, "data": {"source": "digits"}})


def kept_loadings(spec: VaeExperiment, x: Tensor, seed: int, objective: Objective) -> list[float]:
    weight: Tensor = build_vae(spec, x, seed, objective).state_dict()["decoder.last.weight"]
    return weight.flatten().tolist()


def test_collapse_is_logged() -> None:
    """With this much noise the prior explains the data, and z is not used."""
    likelihood = {"distribution": "gaussian", "noise_precision": 0.001}
    train = {"objective": ["elbo"], "epochs": 200, "learning_rate": 0.02,
             "evaluate_every": 200}  # fmt: skip
    found = ran({**FEW, "model": {**DEEP["model"], "likelihood": likelihood}, "train": train})
    assert metric(found, "active_units", seed=0).value == 0
    assert any(isinstance(r, Log) and r.message.startswith("collapse") for r in found)


def test_a_non_finite_loss_stops_training_and_keeps_the_records() -> None:
    spec = changed(FEW, "model/likelihood/noise_precision", 1e12)
    train = {"objective": ["elbo"], "epochs": 50, "learning_rate": 100.0, "lml_samples": 2}
    found: list[Record] = []
    with pytest.raises(RunError, match="seed 0 is not finite at epoch"):
        found.extend(run(spec_of({**spec, "train": train})))  # records before the error are kept
    assert 1 < len(curve(found, "loss", seed=0)) < 50


def test_uploads_whose_squares_overflow_in_single_precision_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPT_STORE", str(tmp_path))
    (tmp_path / "datasets/a").mkdir(parents=True)
    np.save(tmp_path / "datasets/a/data.npy", 1e20 * np.random.default_rng(0).normal(size=(8, 4)))
    data = {"source": "upload", "dataset": "a", "n": 8, "dim": 4}
    spec = changed({**DEEP, "model": {**DEEP["model"], "latent_dim": 1}}, "data", data)
    with pytest.raises(RunError, match=r"^column 0 .* whose squares overflow in float32: multiply"):
        ran(spec)
    assert ran(changed(spec, "data/standardize", "columns"))
    assert ran(changed(spec, "compute/precision", "float64"))


def test_annealing_and_its_bracket() -> None:
    """It agrees with importance sampling, and the bracket is narrow."""
    ais = {"temperatures": 60, "chains": 16, "observations": 10, "simulated": 12}
    found = ran({**FEW, "evaluate": {**DEEP["evaluate"], "ais": ais}})
    annealed, sampled = metric(found, "lml_ais", seed=0), metric(found, "lml_ais_iwae", seed=0)
    error = math.hypot(std_err_of(annealed), std_err_of(sampled))
    assert value_of(annealed) == pytest.approx(value_of(sampled), abs=4 * error)
    assert error < 0.1
    assert 8 <= value_of(metric(found, "lml_ais_ess", seed=0)) <= 16
    below = metric(found, "lml_simulated_below", seed=0)
    above = metric(found, "lml_simulated_above", seed=0)
    gap = metric(found, "lml_simulated_gap", seed=0)
    assert value_of(above) - value_of(below) == pytest.approx(value_of(gap))
    assert -4 * std_err_of(gap) < value_of(gap) < 0.5
    assert std_err_of(above) == std_err_of(gap)


def test_scores_by_recursion_are_never_final() -> None:
    """They are not conditionals of the model: no LML is derived from them, and no gap with an
    error."""
    masks = {"schedule": "fixed", "size": 20, "per_size": 12}
    quick = {"masks": masks, "lml": {"method": "iwae", "samples": 4}}
    found = ran({**FEW, "evaluate": quick})
    (point,) = (r for r in found if isinstance(r, Point) and r.series == "score")
    assert point.std_err is None
    assert "by recursion are not those of the model" in str(point.reason)
    for name in ("biased_score", "bias"):
        assert metric(found, name, seed=0).value is None
        assert metric(found, f"{name}_not_final", seed=0).std_err is not None


def test_all_masks_are_scored_by_importance_with_an_error() -> None:
    data = {"source": "ppca", "n": 9, "dim": 5, "latent_dim": 2, "noise_precision": 1.0}
    evaluate = {"masks": {"schedule": "fixed", "size": 3, "design": "exhaustive"}}
    spec = {**changed(DEEP, "model/conditionals", {"method": "importance"}), "data": data}
    score = metric(ran({**spec, "evaluate": evaluate}), "biased_score", seed=0)
    assert score.value is not None
    assert 0 < std_err_of(score) < 0.1


def test_scores_from_few_draws_are_not_final() -> None:
    few = {"method": "importance", "draws": 4, "steps": 1}
    evaluate = {
        "lml": {"method": "iwae", "samples": 3, "steps": 1},
        "masks": {"schedule": "fixed", "size": 20, "per_size": 3},
    }
    found = ran(changed({**FEW, "evaluate": evaluate}, "model/conditionals", few))
    for name in ("lml", "biased_score", "bias"):
        one = metric(found, name, seed=0)
        assert one.value is None
        assert str(one.reason).startswith("not final: ")
    assert value_of(metric(found, "biased_score_doubtful", seed=0)) > 0.1
    assert metric(found, "biased_score_bias_estimate", seed=0).value is not None


def test_an_upload_that_is_not_binary_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPT_STORE", str(tmp_path))
    (tmp_path / "datasets" / "grey").mkdir(parents=True)
    np.save(tmp_path / "datasets" / "grey" / "data.npy", np.full((6, 16), 0.5))
    source = {"source": "upload", "dataset": "grey", "n": 6, "dim": 16}
    with pytest.raises(RunError, match=r"needs values 0 and 1.*data\.binarize"):
        ran({**LINEAR, "data": source})
    np.save(tmp_path / "datasets" / "grey" / "data.npy", np.full((6, 16), 7.0))
    with pytest.raises(RunError, match="values from 0 to 1; these are from 7 to 7"):
        ran({**LINEAR, "data": {**source, "binarize": "stochastic"}})


def test_the_baseline_scores_the_heldout_data() -> None:
    ppca: Any = {"family": "ppca", "latent_dim": 2, "init": "maximum_likelihood"}
    ppca["noise_precision"] = 2.0
    evaluate = {**FEW["evaluate"], "masks": {"schedule": "sizes", "sizes": [64], "per_size": 2}}
    spec = spec_of({**FEW, "baseline": ppca, "evaluate": evaluate})
    found = list(run(spec))
    assert isinstance(spec, VaeExperiment)
    assert spec.baseline is not None
    data = load_arrays(spec.data, 0, torch.Generator().manual_seed(0))
    assert data.heldout is not None
    density = initial_density(spec.baseline, data, 0, torch.Generator())
    for name, x in (("lml", data.x), ("lml_heldout", data.heldout)):
        own = metric(found, name, seed=0, model="baseline")
        assert value_of(own) == pytest.approx(density.log_prob(x).mean().item(), rel=1e-6)
        assert own.std_err == 0


def test_binarized_and_standardized_data() -> None:
    spec = spec_of({**LINEAR, "data": {"source": "digits", "binarize": "stochastic", "seed": 3}})
    first = load_arrays(spec.data, 3, torch.Generator()).x  # type: ignore[arg-type]
    again = load_arrays(spec.data, 3, torch.Generator()).x  # type: ignore[arg-type]
    assert torch.equal(first, again)
    assert set(first.flatten().tolist()) == {0.0, 1.0}
    plain = spec_of({**DEEP, "data": {"source": "digits"}})
    pixels = load_arrays(plain.data, 0, torch.Generator()).x  # type: ignore[arg-type]
    expected = (pixels / 16).mean().item()
    error = 0.5 / first.numel() ** 0.5
    assert first.mean().item() == pytest.approx(expected, abs=4 * error)
    scaled = spec_of({**DEEP, "data": {"source": "digits", "standardize": True}})
    values = load_arrays(scaled.data, 0, torch.Generator()).x  # type: ignore[arg-type]
    assert values.mean().item() == pytest.approx(0, abs=1e-12)
    assert values.std(correction=0).item() == pytest.approx(1, abs=1e-12)


def test_repeated_scores_of_a_mask_estimate_the_error_of_the_draws() -> None:
    """All dimensions are masked in every mask; the error is that of the draws."""
    masks = {"schedule": "fixed", "size": 64, "per_size": 12}
    found = ran(changed(FEW, "evaluate/masks", masks))
    assert metric(found, "biased_score_not_final", seed=0).std_err


def test_recording_does_not_change_training() -> None:
    train = {"objective": ["elbo", "mpt"], "epochs": 4, "batch_size": 6, "lml_samples": 4}
    evaluate = {**DEEP["evaluate"], "lml": {"method": "iwae", "samples": 4, "steps": 1}}
    quick = {**SMALL, "evaluate": evaluate}
    often, seldom = (
        ran({**quick, "train": {**train, "evaluate_every": every}}) for every in (1, 4)
    )
    for objective in ("elbo", "mpt"):
        ends = [metric(f, "kl", seed=0, objective=objective).value for f in (often, seldom)]
        assert ends[0] == ends[1]


def test_a_dimension_is_active_above_its_bound() -> None:
    """A mean of 0.2 has a KL of 0.02 nats, one of 0.1 of 0.005."""
    encoder = Encoder(nn.Identity(), 1, 3)
    with torch.no_grad():
        encoder.head.weight.zero_()
        encoder.head.bias.copy_(torch.tensor([0.2, 0.1, 0.0, 0, 0, 0]))
    found = list(collapse(encoder, torch.zeros(5000, 1), {"seed": 1}))
    kl, active = found
    assert isinstance(kl, Metric)
    assert (kl.name, kl.std_err) == ("kl", 0)
    assert kl.value == pytest.approx(0.025)
    assert active == Metric("active_units", 1, 0.0, {"seed": 1})
    with torch.no_grad():
        encoder.head.bias.zero_()
    *_, warning = collapse(encoder, torch.zeros(5, 1), {"seed": 1, "objective": "elbo"})
    assert isinstance(warning, Log)
    assert warning.level == "warning"
    told = "collapse (seed 1, objective elbo): every latent dimension has a KL below 0.01 nats"
    assert warning.message.startswith(told)
    assert "train longer" in warning.message
