"""Gradient of a training step's score by compiled loops. Elsewhere torch differentiates."""

from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mptcore.families.linear_gaussian.conditionals import Conditionals
from mptcore.families.linear_gaussian.fused import few_products
from mptcore.families.linear_gaussian.moments import FactoredMoment
from mptcore.families.linear_gaussian.residuals import Residuals
from mptcore.runtime.compiled import in_threads, kernels

KERNELS = "mptcore.families.linear_gaussian.step_kernels"
PART = 128
"""Number of masks of a start whose gradients are added first, so that the order is fixed."""
MAX_STEP_TABLE = 2**16
"""Maximum number of products in the table of a start. Its derivatives must fit in a cache too."""
MIN_MASKS = 64
"""Minimum number of masks that are worth a thread."""


@dataclass(frozen=True)
class ScoreGradient:
    """Contribution of some masks to the mean score and to its gradient, for each start."""

    score: Tensor  # (S,)
    loadings: Tensor  # (S, D, K)
    noise_variance: Tensor  # (S, D)


@torch.no_grad()
def score_gradient(
    conditionals: Conditionals | Residuals, masks: Tensor, count: int
) -> ScoreGradient | None:
    """Return the score and its gradient for stacked models and their masks (S, B, D), by compiled
    loops. The score is a mean over `count` masks in all. None if automatic differentiation is as
    fast, or the only way."""
    if isinstance(conditionals, Residuals) or (compiled := _compiled(conditionals)) is None:
        return None
    return _by_kernel(compiled, conditionals, masks, count)


@torch.no_grad()
def log_probs(conditionals: Conditionals | Residuals) -> Tensor:  # (S,)
    """Return the mean over observations of log p(x) by stacked models."""
    if isinstance(conditionals, Residuals) or (compiled := _compiled(conditionals)) is None:
        return conditionals.log_prob()
    found = torch.empty(len(conditionals.loadings), dtype=torch.float64)
    compiled.log_probs(*_arrays(conditionals), found.numpy())
    return found


def _compiled(conditionals: Conditionals) -> ModuleType | None:
    """Return the compiled loops if they apply and are faster than torch."""
    loadings, moment = conditionals.loadings, conditionals.moment
    if loadings.device.type != "cpu" or not isinstance(moment, FactoredMoment):
        return None
    return kernels(KERNELS) if few_products(loadings, moment, MAX_STEP_TABLE) else None


def _arrays(conditionals: Conditionals) -> list[NDArray[np.float64]]:
    moment = conditionals.moment
    assert isinstance(moment, FactoredMoment)
    given = conditionals.loadings, conditionals.noise_variance, moment.factor, moment.diagonal
    return [one.detach().contiguous().numpy() for one in given]


def _by_kernel(
    compiled: ModuleType, conditionals: Conditionals, masks: Tensor, count: int
) -> ScoreGradient:
    starts, per_start, dim = masks.shape
    parts = -(-per_start // PART)
    scores = torch.empty(starts * parts, dtype=torch.float64)
    loadings = scores.new_empty(starts * parts, dim, conditionals.latent_dim)
    noise = scores.new_empty(starts * parts, dim)
    arrays = [*_arrays(conditionals), masks.contiguous().numpy()]
    found = [one.numpy() for one in (scores, loadings, noise)]

    def part(first: int, end: int) -> None:
        compiled.score_gradients(*arrays, count, PART, first, end, *found)

    in_threads(part, len(scores), -(-MIN_MASKS // min(PART, per_start)))
    sums = [one.view(starts, parts, *one.shape[1:]).sum(1) for one in (scores, loadings, noise)]
    return ScoreGradient(*sums)
