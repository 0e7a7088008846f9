"""Judge the results of presets on language models."""

import math
from collections.abc import Iterator, Mapping, Sequence

from mptcore.presets.judges import SEEDS, beyond
from mptcore.presets.results import (
    Comparison,
    Curve,
    Results,
    equivalent,
    exceeds,
    within,
)
from mptcore.specs.families.masked_lm import PAPER_RATES

Published = Mapping[str, tuple[float, ...]]
LOW_RATES = (0.1, 0.2, 0.3, 0.4, 0.5)
HIGHEST_RATE = 0.99
PRETRAINED = ("rxnfp-bert", "rxnmapper-albert")
THIRD = len(PAPER_RATES) // 3


def fig5_bert(published: Published, results: Sequence[Results]) -> Iterator[Comparison]:
    """Test that the pretrained curve falls, more in its last tenth than in its first half, and that
    the random one is flat at a level that varies with its weights."""
    pretrained, random = (_paper_curve(result) for result in results)
    first, half, tenth, last = (PAPER_RATES[i] for i in (0, 49, -9, -1))
    fall = _combined(pretrained, {first: 1, last: -1})
    yield _tested("fall of the pretrained curve", published, "fall", fall)
    late = _combined(pretrained, {tenth: 1, last: -1, first: -1, half: 1})
    yield _tested("its fall in the last tenth less that in the first half", published, "late", late)
    level, error = _combined(random, dict.fromkeys(PAPER_RATES, 1 / len(PAPER_RATES)))
    (flat_at,), (margin,), (spread,) = (published[i] for i in ("flat_at", "margin", "spread"))
    both = math.hypot(error, spread)
    yield equivalent("mean of the random curve", flat_at, margin, level, both, math.inf)
    thirds = [PAPER_RATES[i * THIRD : (i + 1) * THIRD] for i in range(3)]
    for figure, others in (("last", thirds[2]), ("middle", thirds[1])):
        change = dict.fromkeys(thirds[0], 1 / THIRD) | dict.fromkeys(others, -1 / THIRD)
        name = f"the random curve's first third − its {figure}"
        yield equivalent(name, 0, margin, *_combined(random, change), math.inf)


def table2(published: Published, results: Sequence[Results]) -> Iterator[Comparison]:
    """Test whether the areas are the published ones, within 5 %. Both have the error of their
    masks, and areas of random weights also vary between draws of the weights."""
    for result, name in zip(results, ("pretrained", "random"), strict=True):
        _paper_curve(result)
        figure = published[name][0]
        spread = published["spread"][0] if name == "random" else 0.0
        error = math.sqrt(2) * math.hypot(result.std_err("area", seed=SEEDS[0]), spread)
        area = result.metric("area", seed=SEEDS[0])
        margin = published["share"][0] * abs(figure)
        yield equivalent(f"area, {name}", figure, margin, area, error, math.inf)


def _paper_curve(result: Results) -> Curve:
    """Return the curve if it covers the paper's 99 rates. The area over other rates is not Table
    2's."""
    curve = result.curve("score_by_rate", seed=SEEDS[0])
    if tuple(curve.x) != PAPER_RATES:
        raise KeyError(f"the paper's 99 rates; these are {len(curve.x)} others")
    return curve


def learned_curve(published: Published, results: Sequence[Results]) -> Iterator[Comparison]:
    """Test that the model is better than a uniform guess on held-out text, and that its curve
    falls, mostly at the end."""
    (result,) = results
    curve = result.curve("score_by_rate", seed=SEEDS[0])
    low = dict.fromkeys(LOW_RATES, 1 / len(LOW_RATES))
    level, error = _combined(curve, low)
    gain = level - published["uniform_guess"][0], error
    yield _tested("mean at 10–50 % − that of a uniform guess", published, "gain", gain)
    fall = _combined(curve, {**low, HIGHEST_RATE: -1})
    yield _tested("fall of the curve from 10–50 % to 99 %", published, "fall", fall)
    late = _combined(curve, {LOW_RATES[-1]: 2, HIGHEST_RATE: -1, LOW_RATES[0]: -1})
    yield _tested("its fall above 50 % less that below", published, "late", late)


def uniform_leads(published: Published, results: Sequence[Results]) -> Iterator[Comparison]:
    """Test that the area with uniform sizes exceeds that with a fixed rate over training seeds, in
    pairs of runs with the same start, text and scoring masks."""
    leads = [uniform - fixed for uniform, fixed in _of_pairs("area", results)]
    yield beyond("area by uniform sizes − by 15 %", published, "lead", leads)


def uniform_is_calmer(published: Published, results: Sequence[Results]) -> Iterator[Comparison]:
    """Test that the likelihoods of a text in different orders are closer with uniform sizes, in
    pairs of runs with the same start, text and orders."""
    pairs = _of_pairs("any_order_spread_per_token", results)
    calmer = [fixed - uniform for uniform, fixed in pairs]
    yield beyond("nats a token between orders, 15 % − uniform sizes", published, "calm", calmer)


def orders_differ(published: Published, results: Sequence[Results]) -> Iterator[Comparison]:
    """Test that the standard deviation over orders of a text's log-likelihood is above a bound."""
    name = "any_order_spread_per_token"
    for checkpoint, result in zip(PRETRAINED, results, strict=True):
        spread = result.metric(name, seed=SEEDS[0]), result.std_err(name, seed=SEEDS[0])
        yield _tested(f"nats a token between orders, {checkpoint}", published, "spread", spread)


def pairs_are_told_apart(published: Published, results: Sequence[Results]) -> Iterator[Comparison]:
    """Test that the first text of a pair has the higher score in more than the claimed share of
    pairs. The share is centred as its error is, with two more pairs of each outcome (Agresti and
    Coull 1998): a share of 0.8 of 60 pairs then passes in 3 % of cases, otherwise in 7 %."""
    (result,) = results
    share, pairs = (result.metric(name, seed=SEEDS[0]) for name in ("accuracy", "groups_scored"))
    accuracy = (share * pairs + 2) / (pairs + 4), result.std_err("accuracy", seed=SEEDS[0])
    yield _tested("share of pairs whose first text is the better", published, "accuracy", accuracy)


def blimp(published: Published, results: Sequence[Results]) -> Iterator[Comparison]:
    """Compare the accuracy over all pairs of sentences. Both figures are of the same pairs, without
    sampling error; the margin is for tokenizers and rounding."""
    (result,), (accuracy,), (margin,) = results, published["accuracy"], published["margin"]
    measured = result.metric("accuracy", seed=SEEDS[0])
    yield within("share of pairs whose good sentence is the better", accuracy, measured, margin)


def mutations(published: Published, results: Sequence[Results]) -> Iterator[Comparison]:
    """Compare the rank correlation of the mutations of each assay, without sampling error."""
    (margin,) = published["margin"]
    assays = [name for name in published if name != "margin"]
    for assay, result in zip(assays, results, strict=True):
        measured = result.metric("spearman", seed=SEEDS[0])
        yield within(f"rank correlation, {assay}", published[assay][0], measured, margin)


def _of_pairs(metric: str, results: Sequence[Results]) -> Iterator[tuple[float, float]]:
    """Yield a metric of the two runs of each training seed: with uniform sizes and with 15 %."""
    pairs = zip(results[::2], results[1::2], strict=True)
    for seed, (uniform, fixed) in zip(SEEDS, pairs, strict=True):
        yield uniform.metric(metric, seed=seed), fixed.metric(metric, seed=seed)


def _combined(curve: Curve, weights: Mapping[float, float]) -> tuple[float, float]:
    """Return a weighted sum of points of a curve, by their positions, and its standard error. The
    masks of different rates are independent."""
    errors = dict(zip(curve.x, curve.std_err, strict=True))
    terms = []
    for x, weight in weights.items():
        value, error = curve.at(x), errors[x]
        if error is None:
            raise KeyError("the standard errors of the curve")
        terms.append((weight * value, weight * error))
    return math.fsum(value for value, _ in terms), math.hypot(*(error for _, error in terms))


def _tested(
    figure: str, published: Published, name: str, measured: tuple[float, float]
) -> Comparison:
    """Test whether a value with a standard error exceeds the published `least_…` value of this
    name."""
    (least,), (expected,) = published[f"least_{name}"], published[f"expected_{name}"]
    return exceeds(figure, least, expected, *measured, math.inf)
