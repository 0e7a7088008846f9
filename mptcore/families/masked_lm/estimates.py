"""From sums of log probabilities to scores, areas and their errors.

Every estimate has the Monte Carlo error about the score of the text given. The error over the
population that the sequences come from, taken as drawn independently, is a figure of its own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor


@dataclass(frozen=True)
class Estimate:
    """A mean and its standard error; None where one draw gives none."""

    mean: float
    std_err: float | None

    def scaled(self, factor: float) -> "Estimate":
        error = None if self.std_err is None else abs(factor) * self.std_err
        return Estimate(factor * self.mean, error)

    def exponential(self) -> "Estimate":
        """By the delta method."""
        value = math.exp(self.mean) if self.mean < 700 else math.inf
        return Estimate(value, None if self.std_err is None else value * self.std_err)


@dataclass(frozen=True)
class RateScores:
    """All sequences scored at one rate: for each row (the models, and their difference) the sums of
    log probabilities, P masks of each sequence, and of how many tokens they are."""

    rate: float
    sums: Tensor  # (rows, P, N)
    weights: Tensor  # (P, N)

    @property
    def total(self) -> float:
        """Masked tokens in all."""
        return self.weights.sum().item()

    @property
    def n(self) -> int:
        """Masks with a token in them."""
        return int((self.weights > 0).sum())

    def means(self) -> Tensor:
        """S(rate), the mean over masked tokens, (rows,)."""
        return self.sums.sum((1, 2)) / self.total

    def residuals(self) -> Tensor:
        """What each sequence adds to the mean beyond its share, (rows, N); their sum is 0."""
        return self._deviations().sum(1) / self.total

    def within(self) -> Tensor | None:
        """The variance of the means over masks, (rows,), where there are several of each."""
        masks = self.weights.shape[0]
        if masks < 2:
            return None
        return masks * self._deviations().var(1).sum(1) / self.total**2

    def _deviations(self) -> Tensor:
        return self.sums - self.means()[:, None, None] * self.weights


def variance_of_one_mask(own: RateScores, neighbours: Sequence[RateScores]) -> Tensor | None:
    """The variance of the means over masks, (rows,), with one mask of each sequence at each rate.

    A sequence's residual is its own expectation plus the noise of its mask. At the next rate the
    expectation is nearly the same and the mask another, so that half the square of the difference
    estimates the noise, whose variance goes as 1 / masked tokens. Where rates lie far apart the
    expectations differ, and this is an upper estimate.
    """
    n = own.weights.shape[1]
    if not neighbours or n < 2:
        return None
    found = []
    for other in neighbours:
        squares = (own.residuals() - other.residuals()).square().sum(1)
        found.append(squares / (1 + own.total / other.total))
    return torch.stack(found).mean(0) * n / (n - 1)


def cell_widths(rates: Sequence[float]) -> list[float]:
    """How much of the axis of rates each one stands for: up to halfway to its neighbours, and as
    far on the outer sides. The paper's 99 rates stand for 0.01 each."""
    if len(rates) == 1:
        return [1.0]
    middles = [(a + b) / 2 for a, b in pairwise(rates)]
    low = max(0.0, 2 * rates[0] - middles[0])
    high = min(1.0, 2 * rates[-1] - middles[-1])
    edges = [low, *middles, high]
    return [b - a for a, b in pairwise(edges)]


def finite_mean(values: Tensor, noise: Tensor | None, population: int) -> Estimate:
    """The mean over `population` sequences of which n were chosen at random and measured, each with
    a variance `noise` of its own: two-stage sampling (Cochran 1977, Eq. 10.14)."""
    n = len(values)
    share = n / population
    if noise is None:
        return Estimate(values.mean().item(), None)
    between = values.var().item() if n > 1 else 0.0
    variance = ((1 - share) * between + share * noise.mean().item()) / n
    return Estimate(values.mean().item(), math.sqrt(variance))


def population_mean(values: Tensor) -> Estimate:
    """The mean over the population that independent values come from."""
    n = len(values)
    error = values.std().item() / math.sqrt(n) if n > 1 else None
    return Estimate(values.mean().item(), error)


def per_token(values: Tensor, noise: Tensor | None, sizes: Tensor, population: int) -> Estimate:
    """Σ values / Σ sizes, the ratio estimator, with the error of finite_mean."""
    mean_size = sizes.double().mean().item()
    ratio = values.sum().item() / sizes.sum().item()
    residuals = values - ratio * sizes
    own = finite_mean(residuals, noise, population)
    return Estimate(ratio, None if own.std_err is None else own.std_err / mean_size)


def spread(variances: Tensor) -> Estimate:
    """The root of the mean of variances, with the error over them by the delta method."""
    mean = variances.mean().item()
    value = math.sqrt(mean)
    if len(variances) < 2 or value == 0:
        return Estimate(value, None if len(variances) < 2 else 0.0)
    return Estimate(value, variances.std().item() / math.sqrt(len(variances)) / (2 * value))
