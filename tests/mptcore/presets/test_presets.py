"""Presets reproduce the published values, and their verdicts detect deviations."""

import json
import math
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch

from mptcore.data.dataset import load_arrays
from mptcore.estimation.masks import draw_masks
from mptcore.families.linear_gaussian.density import LowRankGaussian
from mptcore.presets import PRESETS, Results
from mptcore.protocol.records import encode
from mptcore.run import run
from mptcore.specs import (
    ExperimentSpec,
    FixedSize,
    MaskedLmExperiment,
    PlainText,
    PpcaData,
)
from tests.mptcore.presets.recorded import FILE, described, figures
from tests.mptcore.presets.recorded_runs import RECORDED, fig3_vae

SEEDS = (4, 44, 444, 4444, 44444)
PAPER_LANGUAGE = [name for name in PRESETS if name.startswith(("table2-", "fig5-right"))]
DEEP = ["fig3-vae-mnist", "fig3-vae-fmnist"]
MARGINS = ("margin", "early_margin", "most_change", "share")
SPREADS = ("std_err", "spread")
QUICK = sorted(set(PRESETS) - set(RECORDED))
"""Presets whose specs run in seconds. Others need a checkpoint or data of a hub, or minutes."""


@cache
def run_once(spec: ExperimentSpec) -> Results:
    """Run a spec on one thread, once even if several presets share it."""
    compute = spec.compute.model_copy(update={"threads": 1})
    records = run(spec.model_copy(update={"compute": compute}))
    return Results.of_records(json.loads(encode(i, one)) for i, one in enumerate(records, start=1))


@cache
def agreeing(name: str) -> list[Results]:
    """Results of a run that agrees: of the quick ones a run now, of others a recorded one."""
    preset = PRESETS[name]
    if name in QUICK:
        return [run_once(spec) for spec in preset.specs]
    rows = fig3_vae(short=20.0) if name in DEEP else RECORDED[name]()
    return [Results.of_records(of_spec) for of_spec in rows]


@pytest.mark.parametrize("name", PRESETS)
def test_right_values_agree(name: str) -> None:
    verdict = PRESETS[name].verdict(agreeing(name))
    assert [figure for figure in verdict.comparisons if not figure.agrees] == []
    assert verdict.verdict == "agrees", verdict.missing


@pytest.mark.parametrize(
    ("name", "figure"),
    [
        (name, figure)
        for name, preset in PRESETS.items()
        for figure in preset.published
        if figure not in (*MARGINS, *SPREADS) and not figure.startswith("expected_")
    ],
)
def test_a_wrong_published_value_gives_differs(name: str, figure: str) -> None:
    preset = PRESETS[name]
    wrong = tuple(_wrong(value, figure) for value in preset.published[figure])
    published = {**preset.published, figure: wrong}
    assert replace(preset, published=published).verdict(agreeing(name)).verdict == "differs"


def _wrong(value: float, figure: str) -> float:
    match figure:
        case "maximum_lml":
            return value - 2
        case "true_lml":
            return value + 2
        case "tail_from":
            return 0.999
        case "decay_from":
            return 0.89
        case "worse" | "uniform_guess":
            return value + 1000
        case _ if figure.startswith("least"):
            return value + 1000
        case _:
            return value - 1000


@pytest.mark.parametrize("name", PRESETS)
def test_each_figure_has_a_power_of_90_percent(name: str) -> None:
    """Computed with the errors of actual runs."""
    rows = RECORDED.get(name)
    results = agreeing(name) if rows is None else [Results.of_records(row) for row in rows()]
    verdict = PRESETS[name].verdict(results)
    assert verdict.comparisons, verdict.missing
    assert [figure for figure in verdict.comparisons if figure.power < 0.9] == []


@pytest.mark.parametrize(
    ("name", "margin"),
    [(name, margin) for name in QUICK for margin in MARGINS if margin in PRESETS[name].published],
)
def test_a_margin_below_the_error_is_inconclusive(name: str, margin: str) -> None:
    preset = PRESETS[name]
    published = {**preset.published, margin: (1e-6,)}
    verdict = replace(preset, published=published).verdict(agreeing(name))
    assert verdict.verdict in ("cannot tell", "differs")


def test_fig1_right_by_another_route() -> None:
    """The bias by the direct route: other masks, a Cholesky factor for each, every residual."""
    spec = PRESETS["fig1-right"].specs[0]
    assert isinstance(spec.data, PpcaData)
    dataset = load_arrays(spec.data, 111, torch.Generator().manual_seed(111))
    assert dataset.parameters is not None
    density = LowRankGaussian(**dataset.parameters)
    masks = FixedSize(schedule="fixed", size=76, per_size=60)
    scores = []
    for batch in draw_masks(masks, 512, torch.Generator().manual_seed(9), 60):
        for mask in batch.masks:
            scores.append(density.conditional_log_probs(dataset.x, mask).mean().item())
    mean = 512 * sum(scores) / 60
    error = 512 * torch.tensor(scores).std().item() / math.sqrt(60)
    bias = mean - density.log_prob(dataset.x).mean().item()
    (result,) = agreeing("fig1-right")
    assert abs(bias - result.metric("bias", seed=4)) < 4 * error
    assert abs(bias - PRESETS["fig1-right"].published["bias"][0]) < 4 * error


def test_a_missing_curve_is_incomplete() -> None:
    for preset in PRESETS.values():
        verdict = preset.verdict([Results()] * len(preset.specs))
        assert verdict.verdict == "incomplete"
        assert verdict.missing
        assert preset.verdict([]).verdict == "incomplete"


EXPECTED: dict[str, dict[str, Any]] = {row["name"]: row for row in json.loads(FILE.read_text())}


def test_presets_are_listed_in_the_recorded_order() -> None:
    assert [*PRESETS] == [*EXPECTED]


@pytest.mark.parametrize("name", EXPECTED)
def test_a_preset_is_the_recorded_one(name: str) -> None:
    assert {"name": name, **described(PRESETS[name])} == {
        field: value for field, value in EXPECTED[name].items() if field != "figures"
    }


@pytest.mark.parametrize("name", EXPECTED)
def test_figures_on_made_up_results_are_the_recorded_ones(name: str) -> None:
    """Except for rounding, and for the digits of Student's t."""
    for row, recorded in zip(figures(PRESETS[name]), EXPECTED[name]["figures"], strict=True):
        what, *numbers, half_width, power, outcome = row
        assert [what, outcome] == [recorded[0], recorded[-1]]
        assert numbers == pytest.approx(recorded[1:5], rel=1e-12), what
        assert (half_width, power) == pytest.approx(recorded[5:7], rel=1e-5, abs=1e-9), what


def test_each_molecule_is_beside_itself_with_two_neighbours_swapped() -> None:
    data = PRESETS["swapped-atoms"].specs[0].data
    assert isinstance(data, PlainText)
    lines = data.lines or ()
    assert len(set(lines)) == len(lines) == 120
    for molecule, other in zip(lines[::2], lines[1::2], strict=True):
        assert Counter(molecule) == Counter(other)
        first, second = (i for i, (a, b) in enumerate(zip(molecule, other, strict=True)) if a != b)
        assert (molecule[first], molecule[second]) == (other[second], other[first])
        atoms = [i for i, letter in enumerate(molecule) if letter.isupper()]
        assert (first, second) in pairwise(atoms)


@pytest.mark.parametrize("name", [n for n in PAPER_LANGUAGE if not n.endswith("-blocks")])
def test_each_language_preset_has_a_variant_with_packed_texts(name: str) -> None:
    own, packed = PRESETS[name], PRESETS[f"{name}-blocks"]
    assert packed.published == own.published
    for one, other in zip(own.specs, packed.specs, strict=True):
        assert isinstance(one, MaskedLmExperiment)
        data = one.data.model_copy(update={"packing": "blocks"})
        assert one.model_copy(update={"data": data}) == other


def test_pairs_differ_only_in_their_masks() -> None:
    specs = PRESETS["uniform-against-fixed"].specs
    assert [spec.seeds for spec in specs[::2]] == [(seed,) for seed in SEEDS]
    for uniform, fixed in zip(specs[::2], specs[1::2], strict=True):
        assert isinstance(uniform, MaskedLmExperiment)
        assert isinstance(fixed, MaskedLmExperiment)
        assert uniform.train is not None
        assert fixed.train is not None
        train = uniform.train.model_copy(update={"masks": fixed.train.masks})
        assert uniform.model_copy(update={"train": train}) == fixed != uniform
        assert uniform.data.heldout is not None
        assert uniform.data.seed == uniform.seeds[0]


def test_designs_have_equally_many_masks() -> None:
    for spec in PRESETS["mask-designs"].specs:
        if isinstance(spec, MaskedLmExperiment):
            masks, size = spec.evaluate.masks, spec.data.n
            assert size is not None
            assert len(masks.rates) * masks.per_size * size == 1000
            assert spec.evaluate.target_std_err is None or spec.evaluate.max_masks == 1000
        else:
            assert spec.evaluate.count(spec.data.dim) == {
                50: 800, 200: 3200, 784: 12544, 64: 256
            }[spec.data.dim]  # fmt: skip
