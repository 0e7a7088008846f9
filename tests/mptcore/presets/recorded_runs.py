"""Results of recorded runs of the presets that are too long for a test, as rows of records."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mptcore.presets import PRESETS
from mptcore.specs.families.masked_lm import PAPER_RATES
from mptcore.stats import t_quantile

Row = dict[str, Any]
SEEDS = (4, 44, 444, 4444, 44444)


def metrics(name: str, values: Sequence[float], std_err: float = 0.0, **labels: Any) -> list[Row]:
    """Metrics of the first seeds, one value each."""
    return [
        {"record": "metric", "name": name, "value": value, "std_err": std_err}
        | {"labels": {"seed": seed, **labels}}
        for seed, value in zip(SEEDS, values, strict=False)
    ]


def ends(series: str, first: Sequence[float], last: Sequence[float], **labels: Any) -> list[Row]:
    """The first and the last point of a curve for the first seeds."""
    return [
        {"record": "point", "series": series, "labels": {"seed": seed, **labels}}
        | {"x": x, "value": values[i], "std_err": 0.1, "n": 9}
        for x, values in enumerate((first, last))
        for i, seed in enumerate(SEEDS[: len(values)])
    ]


def scores(values: Mapping[float, float], errors: Mapping[float, float]) -> list[Row]:
    """A curve with these values and errors, by rates."""
    return [
        {"record": "point", "series": "score_by_rate", "labels": {"seed": SEEDS[0]}, "x": x}
        | {"value": values[x], "std_err": error, "n": 9}
        for x, error in errors.items()
    ]


def fig3_linear() -> Iterator[list[Row]]:
    start = [-208.12, -208.06, -208.08, -208.24, -208.11]
    mpt = [-178.27, -178.37, -178.44, -178.56, -178.26]
    elbo = [-177.91, -177.56, -177.59, -177.56, -177.56]
    bound = [-219.0] * 5, [-179.26, -179.07, -179.25, -179.05, -179.02]
    yield [
        *(row for name, last in (("mpt", mpt), ("elbo", elbo))
          for row in metrics("lml", last, objective=name)
          + ends("lml", start, last, objective=name)),
        *ends("elbo", *bound, objective="elbo"),
    ]  # fmt: skip


def fig3_vae(short: float = 0.0) -> Iterator[list[Row]]:
    """The ELBO's LML is less by `short` than in the recorded run, where the claim did not hold."""

    def heldout(last: Sequence[float], **labels: Any) -> list[Row]:
        linear = metrics("lml_heldout", [134.93] * 3, model="baseline", **labels)
        return linear + ends("lml_heldout", [-146.28, -143.18, -136.51], last, **labels)

    mpt, elbo = [216.71, 219.35, 219.77], [232.89 - short, 231.20 - short, 230.84 - short]
    yield heldout(mpt, objective="mpt") + heldout(elbo, objective="elbo")
    yield heldout([213.43, 208.69, 212.27])


def fig5_left() -> Iterator[list[Row]]:
    yield [
        *metrics("mpt", [-17.019, -17.301, -17.399, -17.235, -17.189], model="model"),
        *metrics("mpt", [-17.020, -17.226, -17.330, -17.202, -17.175], model="baseline"),
        *metrics("mpt", [-252.83, -246.51, -247.68, -246.28, -230.13], epoch=0),
    ]


def bert_on_glue(name: str) -> Iterator[list[Row]]:
    """The published areas, and made-up curves, with the errors of 20 sentences, far fewer than GLUE
    has."""
    errors = dict.fromkeys(PAPER_RATES, 0.1)
    falling = {x: -1 - 5 * x**8 for x in PAPER_RATES}
    for weights, curve in (("pretrained", falling), ("random", dict.fromkeys(errors, -10.4))):
        (area,) = PRESETS[name].published.get(weights, (-5000.0,))
        yield scores(curve, errors) + metrics("area", [area], 2.0)


def small_bert() -> Iterator[list[Row]]:
    """A made-up curve with the errors of a run."""
    rates = (0.1, 0.2, 0.3, 0.4, 0.5, 0.99)
    errors = dict(zip(rates, (0.068, 0.052, 0.042, 0.034, 0.028, 0.005), strict=True))
    yield scores({x: -4 - 2 * x**8 for x in rates}, errors)


def uniform_against_fixed() -> Iterator[list[Row]]:
    areas = [
        -914.42,
        -935.68,
        -904.47,
        -952.17,
        -877.45,
        -943.17,
        -932.51,
        -927.98,
        -904.60,
        -948.36,
    ]
    for i, area in enumerate(areas):
        (row,) = metrics("area", [area], 3.5)
        yield [{**row, "labels": {"seed": SEEDS[i // 2]}}]


def coherence() -> Iterator[list[Row]]:
    for spread, std_err in ((0.2286, 0.0211), (0.3734, 0.0245)):
        yield metrics("any_order_spread_per_token", [spread], std_err)


def unbiased_rate() -> Iterator[list[Row]]:
    """Each figure with the half width that the recorded run has."""
    recorded = {
        1: {15: (2.35, 0.17), 65: (1.65, 0.15), 90: (-1.90, 0.89)},
        5: {15: (12.4, 0.10), 65: (7.62, 0.49), 90: (-17.7, 1.47)},
        20: {15: (47.7, 0.62), 65: (19.7, 1.85), 80: (-53.9, 2.07)},
        50: {15: (103.0, 0.92), 40: (63.4, 0.89), 60: (-48.2, 1.61)},
    }
    for figures in recorded.values():
        yield [row for x, figure in figures.items() for row in over_seeds("bias", x, *figure)]


def over_seeds(series: str, x: float, mean: float, half_width: float) -> list[Row]:
    """A point for each of five seeds, with this mean and this one-sided 95 % interval."""
    std_err = half_width / t_quantile(0.95, 4)
    spread = [std_err * math.sqrt(5) * z for z in (-1.2649, -0.6325, 0.0, 0.6325, 1.2649)]
    return [
        {"record": "point", "series": series, "labels": {"seed": seed}, "x": x, "n": 10}
        | {"value": mean + off, "std_err": 0.1}
        for seed, off in zip(SEEDS, spread, strict=True)
    ]


def unbiased_rate_of_texts() -> Iterator[list[Row]]:
    for area, low, high in ((-1047.3, -1.61, -2.73), (-1463.7, -1.79, -3.42)):
        curve = {0.15: (-1.1, 0.1), 0.35: (low, 0.07), 0.75: (high, 0.05)}
        points = [
            {"record": "point", "series": "score_by_rate", "labels": {"seed": SEEDS[0]}, "n": 9}
            | {"x": x, "value": value, "std_err": error}
            for x, (value, error) in curve.items()
        ]
        width = {"record": "metric", "name": "area_width", "labels": {"seed": SEEDS[0]}}
        yield [*points, *metrics("area", [area], 9.7), {**width, "value": 0.975, "std_err": 0.0}]


def designs() -> Iterator[list[Row]]:
    """Values whose standard deviations, relative to independent masks, are those of a run."""
    recorded = {
        "D = 50": (1.0, 0.76, 0.86, 2.8),
        "D = 200": (1.0, 0.77, 0.60, 3.3),
        "D = 784": (1.0, 1.0, 0.90, 9.0),
        "linear VAE": (1.0, 1.0, 3.0),
        "rxnfp-bert": (1.0, 1.0),
    }
    for name, spreads in recorded.items():
        metric = "area" if name == "rxnfp-bert" else "difference"
        for spread in spreads:
            yield [
                {"record": "metric", "name": metric, "labels": {"seed": seed}, "std_err": None}
                | {"value": spread * (1 if seed % 2 else -1)}
                for seed in range(200 if name.startswith("D = ") else 80)
            ]


def model_choice() -> Iterator[list[Row]]:
    """The number of latent dimensions that each score chose in a run has the value 1, others 0."""
    chosen = json.loads(Path(__file__).with_name("model_choice.json").read_text())
    area = {"mpt_heldout": "mpt_heldout", "lml_heldout": "lml_heldout", "mpt": "mpt", "lml": "bic"}
    for kind in ("small_noise", "large_noise"):
        for names in (area, {"biased_score_heldout": "biased_score_heldout"}):
            for latent_dim in range(1, 7):
                yield [
                    {"record": "metric", "name": metric, "labels": {"seed": seed}, "std_err": 0.0}
                    | {"value": 100.0 * (chosen[kind][rule][seed] == str(latent_dim))}
                    for metric, rule in names.items()
                    for seed in range(200)
                ]


def training_rates() -> Iterator[list[Row]]:
    """The last LML of twenty starts, as in a run but for its digits."""
    recorded = json.loads(Path(__file__).with_name("training_rates.json").read_text())
    for last in recorded.values():
        yield [
            {"record": "metric", "name": "lml", "labels": {"seed": seed}, "std_err": 0.0}
            | {"value": value}
            for seed, value in enumerate(last, 2001)
        ]


def training_rates_vae() -> Iterator[list[Row]]:
    for level, spread in ((-18.2, 0.05), (-18.6, 0.15), (-18.5, 0.15)):
        yield [
            {"record": "metric", "name": "lml_heldout", "labels": {"seed": seed}, "std_err": 0.01}
            | {"value": level + spread * ((seed % 5) - 2) / 2}
            for seed in range(2001, 2011)
        ]


def coherent_training() -> Iterator[list[Row]]:
    for i, spread in enumerate((0.05, 0.1, 0.06, 0.09, 0.05, 0.12, 0.045, 0.08, 0.06, 0.11)):
        (row,) = metrics("any_order_spread_per_token", [spread], 0.01)
        yield [{**row, "labels": {"seed": SEEDS[i // 2]}}]


def swapped_atoms() -> Iterator[list[Row]]:
    yield metrics("accuracy", [0.983], 0.0264) + metrics("groups_scored", [60.0])


def blimp() -> Iterator[list[Row]]:
    yield metrics("accuracy", [0.865])


def proteingym() -> Iterator[list[Row]]:
    yield from (metrics("spearman", [rank]) for rank in (0.557, 0.514, 0.496, 0.349, 0.248))


RECORDED: dict[str, Callable[[], Iterator[list[Row]]]] = {
    "blimp": blimp,
    "fig3-linear-mnist": fig3_linear,
    "fig3-linear-fmnist": fig3_linear,
    "fig3-vae-mnist": fig3_vae,
    "fig3-vae-fmnist": fig3_vae,
    "fig5-left": fig5_left,
    "small-bert-rotten-tomatoes": small_bert,
    "proteingym": proteingym,
    "swapped-atoms": swapped_atoms,
    "uniform-against-fixed": uniform_against_fixed,
    "coherence": coherence,
    "coherent-training": coherent_training,
    "unbiased-rate": unbiased_rate,
    "unbiased-rate-molecules": unbiased_rate_of_texts,
    "mask-designs": designs,
    "model-choice": model_choice,
    "training-rates": training_rates,
    "training-rates-vae": training_rates_vae,
    **{
        name: partial(bert_on_glue, name)
        for name in PRESETS
        if name.startswith(("table2-", "fig5-right"))
    },
}
"""Rows of each spec, by preset."""
