"""The interface that every model of vectors implements to be scored."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


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


class Model(ABC):
    """A model together with its data, N observations of D dimensions. A mask (D,), true where
    masked, applies to all observations. Eq. (5) of the paper averages its score over masks."""

    device: torch.device
    note: str | None = None
    """A note for the log on how this model is scored."""
    is_tractable = False
    """True for a model with a joint density that can be computed: `joint_scores`."""
    is_sampled = False
    """True if scores are sampled, so that each has an error and a bias: `sampled_scores`."""
    advice = ""
    """Advice that makes an unfinished sampled score final."""
    not_final_reason: str | None = None
    """Reason why its scores must not be quoted, if there is one."""
    masks_that_fit: int | None = None
    """Number of masks that fitted in memory at once, if a whole batch did not fit."""

    @property
    @abstractmethod
    def dim(self) -> int:
        """Number of dimensions that can be masked, D."""

    @property
    @abstractmethod
    def bytes_per_mask(self) -> int:
        """Approximate memory for each mask that is scored at the same time."""

    @property
    def efficient_batch(self) -> int:
        """Batch size from which on scores are efficient, whatever the size of the caches. Batches
        are smaller if another model is scored with the same masks and needs more memory."""
        return 1

    @abstractmethod
    def scores(self, masks: Tensor) -> Tensor:
        """Return the score of each mask (B, D) as float64 (B,), in nats: the mean of log p(x_j |
        x_R) over its masked dimensions j and over the observations that it applies to. The scores
        do not depend on how a sequence of masks is cut into batches."""

    def sampled_scores(self, masks: Tensor, first: int) -> Tensor:
        """Return four rows for masks (B, D), float64 (4, B): the scores, their estimated biases in
        nats, the shares of averaged terms with doubtful samples, and the variances due to sampling.
        `first` masks precede them in the run, and determine their random numbers."""
        raise NotImplementedError

    def joint_scores(self, masks: Tensor) -> Tensor:
        """Return the mean over observations of log p(x_M | x_R) for each mask (B, D), as float64
        (B,)."""
        raise NotImplementedError

    def grid_shift(self, size: int) -> float:
        """Return how far another grid moves the score of a mask of this size, in nats. 0 if there
        is no grid, NaN if it is unknown."""
        return 0.0

    @abstractmethod
    def evidence(self) -> Evidence:
        """Return the log marginal likelihood, as well as it is known."""
