"""Judge the results of presets on language models."""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, stdev

from mptcore.presets.judges import ERRORS, SEEDS
from mptcore.presets.results import Comparison, Curve, Results, at_least, finite, within
from mptcore.specs.families.masked_lm import PAPER_RATES

Published = Mapping[str, tuple[float, ...]]
T_QUANTILE = 2.776
"""Quantile of Student's t with 4 degrees of freedom, for a two-sided 95 % interval."""
LOW_RATES = (0.1, 0.2, 0.3, 0.4, 0.5)
HIGHEST_RATE = 0.99


def fig5_bert(published: Published, results: Sequence[Results]) -> Iterator[Comparison]:
    """Check that the pretrained curve falls, more in its last tenth than in its first half, and
    that the random one is flat."""
    pretrained, random = (finite(_paper_curve(result)) for result in results)
    tenth, half = len(pretrained) // 10, len(pretrained) // 2
    early, late = pretrained[0] - pretrained[half], pretrained[-tenth] - pretrained[-1]
    least = published["least_fall"][0]
    yield at_least("fall of the pretrained curve", least, pretrained[0] - pretrained[-1])
    yield at_least("its fall in the last tenth less that in the first half", 0, late - early)
    level = published["flat_at"][0]
    yield within("mean of the random curve", level, fmean(random), 0.5)
    yield Comparison("range of the random curve", 0, max(random) - min(random), 0, 0.5)


def table2(published: Published, results: Sequence[Results]) -> Iterator[Comparison]:
    """Compare the areas: within 5 % for the pretrained model, within 2.5 % for random weights,
    which vary between draws as the published ones do."""
    for result, name, share in zip(results, ("pretrained", "random"), (0.05, 0.025), strict=True):
        _paper_curve(result)
        figure = published[name][0]
        measured = result.metric("area", seed=SEEDS[0])
        yield within(f"area, {name}", figure, measured, share * abs(figure))


def _paper_curve(result: Results) -> Curve:
    """Return the curve if it covers the paper's 99 rates. The area over other rates is not Table
    2's."""
    curve = result.curve("score_by_rate", seed=SEEDS[0])
    if tuple(curve.x) != PAPER_RATES:
        raise KeyError(f"the paper's 99 rates; these are {len(curve.x)} others")
    return curve


def learned_curve(published: Published, results: Sequence[Results]) -> Iterator[Comparison]:
    """Check that the model is better than a uniform guess on held-out text, and that its curve
    falls, mostly at the end, by more than its error."""
    (result,) = results
    losses = finite(result.curve("loss_heldout", seed=SEEDS[0]))
    gained = losses[0] - losses[-1]
    yield at_least("fall of the loss, nats per token", published["least_gain"][0], gained)
    curve = result.curve("score_by_rate", seed=SEEDS[0])
    low, error = _mean_at(curve, LOW_RATES)
    high, high_error = _mean_at(curve, (HIGHEST_RATE,))
    surely = low - high - ERRORS * math.hypot(error, high_error)
    figure = f"fall of the curve from 10–50 % to 99 %, less {ERRORS} standard errors"
    yield at_least(figure, published["least_fall"][0], surely)
    early = curve.at(LOW_RATES[0]) - curve.at(LOW_RATES[-1])
    late = curve.at(LOW_RATES[-1]) - curve.at(HIGHEST_RATE)
    yield at_least("its fall above 50 % less that below", 0, late - early)


def uniform_leads(published: Published, results: Sequence[Results]) -> Iterator[Comparison]:
    """Check that the area with uniform sizes exceeds that with a fixed rate over training seeds, in
    pairs of runs with the same start, text and scoring masks."""
    areas = [result.metric("area", seed=seed) for result, seed in _pairs(results)]
    leads = [u - f for u, f in zip(areas[::2], areas[1::2], strict=True)]
    error = stdev(leads) / math.sqrt(len(leads))
    least = published["least_lead"][0]
    yield at_least("area by uniform sizes − by 15 %, mean over seeds", least, fmean(leads))
    surely = fmean(leads) - T_QUANTILE * error
    yield at_least(f"the same less {T_QUANTILE} standard errors", least, surely)


def _pairs(results: Sequence[Results]) -> Iterator[tuple[Results, int]]:
    """Yield each result with its training seed, two for each seed."""
    yield from zip(results, (seed for seed in SEEDS for _ in range(2)), strict=True)


def _mean_at(curve: Curve, places: Sequence[float]) -> tuple[float, float]:
    """Return the mean of a curve over some positions, and its standard error."""
    errors = [curve.std_err[list(curve.x).index(x)] for x in places]
    known = [error for error in errors if error is not None]
    if len(known) < len(places):
        raise KeyError("the standard errors of the curve")
    return fmean(curve.at(x) for x in places), math.hypot(*known) / len(places)
