"""Data, and the density they were drawn from where that is known."""

from dataclasses import dataclass

from torch import Tensor

from mptcore.gaussian import LowRankGaussian


@dataclass(frozen=True)
class Dataset:
    x: Tensor  # (N, D), float64
    density: LowRankGaussian | None = None

    @property
    def dim(self) -> int:
        return self.x.shape[1]
