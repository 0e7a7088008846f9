"""Quantities that the checks of presets measure from results. The keyword arguments of a function
are its parameters in a preset file."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Annotated, Literal

from pydantic import Field, model_validator

from mptcore.presets.results import Curve, Label, Measured, Results, finite
from mptcore.specs.base import Problem, Spec, reject
from mptcore.specs.families.masked_lm import PAPER_RATES
from mptcore.stats import centred_share


@dataclass(frozen=True, slots=True)
class Run:
    """The results of one spec of a preset, and its seeds."""

    results: Results
    seeds: Sequence[int]


Part = Annotated[int, Field(ge=1)]
"""Number of a spec in its preset, from 1, as in the tags of its runs."""
Labels = Mapping[str, Label]
NO_LABELS: Labels = {}


class Values(Spec):
    """A value of each seed: of a metric, or of a curve at a place. The values of several parts
    follow each other."""

    metric: str | None = None
    series: str | None = None
    at: Literal["first", "last"] | float | None = None
    labels: Labels = NO_LABELS
    part: Part | list[Part] = 1

    @model_validator(mode="after")
    def check_kind(self) -> "Values":
        given = [value is not None for value in (self.metric, self.series, self.at)]
        if given not in ([True, False, False], [False, True, True]):
            reject([Problem("", "a metric, or a series with `at`")])
        return self

    def of(self, runs: Sequence[Run]) -> list[float]:
        parts = self.part if isinstance(self.part, list) else [self.part]
        return [
            self._value(runs[part - 1].results, seed)
            for part in parts
            for seed in runs[part - 1].seeds
        ]

    def _value(self, results: Results, seed: int) -> float:
        if self.metric is not None:
            return results.metric(self.metric, seed=seed, **self.labels)
        curve = results.curve(str(self.series), seed=seed, **self.labels)
        if isinstance(self.at, float | int):
            return curve.at(self.at)
        return finite(curve)[0 if self.at == "first" else -1]


def less(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """Return the differences of values and others, in their order."""
    return [value - other for value, other in zip(values, others, strict=True)]


def mean_over_seeds(values: Sequence[float]) -> Measured:
    """Return the mean over seeds, its standard error and the error's degrees of freedom."""
    if len(values) < 2:
        raise KeyError("a second seed, for a standard error")
    return Measured(fmean(values), stdev(values) / math.sqrt(len(values)), len(values) - 1)


def curves_of(runs: Sequence[Run], part: int, series: str, labels: Labels) -> list[list[float]]:
    """Return the values of a curve, for each seed."""
    run = runs[part - 1]
    return [finite(run.results.curve(series, seed=seed, **labels)) for seed in run.seeds]


def metric(
    runs: Sequence[Run],
    *,
    name: str,
    part: Part = 1,
    seed: int | None = None,
    labels: Labels = NO_LABELS,
) -> Measured:
    """Return a metric of a seed, the first one by default, with its standard error."""
    run = runs[part - 1]
    of_seed: Labels = {"seed": run.seeds[0] if seed is None else seed, **labels}
    value = run.results.metric(name, **of_seed)
    return Measured(value, run.results.metrics[name, frozenset(of_seed.items())][1])


def mean(runs: Sequence[Run], *, of: Values, negated: bool = False) -> Measured:
    """Return the mean over seeds, or its negative."""
    values = of.of(runs)
    return mean_over_seeds([-value for value in values] if negated else values)


def sd(runs: Sequence[Run], *, of: Values) -> Measured:
    """Return the standard deviation over seeds."""
    return Measured(stdev(of.of(runs)))


def mean_by_masks(
    runs: Sequence[Run], *, name: str, errors_of: str, std_err: float, part: Part = 1
) -> Measured:
    """Return the mean of a metric over seeds with the errors of masks: those of the metric
    `errors_of`, and the published `std_err`."""
    run = runs[part - 1]
    errors = [run.results.std_err(errors_of, seed=seed) for seed in run.seeds]
    error = math.hypot(*errors) / len(errors)
    average = fmean(run.results.metric(name, seed=seed) for seed in run.seeds)
    return Measured(average, math.hypot(error, std_err))


def last_value(runs: Sequence[Run], *, series: str, seed: int, part: Part = 1) -> Measured:
    """Return the last value of a curve and its standard error."""
    curve = runs[part - 1].results.curve(series, seed=seed)
    value, error = curve.value[-1], curve.std_err[-1]
    if value is None or error is None:
        raise KeyError(f"the last point of {series}")
    return Measured(value, error)


def highest(runs: Sequence[Run], *, series: str, part: Part = 1) -> Measured:
    """Return the highest value of the curves of all seeds."""
    return Measured(max(max(curve) for curve in curves_of(runs, part, series, NO_LABELS)), 0.0)


def short_of(runs: Sequence[Run], *, maximum: float, of: Values) -> Measured:
    """Return how far values are below a maximum, as a mean over seeds."""
    return mean_over_seeds([maximum - value for value in of.of(runs)])


def paired_difference(runs: Sequence[Run], *, of: Values, minus: Values) -> Measured:
    """Return the mean of the differences of two values of each seed."""
    return mean_over_seeds(less(of.of(runs), minus.of(runs)))


def share_ahead(runs: Sequence[Run], *, of: Values, over: Values) -> Measured:
    """Return the share of seeds whose first value is above the second."""
    pairs = [*zip(of.of(runs), over.of(runs), strict=True)]
    return Measured(*centred_share(sum(value > other for value, other in pairs), len(pairs)))


def best_minus_last(
    runs: Sequence[Run], *, series: str, part: Part = 1, labels: Labels = NO_LABELS
) -> Measured:
    """Return how far curves have fallen from the place where their mean is highest, as a mean over
    seeds."""
    curves = curves_of(runs, part, series, labels)
    best = max(zip(*curves, strict=True), key=sum)
    return mean_over_seeds(less(best, [curve[-1] for curve in curves]))


def least_gap(
    runs: Sequence[Run], *, series: str, minus: str, part: Part = 1, labels: Labels = NO_LABELS
) -> Measured:
    """Return the difference of two curves where its mean over seeds is lowest."""
    upper, lower = (curves_of(runs, part, name, labels) for name in (series, minus))
    gaps = [less(*pair) for pair in zip(upper, lower, strict=True)]
    return mean_over_seeds(min(zip(*gaps, strict=True), key=sum))


def late_level(runs: Sequence[Run], *, series: str, minus: str, part: Part = 1) -> Measured:
    """Return the difference of two curves over the last third of training: the lowest mean of its
    thirds. Before the last third, the slowest start still rises."""
    return mean_over_seeds([min(thirds) for thirds in _late_thirds(runs, part, series, minus)])


def late_change(runs: Sequence[Run], *, series: str, minus: str, part: Part = 1) -> Measured:
    """Return the change of the difference of two curves over the last third of training, from its
    first third to its last."""
    return mean_over_seeds([last - first for first, _, last in
                            _late_thirds(runs, part, series, minus)])  # fmt: skip


def _late_thirds(
    runs: Sequence[Run], part: int, series: str, minus: str
) -> Iterator[tuple[float, float, float]]:
    """Yield for each seed the means of a difference of curves over thirds of its last third."""
    upper, lower = (curves_of(runs, part, name, NO_LABELS) for name in (series, minus))
    for pair in zip(upper, lower, strict=True):
        gaps = less(*pair)
        late = gaps[2 * len(gaps) // 3 :]
        size = len(late) // 3
        first, middle, last = (fmean(late[i * size : (i + 1) * size]) for i in range(3))
        yield first, middle, last


def share_of_fall(
    runs: Sequence[Run],
    *,
    series: str,
    begin: float = 0,
    end: float = 1,
    whole_end: float = 1,
    part: Part = 1,
) -> Measured:
    """Return the fall of a curve between two shares of its length, divided by its fall up to
    `whole_end`, as a mean over seeds. It is 0 for a curve that does not fall."""
    shares = []
    for curve in curves_of(runs, part, series, NO_LABELS):
        start, stop, whole_stop = (
            curve[max(0, math.floor(place * len(curve)) - 1)] for place in (begin, end, whole_end)
        )
        whole = curve[0] - whole_stop
        shares.append((start - stop) / whole if whole else 0.0)
    return mean_over_seeds(shares)


class Term(Spec):
    """A weighted point of a curve, or the mean of its points from one place to another."""

    weight: float
    at: float | None = None
    start: float | None = None
    stop: float | None = None

    @model_validator(mode="after")
    def check_places(self) -> "Term":
        given = [value is not None for value in (self.at, self.start, self.stop)]
        if given not in ([True, False, False], [False, True, True]):
            reject([Problem("", "`at`, or `start` with `stop`")])
        return self

    def weights(self, curve: Curve) -> dict[float, float]:
        """Return the weight of each point."""
        if self.start is None or self.stop is None:
            return {float(self.at or 0): self.weight}
        places = [x for x in curve.x if self.start <= x <= self.stop]
        if not places:
            raise KeyError(f"x from {self.start} to {self.stop}")
        return {x: self.weight / len(places) for x in places}


def weighted_curve(
    runs: Sequence[Run],
    *,
    terms: list[Term],
    part: Part = 1,
    minus: float = 0,
    spread: float = 0,
    paper_rates: bool = False,
) -> Measured:
    """Return a weighted sum of points of the curve by rate less a number. The masks of different
    rates are independent. `spread` is a further standard deviation, of the model's weights."""
    run = runs[part - 1]
    curve = _paper_curve(run) if paper_rates else _curve_by_rate(run)
    errors = dict(zip(curve.x, curve.std_err, strict=True))
    weights = {x: weight for term in terms for x, weight in term.weights(curve).items()}
    values, of_values = [], []
    for x, weight in weights.items():
        value, error = curve.at(x), errors[x]
        if error is None:
            raise KeyError("the standard errors of the curve")
        values.append(weight * value)
        of_values.append(weight * error)
    return Measured(math.fsum(values) - minus, math.hypot(math.hypot(*of_values), spread))


def _curve_by_rate(run: Run) -> Curve:
    return run.results.curve("score_by_rate", seed=run.seeds[0])


def _paper_curve(run: Run) -> Curve:
    """Return the curve if it covers the paper's 99 rates. The area over other rates is not Table
    2's."""
    curve = _curve_by_rate(run)
    if tuple(curve.x) != PAPER_RATES:
        raise KeyError(f"the paper's 99 rates; these are {len(curve.x)} others")
    return curve


def paper_area(runs: Sequence[Run], *, part: Part, spread: float = 0) -> Measured:
    """Return the area under the curve over the paper's rates. The error is that of the difference
    of two such areas, the published one and ours. Both have the error of their masks and, for
    random weights, the `spread` of the draws of weights."""
    run = runs[part - 1]
    _paper_curve(run)
    error = run.results.std_err("area", seed=run.seeds[0])
    area = run.results.metric("area", seed=run.seeds[0])
    return Measured(area, math.sqrt(2) * math.hypot(error, spread))


def score_minus_mean(
    runs: Sequence[Run], *, rate: float, part: Part = 1, negated: bool = False
) -> Measured:
    """Return the score at a rate less the mean over all rates, in nats a token, or its negative.
    The errors of both are added as if they were independent, which makes them too large: the mean
    contains the rate."""
    run = runs[part - 1]
    curve, seed = _curve_by_rate(run), run.seeds[0]
    scale = 512 * run.results.metric("area_width", seed=seed)
    average = run.results.metric("area", seed=seed) / scale
    of_average = run.results.std_err("area", seed=seed) / scale
    error = dict(zip(curve.x, curve.std_err, strict=True))[rate]
    if error is None:
        raise KeyError("the standard errors of the curve")
    difference = curve.at(rate) - average
    return Measured(-difference if negated else difference, math.hypot(error, of_average))


def log_sd_ratio(runs: Sequence[Run], *, of: Values, over: Values) -> Measured:
    """Return the log of the ratio of two standard deviations over seeds. The log of a standard
    deviation of n normal values has a standard error of 1 / √(2 (n − 1))."""
    values = of.of(runs)
    error = math.sqrt(2) / math.sqrt(2 * (len(values) - 1))
    return Measured(math.log(stdev(values)) - math.log(stdev(over.of(runs))), error)


def accuracy(runs: Sequence[Run], *, part: Part = 1) -> Measured:
    """Return the share of groups whose first text has the highest score. It is centred as its error
    is, with two more groups of each outcome (Agresti and Coull 1998): a share of 0.8 of 60 groups
    then passes a bound of 0.8 in 3 % of cases, otherwise in 7 %."""
    run = runs[part - 1]
    found, groups = (
        run.results.metric(name, seed=run.seeds[0]) for name in ("accuracy", "groups_scored")
    )
    error = run.results.std_err("accuracy", seed=run.seeds[0])
    return Measured((found * groups + 2) / (groups + 4), error)


class Bic(Spec):
    """The Bayesian information criterion of PPCAs with these numbers of latent dimensions. A PPCA
    has DK − K(K − 1)/2 free loadings, a mean of D numbers and a noise."""

    observations: int
    dim: int
    latent_dims: list[int]

    def score(self, log_prob: float, latent_dim: int) -> float:
        free = self.dim * latent_dim - latent_dim * (latent_dim - 1) / 2 + self.dim + 1
        return self.observations * log_prob - free * math.log(self.observations) / 2


class Choice(Spec):
    """Choice of one of several parts on the data set of each seed: that with the highest metric or,
    with `bic`, with the highest criterion, whose log-likelihood is the metric."""

    parts: list[Part]
    metric: str
    bic: Bic | None = None

    def of(self, runs: Sequence[Run]) -> list[int]:
        """Return the position of the chosen part for each seed, from 1."""
        scores = [Values(metric=self.metric, part=part).of(runs) for part in self.parts]
        if self.bic is not None:
            pairs = zip(scores, self.bic.latent_dims, strict=True)
            scores = [[self.bic.score(value, k) for value in values] for values, k in pairs]
        return [max(range(len(by_part)), key=by_part.__getitem__) + 1
                for by_part in zip(*scores, strict=True)]  # fmt: skip


def share_right_difference(
    runs: Sequence[Run], *, of: Choice, minus: Choice, right: Part
) -> Measured:
    """Return the share of data sets on which the part at the position `right` is chosen, less that
    of another choice."""
    shares = [[float(part == right) for part in choice.of(runs)] for choice in (of, minus)]
    return mean_over_seeds(less(*shares))


def share_chosen(runs: Sequence[Run], *, of: Choice, position: Part) -> Measured:
    """Return the share of data sets on which the part at a position is chosen."""
    chosen = of.of(runs)
    return Measured(*centred_share(chosen.count(position), len(chosen)))


QUANTITIES: Mapping[str, Callable[..., Measured]] = {
    function.__name__: function
    for function in (
        *(metric, mean, sd, mean_by_masks, last_value, highest, short_of, paired_difference),
        *(share_ahead, best_minus_last, least_gap, late_level, late_change, share_of_fall),
        *(weighted_curve, paper_area, score_minus_mean, log_sd_ratio, accuracy),
        *(share_right_difference, share_chosen),
    )
}
