"""Plan and average the masks of texts whose scores are estimated, round by round."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mptcore.estimation.estimate import MIN_KURTOSIS
from mptcore.specs.text_scores import MIN_TEXT_MASKS

STRATA = 4
"""Masks of a replicate: their sizes are drawn from as many equally likely parts of the sizes."""
FOLDS = 4
"""Replicates of the pilot."""
LAST = 1 / 2
"""A round is the last one if it adds at most this fraction to the masks so far."""
SAFETY = 1.0
"""Number of standard deviations by which a variance may still grow before the target is missed."""
MIN_LEFT = 1 / 8
"""Smallest share of the target variance that is left for the next rounds."""


@dataclass
class Rounds:
    """Estimates of N texts from rounds of masks, each with an estimate of the score (its value).

    The weight of a round is fixed before it is drawn, and so is the fit that its values need: the
    estimate is unbiased, although the scores choose the plan. The pilot is the first round. Its
    weight is 0: any other would have to be chosen before anything is known of the text.
    """

    count: Tensor  # (N,), masks so far
    average: Tensor  # (N,), the mean of their values
    squares: Tensor  # (N,), sum of their squared deviations from it
    value: Tensor  # (N,), Σ_k λ_k · mean of round k
    left: Tensor  # (N,), the part of λ that is not assigned yet
    spread: Tensor  # (N,), Σ_k λ_k² / n_k

    @classmethod
    def of_pilot(cls, values: Tensor) -> "Rounds":
        """Begin with the values of a pilot, (N, n)."""
        texts, masks = values.shape
        zero = torch.zeros(texts, dtype=torch.float64)
        average = values.mean(1)
        squares = (values - average[:, None]).square().sum(1)
        return cls(torch.full((texts,), masks), average, squares, zero, zero + 1, zero.clone())

    @property
    def variance(self) -> Tensor:
        """Variance of a value, (N,)."""
        return self.squares / (self.count - 1)

    @property
    def std_err(self) -> Tensor:
        return (self.variance * self.spread * widening(self.count)).sqrt()

    def add(self, texts: Tensor, values: Tensor, wanted: Tensor) -> Tensor:
        """Add the values (B,) of a round's masks of these texts (B,), as a part of the masks that
        were wanted (N,). Return the weight of each of the masks, (B,)."""
        zero = torch.zeros_like(self.average)
        apart = values - self.average[texts]
        counts = torch.bincount(texts, minlength=len(zero))
        sums = zero.index_add(0, texts, apart)
        squares = zero.index_add(0, texts, apart.square())
        drawn, whole = counts.clamp(min=1), self.count + counts
        shift = sums / drawn  # from the average before to the mean of the round
        self.squares += squares - sums.square() / drawn
        self.squares += shift.square() * self.count * counts / whole
        weight = self.left * (counts / wanted.clamp(min=1))  # the last one is exactly what is left
        self.value += weight * (self.average + shift)
        self.left -= weight
        self.spread += weight.square() / drawn
        self.average = self.average + shift * counts / whole
        self.count = whole
        return (weight / drawn)[texts]

    def planned(self, target: Tensor, most: int) -> Tensor:
        """Return how many masks of each text the next round draws, and how many are wanted in all
        until its target (N,) is reached: (2, N). Both are 0 at the end. A round at most doubles the
        masks of a text: later ones have a better fit."""
        least = (MIN_TEXT_MASKS - self.count).clamp(min=STRATA)
        last = self.count + torch.maximum(self._wanted(target.square()), least)
        moves = (MIN_KURTOSIS - 1) * (1 / self.count - 1 / last)
        growth = widening(last) * (1 + SAFETY * moves.sqrt())
        wanted = torch.maximum(self._wanted(target.square() / growth), least)
        wanted = torch.minimum(wanted, (most - self.count).clamp(min=STRATA))
        wanted = torch.where(self.left > 0, -(-wanted // STRATA) * STRATA, 0)
        part = torch.minimum(-(-wanted // (2 * STRATA)) * STRATA, self.count)
        return torch.stack([torch.where(wanted <= LAST * self.count, wanted, part), wanted])

    def _wanted(self, target: Tensor) -> Tensor:
        rest = torch.maximum(target - self.variance * self.spread, MIN_LEFT * target)
        found = self.left.square() * self.variance / rest
        return found.nan_to_num(0).clamp(max=1e12).ceil().long()


def widening(count: Tensor) -> Tensor:
    """Return the factor of a squared error whose variance is from `count` masks: the variance of
    Student's t, ν / (ν − 2) with ν = 2 (count − 1) / (MIN_KURTOSIS − 1). A text whose variance is
    too small by chance stops early, so few masks also mean a variance that is more often too small
    than too large."""
    return (count - 1) / (count - MIN_KURTOSIS)
