"""Quantities and tests: figures as readers see them, calculated by hand from made-up results."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from statistics import fmean, stdev
from typing import Any

import pytest
from pydantic import ValidationError

from mptcore.presets import PRESETS, Results, Verdict
from mptcore.presets.checks import Run, Term, Values, mean, weighted_curve
from mptcore.specs.families.masked_lm import PAPER_RATES

Row = dict[str, Any]
Published = Mapping[str, tuple[float, ...]]
SEEDS = (4, 44, 444, 4444, 44444)
VAE_SEEDS = SEEDS[:3]
Figure = tuple[str, float, float, float, float]
"""Name, published value, measured value, and the interval that agrees."""
INF = math.inf


def metrics(
    name: str, values: Sequence[float], std_err: float | None = 0.0, **labels: Any
) -> list[Row]:
    """Metrics of the first seeds, one value each."""
    return [
        {"record": "metric", "name": name, "value": value, "std_err": std_err}
        | {"labels": {"seed": seed, **labels}}
        for seed, value in zip(SEEDS, values, strict=False)
    ]


def curve(
    series: str,
    values: Sequence[float | None],
    seed: int,
    std_err: float | None = 0.0,
    xs: Sequence[float] | None = None,
    **labels: Any,
) -> list[Row]:
    return [
        {"record": "point", "series": series, "labels": {"seed": seed, **labels}}
        | {"x": x, "value": value, "std_err": std_err, "n": 9}
        for x, value in zip(xs or range(len(values)), values, strict=True)
    ]


def verdict_of(name: str, published: Published, *rows: Sequence[Row]) -> Verdict:
    """The verdict of a preset with other published values on these rows."""
    preset = replace(PRESETS[name], published={**PRESETS[name].published, **published})
    return preset.verdict([Results.of_records(of_spec) for of_spec in rows])


def compared(name: str, published: Published, *rows: Sequence[Row]) -> list[Figure]:
    verdict = verdict_of(name, published, *rows)
    assert verdict.missing is None, verdict.missing
    return [astuple(comparison)[:5] for comparison in verdict.comparisons]


def near(figures: Sequence[Figure]) -> list[Any]:
    """These figures, but for rounding."""
    return [(name, *map(pytest.approx, numbers)) for name, *numbers in figures]


def within(name: str, published: float, measured: float, tolerance: float) -> Figure:
    return name, published, measured, published - tolerance, published + tolerance


def at_least(name: str, published: float, measured: float) -> Figure:
    return name, published, measured, published, INF


def test_table1() -> None:
    published = {"lml": (-60.0,), "mpt": (-61.0, -62.0, -63.0), "sd": (0.5, 0.2, 0.1)}
    scores = [[-61.0, -61.5, -60.0, -62.0, -61.1], [-62.0] * 4 + [-61.0], [-60.0] * 4 + [-63.0]]
    found = compared(
        "table1",
        published,
        *(metrics("lml", [-60.1 - i, 0]) + metrics("mpt", own) for i, own in enumerate(scores)),
    )
    expected = []
    for i, (count, own) in enumerate(zip((1, 10, 100), scores, strict=True)):
        expected += [
            within(f"LML, P = {count}", -60, -60.1 - i, 0.005),
            within(f"mean MPT, P = {count}", published["mpt"][i], fmean(own), 0.005),
            within(f"sd of MPT, P = {count}", published["sd"][i], stdev(own), 0.015),
        ]
    assert found == near(expected)


def convergence(*last: float | None) -> list[Row]:
    rows = metrics("lml", [-1.1, -2.2, -3.3, -4.4, -5.5])
    for i, seed in enumerate(SEEDS):
        value = last[0] if not i else -0.1 * i
        points = curve("convergence", [9.0, -1.0, value], seed, 99.0)
        points[-1]["std_err"] = last[1] if not i else 0.01 * i
        rows += points
    return rows


def test_fig1_left_and_center() -> None:
    published = {"lml": (-1.0, -2.0, -3.0, -4.0, -5.0), "limit": (0.5,), "margin": (0.3,)}
    expected = []
    for i, seed in enumerate(SEEDS):
        own = 1.1 * (i + 1)
        expected += [
            within(f"LML, seed {seed}", -(i + 1), -own, 6e-5),
            within(f"MPT − LML at the last P, seed {seed}", 0.5, -0.1 * i, 0.3),
        ]
    assert compared("fig1-left", published, convergence(0.0, 0.2)) == near(expected)


@pytest.mark.parametrize("last", [(None, 0.1), (1.0, None)])
def test_fig1_without_its_last_point_is_incomplete(last: tuple[float | None, ...]) -> None:
    published = {"lml": (-1.0, -2.0, -3.0, -4.0, -5.0), "limit": (0.5,), "margin": (0.3,)}
    verdict = verdict_of("fig1-left", published, convergence(*last))
    assert verdict.verdict == "incomplete"
    assert verdict.missing == "missing: 'the last point of convergence'"


def test_fig1_right() -> None:
    published = {
        "lml": (-121.0,),
        "biased_score": (-114.0,),
        "bias": (7.0,),
        "std_err": (0.03,),
        "margin": (0.4,),
    }
    rows = [
        *metrics("lml", [-121.5, -1.0]),
        *metrics("biased_score", [-1.0, -2.0, -3.0, -4.0, -6.0], 9.0),
        *metrics("bias", [1.0, 2.0, 3.0, 4.0, 6.0], 0.05),
    ]
    assert compared("fig1-right", published, rows) == near(
        [
            within("LML", -121, -121.5, 6e-4),
            within("D · S(76)", -114, -3.2, 0.4),
            within("D · S(76) − LML", 7, 3.2, 0.4),
        ]
    )


FIG2 = {
    "maximum_lml": (-2.0,),
    "true_lml": (-2.5,),
    "margin": (1.5,),
    "least_short": (0.1,),
    "expected_short": (0.9,),
    "least_rise": (3.0,),
    "expected_rise": (9.0,),
}


@pytest.mark.parametrize("name", ["fig2-left", "fig2-right"])
def test_fig2_rises_to_its_maximum(name: str) -> None:
    """The starts end at −7 to −3, so they are 3 below the maximum and have risen by 4 on average.
    The highest LML is on the way."""
    rows = list[Row]()
    for i, seed in enumerate(SEEDS):
        rows += curve("lml", [-9.0, -2.2 - i, -7.0 + i], seed)
    expected = [
        at_least("rise of the LML", 3, 4),
        ("highest LML", -2, -2.2, -INF, -2.0 + 1e-3),
        ("maximum − last LML", 0, 3, -INF, 0.5 if name == "fig2-left" else 1.5),
    ]
    if name == "fig2-right":
        expected.append(at_least("the same, more than with all sizes", 0.1, 3))
    assert compared(name, FIG2, rows) == near(expected)


def test_fig2_biased() -> None:
    """The last third, whose thirds have the means 5, 7 and 6."""
    gaps = [0.0] * 19 + [4.0, 5.0, 6.0] + [6.0, 7.0, 8.0] + [5.0, 6.0, 7.0] + [100.0]
    rows = list[Row]()
    for i, seed in enumerate(SEEDS):
        lml = [float(x) for x in range(29)]
        rows += curve("lml", lml, seed)
        rows += curve("mpt", [x + gap + i for x, gap in zip(lml, gaps, strict=True)], seed)
    published = {"least_bias": (3.0,), "expected_bias": (4.0,), "most_change": (0.5,)}
    assert compared("fig2-center", published, rows) == near(
        [at_least("MPT − LML", 3, 7), within("change of MPT − LML", 0, 1, 0.5)]
    )


GAPS = [0.1, 0.2, -0.1, 0.3, 0.5]
AREA = within("area − LML", 0.05, 0.2, 0.7)


def scores(values: Sequence[float]) -> list[Row]:
    """Curves whose mean over seeds are these values."""
    rows = metrics("difference", GAPS)
    for i, seed in enumerate(SEEDS):
        rows += curve("score", [value * (0.5 + i / 4) for value in values], seed)
    return rows


def test_fig4_left() -> None:
    """Nine tenths of twenty are eighteen: the curve falls by 5 from 18 to 20, and by 8 in total.
    The share is the same for each seed."""
    values = [-1.0 - x / 17 * 3 for x in range(18)] + [-6.0, -9.0]
    published = {"difference": (0.05,), "margin": (0.7,), "tail_from": (0.9,)}
    published |= {"least_tail": (0.4,), "expected_tail": (0.5,)}
    share = at_least("share of the fall above 90 %", 0.4, 5 / 8)
    assert compared("fig4-left", published, scores(values)) == near([AREA, share])


def test_a_flat_curve_has_no_tail() -> None:
    flat = {"tail_from": (0.9,), "least_tail": (0.4,), "expected_tail": (0.5,)}
    published = {"difference": (0.05,), "margin": (0.7,), **flat}
    share = at_least("share of the fall above 90 %", 0.4, 0)
    assert compared("fig4-left", published, scores([-1.0] * 20)) == near([AREA, share])


def test_fig4_right() -> None:
    """The curve falls by 1 up to the tenth of twenty points, and by 4 up to the eighteenth."""
    values = [-1.0] + [-7.0] * 8 + [-2.0] + [-8.0] * 7 + [-5.0] + [-6.0, -9.0]
    published = {"difference": (0.05,), "margin": (0.7,), "decay_from": (0.5,)}
    published |= {"early": (0.1,), "early_margin": (0.3,)}
    share = within("share of the fall up to 90 % that is below 50 %", 0.1, 1 / 4, 0.3)
    assert compared("fig4-right", published, scores(values)) == near([AREA, share])


def test_fig5_left() -> None:
    rows = [
        *metrics("mpt", [-30.0, -31, -32, -33, -34], epoch=0),
        *metrics("mpt", [-20.0, -19, -18, -17, -16], model="model"),
        *metrics("mpt", [-15.0, -15, -15, -15, -15.5], model="baseline"),
    ]
    published = {"gap_to_truth": (-0.1,), "margin": (0.5,)}
    published |= {"least_rise": (5.0,), "expected_rise": (9.0,)}
    assert compared("fig5-left", published, rows) == near(
        [within("area less the true one", -0.1, -2.9, 0.5), at_least("rise of the area", 5, 14)]
    )


def linear_vaes() -> list[Row]:
    rows = list[Row]()
    for objective, first in (("mpt", -180.0), ("elbo", -185.0)):
        ends = [first, first + 1, first + 10, first - 1, first + 3]
        rows += metrics("lml", ends, objective=objective)
        for i, seed in enumerate(SEEDS):
            lml = [-200.0 - i, -190.0, -188.0]
            rows += curve("lml", lml, seed, objective=objective)
            nearest = [-3.0, -0.5 if i == 1 else -3.0, -4.0]
            bound = [x + off for x, off in zip(lml, nearest, strict=True)]
            error = None if i == 0 else 0.1
            rows += curve("elbo", bound, seed, error, objective=objective)
    return rows


def test_fig3_linear() -> None:
    """The bound comes nearest at the second point: 0.5 for one seed and 3 for four."""
    published = {"least_rise": (8.0,), "expected_rise": (9.0,), "gap": (4.0,), "margin": (3.0,)}
    published |= {"least_slack": (0.2,), "expected_slack": (0.7,)}
    assert compared("fig3-linear-mnist", published, linear_vaes()) == near(
        [
            at_least("rise of the LML by mpt", 8, 24.6),
            at_least("rise of the LML by elbo", 8, 19.6),
            within("LML by MPT − LML by the ELBO", 4, 5, 3),
            at_least("least LML − ELBO of all epochs", 0.2, 2.5),
        ]
    )


def heldout(ends: Sequence[float], objective: str | None, way: float, ppca: float) -> list[Row]:
    labels: dict[str, Any] = {} if objective is None else {"objective": objective}
    rows = metrics("lml_heldout", [ppca, ppca + 1, ppca + 5], model="baseline", **labels)
    for i, (seed, end) in enumerate(zip(VAE_SEEDS, ends, strict=True)):
        rows += curve("lml_heldout", [-10.0 - i, way, 9.0 - 18 * i, end], seed, **labels)
    return rows


def test_fig3_vae() -> None:
    """Paired differences over three seeds, and margins."""
    by_mpt, by_elbo, uniform = [1.0, 2.0, 6.0], [3.0, 3.0, 3.0], [4.0, 4.0, 7.0]
    fixed = heldout(by_mpt, "mpt", 4.0, 0.5) + heldout(by_elbo, "elbo", 9.0, 0.0)
    published = {"least_rise": (5.0,), "fall": (0.1,), "short": (0.2,), "least_lead": (0.3,)}
    published |= {"margin": (0.9,), "expected_rise": (6.0,), "expected_lead": (1.0,)}

    def risen(masks: str, ends: Sequence[float], way: float, ppca: float) -> Iterator[Figure]:
        fall = [way - end for end in ends] if 3 * way > sum(ends) else [0.0] * 3
        short = [3 - end for end in ends]
        lead = [end - ppca - off for end, off in zip(ends, (0, 1, 5), strict=True)]
        yield at_least(f"rise of the LML, {masks}", 5, fmean(ends) + 11)
        name = f"best LML on the way − the last, {masks}"
        yield (name, 0.1, fmean(fall), -INF, 0.1 + 0.9)
        name = f"LML by the ELBO − by MPT, {masks}"
        yield (name, 0.2, fmean(short), -INF, 0.2 + 0.9)
        name = f"LML − that of a PPCA, {masks}"
        yield (name, 0.3, fmean(lead), 0.3, INF)

    expected = [*risen("33 %", by_mpt, 4.0, 0.5), *risen("uniform sizes", uniform, 4.0, 0.0)]
    other = heldout(uniform, None, 4.0, 0.0)
    assert compared("fig3-vae-mnist", published, fixed, other) == near(expected)


def of_rates(values: Sequence[float], xs: Sequence[float] = PAPER_RATES) -> list[Row]:
    return curve("score_by_rate", values, SEEDS[0], 0.1, xs)


BERT = {
    "least_fall": (4.0,),
    "expected_fall": (5.0,),
    "least_late": (0.5,),
    "expected_late": (1.0,),
    "flat_at": (-10.4,),
    "margin": (0.5,),
    "spread": (0.3,),
}


def test_fig5_right() -> None:
    """With 99 rates, the half is at the fiftieth, and the last tenth begins at the ninety-first."""
    pretrained = [-1.0] + [-9.0] * 48 + [-2.0] + [-8.0] * 40 + [-3.0] + [-7.0] * 7 + [-6.0]
    random = [-10.0] * 33 + [-10.3] * 33 + [-10.1] * 33
    given = of_rates(pretrained), of_rates(random)
    assert compared("fig5-right", BERT, *given) == near(
        [
            at_least("fall of the pretrained curve", 4, 5),
            at_least("its fall in the last tenth less that in the first half", 0.5, 2),
            within("mean of the random curve", -10.4, fmean(random), 0.5),
            within("the random curve's first third − its last", 0, 0.1, 0.5),
            within("the random curve's first third − its middle", 0, 0.3, 0.5),
        ]
    )


def half_widths(name: str, published: Published, *rows: Sequence[Row]) -> list[float]:
    return [one.half_width for one in verdict_of(name, published, *rows).comparisons]


def test_fig5_right_has_the_errors_of_its_points_and_of_random_weights() -> None:
    """Each point has an error of 0.1."""
    flat = of_rates([-10.0] * 99)
    third = 1.95996 * 0.1 * math.sqrt(2 / 33)
    level = 1.95996 * math.hypot(0.1 / math.sqrt(99), 0.3)
    one_sided = [1.64485 * 0.1 * math.sqrt(points) for points in (2, 4)]
    found = half_widths("fig5-right", BERT, flat, flat)
    assert found == pytest.approx([*one_sided, level, third, third], rel=1e-4)


def test_table2() -> None:
    """Both areas have the error of their masks, and that of random weights is a draw."""
    pretrained = of_rates([-1.0] * 99) + metrics("area", [-1700.0, 0], 3.0)
    random = of_rates([-1.0] * 99) + metrics("area", [-5300.0, 0], 4.0)
    published = {"pretrained": (-1600.0,), "random": (-5000.0,), "share": (0.05,), "spread": (40,)}
    given = "table2-ax", published, pretrained, random
    assert compared(*given) == near(
        [
            within("area, pretrained", -1600, -1700, 80),
            within("area, random", -5000, -5300, 250),
        ]
    )
    errors = [3.0 * math.sqrt(2), math.hypot(4, 40) * math.sqrt(2)]
    assert half_widths(*given) == pytest.approx([1.95996 * error for error in errors], rel=1e-4)


@pytest.mark.parametrize("xs", [PAPER_RATES[:98], (*PAPER_RATES[:98], 0.995)])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("name", ["fig5-right", "table2-ax"])
def test_a_curve_over_other_rates_is_not_compared(
    name: str, which: int, xs: Sequence[float]
) -> None:
    rows = [of_rates([-1.0] * 99) + metrics("area", [-1.0]) for _ in range(2)]
    rows[which] = of_rates([-1.0] * len(xs), xs) + metrics("area", [-1.0])
    published = {"pretrained": (-1.0,), "random": (-1.0,), "share": (1.0,), "spread": (1.0,)}
    verdict = verdict_of(name, published, *rows)
    assert verdict.missing == f'missing: "the paper\'s 99 rates; these are {len(xs)} others"'


RATES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.9, 0.99)


def learned(error: float | None) -> list[Row]:
    scores = curve("score_by_rate", [-1.0, -2, -3, -2, -4, -20, -9], SEEDS[0], error, RATES)
    scores[5]["std_err"] = None  # of a rate that is not used
    return scores


LEARNED = {"uniform_guess": (-10.0,)} | {
    f"{bound}_{name}": (value,)
    for name in ("gain", "fall", "late")
    for bound, value in (("least", 0.5), ("expected", 1.0))
}


def test_the_learned_curve() -> None:
    """The curve goes from −2.4, the mean at five rates, to −9, with an error of 0.1 at each."""
    name = "small-bert-rotten-tomatoes"
    assert compared(name, LEARNED, learned(0.1)) == near(
        [
            at_least("mean at 10–50 % − that of a uniform guess", 0.5, 7.6),
            at_least("fall of the curve from 10–50 % to 99 %", 0.5, 6.6),
            at_least("its fall above 50 % less that below", 0.5, 2),
        ]
    )
    errors = [0.1 / math.sqrt(5), 0.1 * math.sqrt(1 + 1 / 5), 0.1 * math.sqrt(6)]
    found = half_widths(name, LEARNED, learned(0.1))
    assert found == pytest.approx([1.64485 * error for error in errors], rel=1e-4)


def test_a_learned_curve_without_its_errors_is_incomplete() -> None:
    verdict = verdict_of("small-bert-rotten-tomatoes", LEARNED, learned(None))
    assert verdict.missing == "missing: 'the standard errors of the curve'"


def pairs(leads: Sequence[float]) -> list[list[Row]]:
    return [
        [{"record": "metric", "name": "area", "value": value, "std_err": 1.0}
         | {"labels": {"seed": seed}}]
        for i, (seed, lead) in enumerate(zip(SEEDS, leads, strict=False))
        for value in (10.0 * i + lead, 10.0 * i)
    ]  # fmt: skip


LEAD = {"least_lead": (0.5,), "expected_lead": (4.0,)}


def test_uniform_leads() -> None:
    leads = [1.0, 2.0, 3.0, 4.0, 6.0]
    figure = at_least("area by uniform sizes − by 15 %", 0.5, 3.2)
    assert compared("uniform-against-fixed", LEAD, *pairs(leads)) == near([figure])
    error = stdev(leads) / math.sqrt(5)
    (found,) = half_widths("uniform-against-fixed", LEAD, *pairs(leads))
    assert found == pytest.approx(2.131847 * error, rel=1e-6)  # Student's t with 4 degrees


def test_pairs_are_told_apart() -> None:
    published = {"least_accuracy": (0.8,), "expected_accuracy": (0.95,)}
    name = "swapped-atoms"
    rows = metrics("accuracy", [0.9], 0.03) + metrics("groups_scored", [60.0])
    figure = at_least("share of pairs whose first text is the better", 0.8, 56 / 64)
    assert compared(name, published, rows) == near([figure])
    assert half_widths(name, published, rows) == pytest.approx([1.64485 * 0.03], rel=1e-4)


def test_a_share_of_pairs_at_its_bound_passes_in_at_most_5_percent() -> None:
    """Sum the exact probability of each number of right pairs of 60 that passes."""
    published = {"least_accuracy": (0.8,), "expected_accuracy": (0.95,)}
    passes = {0.8: 0.0, 0.95: 0.0}
    for right in range(61):
        centre = (right + 2) / 64
        error = math.sqrt(centre * (1 - centre) / 64)
        rows = metrics("accuracy", [right / 60], error) + metrics("groups_scored", [60.0])
        (found,) = verdict_of("swapped-atoms", published, rows).comparisons
        for share in passes:
            chance = math.comb(60, right) * share**right * (1 - share) ** (60 - right)
            passes[share] += chance * (found.outcome == "agrees")
    assert passes[0.8] < 0.05
    assert passes[0.95] > 0.95


def shortened(rows: list[Row]) -> list[Row]:
    """Without the last point of the first seed's curve of the LML."""
    names = ("lml", "lml_heldout")
    own = [row for row in rows if row.get("series") in names and row["labels"]["seed"] == SEEDS[0]]
    return [row for row in rows if row is not own[-1]]


def lml_and_score() -> list[Row]:
    return [
        row for seed in SEEDS for name in ("mpt", "lml") for row in curve(name, [0.0] * 9, seed)
    ]


TOO_SHORT: dict[str, Callable[[], tuple[list[Row], ...]]] = {
    "fig2-center": lambda: (shortened(lml_and_score()),),
    "fig3-linear-mnist": lambda: (shortened(linear_vaes()),),
    "fig3-vae-mnist": lambda: (
        shortened(heldout([1.0] * 3, "elbo", 0.0, 0.0) + heldout([1.0] * 3, "mpt", 0.0, 0.0)),
        heldout([1.0] * 3, None, 0.0, 0.0),
    ),
}


@pytest.mark.parametrize("name", TOO_SHORT)
def test_curves_of_different_lengths_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"zip\(\)"):
        verdict_of(name, {}, *TOO_SHORT[name]())


def curves(series: str, values: Sequence[float], std_err: float = 0.0, **labels: Any) -> list[Row]:
    """Return the same curve for each seed, at x = 1, 2, and so on."""
    return [
        {"record": "point", "series": series, "labels": {"seed": seed, **labels}}
        | {"x": x, "value": value, "std_err": std_err, "n": 9}
        for seed in SEEDS
        for x, value in enumerate(values, 1)
    ]


def spread(mean: float, sd: float) -> list[float]:
    """Five values with this mean and standard deviation."""
    pattern = (-2.0, -1.0, 0.0, 1.0, 2.0)
    values = [mean + sd * one / stdev(pattern) for one in pattern]
    assert fmean(values) == pytest.approx(mean)
    assert stdev(values) == pytest.approx(sd)
    return values


def fig1(lml: float, last: float, std_err: float = 0.1) -> str:
    rows = [*metrics("lml", [-5.0 + lml] * 5), *curves("convergence", [9.0, last], std_err)]
    published = {"lml": (-5.0,) * 5, "limit": (0.0,), "margin": (0.5,)}
    return verdict_of("fig1-left", published, rows).verdict


@pytest.mark.parametrize("sign", [-1, 1])
def test_fig1_left_and_center_are_judged_with_their_errors(sign: int) -> None:
    assert fig1(sign * 5.9e-5, 0.0) == "agrees"
    assert fig1(sign * 6.1e-5, 0.0) == "differs"
    assert fig1(0.0, sign * 0.30) == "agrees"  # 1.96 standard errors of 0.1 below the margin
    assert fig1(0.0, sign * 0.31) == fig1(0.0, sign * 0.69) == "cannot tell"
    assert fig1(0.0, sign * 0.70) == "differs"
    assert fig1(0.0, 0.0, 0.26) == "cannot tell"  # not the more easily the noisier it is


@pytest.mark.parametrize("figure", ["biased_score", "bias"])
@pytest.mark.parametrize("sign", [-1, 1])
def test_fig1_right_is_judged_with_its_errors(figure: str, sign: int) -> None:
    published = {"lml": (-121.0,), "biased_score": (-114.0,), "bias": (7.0,), "std_err": (0.03,)}
    reach = 1.96 * math.hypot(0.04, 0.03)  # the mean of five with 0.04 √5 each

    def of(off: float, lml: float = 0.0) -> str:
        values = {"biased_score": -114.0, "bias": 7.0}
        values[figure] += sign * off
        rows = [row for name, value in values.items()
                for row in metrics(name, [value] * 5, 0.04 * math.sqrt(5))]  # fmt: skip
        rows += metrics("lml", [-121.0 + lml] * 5)
        return verdict_of("fig1-right", {**published, "margin": (0.2,)}, rows).verdict

    assert of(0.99 * (0.2 - reach)) == "agrees"
    assert of(1.01 * (0.2 - reach)) == of(0.99 * (0.2 + reach)) == "cannot tell"
    assert of(1.01 * (0.2 + reach)) == "differs"
    assert of(0.0, sign * 5.9e-4) == "agrees"
    assert of(0.0, sign * 6.1e-4) == "differs"


@pytest.mark.parametrize("name", ["fig2-left", "fig2-right", "fig5-left", "fig4-left"])
def test_a_spread_over_starts_makes_no_verdict_easier(name: str) -> None:
    """The same means with a larger spread cannot be told."""
    published = {"maximum_lml": (1.5,), "true_lml": (-0.5,), "margin": (2.0,)}
    published |= {"least_short": (0.1,), "gap_to_truth": (0.0,), "difference": (0.0,)}
    published |= {"tail_from": (0.5,), "least_tail": (0.1,), "least_rise": (0.1,)}
    published |= {f"expected_{name}": (9.0,) for name in ("short", "rise", "tail")}

    def of(sd: float) -> str:
        rows = [*metrics("difference", spread(0.0, sd))]
        for seed, off in zip(SEEDS, spread(0.0, sd), strict=True):
            own = {"record": "metric", "name": "mpt", "std_err": 0.0}
            rows += [
                {**own, "value": value, "labels": {"seed": seed, **labels}}
                for labels, value in (({"epoch": 0}, -30.0), ({"model": "model"}, -20 + off),
                                      ({"model": "baseline"}, -20.0))
            ]  # fmt: skip
            points = {"record": "point", "labels": {"seed": seed}, "std_err": 0.0, "n": 9}
            for x, lml, score in ((1, -9.0, 0.0), (2, -1.0, -0.5), (3, off / 9, -1.0)):
                rows.append({**points, "series": "lml", "x": x, "value": lml})
                rows.append({**points, "series": "score", "x": x, "value": score})
        return verdict_of(name, published, rows).verdict

    assert of(0.1) == "agrees"
    assert of(9.0) == "cannot tell"


def bert(curve: Sequence[float]) -> list[Row]:
    points = curves("score_by_rate", curve)
    return [{**row, "x": PAPER_RATES[row["x"] - 1]} for row in points]


def test_the_late_fall_of_bert_is_measured_over_the_last_tenth() -> None:
    """One that falls by 3 between 60 and 80 %, and by 1 at the start, has none at the end."""
    published = {"flat_at": (-10.0,), "spread": (0.0,)}

    def of(pretrained: Sequence[float]) -> str:
        rows = bert(pretrained), bert([-10.0] * 99)
        return verdict_of("fig5-right", published, *rows).verdict

    assert of([-1.0] + [-2.0] * 58 + [-2 - 3 * min(1.0, x / 20) for x in range(40)]) == "differs"
    assert of([-1.0] + [-2.0] * 88 + [-2 - 3 * x / 9 for x in range(10)]) == "agrees"


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("sign", [-1, 1])
def test_table2_is_judged_with_its_errors(which: int, sign: int) -> None:
    """Areas agree within 5 %, less 1.96 errors: 2.77 of that of the masks of one run, or of the
    spread of random weights."""
    error = (1.0, 40.0)[which]

    def of(off: float) -> str:
        areas = [-1700.0, -5300.0]
        areas[which] += sign * off
        results = [[*bert([-10.0] * 99), *metrics("area", [area] * 5, 1.0)] for area in areas]
        published = {"pretrained": (-1700.0,), "random": (-5300.0,)}
        published |= {"share": (0.05,), "spread": (40.0,)}
        return verdict_of("table2-ax", published, *results).verdict

    margin, reach = 0.05 * (1700, 5300)[which], 1.96 * math.sqrt(2) * error
    assert of(margin - 1.01 * reach) == "agrees"
    assert of(margin - 0.99 * reach) == of(margin + 0.99 * reach) == "cannot tell"
    assert of(margin + 1.01 * reach) == "differs"


def test_one_seed_has_no_standard_error() -> None:
    run = Run(Results.of_records(metrics("lml", [-1.0])), SEEDS[:1])
    with pytest.raises(KeyError, match="second seed"):
        mean([run], of=Values(metric="lml"))


def test_a_part_of_a_curve_without_points_is_missing() -> None:
    run = Run(Results.of_records(of_rates([-1.0] * 99)), SEEDS[:1])
    with pytest.raises(KeyError, match=r"from 0\.001 to 0\.002"):
        weighted_curve([run], terms=[Term(weight=1, start=0.001, stop=0.002)])


@pytest.mark.parametrize("places", [{}, {"at": 0.1, "start": 0.1}, {"start": 0.1}])
def test_a_term_is_at_one_place_or_between_two(places: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        Term(weight=1, **places)
