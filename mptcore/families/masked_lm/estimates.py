"""Estimates from log probabilities: scores, areas, their errors, and their records.

Every estimate has the Monte Carlo error about the score of the given text. The error over the
population of sequences, taken as drawn independently, is reported separately.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mptcore.estimation.estimate import (
    MIN_KURTOSIS,
    ONE_DRAW,
    Estimate,
    metric,
    point,
    variance_degrees,
)
from mptcore.protocol.records import Labels, Metric, Point, Record, SeriesName

DIFFERENCE = "difference"
"""Name of the difference of two models."""
MAX_GAP = 0.05
"""Maximum distance of two rates for which one mask of each sequence gives a standard error."""
FAR_APART = (
    "one mask of each sequence gives no standard error if there is one sequence, or if rates are "
    f"more than {MAX_GAP} apart: raise per_size"
)
UNSEEN, MIN_SHARE = 16, 1 / 16
"""Minimum variance of a difference of texts with the same n masks after the pilot, as a fraction of
that with independent masks: UNSEEN / n, at most 1 and at least MIN_SHARE. Two texts may differ in
few contexts only, and few masks may have none of them."""


class Variance(NamedTuple):
    """The variance of an estimate by each model, and its degrees of freedom."""

    value: Tensor  # (models,)
    degrees: float

    def estimate(self, mean: float, n: int, model: int) -> Estimate:
        return Estimate(mean, math.sqrt(self.value[model].item()), n, self.degrees)


@dataclass(frozen=True)
class RateScores:
    """Scores of all sequences at one rate: the sums of log probabilities by each model and their
    difference, for P masks of each sequence, and the numbers of tokens in them."""

    rate: float
    sums: Tensor  # (models, P, N)
    weights: Tensor  # (P, N)
    visible: Tensor | None = None
    """Chance that a mask leaves a token of a sequence visible, (N,): masks that hide all tokens are
    equal. None: nearly all masks leave one."""

    @property
    def total(self) -> float:
        """Number of masked tokens."""
        return self.weights.sum().item()

    @property
    def n(self) -> int:
        """Number of masks with at least one token."""
        return int((self.weights > 0).sum())

    def means(self) -> Tensor:
        """S(rate), the mean over masked tokens, (models,)."""
        return self.sums.sum((1, 2)) / self.total

    def residuals(self) -> Tensor:
        """Return each sequence's contribution to the deviation from the mean, (models, N). The
        contributions sum to 0."""
        return self._deviations().sum(1) / self.total

    def variance(self, neighbours: Sequence["RateScores"]) -> Variance | None:
        """Return the variance of the means over masks, if it is known."""
        masks = self.weights.shape[0]
        if masks < 2:
            near = [other for other in neighbours if abs(other.rate - self.rate) <= MAX_GAP + 1e-9]
            return variance_of_one_mask(self, near) if len(near) == len(neighbours) else None
        value = masks * self._deviations().var(1).sum(1) / self.total**2
        return Variance(value, variance_degrees((masks - 1) * self.sequences, MIN_KURTOSIS))

    @property
    def sequences(self) -> float:
        """Effective number of sequences: as many equally long sequences would have masks that vary
        as much. Long sequences dominate. It is infinite if no mask can vary."""
        tokens = self.weights.sum(0)
        visible = torch.ones_like(tokens) if self.visible is None else self.visible
        if not visible.any():
            return math.inf
        varying = visible * tokens
        return (varying.sum().square() / (varying * tokens).sum()).item()

    def _deviations(self) -> Tensor:
        return self.sums - self.means()[:, None, None] * self.weights


def variance_of_one_mask(scores: RateScores, neighbours: Sequence[RateScores]) -> Variance | None:
    """Return the variance of the means over masks, with one mask of each sequence at each rate.

    A sequence's residual is its own expectation plus the noise of its mask. At a neighbouring rate
    the expectation is nearly the same, but the mask is another. So half the square of the
    difference estimates the variance of the noise, which is proportional to 1 / masked tokens. This
    does not hold for rates that are far apart."""
    n = scores.weights.shape[1]
    if not neighbours or n < 2:
        return None
    estimates = []
    for other in neighbours:
        squares = (scores.residuals() - other.residuals()).square().sum(1)
        estimates.append(squares / (1 + scores.total / other.total))
    degrees = variance_degrees(max(0, scores.sequences - 1), MIN_KURTOSIS)
    return Variance(torch.stack(estimates).mean(0) * n / (n - 1), degrees)


def mean_so_far(sums: Tensor, weights: Tensor, sequences: int) -> list[Estimate]:
    """Return the mean over masked tokens by each model, from the first masks (models, K) of a rate,
    where masks cycle through the sequences. The error treats the sequences so far as a random
    sample; it is missing for a single sequence."""
    sequence_of = torch.arange(len(weights)) % sequences
    n = min(len(weights), sequences)
    total, means = weights.sum(), sums.sum(1) / weights.sum()
    deviations = torch.zeros(len(sums), n, dtype=torch.float64)
    deviations.index_add_(1, sequence_of, sums - means[:, None] * weights)
    count = int((weights > 0).sum())
    if n < 2:
        return [Estimate(mean, None, count) for mean in means.tolist()]
    variance = Variance(deviations.square().sum(1) * n / (n - 1) / total**2, n - 1)
    return [variance.estimate(mean, count, model) for model, mean in enumerate(means.tolist())]


class Area:
    """The area under the score's curve over rates, for a sequence of one token, accumulated rate by
    rate."""

    def __init__(self, models: int, sequences: int):
        self._mean = torch.zeros(models, dtype=torch.float64)
        self._variances: list[Variance | None] = []  # of each rate's part
        self._residuals = torch.zeros(models, sequences, dtype=torch.float64)
        self._n = 0

    def add(self, scores: RateScores, variance: Variance | None, width: float) -> None:
        """Add a rate that covers `width` of the axis. `variance` is the variance of the means at
        this rate."""
        self._mean += scores.means() * width
        self._residuals += scores.residuals() * width
        self._n += scores.n
        part = None if variance is None else variance._replace(value=variance.value * width**2)
        self._variances.append(part)

    def estimate(self, model: int) -> Estimate:
        """Return the area with its Monte Carlo error."""
        mean = self._mean[model].item()
        variances = [variance for variance in self._variances if variance is not None]
        if len(variances) < len(self._variances):
            return Estimate(mean, None, self._n)
        value = torch.stack([variance.value for variance in variances]).sum(0)
        finite = [part.degrees for part in variances if math.isfinite(part.degrees)]
        degrees = sum(finite) if finite else math.inf
        return Variance(value, degrees).estimate(mean, self._n, model)

    def population(self, model: int) -> Estimate:
        """Return the area with the error over the population of sequences. There is no error for a
        single sequence."""
        mean, n = self._mean[model].item(), self._residuals.shape[1]
        if n < 2:
            return Estimate(mean, None, self._n)
        squares = self._residuals[model].square().sum().item()
        return Estimate(mean, math.sqrt(squares * n / (n - 1)), self._n, n - 1)


def cell_widths(rates: Sequence[float]) -> list[float]:
    """Return the part of the rate axis that each rate covers: up to halfway to its neighbours, and
    the same distance on the outer sides. Each of the paper's 99 rates covers 0.01."""
    if len(rates) == 1:
        return [1.0]
    middles = [(a + b) / 2 for a, b in pairwise(rates)]
    low = max(0.0, 2 * rates[0] - middles[0])
    high = min(1.0, 2 * rates[-1] - middles[-1])
    edges = [low, *middles, high]
    return [b - a for a, b in pairwise(edges)]


class Noise(NamedTuple):
    """Variance of each measured sequence's own estimate, and its degrees of freedom."""

    variances: Tensor  # (n,)
    degrees: float


def finite_mean(values: Tensor, noise: Noise | None, population: int) -> Estimate:
    """Estimate the mean over `population` sequences from n randomly chosen ones, each measured with
    its own `noise`: two-stage sampling (Cochran 1977, Eq. 10.14)."""
    n, mean = len(values), values.mean().item()
    if noise is None or n == 1 < population:
        return Estimate(mean, None, n)
    share, within = n / population, noise.variances.mean().item()
    if share == 1:
        return Estimate(mean, math.sqrt(within / n), n, n * noise.degrees)
    variance = ((1 - share) * values.var().item() + share * within) / n
    return Estimate(mean, math.sqrt(variance), n, n - 1)


def population_mean(values: Tensor, std_err: Tensor, variances: Tensor) -> Estimate:
    """Estimate the mean over the population from the scores of n texts, (n,). Their variance counts
    their own errors as independent. If texts share masks, the variance of the sum of their scores,
    Σ variances, also has covariances: they are added."""
    estimate = Estimate.of(values)
    covariances = (variances - std_err.square()).mean().item()
    if estimate.std_err is None or covariances <= 0:
        return estimate
    variance = estimate.std_err**2 + covariances / (len(values) - 1)
    return replace(estimate, std_err=math.sqrt(variance))


def per_token(values: Tensor, noise: Noise | None, sizes: Tensor, population: int) -> Estimate:
    """Estimate Σ values / Σ sizes by the ratio estimator, with the error of finite_mean."""
    ratio = values.sum().item() / sizes.sum().item()
    residual = finite_mean(values - ratio * sizes, noise, population)
    return replace(residual.scaled(1 / sizes.double().mean().item()), mean=ratio)


def variance_of_variances(values: Tensor) -> Tensor | None:
    """Return the variance of the sample variance of R draws, for each column of (R, N): (N,). None
    for fewer than four draws. It is the jackknife estimate (Tukey 1958), divided by the factor
    (R − 1) / (R − 2) by which it overstates the variance for normal draws."""
    draws = len(values)
    if draws < 4:
        return None
    squares = (values - values.mean(0)).square()
    squared_deviations = (squares - squares.mean(0)).square().sum(0)
    return draws / ((draws - 1) ** 2 * (draws - 2)) * squared_deviations


def degrees_of_spread(sequences: int, orders: int, all_measured: bool) -> float:
    """Return the degrees of freedom of an error. It is the error of a mean over sequences; the
    values are the sequences' variances over orders. Squares are skewed and the widest sequences
    dominate the sum, so two sequences count as one; if all of few sequences are measured, four
    orders count as one. Measured: z has a standard deviation of 1.1 from 20 sequences on, and of
    1.4 to 1.7 with 5 to 8."""
    between = (sequences - 1) / 2
    return max(between, (orders - 3) / 4) if all_measured else between


def root(square: Estimate) -> Estimate:
    """Return the estimate of the quantity's root, by the delta method. It is biased downwards by
    about std_err² / (2 mean)."""
    mean = math.sqrt(square.mean)
    if square.std_err is None or mean == 0:
        return replace(square, mean=mean)
    return replace(square, mean=mean, std_err=square.std_err / (2 * mean))


@dataclass(frozen=True)
class MaskErrors:
    """The error of a text's score, mask by mask, if other texts of its group have the same masks.
    The squares sum to the squared standard error."""

    stream: int
    """Number that texts with the same masks have in common."""
    values: np.ndarray[tuple[int], np.dtype[np.float32]]  # (n,)

    def std_err_of_difference(self, other: "MaskErrors") -> float:
        """Return the standard error of the difference to the score of a text with the same masks.
        It is 0 for equal texts, else not below its minimum."""
        square = float(np.square(self.values - other.values).sum())
        independent = float(np.square(self.values).sum() + np.square(other.values).sum())
        min_share = min(1, max(MIN_SHARE, UNSEEN / len(self.values)))
        return math.sqrt(max(square, min_share * independent)) if square > 0 else 0.0


@dataclass(frozen=True)
class Report:
    """Builds the records of an evaluation of some models."""

    models: tuple[str, ...]
    labels: Labels

    @property
    def model_names(self) -> list[str]:
        """Names of the models and, for two models, of their difference: the first dimension of
        scores."""
        return [*self.models, *([DIFFERENCE] if len(self.models) > 1 else [])]

    def labels_of(self, name: str) -> Labels:
        """Return the labels of a model's series, with the label `model` if there are several."""
        if len(self.models) == 1 or name == DIFFERENCE:
            return self.labels
        return {**self.labels, "model": name}

    def point(self, name: str, rate: float, score: Estimate, reason: str = ONE_DRAW) -> Point:
        """Return a model's score at a masking rate as a point. `reason` says why it has no standard
        error, if it has none."""
        series: SeriesName = "score_difference" if name == DIFFERENCE else "score_by_rate"
        return point(series, rate, score, self.labels_of(name), reason=reason)

    def interim_points(
        self, rate: float, scored: int, scores: Sequence[Estimate]
    ) -> Iterator[Point]:
        """Yield the models' interim scores at a rate after `scored` masks."""
        for name, score in zip(self.models, scores, strict=False):
            labels: Labels = {**self.labels_of(name), "rate": rate}
            yield point("score_by_rate_interim", scored, score, labels)

    def metric(
        self, of: str, name: str, value: Estimate, suffix: str = "", reason: str = ONE_DRAW
    ) -> Metric:
        """Return a metric of a model. `reason` says why it has no standard error, if it has
        none."""
        difference = "_difference" if name == DIFFERENCE else ""
        return metric(f"{of}{difference}{suffix}", value, self.labels_of(name), reason)

    def area(
        self,
        name: str,
        area: Estimate,
        width: float,
        tokens: int,
        population: Estimate,
        reason: str = ONE_DRAW,
    ) -> Iterator[Record]:
        """Yield the metrics of an area. `area` is for a sequence of one token over rates of a total
        `width`. The metrics are the area for `tokens` tokens with its Monte Carlo error and with
        the error over the population. `reason` says why the former is missing, if it is."""
        if name == self.models[0]:
            yield Metric("area_width", width, 0.0, self.labels)
        sampled = "sequences were sampled, or there is one"
        yield self.metric("area", name, area.scaled(tokens), reason=reason)
        yield self.metric("area", name, population.scaled(tokens), "_population", sampled)
        yield from self.per_token(name, area.scaled(1 / width), "area", reason)

    def per_token(
        self, name: str, score: Estimate, of: str, reason: str = ONE_DRAW
    ) -> Iterator[Record]:
        """Yield bits per token and perplexity from the mean log probability of a token."""
        if name == DIFFERENCE:
            return
        labels = {**self.labels_of(name), "of": of}
        nats = score.scaled(-1)
        yield metric("bits_per_token", nats.scaled(1 / math.log(2)), labels, reason)
        yield metric("perplexity", nats.exponential(), labels, reason)
