"""Reduce the variance of scores by the part that single dimensions explain (a control variate)."""

import torch
from torch import Tensor

from mptcore.estimation.allocation import smoothed


class SingleScores:
    """The scores f_j of the masks {j}, of which those of other masks are predicted.

    The score of a mask M is a mean over j in M, and differs from that of another mask mainly by
    which dimensions these are. The mean f(M) of f_j over j in M has the mean f̄ over all masks of
    a size, whatever f. So S(M) − β (f(M) − f̄) has the same mean as S(M), for every β that was
    chosen before M was drawn. Each size and model has its own β, the regression on the pilot's
    masks of the size and of its neighbours."""

    def __init__(self, values: Tensor):  # (models, D)
        centred = values - values.mean(1, keepdim=True)
        self._summands = torch.cat([centred, torch.ones_like(values[:1])]).T  # (D, models + 1)
        self._slopes: Tensor | None = None  # (models, strata)

    def predictions(self, masks: Tensor) -> Tensor:
        """Return f(M) − f̄ for each model and mask (B, D): (models, B)."""
        sums = masks.view(torch.uint8).double() @ self._summands  # from bool takes twice as long
        return (sums[:, :-1] / sums[:, -1:]).T

    def residuals(self, values: Tensor, predicted: Tensor, counts: Tensor) -> Tensor:
        """Return values (models, masks) without their predicted part, given the number of masks of
        each stratum, in order. The first call, for the pilot, determines β."""
        strata = torch.repeat_interleave(counts)
        if self._slopes is None:
            self._slopes = _slopes(values, predicted, strata, len(counts))
        return values - self._slopes[:, strata] * predicted


def _slopes(values: Tensor, predicted: Tensor, strata: Tensor, count: int) -> Tensor:
    """Return the regression of values on predictions, both (models, masks), within `count` strata:
    (models, strata)."""

    def sums(terms: Tensor) -> Tensor:
        return terms.new_zeros(len(terms), count).index_add(1, strata, terms)

    drawn = sums(torch.ones_like(predicted))
    centred = predicted - (sums(predicted) / drawn)[:, strata]
    products, squares = (smoothed(sums(centred * one)) for one in (values, predicted))
    return torch.where(squares > 0, products / squares, 0.0)
