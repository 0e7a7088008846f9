"""The interface of every way to compute with a linear Gaussian and its data."""

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mptcore.estimation.model import Evidence, Model


@dataclass(frozen=True)
class ScoreGradient:
    """Contribution of some masks to the mean score and to its gradient, for each of S models."""

    score: Tensor  # (S,)
    loadings: Tensor  # (S, D, K)
    noise_variance: Tensor  # (S, D)


class Solver(Model):
    """A linear Gaussian with its data. Several models may be stacked along a leading dimension,
    and all results are differentiable, but for those of compiled loops."""

    is_tractable = True

    @property
    def fits_kernel(self) -> bool:
        """Return whether compiled loops score the masks."""
        return False

    @abstractmethod
    def log_prob(self) -> Tensor:  # (), float64
        """Return the mean over observations of log p(x)."""

    @abstractmethod
    def log_probs(self, observed: Tensor) -> Tensor:  # (B, D) to (B,), float64
        """Return the mean over observations of log p(x_R)."""

    @torch.no_grad()
    def recorded_log_prob(self) -> Tensor:
        """Return `log_prob` without a gradient, for the curves of a training."""
        return self.log_prob()

    def score_gradient(self, masks: Tensor, count: int) -> ScoreGradient | None:
        """Return the scores of stacked models and their gradient for masks (S, B, D), as a mean
        over `count` masks in all. None if automatic differentiation must do it."""
        return None

    @cached_property
    def _log_prob(self) -> Tensor:
        return self.log_prob()

    def log_marginal_likelihood(self) -> float:
        """Return the mean over observations of log p(x), in nats."""
        return self._log_prob.item()

    def evidence(self) -> Evidence:
        return Evidence(self.log_marginal_likelihood())

    def joint_scores(self, masks: Tensor) -> Tensor:
        return self._log_prob - self.log_probs(~masks)
