"""Verdicts on results that do not support the claim of a preset."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mptcore.presets import PRESETS, Results
from mptcore.presets.checks import Bic, Choice, Run
from mptcore.specs import MaskedLmExperiment
from tests.mptcore.presets import recorded_runs as recorded

SEEDS = (4, 44, 444, 4444, 44444)
VAE_SEEDS = SEEDS[:3]
PAPER_LANGUAGE = [name for name in PRESETS if name.startswith(("table2-", "fig5-right"))]
DEEP = ["fig3-vae-mnist", "fig3-vae-fmnist"]
Row = dict[str, Any]


def verdict(name: str, rows: Iterator[list[Row]], change: Callable[[Row, int], Row]) -> str:
    """The verdict on recorded results after a change of each record; it is given the number of the
    spec too."""
    results = [
        Results.of_records([change(row, spec) for row in records])
        for spec, records in enumerate(rows)
    ]
    return PRESETS[name].verdict(results).verdict


def shifted(spec: int, x: float, by: float) -> Callable[[Row, int], Row]:
    """Move the values at one place of one experiment's curve."""

    def change(row: Row, of: int) -> Row:
        is_meant = of == spec and row.get("x") == x
        return {**row, "value": row["value"] + by} if is_meant else row

    return change


@pytest.mark.parametrize(
    ("spec", "x", "by", "expected"),
    [
        (0, 15, -2.3, "cannot tell"),
        (0, 15, -2.6, "differs"),
        (1, 65, -8.2, "differs"),
        (2, 80, 57.0, "differs"),
        (3, 40, -65.0, "differs"),
        (3, 60, 50.0, "differs"),
    ],
)
def test_a_bias_of_the_other_sign_differs(spec: int, x: float, by: float, expected: str) -> None:
    rows = recorded.unbiased_rate()
    assert verdict("unbiased-rate", rows, shifted(spec, x, by)) == expected


@pytest.mark.parametrize(
    ("spec", "x", "by"),
    [(0, 0.15, -0.7), (1, 0.15, -1.6), (0, 0.35, -0.7), (1, 0.35, -1.4), (0, 0.75, 0.8)],
)
def test_a_score_of_texts_on_the_other_side_of_the_mean_differs(
    spec: int, x: float, by: float
) -> None:
    rows = recorded.unbiased_rate_of_texts()
    assert verdict("unbiased-rate-molecules", rows, shifted(spec, x, by)) == "differs"


def test_the_mean_score_is_the_area_over_its_width() -> None:
    """With twice the width the mean is half as low, and the score at 15 % is below it."""

    def wider(row: Row, spec: int) -> Row:
        return {**row, "value": 1.95} if row.get("name") == "area_width" else row

    rows = recorded.unbiased_rate_of_texts()
    assert verdict("unbiased-rate-molecules", rows, wider) == "differs"


@pytest.mark.parametrize(
    ("spec", "factor", "expected"),
    [
        (1, 2.2, "differs"),  # balanced
        (5, 1.2, "cannot tell"),
        (5, 2.0, "differs"),
        (6, 2.0, "differs"),  # adaptive
        (10, 2.0, "differs"),
        (3, 0.4, "differs"),  # nested
        (12, 0.78, "cannot tell"),  # the VAE's independent masks
        (14, 0.4, "differs"),
        (16, 1.8, "differs"),  # a language model's adaptive masks
    ],
)
def test_designs_are_judged_by_their_spread(spec: int, factor: float, expected: str) -> None:
    def scaled(row: Row, of: int) -> Row:
        return {**row, "value": factor * row["value"]} if of == spec else row

    assert verdict("mask-designs", recorded.designs(), scaled) == expected


def test_the_error_of_a_log_of_a_standard_deviation() -> None:
    """The half width of a figure is that of the difference of two such logs of 200 or 80
    values."""
    results = [Results.of_records(rows) for rows in recorded.designs()]
    comparisons = PRESETS["mask-designs"].verdict(results).comparisons
    widths = [one.half_width for one in comparisons]
    assert widths[0] == pytest.approx(1.644854 * math.sqrt(2 / (2 * 199)))
    assert widths[-1] == pytest.approx(1.644854 * math.sqrt(2 / (2 * 79)))


@pytest.mark.parametrize(
    ("of", "by", "expected"),
    [(0, -1.0, "differs"), (0, -0.28, "cannot tell"), (1, 1.0, "differs"), (2, 0.7, "differs")],
)
def test_a_third_must_lead_in_the_training_of_a_vae(of: int, by: float, expected: str) -> None:
    def moved(row: Row, spec: int) -> Row:
        return {**row, "value": row["value"] + by} if spec == of else row

    assert verdict("training-rates-vae", recorded.training_rates_vae(), moved) == expected


@pytest.mark.parametrize(("by", "expected"), [(0.045, "cannot tell"), (0.15, "differs")])
def test_training_with_all_sizes_must_make_orders_agree(by: float, expected: str) -> None:
    def moved(row: Row, spec: int) -> Row:
        return {**row, "value": row["value"] + by} if spec % 2 == 0 else row

    assert verdict("coherent-training", recorded.coherent_training(), moved) == expected


def chosen(metric: str, kind: str, latent_dim: int, seeds: range) -> Callable[[Row, int], Row]:
    """Let a score of one kind of data sets choose another number of dimensions for some of them."""

    def change(row: Row, of: int) -> Row:
        is_meant = (
            row["name"] == metric
            and (of < 12) == (kind == "small")
            and row["labels"]["seed"] in seeds
        )
        return {**row, "value": 100.0 * (of % 6 == latent_dim - 1)} if is_meant else row

    return change


@pytest.mark.parametrize(
    ("metric", "kind", "latent_dim", "count", "expected"),
    [
        ("mpt_heldout", "small", 4, 40, "differs"),
        ("mpt_heldout", "large", 1, 60, "differs"),
        ("lml_heldout", "small", 2, 45, "differs"),
        ("lml_heldout", "large", 2, 70, "differs"),
        ("biased_score_heldout", "small", 5, 45, "differs"),
        ("biased_score_heldout", "large", 5, 70, "differs"),
        ("biased_score_heldout", "large", 5, 20, "cannot tell"),
        ("mpt", "small", 5, 8, "cannot tell"),
        ("mpt", "large", 3, 30, "differs"),
        ("lml", "small", 4, 60, "differs"),
        ("lml", "large", 3, 200, "differs"),
    ],
)
def test_a_score_that_chooses_otherwise_differs(
    metric: str, kind: str, latent_dim: int, count: int, expected: str
) -> None:
    change = chosen(metric, kind, latent_dim, range(count))
    assert verdict("model-choice", recorded.model_choice(), change) == expected


@pytest.mark.parametrize(
    ("of", "spread", "expected"),
    [(0, 0.05, "differs"), (1, 0.05, "differs"), (0, 0.11, "cannot tell")],
)
def test_orders_that_agree_differ_from_the_claim(of: int, spread: float, expected: str) -> None:
    def changed(row: Row, spec: int) -> Row:
        return {**row, "value": spread} if spec == of else row

    assert verdict("coherence", recorded.coherence(), changed) == expected


def test_bic_counts_the_free_parameters() -> None:
    """With a likelihood that rises by a little more, or less, than the penalty of a dimension."""
    latent_dims = [1, 2, 3, 4, 5, 6]
    bic = Bic(observations=80, dim=20, latent_dims=latent_dims)
    free = [20 * k - k * (k - 1) / 2 + 21 for k in latent_dims]
    for more, expected in ((1e-6, 6), (-1e-6, 1)):
        lmls = [count * (math.log(80) / 2 / 80 + more) for count in free]
        runs = [
            Run(Results(metrics={("lml", frozenset({("seed", 3)})): (lml, 0.0)}), (3,))
            for lml in lmls
        ]
        assert Choice(parts=latent_dims, metric="lml", bic=bic).of(runs) == [expected]


@pytest.mark.parametrize(
    ("spec", "by", "expected"),
    [
        (1, 0.1, "differs"),
        (1, -0.1, "differs"),
        (1, 0.05, "cannot tell"),
        (2, 1.5, "differs"),
        (3, 1.5, "differs"),
        (4, 0.5, "differs"),
    ],
)
def test_masks_that_train_otherwise_differ(spec: int, by: float, expected: str) -> None:
    def shift(row: Row, of: int) -> Row:
        return {**row, "value": row["value"] + by} if of == spec else row

    assert verdict("training-rates", recorded.training_rates(), shift) == expected


def made_up(area: float, curve: list[float]) -> Results:
    """Replaces a run of BERT on GLUE."""
    labels = {"seed": 4}
    metric = {"record": "metric", "name": "area", "value": area, "std_err": 1.0, "labels": labels}
    rows = [
        {"record": "point", "series": "score_by_rate", "labels": labels}
        | {"x": x / 100, "value": value, "std_err": 0.1, "n": 9}
        for x, value in enumerate(curve, 1)
    ]
    return Results.of_records([metric, *rows])


@pytest.mark.parametrize("name", PAPER_LANGUAGE)
def test_language_models_are_judged_by_curve_and_area(name: str) -> None:
    preset = PRESETS[name]
    falling = [-1 - 5 * (x / 99) ** 8 for x in range(99)]
    areas = [preset.published.get(kind, (0.0,))[0] for kind in ("pretrained", "random")]
    pretrained, random = made_up(areas[0], falling), made_up(areas[1], [-10.4] * 99)
    assert preset.verdict([pretrained, random]).verdict == "agrees"
    assert preset.verdict([random, pretrained]).verdict == "differs"
    assert preset.verdict([random, random]).verdict == "differs"
    fewer = preset.verdict([made_up(areas[0], falling[:98]), random])
    assert fewer.verdict == "incomplete"
    assert "the paper's 99 rates" in (fewer.missing or "")


def sentences(curve: Callable[[float], float]) -> str:
    """The verdict on a small BERT with this curve."""
    (spec,) = PRESETS["small-bert-rotten-tomatoes"].specs
    assert isinstance(spec, MaskedLmExperiment)
    point = {"record": "point", "series": "score_by_rate", "labels": {"seed": 4}, "n": 9}
    scores = [
        {**point, "x": x, "value": curve(x), "std_err": 0.02} for x in spec.evaluate.masks.rates
    ]
    results = Results.of_records(scores)
    return PRESETS["small-bert-rotten-tomatoes"].verdict([results]).verdict


def test_a_small_bert_is_judged_by_its_gain_and_its_fall() -> None:
    assert sentences(lambda x: -4 - 2 * x**8) == "agrees"
    assert sentences(lambda x: -9.5 - 2 * x**8) == "differs"  # it learned too little
    assert sentences(lambda x: -6.9 - 0.05 * x**8) == "cannot tell"  # within its error
    assert sentences(lambda x: -4 - 2 * x**0.5) == "differs"  # no long tail


def areas_of_pairs(leads: list[float]) -> list[Results]:
    """Areas of runs with uniform sizes and with a fixed rate, alternately."""
    return [
        made_up_area(seed, area)
        for seed, lead in zip(SEEDS, leads, strict=True)
        for area in (-900 - seed % 7 * 10 + lead, -900 - seed % 7 * 10)
    ]


def made_up_area(seed: int, area: float) -> Results:
    metric = {"record": "metric", "name": "area", "value": area, "std_err": 1.0}
    return Results.of_records([{**metric, "labels": {"seed": seed}}])


def test_uniform_sizes_must_lead_by_more_than_their_paired_error() -> None:
    """The spread of the areas over seeds does not matter; Student's interval for five pairs."""
    preset = PRESETS["uniform-against-fixed"]
    verdict = preset.verdict(areas_of_pairs([8.0, 9.0, 10.0, 11.0, 12.0]))
    assert verdict.verdict == "agrees"
    (lead,) = verdict.comparisons
    assert lead.measured == pytest.approx(10)
    assert lead.half_width == pytest.approx(1.5075, abs=1e-4)  # by a table of Student's t
    assert preset.verdict(areas_of_pairs([-8.0, 9.0, 1.0, 11.0, 12.0])).verdict == "cannot tell"
    assert preset.verdict(areas_of_pairs([-8.0, -9.0, -10.0, -11.0, -12.0])).verdict == "differs"


def fig3_results(ends: dict[str, float], elbo_above: float = -2.0, final: bool = True) -> Results:
    """Made up: from −200, with some noise from seed to seed."""
    rows: list[dict[str, Any]] = []
    for seed in SEEDS:
        for objective, end in ends.items():
            labels = {"seed": seed, "objective": objective}
            value = end + seed % 3 * 0.1
            metric = {"name": "lml", "value": value if final else None, "std_err": 0.0}
            rows.append({"record": "metric", "labels": labels, **metric})
            for x, lml in enumerate((-200.0, value)):
                point = {"record": "point", "labels": labels, "x": x, "std_err": 0.1, "n": 1}
                rows.append({**point, "series": "lml", "value": lml})
                rows.append({**point, "series": "elbo", "value": lml + elbo_above})
    return Results.of_records(rows)


@pytest.mark.parametrize("name", ["fig3-linear-mnist", "fig3-linear-fmnist"])
def test_linear_vaes_are_judged_by_their_ends_and_the_bound(name: str) -> None:
    def verdict(*given: Any) -> str:
        return PRESETS[name].verdict([fig3_results(*given)]).verdict

    assert verdict({"mpt": -180.0, "elbo": -178.0}) == "agrees"
    assert verdict({"mpt": -183.0, "elbo": -178.0}) == "differs"
    assert verdict({"mpt": -198.0, "elbo": -199.0}) == "differs"
    assert verdict({"mpt": -180.0, "elbo": -178.0}, -0.01) == "agrees"
    assert verdict({"mpt": -180.0, "elbo": -178.0}, 0.01) == "differs"
    assert verdict({"mpt": -180.0, "elbo": -178.0}, -2.0, False) == "incomplete"


def vae_results(
    ends: dict[str, float], on_the_way: float, ppca: float, spread: float, labelled: bool
) -> Results:
    """Made up: the ends by objective, and their curves. Values that are compared with the last LML
    of a seed have this spread over seeds."""
    rows: list[dict[str, Any]] = []
    for seed, nudge in zip(VAE_SEEDS, (-spread, 0.0, spread), strict=True):
        for objective, end in ends.items():
            labels = {"seed": seed, **({"objective": objective} if labelled else {})}
            last = end + nudge if objective == "elbo" else end
            for x, value in enumerate((-200.0, on_the_way + nudge, last)):
                point = {"record": "point", "series": "lml_heldout", "x": x, "value": value}
                rows.append({**point, "labels": labels, "std_err": 0.01, "n": 64})
            metric = {"record": "metric", "name": "lml_heldout", "value": ppca + nudge}
            rows.append({**metric, "labels": {**labels, "model": "baseline"}, "std_err": 0.0})
    return Results.of_records(rows)


def vae_verdict(
    name: str,
    *,
    mpt: float = 190.0,
    uniform: float = 190.0,
    elbo: float = 190.0,
    on_the_way: float = 180.0,
    uniform_on_the_way: float = 180.0,
    ppca: float = 130.0,
    spread: float = 3.0,
) -> str:
    fixed = vae_results({"mpt": mpt, "elbo": elbo}, on_the_way, ppca, spread, True)
    other = vae_results({"mpt": uniform}, uniform_on_the_way, ppca, spread, False)
    return PRESETS[name].verdict([fixed, other]).verdict


REACH = 2.919986 * 3.0 / math.sqrt(3)
"""One side of the 95 % interval of a mean over three seeds with a spread of 3."""
BOUND = 10 - REACH
"""Within the margin of 10 nats."""


@pytest.mark.parametrize("name", DEEP)
def test_deep_vaes_that_keep_every_bound_agree(name: str) -> None:
    assert vae_verdict(name) == "agrees"


@pytest.mark.parametrize("name", DEEP)
@pytest.mark.parametrize(
    ("figure", "bound"),
    [
        ("on_the_way", 190 + BOUND),
        ("uniform_on_the_way", 190 + BOUND),
        ("mpt", 190 - BOUND),
        ("uniform", 190 - BOUND),
        ("elbo", 190 + BOUND),
        ("ppca", 190 - REACH),
    ],
)
def test_deep_vaes_are_judged_at_each_bound(name: str, figure: str, bound: float) -> None:
    outwards = -0.01 if figure in ("mpt", "uniform") else 0.01
    assert vae_verdict(name, **{figure: bound - outwards}) == "agrees"
    assert vae_verdict(name, **{figure: bound + outwards}) == "cannot tell"


@pytest.mark.parametrize("name", DEEP)
def test_a_deep_vae_that_hardly_rises_differs(name: str) -> None:
    low = {"elbo": -230.0, "ppca": -250.0}
    flat = {"mpt": -194.9, "on_the_way": -200.0, "uniform": -194.9, "uniform_on_the_way": -200.0}
    assert vae_verdict(name, **low, **flat) == "agrees"
    assert vae_verdict(name, **low, **{**flat, "mpt": -195.1}) == "differs"
    assert vae_verdict(name, **low, **{**flat, "uniform": -195.1}) == "differs"


@pytest.mark.parametrize("name", DEEP)
def test_a_larger_spread_over_seeds_makes_no_verdict_easier(name: str) -> None:
    assert vae_verdict(name, elbo=193.0, spread=3.0) == "agrees"
    assert vae_verdict(name, elbo=193.0, spread=6.0) == "cannot tell"
    assert vae_verdict(name, elbo=205.0, spread=1.0) == "differs"
    assert vae_verdict(name, elbo=205.0, spread=6.0) == "cannot tell"
