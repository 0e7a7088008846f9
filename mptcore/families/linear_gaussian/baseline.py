"""A linear Gaussian as the baseline of another family's model. The other family uses only that it
can be scored."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mptcore.data.dataset import Dataset
from mptcore.estimation.model import TractableModel
from mptcore.families.linear_gaussian.densities import initial_density, log_probs, scorable
from mptcore.families.linear_gaussian.gaussian import LowRankGaussian
from mptcore.runtime.rng import generator_for
from mptcore.specs import PpcaModel


@dataclass(frozen=True)
class Baseline:
    """A fitted density."""

    _density: LowRankGaussian

    def scored_on(self, x: Tensor) -> TractableModel:
        """Return the density as a model of data (N, D), on the CPU."""
        return scorable(self._density, x, torch.device("cpu"))

    def log_probs(self, x: Tensor) -> Tensor:
        """Return log p(x) of each observation (N, D): (N,), in float64 on the CPU."""
        return log_probs(self._density, x)


def baseline_of(spec: PpcaModel, data: Dataset, seed: int) -> Baseline:
    """Return the baseline of a spec. Raises RunError."""
    return Baseline(initial_density(spec, data, seed, generator_for(seed, "init")))
