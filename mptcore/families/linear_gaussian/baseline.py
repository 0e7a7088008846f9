"""A linear Gaussian as the baseline of another family's model: all that a family may know of
another is that it can be scored."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mptcore.data.dataset import Dataset
from mptcore.estimation.model import TractableModel
from mptcore.families.linear_gaussian.densities import initial_density, scorable
from mptcore.families.linear_gaussian.gaussian import LowRankGaussian
from mptcore.runtime.rng import generator_for
from mptcore.specs import PpcaModel


@dataclass(frozen=True)
class Baseline:
    """A fitted density."""

    _density: LowRankGaussian

    def scored_on(self, x: Tensor, device: torch.device) -> TractableModel:
        """Together with data (N, D)."""
        return scorable(self._density, x, device)


def baseline_of(spec: PpcaModel, data: Dataset, seed: int) -> Baseline:
    """The baseline that a spec asks for. Raises RunError."""
    return Baseline(initial_density(spec, data, seed, generator_for(seed, "init")))
