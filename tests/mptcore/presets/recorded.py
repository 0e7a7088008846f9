"""Presets as users get them, and their figures on made-up results, for a comparison with
`recorded.json`. If you change a preset deliberately, record it again with
`.venv/bin/python -m tests.mptcore.presets.recorded`."""

import json
from collections.abc import Iterator
from dataclasses import astuple
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

from mptcore.presets import PRESETS, Preset, Results
from mptcore.specs import ExperimentSpec, MaskedLmExperiment
from mptcore.specs.families.masked_lm import PAPER_RATES

FILE = Path(__file__).with_name("recorded.json")
Row = dict[str, Any]

METRICS = (
    *("lml", "mpt", "difference", "bias", "biased_score", "area", "spearman"),
    *("any_order_spread_per_token", "lml_heldout", "mpt_heldout", "biased_score_heldout"),
)
SERIES = ("lml", "mpt", "elbo", "lml_heldout", "convergence", "score", "bias", "score_by_rate")
LABELS: tuple[Row, ...] = (
    {},
    {"epoch": 0},
    {"model": "model"},
    {"model": "baseline"},
    {"objective": "mpt"},
    {"objective": "elbo"},
    {"objective": "mpt", "model": "baseline"},
)


def digest(value: object) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def described(preset: Preset) -> dict[str, Any]:
    """Return what users see of a preset, with a digest of the JSON of its specs."""
    return {
        "title": preset.title,
        "statement": preset.statement,
        "published": {name: [*values] for name, values in preset.published.items()},
        "needs": preset.needs,
        "specs": digest([spec.model_dump(mode="json") for spec in preset.specs]),
    }


Figure = tuple[str, float, float, float, float, float, float, str]
"""The fields of a comparison, in their order, and its outcome."""


def figures(preset: Preset) -> list[Figure]:
    """Return the figures of the preset's verdict on made-up results."""
    results = [
        Results.of_records(made_up(spec, Random(part))) for part, spec in enumerate(preset.specs)
    ]
    verdict = preset.verdict(results)
    assert verdict.missing is None, verdict.missing
    return [(*astuple(comparison), comparison.outcome) for comparison in verdict.comparisons]


def made_up(spec: ExperimentSpec, random: Random) -> Iterator[Row]:
    """Yield metrics and curves that a run of a spec may have, and others, with random values."""
    for seed in spec.seeds:
        for labels in ({"seed": seed, **more} for more in LABELS):
            for name in METRICS:
                metric = {"record": "metric", "name": name, "labels": labels}
                yield {**metric, "value": random.gauss(-8, 1), "std_err": random.uniform(0.1, 1)}
            if len(spec.seeds) > 5:
                continue  # no preset with many seeds has curves
            for series in SERIES:
                point = {"record": "point", "series": series, "labels": labels, "n": 9}
                for x in positions(spec, series):
                    error = random.uniform(0.1, 1)
                    yield {**point, "x": x, "value": random.gauss(-8, 1), "std_err": error}
        for name, value in (
            ("accuracy", random.random()), ("groups_scored", 60.0), ("area_width", 0.9)
        ):  # fmt: skip
            metric = {"record": "metric", "name": name, "labels": {"seed": seed}}
            yield {**metric, "value": value, "std_err": 0.1}


def positions(spec: ExperimentSpec, series: str) -> list[Any]:
    """Return the sizes of masks, the rates or the epochs of a curve."""
    if series == "score_by_rate":
        rates = spec.evaluate.masks.rates if isinstance(spec, MaskedLmExperiment) else PAPER_RATES
        return [*rates]
    return list(range(1, 1 + getattr(spec.data, "dim", 10)))


def lines() -> Iterator[str]:
    """Yield a JSON object for each preset, with a line for each figure."""
    for name, preset in PRESETS.items():
        rows = ",\n ".join(json.dumps(row, ensure_ascii=False) for row in figures(preset))
        preset_text = json.dumps({"name": name, **described(preset)}, ensure_ascii=False)
        yield f'{preset_text[:-1]}, "figures": [\n {rows}\n]}}'


if __name__ == "__main__":
    FILE.write_text("[\n" + ",\n".join(lines()) + "\n]\n")
