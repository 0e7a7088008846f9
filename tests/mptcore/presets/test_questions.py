"""Claims on questions that the paper leaves open can fail."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mptcore.presets import PRESETS, Results
from mptcore.presets.model_choice import CANDIDATES, DATA_SEEDS, _bic, _chosen
from tests.mptcore.presets import test_power as recorded

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
        "model-choice",
        "training-rates",
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
    [(1, 2.4, "differs"), (1, 0.5, "differs"), (2, 0.5, "differs"), (1, 1.5, "cannot tell")],
)
def test_designs_are_judged_by_their_spread(spec: int, factor: float, expected: str) -> None:
    def scaled(row: Row, of: int) -> Row:
        return {**row, "value": factor * row["value"]} if of == spec else row

    assert verdict("mask-designs", recorded.mask_designs(), scaled) == expected


def test_the_error_of_a_log_of_a_standard_deviation() -> None:
    """The half width of the first figure is that of the difference of two such logs of 100
    values."""
    results = [Results.of_records(rows) for rows in recorded.mask_designs()]
    equal, worse = PRESETS["mask-designs"].verdict(results).comparisons
    assert equal.half_width == pytest.approx(1.959964 * math.sqrt(2 / (2 * 99)))
    assert worse.half_width == pytest.approx(1.644854 * math.sqrt(2 / (2 * 99)))


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
    free = [20 * k - k * (k - 1) / 2 + 21 for k in CANDIDATES]
    for more, expected in ((1e-6, 6), (-1e-6, 1)):
        results = [
            Results(
                metrics={("lml", frozenset({("seed", seed)})): (lml, 0.0) for seed in DATA_SEEDS}
            )
            for lml in (count * (math.log(80) / 2 / 80 + more) for count in free)
        ]
        assert set(_chosen(_bic(results))) == {expected}


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
