"""Each tolerance of a verdict: a figure just inside it agrees, one just outside differs."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

import pytest

from mptcore.presets import PRESETS, Results
from mptcore.specs.families.masked_lm import PAPER_RATES

Row = dict[str, Any]
SEEDS = (4, 44, 444, 4444, 44444)


def metrics(name: str, values: Sequence[float], std_err: float = 0.0) -> Iterator[Row]:
    """Metrics of each seed."""
    for seed, value in zip(SEEDS, values, strict=True):
        row = {"record": "metric", "name": name, "labels": {"seed": seed}}
        yield {**row, "value": value, "std_err": std_err}


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


def verdict(name: str, published: Mapping[str, tuple[float, ...]], *rows: list[Row]) -> str:
    """The verdict of a preset with other published values on these rows."""
    preset = replace(PRESETS[name], published={**PRESETS[name].published, **published})
    found = preset.verdict([Results.of_records(of_spec) for of_spec in rows])
    assert found.missing is None, found.missing
    return found.verdict


@pytest.mark.parametrize(("figure", "tolerance"), [("lml", 0.005), ("mpt", 0.005), ("sd", 0.015)])
@pytest.mark.parametrize("sign", [-1, 1])
def test_table1(figure: str, tolerance: float, sign: int) -> None:
    published = {"lml": (-60.34,), "mpt": (-60.44, -60.22, -60.34), "sd": (0.47, 0.12, 0.03)}

    def of(off: float) -> str:
        off_by = {"lml": 0.0, "mpt": 0.0, "sd": 0.0, figure: sign * off}
        results = [
            [
                *metrics("lml", [-60.34 + off_by["lml"]] * 5),
                *metrics("mpt", spread(mpt + off_by["mpt"], sd + off_by["sd"])),
            ]
            for mpt, sd in zip(published["mpt"], published["sd"], strict=True)
        ]
        return verdict("table1", published, *results)

    assert of(0.98 * tolerance) == "agrees"
    assert of(1.02 * tolerance) == "differs"


def fig1(lml: float, last: float, std_err: float = 0.1) -> str:
    rows = [*metrics("lml", [-5.0 + lml] * 5), *curves("convergence", [9.0, last], std_err)]
    published = {"lml": (-5.0,) * 5, "limit": (0.0,), "margin": (0.5,)}
    return verdict("fig1-left", published, rows)


@pytest.mark.parametrize("sign", [-1, 1])
def test_fig1_left_and_center(sign: int) -> None:
    assert fig1(sign * 5.9e-5, 0.0) == "agrees"
    assert fig1(sign * 6.1e-5, 0.0) == "differs"
    assert fig1(0.0, sign * 0.30) == "agrees"  # 1.96 standard errors of 0.1 below the margin
    assert fig1(0.0, sign * 0.31) == fig1(0.0, sign * 0.69) == "cannot tell"
    assert fig1(0.0, sign * 0.70) == "differs"
    assert fig1(0.0, 0.0, 0.26) == "cannot tell"  # not the more easily the noisier it is


@pytest.mark.parametrize("figure", ["biased_score", "bias"])
@pytest.mark.parametrize("sign", [-1, 1])
def test_fig1_right(figure: str, sign: int) -> None:
    published = {"lml": (-121.0,), "biased_score": (-114.0,), "bias": (7.0,), "std_err": (0.03,)}
    reach = 1.96 * math.hypot(0.04, 0.03)  # the mean of five with 0.04 √5 each

    def of(off: float, lml: float = 0.0) -> str:
        values = {"biased_score": -114.0, "bias": 7.0}
        values[figure] += sign * off
        rows = [row for name, value in values.items()
                for row in metrics(name, [value] * 5, 0.04 * math.sqrt(5))]  # fmt: skip
        rows += metrics("lml", [-121.0 + lml] * 5)
        return verdict("fig1-right", {**published, "margin": (0.2,)}, rows)

    assert of(0.99 * (0.2 - reach)) == "agrees"
    assert of(1.01 * (0.2 - reach)) == of(0.99 * (0.2 + reach)) == "cannot tell"
    assert of(1.01 * (0.2 + reach)) == "differs"
    assert of(0.0, sign * 5.9e-4) == "agrees"
    assert of(0.0, sign * 6.1e-4) == "differs"


@pytest.mark.parametrize(("name", "below"), [("fig2-left", 0.5), ("fig2-right", 1.5)])
def test_fig2_rises_to_its_maximum(name: str, below: float) -> None:
    published = {"maximum_lml": (-6.0,), "true_lml": (-6.5,), "margin": (1.5,)}
    published |= {"least_short": (0.2,), "expected_short": (0.4,)}
    published |= {"least_rise": (2.0,), "expected_rise": (2.5,)}

    def of(last: float, first: float = -12.0) -> str:
        return verdict(name, published, curves("lml", [first, -6.0 + last]))

    assert of(-0.99 * below) == "agrees"
    assert of(-1.01 * below) == "differs"
    assert of(-0.3, first=-8.31) == "agrees"
    assert of(-0.3, first=-8.29) == "differs"
    highest = [-9.0, -6.0 + 0.9e-3, -6.3], [-9.0, -6.0 + 1.1e-3, -6.3]
    found = [verdict(name, published, curves("lml", values)) for values in highest]
    assert found == ["agrees", "differs"]


def test_fig2_right_is_slower_than_with_all_sizes() -> None:
    published = {"maximum_lml": (-6.0,), "margin": (1.5,), "least_rise": (2.0,)}
    published |= {"expected_rise": (2.5,), "least_short": (0.2,), "expected_short": (0.4,)}
    for last, expected in ((-6.21, "agrees"), (-6.19, "differs")):
        rows = curves("lml", [-9.0, last])
        assert verdict("fig2-right", published, rows) == expected


@pytest.mark.parametrize("sign", [-1, 1])
def test_fig5_left(sign: int) -> None:
    def of(gap: float) -> str:
        rows = []
        for labels, value in (({"epoch": 0}, -30.0), ({"model": "model"}, -20 + gap),
                              ({"model": "baseline"}, -20.0)):  # fmt: skip
            for row in metrics("mpt", [value] * 5):
                rows.append({**row, "labels": {**row["labels"], **labels}})
        published = {"gap_to_truth": (0.0,), "margin": (0.5,)}
        published |= {"least_rise": (5.0,), "expected_rise": (9.0,)}
        return verdict("fig5-left", published, rows)

    assert of(sign * 0.49) == "agrees"
    assert of(sign * 0.51) == "differs"


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
        return verdict(name, published, rows)

    assert of(0.1) == "agrees"
    assert of(9.0) == "cannot tell"


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("end", [-0.2, 0.4])
def test_fig4_right(end: float, sign: int) -> None:
    """The share of the fall up to 90 % that is below 50 % is from −0.2 to 0.4, in all seeds."""

    def of(share: float) -> str:
        curve = [0.0] * 10 + [-share] * 7 + [-1.0] * 3
        curve[9] = -share
        rows = [*curves("score", curve), *metrics("difference", [0.0] * 5)]
        published = {"difference": (0.0,), "margin": (0.6,), "decay_from": (0.5,)}
        published |= {"early": (0.1,), "early_margin": (0.3,)}
        return verdict("fig4-right", published, rows)

    inwards = math.copysign(0.01, 0.1 - end)
    assert of(end + inwards) == "agrees"
    assert of(end - inwards) == "differs"


def bert(curve: Sequence[float]) -> list[Row]:
    points = curves("score_by_rate", curve)
    return [{**row, "x": PAPER_RATES[row["x"] - 1]} for row in points]


def fig5_bert(pretrained: Sequence[float], random: Sequence[float]) -> str:
    published = {"flat_at": (-10.0,), "margin": (0.5,), "spread": (0.0,)}
    published |= {"least_fall": (2.0,), "expected_fall": (3.0,)}
    published |= {"least_late": (0.0,), "expected_late": (1.0,)}
    return verdict("fig5-right", published, bert(pretrained), bert(random))


FALLING = [-1 - 5 * (x / 98) ** 8 for x in range(99)]
FLAT = [-10.0] * 99


@pytest.mark.parametrize("sign", [-1, 1])
def test_fig5_right(sign: int) -> None:
    assert fig5_bert(FALLING, FLAT) == "agrees"
    assert fig5_bert(FALLING, [-10.0 + sign * 0.49] * 99) == "agrees"
    assert fig5_bert(FALLING, [-10.0 + sign * 0.51] * 99) == "differs"
    for third in (1, 2):

        def changed(off: float, third: int = third) -> list[float]:
            return [v + (sign * off if i // 33 == third else 0) for i, v in enumerate(FLAT)]

        assert fig5_bert(FALLING, changed(0.49)) == "agrees"
        assert fig5_bert(FALLING, changed(0.51)) == "differs"


def test_the_late_fall_of_bert_is_measured_over_the_last_tenth() -> None:
    """One that falls by 3 between 60 and 80 %, and by 1 at the start, has none at the end."""
    middle = [-1.0] + [-2.0] * 58 + [-2 - 3 * min(1.0, x / 20) for x in range(40)]
    assert fig5_bert(middle, FLAT) == "differs"
    late = [-1.0] + [-2.0] * 88 + [-2 - 3 * x / 9 for x in range(10)]
    assert fig5_bert(late, FLAT) == "agrees"


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("sign", [-1, 1])
def test_table2(which: int, sign: int) -> None:
    """Areas agree within 5 %, less 1.96 errors: 2.77 of that of the masks of one run, or of the
    spread of random weights."""
    error = (1.0, 40.0)[which]

    def of(off: float) -> str:
        areas = [-1700.0, -5300.0]
        areas[which] += sign * off
        results = [[*bert(FLAT), *metrics("area", [area] * 5, 1.0)] for area in areas]
        published = {"pretrained": (-1700.0,), "random": (-5300.0,)}
        published |= {"share": (0.05,), "spread": (40.0,)}
        return verdict("table2-ax", published, *results)

    margin, reach = 0.05 * (1700, 5300)[which], 1.96 * math.sqrt(2) * error
    assert of(margin - 1.01 * reach) == "agrees"
    assert of(margin - 0.99 * reach) == of(margin + 0.99 * reach) == "cannot tell"
    assert of(margin + 1.01 * reach) == "differs"


@pytest.mark.parametrize("sign", [-1, 1])
def test_blimp(sign: int) -> None:
    """The accuracy may differ from the published one by a point of per cent."""

    def of(off: float) -> str:
        rows = [*metrics("accuracy", [0.865 + sign * off] * 5)]
        return PRESETS["blimp"].verdict([Results.of_records(rows)]).verdict

    assert of(0.0099) == "agrees"
    assert of(0.0101) == "differs"


@pytest.mark.parametrize("which", range(5))
@pytest.mark.parametrize("sign", [-1, 1])
def test_proteingym(which: int, sign: int) -> None:
    """Each rank correlation may differ by 0.01 from that of its own assay."""

    def of(off: float) -> str:
        found = [0.557, 0.514, 0.496, 0.349, 0.248]
        found[which] += sign * off
        rows = [[*metrics("spearman", [value] * 5)] for value in found]
        return PRESETS["proteingym"].verdict([*map(Results.of_records, rows)]).verdict

    assert of(0.0099) == "agrees"
    assert of(0.0101) == "differs"
