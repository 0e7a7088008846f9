"""Claims on questions that the paper leaves open can fail."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mptcore.presets import PRESETS, Results
from mptcore.presets.checks import Bic, Choice, Run
from mptcore.specs import MaskedLmExperiment
from tests.mptcore.presets import recorded_runs as recorded

Row = dict[str, Any]


def verdict(name: str, rows: Iterator[list[Row]], change: Callable[[Row, int], Row]) -> str:
    """The verdict on recorded results after a change of each record; it is given the number of the
    spec too."""
    results = [
        Results.of_records([change(row, spec) for row in records])
        for spec, records in enumerate(rows)
    ]
    return PRESETS[name].verdict(results).verdict


def unchanged(row: Row, spec: int) -> Row:
    return row


def shifted(spec: int, x: float, by: float) -> Callable[[Row, int], Row]:
    """Move the values at one place of one experiment's curve."""

    def change(row: Row, of: int) -> Row:
        is_meant = of == spec and row.get("x") == x
        return {**row, "value": row["value"] + by} if is_meant else row

    return change


@pytest.mark.parametrize(
    "name",
    [
        "unbiased-rate",
        "unbiased-rate-molecules",
        "mask-designs",
        "coherence",
        "coherent-training",
        "model-choice",
        "training-rates",
        "training-rates-vae",
    ],
)
def test_the_recorded_results_agree(name: str) -> None:
    assert verdict(name, recorded.RECORDED[name](), unchanged) == "agrees"


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
