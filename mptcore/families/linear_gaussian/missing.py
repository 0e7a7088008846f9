"""Scores of observations with missing values."""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import NamedTuple

import torch
from torch import Tensor

from mptcore.estimation.model import TractableModel
from mptcore.families.linear_gaussian.conditionals import LinearGaussianModel
from mptcore.families.linear_gaussian.moments import patterns_of


class Pattern(NamedTuple):
    """Observations with the same observed dimensions O."""

    observed: Tensor  # (D,)
    share: float
    """Share of all observations."""
    model: LinearGaussianModel
    """The marginal of O with these observations."""


def by_pattern(
    x: Tensor,  # (N, D)
    model_of: Callable[[Tensor, Tensor], LinearGaussianModel],
) -> Iterator[Pattern]:
    """Yield the patterns of x, NaN where a value is missing. `model_of` returns the model of
    observed dimensions (D,) and their values."""
    patterns, pattern_of = patterns_of(x)
    of_pattern = torch.split(pattern_of.argsort(stable=True), pattern_of.bincount().tolist())
    for observed, rows in zip(patterns, of_pattern, strict=True):
        yield Pattern(observed, len(rows) / len(x), model_of(observed, x[rows][:, observed]))


class PartlyObserved(TractableModel):
    """A density with data that have missing values: dimensions that are always masked and never
    scored.

    The score of a mask M is the mean over observations of

        (|O| + 1) / (D + 1) · mean over j in M ∩ O of log p(x_j | x_R), R = O outside M,

    and 0 for observations with nothing in M ∩ O. A mask of uniform size k of O comes from the
    masks of all sizes of D with total weight (D + 1) / (|O| + 1), whatever k is. So the scores sum
    over all sizes to the mean of log p(x_O), Eq. (5) of the paper for each observation's own O.
    """

    def __init__(self, patterns: Sequence[Pattern], device: torch.device):
        self._patterns, self.device = patterns, device
        models = [pattern.model for pattern in patterns]
        self.note = next((model.note for model in models if model.note), None)

    @property
    def dim(self) -> int:
        return len(self._patterns[0].observed)

    @property
    def bytes_per_mask(self) -> int:
        return max(pattern.model.bytes_per_mask for pattern in self._patterns)

    @property
    def least_batch(self) -> int:
        """Minimum number of masks for efficiency. Compiled loops need no minimum: all patterns
        together are enough work."""
        models = [pattern.model for pattern in self._patterns]
        return max(1 if one.is_fused else one.conditionals.least_batch for one in models)

    def scores(self, masks: Tensor) -> Tensor:
        total = torch.zeros(len(masks), dtype=torch.float64, device=masks.device)
        for observed, share, model in self._patterns:
            inside = masks[:, observed.to(masks.device)]
            scored = inside.any(1)
            weight = share * (inside.shape[1] + 1) / (self.dim + 1)
            # tables of all patterns would fill memory
            total[scored] += weight * model.without_tables().scores(inside[scored])
        return total

    def log_marginal_likelihood(self) -> float:
        return sum(share * model.log_marginal_likelihood() for _, share, model in self._patterns)

    def joint_scores(self, masks: Tensor) -> Tensor:
        total = torch.zeros(len(masks), dtype=torch.float64, device=masks.device)
        for observed, share, model in self._patterns:
            inside = masks[:, observed.to(masks.device)]
            conditionals = copy(model.conditionals)
            total += share * (conditionals.log_prob() - conditionals.log_probs(~inside))
        return total
