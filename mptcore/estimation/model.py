"""What a model must give to be scored."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Evidence:
    """The mean over observations of log p(x), in nats, with its Monte Carlo standard error.
    `not_final` says why it should not be quoted; `metrics` tell how good it is."""

    value: float
    std_err: float = 0.0
    not_final: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


class MaskedModel(ABC):
    """A model together with the data it is scored on. Concrete families are never subclassed."""

    device: torch.device
    passed = 0
    """Masks scored so far, by earlier attempts too, for models that draw numbers for each."""

    @property
    @abstractmethod
    def bytes_per_mask(self) -> int:
        """About how much memory scoring one more mask at a time takes."""

    @property
    def least_batch(self) -> int:
        """Fewer masks at a time waste the machine, whatever its caches hold."""
        return 1

    @property
    @abstractmethod
    def dim(self) -> int:
        """D, the number of dimensions that can be masked."""

    @abstractmethod
    def scores(self, masked: Tensor) -> Tensor:
        """For each mask (B, D), true where masked: the mean over observations and masked j of
        log p(x_j | x_R), in nats, as float64 (B,). Eq. (5) of the paper averages this over masks.
        """

    def pass_over(self, masks: int) -> None:
        """So many masks were scored, now or by an earlier attempt."""
        self.passed += masks

    @abstractmethod
    def evidence(self) -> Evidence:
        """The log marginal likelihood, as well as it is known."""


class TractableModel(MaskedModel):
    """A model whose conditionals come from one joint density that can be computed."""

    @abstractmethod
    def log_marginal_likelihood(self) -> float:
        """The mean over observations of log p(x), in nats."""

    def evidence(self) -> Evidence:
        return Evidence(self.log_marginal_likelihood())

    @abstractmethod
    def joint_scores(self, masked: Tensor) -> Tensor:
        """For each mask (B, D): the mean over observations of log p(x_M | x_R), float64 (B,)."""
