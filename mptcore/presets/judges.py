"""Compare the results of each preset with the published ones."""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median, stdev

from mptcore.presets import student
from mptcore.presets.results import (
    Comparison,
    Results,
    at_least,
    equivalent,
    finite,
    no_more,
    within,
)

Published = Mapping[str, tuple[float, ...]]
SEEDS = (4, 44, 444, 4444, 44444)
VAE_SEEDS = SEEDS[:3]
ERRORS = 4
"""Number of standard errors within which estimates agree."""


def table1(published: Published, results: Sequence[Results]) -> Iterator[Comparison]:
    """Compare one experiment for each P with the figures, to the last published or measured
    digit."""
    for i, (per_size, result) in enumerate(zip((1, 10, 100), results, strict=True)):
        lml = result.metric("lml", seed=SEEDS[0])
        scores = [result.metric("mpt", seed=seed) for seed in SEEDS]
        yield within(f"LML, P = {per_size}", published["lml"][0], lml, 0.005)
        yield within(f"mean MPT, P = {per_size}", published["mpt"][i], fmean(scores), 0.005)
        yield within(f"sd of MPT, P = {per_size}", published["sd"][i], stdev(scores), 0.015)


def fig1_converges(published: Published, results: Sequence[Results]) -> Iterator[Comparison]:
    """Test that MPT − LML converges to 0 within a margin, and check that the LMLs are the published
    ones."""
    (result,) = results
    for seed, lml in zip(SEEDS, published["lml"], strict=True):
        yield within(f"LML, seed {seed}", lml, result.metric("lml", seed=seed), 6e-5)
        curve = result.curve("convergence", seed=seed)
        value, error = curve.value[-1], curve.std_err[-1]
        if value is None or error is None:
            raise KeyError("the last point of convergence")
        limit, margin = published["limit"][0], published["margin"][0]
        figure = f"MPT − LML at the last P, seed {seed}"
        yield equivalent(figure, limit, value, margin, error, math.inf)


def fig1_biased(published: Published, results: Sequence[Results]) -> Iterator[Comparison]:
    """Check that D · S(76) − LML converges to the published bias."""
    (result,) = results
    seed = SEEDS[0]
    yield within("LML", published["lml"][0], result.metric("lml", seed=seed), 6e-4)
    errors = [result.std_err("bias", seed=seed) for seed in SEEDS]
    error = math.hypot(*errors) / len(errors)
    for name, figure in (("biased_score", "D · S(76)"), ("bias", "D · S(76) − LML")):
        mean = fmean(result.metric(name, seed=seed) for seed in SEEDS)
        both, margin = math.hypot(error, published["std_err"][0]), published["margin"][0]
        yield equivalent(figure, published[name][0], mean, margin, both, math.inf)


def fig2_maximised(published: Published, results: Sequence[Results]) -> Iterator[Comparison]:
    """Check that each start's LML rises to the closed-form maximum, but not beyond it."""
    (result,) = results
    maximum = published["maximum_lml"][0]
    for seed in SEEDS:
        values = finite(result.curve("lml", seed=seed))
        figure = f"last LML, seed {seed}"
        yield Comparison(figure, maximum, values[-1], maximum - 0.1, maximum + 1e-3)
        yield at_least(f"rise of the LML, seed {seed}", 0, values[-1] - values[0])


def fig2_biased(published: Published, results: Sequence[Results]) -> Iterator[Comparison]:
    """Check that the score of a fixed size exceeds the LML by a nearly constant difference once the
    LML has converged. The last third is used, because the slowest start still rises before it."""
    (result,) = results
    for seed in SEEDS:
        score = finite(result.curve("mpt", seed=seed))
        lml = finite(result.curve("lml", seed=seed))
        gaps = [s - own for s, own in zip(score, lml, strict=True)]
        thirds = [fmean(part) for part in _parts(gaps[2 * len(gaps) // 3 :], 3)]
        yield at_least(f"MPT − LML, seed {seed}", published["least_bias"][0], min(thirds))
        change = max(thirds) - min(thirds)
        figure = f"change of MPT − LML, seed {seed}"
        yield Comparison(figure, 0, change, 0, published["most_change"][0])


def fig2_slower(published: Published, results: Sequence[Results]) -> Iterator[Comparison]:
    """Check that the LML still reaches its maximum, but more slowly."""
    (result,) = results
    maximum = published["maximum_lml"][0]
    for seed in SEEDS:
        values = finite(result.curve("lml", seed=seed))
        figure = f"last LML, seed {seed}"
        yield Comparison(figure, maximum, values[-1], maximum - 1.5, maximum + 1e-3)
        yield at_least(f"rise of the LML, seed {seed}", 0, values[-1] - values[0])


def fig4_long_tail(published: Published, results: Sequence[Results]) -> Iterator[Comparison]:
    """Check that the area is the LML, and that most of the fall is above 90 %."""
    yield from _area_is_lml(published, results)
    curve = _mean_curve(results[0])
    at, dim = published["tail_from"][0], len(curve)
    before, after = _falls(curve, math.floor(at * dim))
    yield at_least("share of the fall above 90 %", 0.5, after / (before + after))


def fig4_early_decay(published: Published, results: Sequence[Results]) -> Iterator[Comparison]:
    """Check that the area is the LML, and that the curve falls from about 50 %."""
    yield from _area_is_lml(published, results)
    curve = _mean_curve(results[0])
    dim = len(curve)
    early, _ = _falls(curve, math.floor(published["decay_from"][0] * dim))
    share = early / (curve[0] - curve[math.floor(0.9 * dim) - 1])
    yield Comparison("share of the fall up to 90 % that is below 50 %", 0, share, -0.2, 0.4)


def fig5_area(published: Published, results: Sequence[Results]) -> Iterator[Comparison]:
    """Check that the area under the curve rises, epoch by epoch, to that of the true parameters."""
    (result,) = results
    for seed in SEEDS:
        truth = result.metric("mpt", seed=seed, model="baseline")
        area = result.metric("mpt", seed=seed, model="model")
        start = result.metric("mpt", seed=seed, epoch=0)
        gap = published["gap_to_truth"][0]
        yield within(f"area less the true one, seed {seed}", gap, area - truth, 0.5)
        yield at_least(f"rise of the area, seed {seed}", published["least_rise"][0], area - start)


def fig3_linear(published: Published, results: Sequence[Results]) -> Iterator[Comparison]:
    """Both objectives end at a similar LML, by the grid that is checked, well above where they
    began; the ELBO is below the LML at every epoch, within its error."""
    (result,) = results
    ends: dict[str, list[float]] = {}
    for objective in ("mpt", "elbo"):
        own = [{"seed": seed, "objective": objective} for seed in SEEDS]
        starts = [finite(result.curve("lml", **labels))[0] for labels in own]
        ends[objective] = [result.metric("lml", **labels) for labels in own]
        rise = median(end - start for end, start in zip(ends[objective], starts, strict=True))
        yield at_least(f"rise of the LML by {objective}", published["least_rise"][0], rise)
    gap = median(m - e for m, e in zip(ends["mpt"], ends["elbo"], strict=True))
    yield within("LML by MPT − LML by the ELBO", published["gap"][0], gap, 3)
    above = [
        bound - ERRORS * (error or 0) - lml
        for seed in SEEDS
        for elbo in [result.curve("elbo", seed=seed, objective="elbo")]
        for bound, error, lml in zip(
            finite(elbo),
            elbo.std_err,
            finite(result.curve("lml", seed=seed, objective="elbo")),
            strict=True,
        )
    ]
    yield Comparison("highest ELBO − LML", 0, max(above), -math.inf, 0)


def fig3_vae(published: Published, results: Sequence[Results]) -> Iterator[Comparison]:
    """Two experiments, MPT at a fixed rate and the ELBO from the same starts, and MPT with uniform
    sizes. With both kinds of masks the LML of held-out images rises, does not fall from its best on
    the way, and ends no lower than the ELBO's, by margins, and above a PPCA's. Each figure is a
    mean over seeds of paired differences, whose spread gives its standard error."""
    fixed, uniform = results
    elbo = _heldout(fixed, objective="elbo")
    yield from _risen("33 %", published, fixed, elbo, objective="mpt")
    yield from _risen("uniform sizes", published, uniform, elbo)


def _risen(
    masks: str,
    published: Published,
    result: Results,
    elbo: Sequence[Sequence[float]],
    **labels: str,
) -> Iterator[Comparison]:
    curves = _heldout(result, **labels)
    starts, ends = ([curve[i] for curve in curves] for i in (0, -1))
    best = max(zip(*curves, strict=True), key=sum)
    yield at_least(
        f"rise of the LML, {masks}", published["least_rise"][0], fmean(ends) - fmean(starts)
    )
    fall, short = _less(best, ends), _less([curve[-1] for curve in elbo], ends)
    margin = published["margin"][0]
    for figure, name, differences in (
        ("best LML on the way − the last", "fall", fall),
        ("LML by the ELBO − by MPT", "short", short),
    ):
        mean, error, degrees = _mean(differences)
        yield no_more(f"{figure}, {masks}", published[name][0], mean, margin, error, degrees)
    linear = [
        result.metric("lml_heldout", seed=seed, model="baseline", **labels) for seed in VAE_SEEDS
    ]
    least, (mean, error, degrees) = published["least_lead"][0], _mean(_less(ends, linear))
    half = student.quantile(0.95, degrees) * error
    yield Comparison(f"LML − that of a PPCA, {masks}", least, mean, least, math.inf, half)


def _heldout(result: Results, **labels: str) -> list[list[float]]:
    """Return the LML of held-out images by epoch, for each seed."""
    return [finite(result.curve("lml_heldout", seed=seed, **labels)) for seed in VAE_SEEDS]


def _less(values: Sequence[float], others: Sequence[float]) -> list[float]:
    return [value - other for value, other in zip(values, others, strict=True)]


def _mean(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean over seeds, its standard error and the error's degrees of freedom."""
    return fmean(values), stdev(values) / math.sqrt(len(values)), len(values) - 1


def _area_is_lml(published: Published, results: Sequence[Results]) -> Iterator[Comparison]:
    """Test that the area is the LML, with the error over the seeds, whose masks are
    independent."""
    (result,) = results
    mean, error, degrees = _mean([result.metric("difference", seed=seed) for seed in SEEDS])
    margin = published["margin"][0]
    yield equivalent("area − LML", published["difference"][0], mean, margin, error, degrees)


def _mean_curve(result: Results) -> list[float]:
    """Return S(m) for m = 1..D, the mean over seeds."""
    curves = [finite(result.curve("score", seed=seed)) for seed in SEEDS]
    return [fmean(values) for values in zip(*curves, strict=True)]


def _falls(curve: Sequence[float], place: int) -> tuple[float, float]:
    """Return how much a curve falls before a position, and after it."""
    return curve[0] - curve[place - 1], curve[place - 1] - curve[-1]


def _parts(values: Sequence[float], count: int) -> Iterator[Sequence[float]]:
    size = len(values) // count
    for i in range(count):
        yield values[i * size : (i + 1) * size]
