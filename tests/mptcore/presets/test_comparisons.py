"""Figures that each judge compares, as readers see them, calculated by hand from made-up
results."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple
from statistics import fmean, stdev
from typing import Any

import pytest

from mptcore.presets import judges, language_judges
from mptcore.presets.judges import SEEDS, VAE_SEEDS, Published
from mptcore.presets.results import Judge, Results, judged
from mptcore.specs.families.masked_lm import PAPER_RATES

Row = dict[str, Any]
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


def compared(judge: Judge, published: Published, *rows: Sequence[Row]) -> list[Figure]:
    comparisons = judge(published, [Results.of_records(of) for of in rows])
    return [astuple(one)[:5] for one in comparisons]


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
        judges.table1,
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
    assert compared(judges.fig1_converges, published, convergence(0.0, 0.2)) == near(expected)


@pytest.mark.parametrize("last", [(None, 0.1), (1.0, None)])
def test_fig1_without_its_last_point_is_incomplete(last: tuple[float | None, ...]) -> None:
    published = {"lml": (-1.0, -2.0, -3.0, -4.0, -5.0), "limit": (0.5,), "margin": (0.3,)}
    results = [Results.of_records(convergence(*last))]
    verdict = judged(judges.fig1_converges, published, results)
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
    assert compared(judges.fig1_biased, published, rows) == near(
        [
            within("LML", -121, -121.5, 6e-4),
            within("D · S(76)", -114, -3.2, 0.4),
            within("D · S(76) − LML", 7, 3.2, 0.4),
        ]
    )


@pytest.mark.parametrize(
    ("judge", "below"), [(judges.fig2_maximised, 0.1), (judges.fig2_slower, 1.5)]
)
def test_fig2_rises_to_its_maximum(judge: Judge, below: float) -> None:
    rows, expected = list[Row](), list[Figure]()
    for i, seed in enumerate(SEEDS):
        rows += curve("lml", [-9.0, -10.0, -7.0 + i], seed)
        expected += [
            (f"last LML, seed {seed}", -6.0, -7.0 + i, -6.0 - below, -6.0 + 1e-3),
            at_least(f"rise of the LML, seed {seed}", 0, 2.0 + i),
        ]
    assert compared(judge, {"maximum_lml": (-6.0,)}, rows) == near(expected)


def test_fig2_biased() -> None:
    """The last third, whose thirds have the means 5, 7 and 6."""
    gaps = [0.0] * 19 + [4.0, 5.0, 6.0] + [6.0, 7.0, 8.0] + [5.0, 6.0, 7.0] + [100.0]
    rows, expected = list[Row](), list[Figure]()
    for i, seed in enumerate(SEEDS):
        lml = [float(x) for x in range(29)]
        rows += curve("lml", lml, seed)
        rows += curve("mpt", [x + gap + i for x, gap in zip(lml, gaps, strict=True)], seed)
        expected += [
            at_least(f"MPT − LML, seed {seed}", 3, 5 + i),
            (f"change of MPT − LML, seed {seed}", 0, 2, 0, 0.5),
        ]
    published = {"least_bias": (3.0,), "most_change": (0.5,)}
    assert compared(judges.fig2_biased, published, rows) == near(expected)


GAPS = [0.1, 0.2, -0.1, 0.3, 0.5]
AREA = within("area − LML", 0.05, 0.2, 0.7)


def scores(values: Sequence[float]) -> list[Row]:
    """Curves whose mean over seeds are these values."""
    rows = metrics("difference", GAPS)
    for i, seed in enumerate(SEEDS):
        rows += curve("score", [value * (0.5 + i / 4) for value in values], seed)
    return rows


def test_fig4_left() -> None:
    """Nine tenths of twenty are eighteen: the curve falls by 5 from 18 to 20, and by 8 in total."""
    values = [-1.0 - x / 17 * 3 for x in range(18)] + [-6.0, -9.0]
    published = {"difference": (0.05,), "margin": (0.7,), "tail_from": (0.9,)}
    share = at_least("share of the fall above 90 %", 0.5, 5 / 8)
    assert compared(judges.fig4_long_tail, published, scores(values)) == near([AREA, share])


def test_fig4_right() -> None:
    """The curve falls by 1 up to the tenth of twenty points, and by 4 up to the eighteenth."""
    values = [-1.0] + [-7.0] * 8 + [-2.0] + [-8.0] * 7 + [-5.0] + [-6.0, -9.0]
    published = {"difference": (0.05,), "margin": (0.7,), "decay_from": (0.5,)}
    share = ("share of the fall up to 90 % that is below 50 %", 0, 1 / 4, -0.2, 0.4)
    assert compared(judges.fig4_early_decay, published, scores(values)) == near([AREA, share])


def test_fig5_left() -> None:
    rows = [
        *metrics("mpt", [-30.0, -31, -32, -33, -34], epoch=0),
        *metrics("mpt", [-20.0, -19, -18, -17, -16], model="model"),
        *metrics("mpt", [-15.0, -15, -15, -15, -15.5], model="baseline"),
    ]
    expected = []
    for i, seed in enumerate(SEEDS):
        gap = -5 + i + (0.5 if i == 4 else 0)
        expected += [
            within(f"area less the true one, seed {seed}", -0.1, gap, 0.5),
            at_least(f"rise of the area, seed {seed}", 5, 10 + 2 * i),
        ]
    published = {"gap_to_truth": (-0.1,), "least_rise": (5.0,)}
    assert compared(judges.fig5_area, published, rows) == near(expected)


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
    """The bound of the second seed comes nearest, less four of its errors."""
    published = {"least_rise": (8.0,), "gap": (4.0,)}
    assert compared(judges.fig3_linear, published, linear_vaes()) == near(
        [
            at_least("rise of the LML by mpt", 8, 22),
            at_least("rise of the LML by elbo", 8, 17),
            within("LML by MPT − LML by the ELBO", 4, 5, 3),
            ("highest ELBO − LML", 0, -0.9, -INF, 0),
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
    published |= {"margin": (0.9,)}

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
    assert compared(judges.fig3_vae, published, fixed, other) == near(expected)


def of_rates(values: Sequence[float], xs: Sequence[float] = PAPER_RATES) -> list[Row]:
    return curve("score_by_rate", values, SEEDS[0], 0.1, xs)


def test_fig5_right() -> None:
    """With 99 rates, the half is at the fiftieth, and the last tenth begins at the ninety-first."""
    pretrained = [-1.0] + [-9.0] * 48 + [-2.0] + [-8.0] * 40 + [-3.0] + [-7.0] * 7 + [-6.0]
    random = [-10.0] * 97 + [-10.2, -10.1]
    published = {"least_fall": (4.0,), "flat_at": (-10.4,)}
    found = compared(language_judges.fig5_bert, published, of_rates(pretrained), of_rates(random))
    assert found == near(
        [
            at_least("fall of the pretrained curve", 4, 5),
            at_least("its fall in the last tenth less that in the first half", 0, 2),
            within("mean of the random curve", -10.4, fmean(random), 0.5),
            ("range of the random curve", 0, 0.2, 0, 0.5),
        ]
    )


def test_table2() -> None:
    pretrained = of_rates([-1.0] * 99) + metrics("area", [-1700.0, 0])
    random = of_rates([-1.0] * 99) + metrics("area", [-5300.0, 0])
    published = {"pretrained": (-1600.0,), "random": (-5000.0,)}
    assert compared(language_judges.table2, published, pretrained, random) == near(
        [
            within("area, pretrained", -1600, -1700, 80),
            within("area, random", -5000, -5300, 125),
        ]
    )


@pytest.mark.parametrize("xs", [PAPER_RATES[:98], (*PAPER_RATES[:98], 0.995)])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("judge", [language_judges.fig5_bert, language_judges.table2])
def test_a_curve_over_other_rates_is_not_compared(
    judge: Judge, which: int, xs: Sequence[float]
) -> None:
    rows = [of_rates([-1.0] * 99) + metrics("area", [-1.0]) for _ in range(2)]
    rows[which] = of_rates([-1.0] * len(xs), xs) + metrics("area", [-1.0])
    published = {"pretrained": (-1.0,), "random": (-1.0,)}
    verdict = judged(judge, published, [Results.of_records(of) for of in rows])
    assert verdict.missing == f'missing: "the paper\'s 99 rates; these are {len(xs)} others"'


RATES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.9, 0.99)


def learned(error: float | None) -> list[Row]:
    scores = curve("score_by_rate", [-1.0, -2, -3, -2, -4, -20, -9], SEEDS[0], error, RATES)
    scores[5]["std_err"] = None  # of a rate that is not asked for
    return [*curve("loss_heldout", [10.0, 1.0, 4.0], SEEDS[0], None), *scores]


def test_the_learned_curve() -> None:
    """The curve goes from −2.4, the mean at five rates, to −9, with an error of 0.1 at each."""
    published = {"least_gain": (1.0,), "least_fall": (0.5,)}
    name = "fall of the curve from 10–50 % to 99 %, less 4 standard errors"
    surely = 6.6 - 4 * 0.1 * math.sqrt(1 + 1 / 5)
    assert compared(language_judges.learned_curve, published, learned(0.1)) == near(
        [
            at_least("fall of the loss, nats per token", 1, 6),
            at_least(name, 0.5, surely),
            at_least("its fall above 50 % less that below", 0, 2),
        ]
    )


def test_a_learned_curve_without_its_errors_is_incomplete() -> None:
    published = {"least_gain": (1.0,), "least_fall": (0.5,)}
    results = [Results.of_records(learned(None))]
    verdict = judged(language_judges.learned_curve, published, results)
    assert verdict.missing == "missing: 'the standard errors of the curve'"


def pairs(leads: Sequence[float]) -> list[list[Row]]:
    return [
        [{"record": "metric", "name": "area", "value": value, "std_err": 1.0}
         | {"labels": {"seed": seed}}]
        for i, (seed, lead) in enumerate(zip(SEEDS, leads, strict=False))
        for value in (10.0 * i + lead, 10.0 * i)
    ]  # fmt: skip


def test_uniform_leads() -> None:
    leads = [1.0, 2.0, 3.0, 4.0, 6.0]
    surely = 3.2 - 2.776 * stdev(leads) / math.sqrt(5)
    assert compared(language_judges.uniform_leads, {"least_lead": (0.5,)}, *pairs(leads)) == near(
        [
            at_least("area by uniform sizes − by 15 %, mean over seeds", 0.5, 3.2),
            at_least("the same less 2.776 standard errors", 0.5, surely),
        ]
    )


def shortened(rows: list[Row]) -> list[Row]:
    """Without the last point of the first seed's curve of the LML, or else of the score."""
    names = ("lml", "lml_heldout", "score")
    own = [row for row in rows if row.get("series") in names and row["labels"]["seed"] == SEEDS[0]]
    return [row for row in rows if row is not own[-1]]


TOO_FEW: dict[str, Callable[[], list[Figure]]] = {
    "results of table 1": lambda: compared(
        judges.table1,
        {"lml": (-1.0,), "mpt": (-1.0,), "sd": (1.0,)},
        metrics("lml", [-1.0]) + metrics("mpt", [-1.0] * 5),
    ),
    "published LMLs": lambda: compared(
        judges.fig1_converges,
        {"lml": (-1.0,), "limit": (0.0,), "margin": (0.3,)},
        convergence(0.0, 0.1),
    ),
    "results of table 2": lambda: compared(
        language_judges.table2,
        {"pretrained": (-1.0,)},
        of_rates([-1.0] * 99) + metrics("area", [-1.0]),
    ),
    "points of an LML beside a score": lambda: compared(
        judges.fig2_biased,
        {"least_bias": (3.0,), "most_change": (0.5,)},
        shortened(curve("mpt", [0.0] * 9, SEEDS[0]) + curve("lml", [0.0] * 9, SEEDS[0])),
    ),
    "points of an LML beside a bound": lambda: compared(
        judges.fig3_linear, {"least_rise": (8.0,), "gap": (4.0,)}, shortened(linear_vaes())
    ),
    "epochs of a seed": lambda: compared(
        judges.fig3_vae,
        {"least_rise": (5.0,)},
        shortened(heldout([1.0] * 3, "elbo", 0.0, 0.0) + heldout([1.0] * 3, "mpt", 0.0, 0.0)),
        heldout([1.0] * 3, None, 0.0, 0.0),
    ),
    "sizes of a seed": lambda: compared(
        judges.fig4_long_tail,
        {"difference": (0.05,), "margin": (0.7,), "tail_from": (0.9,)},
        shortened(scores([-1.0] * 20)),
    ),
    "pairs": lambda: compared(
        language_judges.uniform_leads, {"least_lead": (0.5,)}, *pairs([1.0, 2.0])
    ),
}


@pytest.mark.parametrize("what", TOO_FEW)
def test_too_few_results_are_refused(what: str) -> None:
    with pytest.raises(ValueError, match=r"zip\(\)"):
        TOO_FEW[what]()
