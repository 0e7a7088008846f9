"""The interface that every model of any family implements to be scored."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor


class MaskBatch(Protocol):
    """Masks that are scored together. A tensor of masks (B, D) is a MaskBatch. A family that needs
    more than a tensor defines a class of its own."""

    def __len__(self) -> int: ...
    def __getitem__(self, chosen: Tensor, /) -> Self:
        """Return the masks with the given indices (b,)."""


BatchT = TypeVar("BatchT", bound=MaskBatch)


class Model(ABC, Generic[BatchT]):
    """A model that scores masks. Concrete families are never subclassed."""

    device: torch.device

    @abstractmethod
    def scores(self, masks: BatchT) -> Tensor:
        """Return the score of each mask as float64 (B,), in nats: the mean of log p(x_j | x_R) over
        its masked dimensions j and over the observations that it applies to. The scores do not
        depend on how a sequence of masks is cut into batches."""


@dataclass(frozen=True)
class Evidence:
    """The mean over observations of log p(x), in nats, with its Monte Carlo standard error.
    `metrics` describe its quality."""

    value: float
    std_err: float = 0.0
    not_final_reason: str | None = None
    """Reason not to quote the value."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    log_probs: Tensor | None = None
    """log p(x) of each observation (N,), where it is known."""


class VectorModel(Model[Tensor]):
    """A model together with its data, N observations of D dimensions. A mask (D,), true where
    masked, applies to all observations. Eq. (5) of the paper averages its score over masks."""

    note: str | None = None
    """A note for the log on how this model is scored."""
    together: int | None = None
    """Number of masks that fitted in memory at once, if a whole batch did not fit."""
    masks_scored = 0
    """Number of masks that precede the next one in the order of the run. Used by models that draw
    random numbers for each mask."""

    @property
    @abstractmethod
    def dim(self) -> int:
        """Number of dimensions that can be masked, D."""

    @property
    @abstractmethod
    def bytes_per_mask(self) -> int:
        """Approximate memory for each mask that is scored at the same time."""

    @property
    def least_batch(self) -> int:
        """Batch size from which on scores are efficient, whatever the size of the caches. Batches
        are smaller if another model is scored with the same masks and needs more memory."""
        return 1

    def quadrature_shift(self, size: int) -> float:
        """Return how far another quadrature moves the score of a mask of this size, in nats. 0 if
        there is no quadrature, NaN if it is unknown."""
        return 0.0

    @abstractmethod
    def evidence(self) -> Evidence:
        """Return the log marginal likelihood, as well as it is known."""


class SampledModel(VectorModel):
    """A model whose scores are sampled, so that each has an error and a bias."""

    cure: str
    """Advice that makes an unfinished score final."""
    not_final_reason: str | None = None
    """Reason why its scores must not be quoted, if there is one."""

    def scores(self, masks: Tensor) -> Tensor:
        return self.graded_scores(masks)[0]

    @abstractmethod
    def graded_scores(self, masks: Tensor) -> Tensor:
        """Return four rows for masks (B, D), float64 (4, B): the scores, their estimated biases in
        nats, the shares of averaged terms with doubtful samples, and the variances due to
        sampling."""


class TractableModel(VectorModel):
    """A model whose conditionals come from one joint density that can be computed."""

    @abstractmethod
    def log_marginal_likelihood(self) -> float:
        """Return the mean over observations of log p(x), in nats."""

    def evidence(self) -> Evidence:
        return Evidence(self.log_marginal_likelihood())

    @abstractmethod
    def joint_scores(self, masks: Tensor) -> Tensor:
        """Return the mean over observations of log p(x_M | x_R) for each mask (B, D), as float64
        (B,)."""
