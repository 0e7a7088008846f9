"""Densities as a spec asks for them: fitted, drawn, or kept by an earlier run."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mptcore.data.dataset import Dataset
from mptcore.families.linear_gaussian.density import LowRankGaussian
from mptcore.families.linear_gaussian.initial import closed_form, initial_density
from mptcore.families.linear_gaussian.moments import (
    second_moment,
)
from mptcore.families.linear_gaussian.weights import load_density, save_densities
from mptcore.protocol.records import Artifact, Log, RunError
from mptcore.runtime import inputs
from mptcore.specs import FactorAnalysisModel, PpcaModel

DIM, K = 6, 2


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def data() -> Dataset:
    x = normal(300, K) @ normal(K, DIM, seed=1) + normal(300, DIM, seed=2) * 0.5 + 3
    return Dataset(x)


def equal(one: LowRankGaussian, other: LowRankGaussian) -> bool:
    parts = ("loadings", "mean", "noise_variance")
    return all(torch.equal(getattr(one, part), getattr(other, part)) for part in parts)


def test_a_fit_has_the_mean_and_moment_of_the_data() -> None:
    found = data()
    mean = found.x.mean(0)
    moment = second_moment(found.x, mean)
    for noise_precision in (None, 9.0):
        spec = PpcaModel(
            family="ppca", latent_dim=K, init="maximum_likelihood", noise_precision=noise_precision
        )
        expected = closed_form(moment, mean, K, noise_precision)
        assert equal(initial_density(spec, found, 0, torch.Generator()), expected)


def test_the_closed_form_of_ppca_is_a_maximum() -> None:
    found = data()
    mean = found.x.mean(0)
    best = closed_form(second_moment(found.x, mean), mean, K)
    top = best.log_prob(found.x).mean()
    for change in (0.99, 1.01):
        for other in (
            LowRankGaussian(best.loadings * change, mean, best.noise_variance),
            LowRankGaussian(best.loadings, mean, best.noise_variance * change),
        ):
            assert other.log_prob(found.x).mean() < top
    given = closed_form(second_moment(found.x, mean), mean, K, 4.0)
    assert given.noise_variance.tolist() == [0.25] * DIM
    wide = closed_form(second_moment(found.x, mean), mean, K, 1e-3)
    assert wide.loadings.abs().max() == 0


def test_data_without_variance_beyond_the_loadings_have_no_maximum() -> None:
    x = normal(50, K) @ normal(K, DIM, seed=1)
    moment = second_moment(x, x.mean(0))
    with pytest.raises(RunError) as error:
        closed_form(moment, x.mean(0), K)
    assert error.value.cause == "invalid"
    told = "the data have no variance beyond 2 dimensions, so the likelihood has no maximum: "
    assert str(error.value) == f"{told}lower latent_dim or give a noise_precision"
    assert closed_form(moment, x.mean(0), K, 4.0).noise_variance[0] == 0.25


def test_a_random_start_uses_its_generator() -> None:
    spec = PpcaModel(family="ppca", latent_dim=K, init="random", noise_precision=4.0)
    found = initial_density(spec, data(), 0, torch.Generator().manual_seed(3))
    drawn = torch.randn(DIM, K, generator=torch.Generator().manual_seed(3))
    assert torch.equal(found.loadings, drawn.double())
    assert torch.equal(found.mean, data().x.mean(0))
    assert found.noise_variance.tolist() == [0.25] * DIM


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[int, LowRankGaussian]:
    """Experiment `first` has densities of two seeds with noise of their own in each dimension, and
    `alike` has one without."""
    monkeypatch.setenv("MPT_STORE", str(tmp_path))
    inputs.locate(None)
    noise = torch.linspace(1, 2, DIM, dtype=torch.float64)
    densities = {s: LowRankGaussian(normal(DIM, K, seed=s), normal(DIM), noise * s) for s in (7, 8)}
    artifact = save_densities(densities, tmp_path / "artifacts" / "first", {}, {})
    assert isinstance(artifact, Artifact)
    assert artifact.file == "weights.safetensors"
    alike = LowRankGaussian(normal(DIM, K), normal(DIM), torch.ones(DIM, dtype=torch.float64))
    save_densities({1: alike}, tmp_path / "artifacts" / "alike", {}, {})
    return densities


def model(family: Any = FactorAnalysisModel, **changes: Any) -> Any:
    name = {FactorAnalysisModel: "factor_analysis", PpcaModel: "ppca"}[family]
    values = {"family": name, "latent_dim": K, "init": "experiment", "experiment": "first"}
    return family.model_validate({**values, **changes})


def test_a_seed_loads_its_own_density_or_the_first(
    kept: dict[int, LowRankGaussian],
) -> None:
    for seed, taken in ((7, 7), (8, 8), (9, 7)):
        assert equal(load_density(model(), DIM, seed), kept[taken])
        assert equal(initial_density(model(), data(), seed, torch.Generator()), kept[taken])


def refused(spec: Any, dim: int = DIM) -> str:
    with pytest.raises(RunError) as error:
        load_density(spec, dim, 7)
    assert error.value.cause == "invalid"
    return str(error.value)


def test_a_density_of_another_shape_or_noise_is_refused(kept: object) -> None:
    shapes = "experiment first has weights for D = 6, K = 2; this spec has D = "
    assert refused(model(latent_dim=3)) == f"{shapes}6, K = 3"
    assert refused(model(), dim=5) == f"{shapes}5, K = 2"
    told = "has a noise variance for each dimension: use family factor_analysis"
    assert refused(model(PpcaModel)) == f"experiment first {told}"
    assert load_density(model(PpcaModel, experiment="alike"), DIM, 1).noise_variance[0] == 1


def test_without_a_folder_nothing_is_saved() -> None:
    found = save_densities({}, None, {}, {})
    assert found == Log("info", "the weights are not kept: no work directory was given")
