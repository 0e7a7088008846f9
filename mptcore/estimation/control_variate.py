"""Reduce the variance of scores by the part that single dimensions explain."""

import torch
from torch import Tensor

from mptcore.estimation.allocation import smoothed


class ControlVariate:
    """Predicts the scores of masks from the scores f_j of the masks {j}.

    The score of a mask M is a mean over j in M, and differs from that of another mask mainly by
    which dimensions these are. The mean f(M) of f_j over j in M has the mean f̄ over all masks of
    a size, whatever f. So S(M) − β (f(M) − f̄) has the same mean as S(M), for every β that was
    chosen before M was drawn. Each size and model has its own β, the regression on the pilot's
    masks of the size and of its neighbours. β is 0 if f(M) varies only by rounding, as for columns
    that are exchangeable, where all f_j are equal."""

    def __init__(self, values: Tensor):  # (models, D)
        centred = values - values.mean(1, keepdim=True)
        # f(M) − f̄ has the mean 0 only up to the rounding of f̄, ε |f|. That is much beside f_j that
        # are nearly equal. Centring once more leaves ε |f − f̄|
        centred = centred - centred.mean(1, keepdim=True)
        self._summands = torch.cat([centred, torch.ones_like(values[:1])]).T  # (D, models + 1)
        # With unit roundoff ε/2, means and sums of D terms have errors of up to D ε/2 · max |f_j|:
        # those of f̄, of its correction (whose terms are up to twice as large) and of the sum over M
        # (likewise) add up to 5/2 D ε max |f_j|
        bound = 2.5 * values.shape[1] * torch.finfo(values.dtype).eps
        self._rounding = bound * values.abs().amax(1)  # (models,)
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
            self._slopes = _slopes(values, predicted, strata, len(counts), self._rounding)
        return values - self._slopes[:, strata] * predicted


def _slopes(
    values: Tensor,  # (models, masks)
    predicted: Tensor,  # (models, masks)
    strata: Tensor,  # (masks,)
    count: int,
    rounding: Tensor,  # (models,)
) -> Tensor:
    """Return the regression of values on predictions within `count` strata, (models, strata): 0
    where the root mean square of the predictions is not above their rounding error."""

    def sums(terms: Tensor) -> Tensor:
        return terms.new_zeros(len(terms), count).index_add(1, strata, terms)

    drawn = sums(torch.ones_like(predicted))
    values, predicted = (rows - (sums(rows) / drawn)[:, strata] for rows in (values, predicted))
    products, squares = (smoothed(sums(predicted * rows)) for rows in (values, predicted))
    varies = squares > smoothed(drawn) * rounding[:, None].square()
    return torch.where(varies, products / squares, 0.0)
