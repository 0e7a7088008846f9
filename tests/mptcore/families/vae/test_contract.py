"""VAEs satisfy the contract of every model that can be scored."""

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from mptcore.estimation.model import Evidence, Model
from mptcore.families.vae.grid import GridVae
from mptcore.families.vae.likelihoods import BernoulliLikelihood, GaussianLikelihood
from mptcore.families.vae.networks import dense, linear_decoder
from mptcore.families.vae.sampled import SampledVae
from mptcore.specs import Dense, ExperimentSpec, Importance, Recursive, UniformGrid
from mptlab_contract import (
    DEVICES,
    ModelContract,
    SpecPart,
    TractableContract,
    every_mask,
)
from tests.support.runs import spec_of

DIM = 6
DIGITS: dict[str, Any] = {
    "data": {"source": "digits", "binarize": "threshold"},
    "evaluate": {"masks": {"schedule": "sizes", "sizes": [3, 50], "per_size": 2}},
    "compute": {"threads": 1, "device": "cpu", "precision": "float32"},
}
FEW_STEP_MASKS = {"schedule": "fixed", "rate": 0.33, "per_size": 2}

FEW = {"source": "ppca", "n": 20, "dim": 12, "latent_dim": 2, "noise_precision": 2.0}


def binary(device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return (torch.rand(7, DIM, generator=generator) < 0.4).double().to(device)


class TestGridVae(TractableContract):
    train: ClassVar[SpecPart] = {
        "epochs": 2,
        "evaluate_every": 2,
        "objective": ["mpt", "elbo", "lml"],
        "masks": FEW_STEP_MASKS,
        "lml_samples": 4,
    }

    def vae(self) -> GridVae:
        torch.manual_seed(3)
        grid = UniformGrid(method="uniform_grid", nodes=9)
        vae = GridVae(None, linear_decoder(DIM, 2), BernoulliLikelihood(), 2, grid)
        with torch.no_grad():
            for parameter in vae.parameters():
                parameter.mul_(4)
        return vae.double()

    def log_prob(self, observed: Tensor) -> float:
        """The paper's grid by hand: points of a square with normal weights."""
        decoder, x = self.vae().decoder, binary(torch.device("cpu"))[:, observed]
        axis = torch.linspace(-6, 6, 9, dtype=torch.float64)
        nodes = torch.cartesian_prod(axis, axis)  # (81, 2)
        weights = (-nodes.square().sum(1) / 2).softmax(0)
        with torch.no_grad():
            rates = decoder(nodes)[:, observed].sigmoid()
        terms = torch.where(x[:, None] == 1, rates, 1 - rates).prod(2)  # (N, 81)
        return (terms @ weights).log().mean().item()

    def model(self, device: torch.device, memory_bytes: int | None = None) -> Model:
        vae, x = self.vae().to(device), binary(device)
        return vae.scored_on(x, 4, Evidence(vae.log_marginal(x).mean().item()))

    @pytest.fixture
    def spec(self) -> ExperimentSpec:
        grid = {"method": "uniform_grid", "nodes": 5}
        model = {"family": "linear_vae", "latent_dim": 2, "conditionals": grid}
        return spec_of({"model": {**model, "likelihood": {"distribution": "bernoulli"}}, **DIGITS})


class SampledContract(ModelContract):
    conditionals: Recursive | Importance
    train: ClassVar[SpecPart] = {
        "objective": ["mpt"],
        "epochs": 2,
        "evaluate_every": 2,
        "batch_size": 10,
        "lml_samples": 3,
        "masks": FEW_STEP_MASKS,
    }
    baseline: ClassVar[SpecPart] = {
        "family": "ppca",
        "latent_dim": 2,
        "init": "maximum_likelihood",
    }

    def model(self, device: torch.device, memory_bytes: int | None = None) -> Model:
        torch.manual_seed(3)
        encoder, decoder = dense(Dense(layers="dense", widths=(5,)), DIM, 2)
        likelihood = GaussianLikelihood(3.0)
        vae = SampledVae(encoder, decoder, likelihood, 2, self.conditionals, DIM + 5).double()
        return vae.to(device).scored_on(binary(device), 4, Evidence(0.0))

    @pytest.fixture
    def masks(self) -> Tensor:
        return every_mask(DIM)[::9]

    @pytest.mark.parametrize("device", DEVICES)
    def test_the_device_does_not_matter(self, masks: Tensor, device: str) -> None:
        """Except for the noise, which each device draws itself, reproducibly."""
        assert self.model(torch.device(device)).device.type == device
        self.assert_same(self.scores(masks, device), self.scores(masks, device))

    @pytest.fixture
    def spec(self) -> ExperimentSpec:
        likelihood = {"distribution": "gaussian", "noise_precision": 3.0}
        network = {"layers": "dense", "widths": [5]}
        model = {"family": "vae", "latent_dim": 2, "likelihood": likelihood, "network": network}
        evaluate = {
            "masks": {"schedule": "sizes", "sizes": [3, 9], "per_size": 2},
            "lml": {"method": "iwae", "samples": 2, "steps": 2},
        }
        conditionals = self.conditionals.model_dump()
        model = {**model, "conditionals": conditionals}
        return spec_of({**DIGITS, "data": FEW, "model": model, "evaluate": evaluate})


class TestRecursive(SampledContract):
    conditionals = Recursive(method="recursive", draws=3, rounds=2)


class TestImportance(SampledContract):
    conditionals = Importance(method="importance", draws=4, steps=2)
    ways = ("evaluate", "train", "baseline")  # a thousand kernels for each mask
