"""Compare the results of each preset with the published ones."""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, stdev

from mptcore.presets.results import (
    Comparison,
    Results,
    equivalent,
    exceeds,
    finite,
    no_more,
    within,
)

Published = Mapping[str, tuple[float, ...]]
SEEDS = (4, 44, 444, 4444, 44444)
VAE_SEEDS = SEEDS[:3]
ROUNDING = 1e-3
"""Nats by which rounding may move a closed-form maximum."""


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
        yield equivalent(figure, limit, margin, value, error, math.inf)


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
        yield equivalent(figure, published[name][0], margin, mean, both, math.inf)


def fig2_maximised(published: Published, results: Sequence[Results]) -> Iterator[Comparison]:
    """Test that the LML rises past that of the true parameters, which is below the closed-form
    maximum. Each start is one draw."""
    (maximum,), (true,) = published["maximum_lml"], published["true_lml"]
    yield from _rises_to_maximum(published, results)
    margin = maximum - true
    yield no_more(
        "maximum − last LML", 0, margin, *mean_over_seeds(_short_of_maximum(published, results))
    )


def fig2_slower(published: Published, results: Sequence[Results]) -> Iterator[Comparison]:
    """Test that the LML comes near its maximum, but less near than with all mask sizes."""
    yield from _rises_to_maximum(published, results)
    short = _short_of_maximum(published, results)
    yield no_more("maximum − last LML", 0, published["margin"][0], *mean_over_seeds(short))
    yield beyond("the same, more than with all sizes", published, "short", short)


def _rises_to_maximum(published: Published, results: Sequence[Results]) -> Iterator[Comparison]:
    """Test the rise over starts, and check that no LML is above the closed-form maximum."""
    (result,) = results
    curves = [finite(result.curve("lml", seed=seed)) for seed in SEEDS]
    rises = [curve[-1] - curve[0] for curve in curves]
    yield beyond("rise of the LML", published, "rise", rises)
    (maximum,) = published["maximum_lml"]
    highest = max(max(curve) for curve in curves)
    yield Comparison("highest LML", maximum, highest, -math.inf, maximum + ROUNDING)


def _short_of_maximum(published: Published, results: Sequence[Results]) -> list[float]:
    """Return how far each start's last LML is below the closed-form maximum."""
    (result,), (maximum,) = results, published["maximum_lml"]
    return [maximum - finite(result.curve("lml", seed=seed))[-1] for seed in SEEDS]


def fig2_biased(published: Published, results: Sequence[Results]) -> Iterator[Comparison]:
    """Test that the score of a fixed size exceeds the LML by a nearly constant difference once the
    LML has converged. The last third is used, because the slowest start still rises before it."""
    (result,) = results
    levels, changes = list[float](), list[float]()
    for seed in SEEDS:
        score = finite(result.curve("mpt", seed=seed))
        lml = finite(result.curve("lml", seed=seed))
        gaps = [s - own for s, own in zip(score, lml, strict=True)]
        thirds = [fmean(part) for part in _parts(gaps[2 * len(gaps) // 3 :], 3)]
        levels.append(min(thirds))
        changes.append(thirds[2] - thirds[0])
    yield beyond("MPT − LML", published, "bias", levels)
    yield equivalent(
        "change of MPT − LML", 0, published["most_change"][0], *mean_over_seeds(changes)
    )


def fig4_long_tail(published: Published, results: Sequence[Results]) -> Iterator[Comparison]:
    """Test that the area is the LML, and that most of the fall is above 90 %."""
    yield from _area_is_lml(published, results)
    shares = []
    for curve in _curves(results[0]):
        tail = curve[_place(curve, published["tail_from"][0])] - curve[-1]
        shares.append(_share(tail, curve[0] - curve[-1]))
    yield beyond("share of the fall above 90 %", published, "tail", shares)


def fig4_early_decay(published: Published, results: Sequence[Results]) -> Iterator[Comparison]:
    """Test that the area is the LML, and that the curve falls from about 50 %."""
    yield from _area_is_lml(published, results)
    shares = []
    for curve in _curves(results[0]):
        start, end = _place(curve, published["decay_from"][0]), _place(curve, 0.9)
        shares.append(_share(curve[0] - curve[start], curve[0] - curve[end]))
    figure = "share of the fall up to 90 % that is below 50 %"
    yield equivalent(
        figure, published["early"][0], published["early_margin"][0], *mean_over_seeds(shares)
    )


def fig5_area(published: Published, results: Sequence[Results]) -> Iterator[Comparison]:
    """Test that the area under the curve rises, epoch by epoch, to that of the true parameters."""
    (result,) = results
    truths = [result.metric("mpt", seed=seed, model="baseline") for seed in SEEDS]
    areas = [result.metric("mpt", seed=seed, model="model") for seed in SEEDS]
    starts = [result.metric("mpt", seed=seed, epoch=0) for seed in SEEDS]
    (gap,), (margin,) = published["gap_to_truth"], published["margin"]
    yield equivalent("area less the true one", gap, margin, *mean_over_seeds(less(areas, truths)))
    yield beyond("rise of the area", published, "rise", less(areas, starts))


def fig3_linear(published: Published, results: Sequence[Results]) -> Iterator[Comparison]:
    """Test that both objectives end at a similar LML, well above where they began, and that the
    ELBO is below the LML at every epoch. The LML is computed by the checked grid. Each start is one
    draw."""
    (result,) = results
    ends: dict[str, list[float]] = {}
    for objective in ("mpt", "elbo"):
        own = [{"seed": seed, "objective": objective} for seed in SEEDS]
        starts = [finite(result.curve("lml", **labels))[0] for labels in own]
        ends[objective] = [result.metric("lml", **labels) for labels in own]
        rises = less(ends[objective], starts)
        yield beyond(f"rise of the LML by {objective}", published, "rise", rises)
    gaps = mean_over_seeds(less(ends["mpt"], ends["elbo"]))
    figure = "LML by MPT − LML by the ELBO"
    yield equivalent(figure, published["gap"][0], published["margin"][0], *gaps)
    slacks = [
        less(*(finite(result.curve(name, seed=seed, objective="elbo")) for name in ("lml", "elbo")))
        for seed in SEEDS
    ]
    least = min(zip(*slacks, strict=True), key=sum)
    yield beyond("least LML − ELBO of all epochs", published, "slack", least)


def fig3_vae(published: Published, results: Sequence[Results]) -> Iterator[Comparison]:
    """Test two experiments: MPT at a fixed rate and the ELBO from the same starts, and MPT with
    uniform sizes. With both kinds of masks the LML of held-out images must rise, must not fall from
    its best value by more than a margin, must end at most a margin below the ELBO's, and above a
    PPCA's. Each figure is a mean over seeds of paired differences, whose spread gives its standard
    error."""
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
    yield beyond(f"rise of the LML, {masks}", published, "rise", less(ends, starts))
    fall, short = less(best, ends), less([curve[-1] for curve in elbo], ends)
    margin = published["margin"][0]
    for figure, name, differences in (
        ("best LML on the way − the last", "fall", fall),
        ("LML by the ELBO − by MPT", "short", short),
    ):
        yield no_more(
            f"{figure}, {masks}", published[name][0], margin, *mean_over_seeds(differences)
        )
    linear = [
        result.metric("lml_heldout", seed=seed, model="baseline", **labels) for seed in VAE_SEEDS
    ]
    yield beyond(f"LML − that of a PPCA, {masks}", published, "lead", less(ends, linear))


def _heldout(result: Results, **labels: str) -> list[list[float]]:
    """Return the LML of held-out images by epoch, for each seed."""
    return [finite(result.curve("lml_heldout", seed=seed, **labels)) for seed in VAE_SEEDS]


def beyond(figure: str, published: Published, name: str, values: Sequence[float]) -> Comparison:
    """Test whether a mean over seeds exceeds the published `least_…` value of this name."""
    (least,), (expected,) = published[f"least_{name}"], published[f"expected_{name}"]
    return exceeds(figure, least, expected, *mean_over_seeds(values))


def less(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """Return the differences of values and others, in their order."""
    return [value - other for value, other in zip(values, others, strict=True)]


def mean_over_seeds(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean over seeds, its standard error and the error's degrees of freedom."""
    return fmean(values), stdev(values) / math.sqrt(len(values)), len(values) - 1


def _area_is_lml(published: Published, results: Sequence[Results]) -> Iterator[Comparison]:
    """Test that the area is the LML, with the error over the seeds, whose masks are
    independent."""
    (result,) = results
    differences = [result.metric("difference", seed=seed) for seed in SEEDS]
    (limit,), (margin,) = published["difference"], published["margin"]
    yield equivalent("area − LML", limit, margin, *mean_over_seeds(differences))


def _curves(result: Results) -> list[list[float]]:
    """Return S(m) for m = 1..D, for each seed."""
    return [finite(result.curve("score", seed=seed)) for seed in SEEDS]


def _place(curve: Sequence[float], share: float) -> int:
    """Return the position in a curve of the size that masks a share of the dimensions."""
    return math.floor(share * len(curve)) - 1


def _share(part: float, whole: float) -> float:
    """Return the share of a part, 0 for a curve that does not fall."""
    return part / whole if whole else 0.0


def _parts(values: Sequence[float], count: int) -> Iterator[Sequence[float]]:
    size = len(values) // count
    for i in range(count):
        yield values[i * size : (i + 1) * size]
