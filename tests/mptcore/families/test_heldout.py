"""The MPT score of held-out observations."""

from typing import Any

import pytest
import torch

from mptcore.data.dataset import load_arrays
from mptcore.estimation.estimate import PARTS
from mptcore.families.linear_gaussian.density import LowRankGaussian, log_probs
from mptcore.families.linear_gaussian.initial import initial_density
from mptcore.families.linear_gaussian.routes import solver_for
from mptcore.protocol.records import Metric, Progress
from mptcore.run import run
from mptcore.specs import LinearGaussianExperiment
from mptlab_contract import masks_of
from tests.support.runs import metric, points, spec_of, std_err_of, value_of

DIM = 5
DATA = {"source": "ppca", "n": 40, "dim": DIM, "latent_dim": 2, "noise_precision": 2.0,
        "heldout": 0.3}  # fmt: skip
ALL = {"schedule": "all", "design": "exhaustive"}
PPCA = {"family": "ppca", "latent_dim": 2, "noise_precision": 1.0}
FACTOR_ANALYSIS = {**PPCA, "family": "factor_analysis"}
GRID = {"method": "gauss_hermite", "nodes": 20}
LINEAR_VAE = {"family": "linear_vae", "latent_dim": 1, "conditionals": GRID,
              "likelihood": {"distribution": "gaussian", "noise_precision": 1.0}}  # fmt: skip
VAE = {"family": "vae", "latent_dim": 2, 
       "conditionals": {"method": "importance", "draws": 30},
       "likelihood": {"distribution": "gaussian", "noise_precision": 1.0},
       "network": {"layers": "dense", "widths": [8]}}  # fmt: skip


def ran(
    model: dict[str, Any], masks: dict[str, Any], dim: int = DIM, n: int = 40, **more: Any
) -> list[Any]:
    evaluate = {"masks": masks, **more}
    data, compute = {**DATA, "dim": dim, "n": n}, {"threads": 1}
    return list(
        run(spec_of({"model": model, "data": data, "evaluate": evaluate, "compute": compute}))
    )


@pytest.mark.parametrize("model", [PPCA, FACTOR_ANALYSIS, LINEAR_VAE], ids=lambda m: m["family"])
def test_all_masks_sum_to_the_lml(model: dict[str, Any]) -> None:
    found = ran(model, ALL)
    mpt, lml = metric(found, "mpt_heldout"), metric(found, "lml_heldout")
    assert value_of(mpt) == pytest.approx(value_of(lml), rel=1e-9)
    assert value_of(lml) != metric(found, "lml").value
    assert mpt.std_err == 0
    assert value_of(metric(found, "difference_heldout")) == pytest.approx(0, abs=1e-8)


def test_heldout_score_equals_dense_conditionals() -> None:
    spec = spec_of({"model": {**PPCA, "init": "maximum_likelihood"}, "data": DATA})
    assert isinstance(spec, LinearGaussianExperiment)
    found = ran(spec.model.model_dump(), ALL)
    data = load_arrays(spec.data, 0, torch.Generator().manual_seed(0))
    assert data.heldout is not None
    density = initial_density(spec.model, data, 0, torch.Generator())
    x = data.heldout.double()
    scores = [
        torch.stack([density.conditional_log_probs(x, mask).mean() for mask in masks_of(DIM, m)])
        for m in range(1, DIM + 1)
    ]
    expected = sum(score.mean().item() for score in scores)
    assert value_of(metric(found, "mpt_heldout")) == pytest.approx(expected, rel=1e-9)


def test_heldout_masks_give_an_error_and_count_in_progress() -> None:
    found = ran(PPCA, {"schedule": "all", "per_size": 30})
    mpt, lml = metric(found, "mpt_heldout"), metric(found, "lml_heldout")
    assert 0 < abs(value_of(mpt) - value_of(lml)) < 3 * std_err_of(mpt)
    (*_, last) = (one for one in found if isinstance(one, Progress))
    assert (last.done, last.total) == (2 * 30 * DIM, 2 * 30 * DIM)
    names = {one.name for one in found if isinstance(one, Metric)}
    names = {name for name in names if not name.endswith("_half_interval")}
    own = {"lml", "mpt", "difference"}
    assert names == own | {f"{name}_heldout" for name in own} | {"lml_heldout_population"}


def test_the_heldout_score_reaches_its_own_target() -> None:
    found = ran(PPCA, {"schedule": "fixed", "size": 10}, 20, target_std_err=0.3)
    assert 0 < std_err_of(metric(found, "biased_score_heldout")) <= 0.3
    assert metric(found, "target_reached_heldout").value == 1
    assert value_of(metric(found, "masks_heldout")) > 0
    (*_, last) = (one for one in found if isinstance(one, Progress))
    assert last.done == last.total


def test_listed_sizes_score_no_heldout_masks() -> None:
    found = ran(PPCA, {"schedule": "sizes", "sizes": [2, 4], "per_size": 30})
    names = {one.name for one in found if isinstance(one, Metric)}
    names = {name for name in names if not name.endswith("_half_interval")}
    assert names == {"lml", "lml_heldout", "lml_heldout_population"}
    (*_, last) = (one for one in found if isinstance(one, Progress))
    assert (last.done, last.total) == (60, 60)


def test_sampled_scores_have_a_heldout_score() -> None:
    masks = {"schedule": "fixed", "size": DIM, "design": "exhaustive"}
    found = ran(VAE, masks, lml={"method": "iwae", "samples": 50})
    own, held = metric(found, "biased_score"), metric(found, "biased_score_heldout")
    assert 0 < std_err_of(held) < 0.2
    assert value_of(held) != value_of(own)
    assert metric(found, "biased_score_heldout_bias_estimate").std_err == 0
    assert metric(found, "lml_heldout_ess").value != metric(found, "lml_ess").value


def test_log_probs_of_rows_with_missing_values_are_those_of_the_dense_marginals() -> None:
    spec = spec_of({"model": FACTOR_ANALYSIS, "data": DATA})
    assert isinstance(spec, LinearGaussianExperiment)
    data = load_arrays(spec.data, 0, torch.Generator().manual_seed(0))
    density = initial_density(spec.model, data, 0, torch.Generator().manual_seed(1))
    x = data.x.double()
    x[::3, 1] = torch.nan
    x[5, 2:] = torch.nan
    expected = [
        density.marginal(~row.isnan()).log_prob(row[~row.isnan()][None]).item() for row in x
    ]
    assert log_probs(density, x).tolist() == pytest.approx(expected, rel=1e-12)


def test_log_probs_keep_their_digits_where_the_noise_is_small() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = torch.full((30,), 1e-12, dtype=torch.float64)
    loadings, z = (torch.randn(n, 4, generator=generator).double() for n in (30, 200))
    density = LowRankGaussian(loadings, torch.zeros_like(noise), noise)
    x = z @ loadings.mT + 1e-6 * torch.randn(200, 30, generator=generator).double()
    expected = solver_for(density, x, torch.device("cpu")).log_marginal_likelihood()
    assert log_probs(density, x).mean().item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("model", [PPCA, LINEAR_VAE, VAE], ids=lambda m: m["family"])
def test_the_parts_of_the_rows_give_the_lml_and_its_error_over_rows(model: dict[str, Any]) -> None:
    sampled: dict[str, Any] = {"lml": {"method": "iwae", "samples": 200}} if model is VAE else {}
    found = ran(model, {"schedule": "sizes", "sizes": [2], "per_size": 1}, n=250, **sampled)
    parts = points(found, "lml_heldout_parts")
    rows = sum(part.n for part in parts)
    assert (len(parts), rows, [part.x for part in parts]) == (PARTS, 75, [*range(PARTS)])
    mean = sum(part.n * value_of(part) for part in parts) / rows
    population = metric(found, "lml_heldout_population")
    assert mean == pytest.approx(value_of(metric(found, "lml_heldout")), rel=1e-6)
    assert value_of(population) == pytest.approx(mean, rel=1e-6)
    values = torch.tensor([value_of(part) for part in parts], dtype=torch.float64)
    assert std_err_of(population) == pytest.approx(values.std().item() / PARTS**0.5, rel=0.4)
    assert all(part.std_err is None and part.reason for part in parts)


@pytest.mark.parametrize("model", [PPCA, LINEAR_VAE], ids=lambda m: m["family"])
def test_a_baseline_has_parts_of_its_own_and_curves_in_training_have_none(
    model: dict[str, Any],
) -> None:
    train = {
        "objective": "mpt",
        "epochs": 2,
        "curve_at": [1],
        "masks": {"schedule": "fixed", "rate": 0.4},
    }
    masks = {"schedule": "sizes", "sizes": [2], "per_size": 1}
    spec = {"model": {**model, "latent_dim": 1}, "data": DATA, "train": train,
            "baseline": PPCA, "evaluate": {"masks": masks}}  # fmt: skip
    found = [*run(spec_of(spec))]
    labels = [one.labels for one in points(found, "lml_heldout_parts") if one.x == 0]
    assert labels == [{"seed": 0, "model": "model"}, {"seed": 0, "model": "baseline"}]
