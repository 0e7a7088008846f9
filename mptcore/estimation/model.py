"""The contract: what a model gives to be scored, whatever its family."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor


class MaskBatch(Protocol):
    """Masks that are scored together. A tensor of masks (B, D) is one; a family whose masks are
    more than that has a class of its own."""

    def __len__(self) -> int: ...
    def __getitem__(self, chosen: Tensor, /) -> Self:
        """Some of them, by their indices (b,)."""


BatchT = TypeVar("BatchT", bound=MaskBatch)


class Model(ABC, Generic[BatchT]):
    """A model that scores masks. Concrete families are never subclassed."""

    device: torch.device

    @abstractmethod
    def scores(self, masks: BatchT) -> Tensor:
        """For each mask: the mean over its masked dimensions j, and over the observations that it
        is for, of log p(x_j | x_R), in nats, as float64 (B,). Masks that are scored in the same
        order have the same scores, however they are cut into batches."""


@dataclass(frozen=True)
class Evidence:
    """The mean over observations of log p(x), in nats, with its Monte Carlo standard error.
    `metrics` tell how good it is."""

    value: float
    std_err: float = 0.0
    unconverged_reason: str | None = None
    """Why the value should not be quoted."""
    metrics: Mapping[str, float] = field(default_factory=dict)


class VectorModel(Model[Tensor]):
    """A model together with its data, N observations of D dimensions. A mask (D,), true where
    masked, is for all observations: Eq. (5) of the paper averages its score over masks."""

    note: str | None = None
    """What a reader of the log should know of how this model is scored."""
    together: int | None = None
    """Masks that the memory has held at once, where it could not hold a whole batch."""
    masks_scored = 0
    """So far, by earlier attempts too, for models that draw numbers for each mask."""

    @property
    @abstractmethod
    def dim(self) -> int:
        """D, the number of dimensions that can be masked."""

    @property
    @abstractmethod
    def bytes_per_mask(self) -> int:
        """About how much memory scoring one more mask at a time takes."""

    @property
    def least_batch(self) -> int:
        """Fewer masks at a time waste the machine, whatever its caches hold."""
        return 1

    def skip(self, masks: int) -> None:
        """Count so many masks as scored: the scores of an earlier attempt are used."""
        self.masks_scored += masks

    @abstractmethod
    def evidence(self) -> Evidence:
        """The log marginal likelihood, as well as it is known."""


class SampledModel(VectorModel):
    """A model whose scores are sampled themselves, so that each has an error and a bias."""

    cure: str
    """What makes scores final that are not."""
    never_final: str | None = None
    """Why no score of it should be quoted, if so."""

    def scores(self, masks: Tensor) -> Tensor:
        return self.graded_scores(masks)[0]

    @abstractmethod
    def graded_scores(self, masks: Tensor) -> Tensor:
        """For each mask (B, D) its score, the score's estimated bias in nats, the share of what it
        averages whose samples are in doubt, and its variance by the samples: float64 (4, B)."""


class TractableModel(VectorModel):
    """A model whose conditionals come from one joint density that can be computed."""

    @abstractmethod
    def log_marginal_likelihood(self) -> float:
        """The mean over observations of log p(x), in nats."""

    def evidence(self) -> Evidence:
        return Evidence(self.log_marginal_likelihood())

    @abstractmethod
    def joint_scores(self, masks: Tensor) -> Tensor:
        """For each mask (B, D): the mean over observations of log p(x_M | x_R), float64 (B,)."""
