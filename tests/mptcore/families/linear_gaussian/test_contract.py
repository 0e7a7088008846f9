"""PPCA and factor analysis satisfy the contract of every model that can be scored."""

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch
from scipy.stats import multivariate_normal
from torch import Tensor

from mptcore.estimation.model import Model
from mptcore.families.linear_gaussian.density import LowRankGaussian
from mptcore.families.linear_gaussian.routes import solver_for
from mptcore.runtime.compiled import kernels
from mptcore.specs import ExperimentSpec
from mptlab_contract import SpecPart, TractableContract
from tests.support.runs import spec_of

DIM = 6


class LinearGaussianContract(TractableContract):
    family: ClassVar[str]
    train: ClassVar[SpecPart] = {
        "epochs": 3,
        "batch_size": 15,
        "learn_noise_precision": True,
        "curve_at": [1],
    }
    baseline: ClassVar[SpecPart] = {
        "family": "ppca",
        "latent_dim": 3,
        "init": "maximum_likelihood",
    }

    @pytest.fixture(autouse=True, params=["numba", "torch"])
    def route(
        self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[None]:
        """Compute by compiled loops and by torch."""
        monkeypatch.setenv("MPT_KERNELS", request.param)
        kernels.cache_clear()
        yield
        kernels.cache_clear()

    def noise(self, generator: torch.Generator) -> Tensor:  # (D,)
        raise NotImplementedError

    def density_and_data(self) -> tuple[LowRankGaussian, Tensor]:
        generator = torch.Generator().manual_seed(7)
        loadings = torch.randn(DIM, 2, generator=generator, dtype=torch.float64)
        mean = torch.randn(DIM, generator=generator, dtype=torch.float64)
        density = LowRankGaussian(loadings, mean, self.noise(generator))
        return density, torch.randn(9, DIM, generator=generator, dtype=torch.float64)

    def model(self, device: torch.device, memory_bytes: int | None = None) -> Model:
        return solver_for(*self.density_and_data(), device)

    def log_prob(self, observed: Tensor) -> float:
        density, x = self.density_and_data()
        covariance = density.loadings @ density.loadings.T + density.noise_variance.diag()
        covariance = covariance[observed][:, observed]
        dense = multivariate_normal(density.mean[observed].numpy(), covariance.numpy())
        return float(dense.logpdf(x[:, observed].numpy()).mean())

    @pytest.fixture
    def spec(self) -> ExperimentSpec:
        model: dict[str, Any] = {"family": self.family, "latent_dim": 2, "noise_precision": 5.0}
        data = {"source": "ppca", "n": 30, "dim": DIM, "latent_dim": 2, "noise_precision": 5.0}
        evaluate = {"masks": {"schedule": "all", "per_size": 1500}}
        compute = {"threads": 1, "memory_mib": 1, "device": "cpu"}
        return spec_of({"model": model, "data": data, "evaluate": evaluate, "compute": compute})


class TestPpca(LinearGaussianContract):
    family = "ppca"

    def noise(self, generator: torch.Generator) -> Tensor:
        return torch.full((DIM,), 0.2, dtype=torch.float64)


class TestFactorAnalysis(LinearGaussianContract):
    family = "factor_analysis"

    def noise(self, generator: torch.Generator) -> Tensor:
        return 0.05 + torch.rand(DIM, generator=generator, dtype=torch.float64)
