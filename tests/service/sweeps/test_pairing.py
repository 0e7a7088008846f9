"""Points of a sweep are compared on the held-out observations that they share."""

from typing import Any

import numpy as np
import pytest

from mptcore.estimation.estimate import PARTS
from service.db.engine import Database
from service.queue import lease
from service.records.recording import Batch, record
from service.sweeps import pairing
from service.sweeps.pairing import (
    BEHIND_BEST,
    Parts,
    add_behind_best,
    data_of,
    heldout_parts,
    mean_part,
)
from service.vocabulary import Status
from tests.support.attempts import claimed

EASY = np.linspace(-1.0, 1.0, 8)
"""Differences of the parts from the mean, common to all models."""


def parts_of(values: Any, counts: Any = None) -> Parts:
    return Parts(np.asarray(values), np.full(len(values), 5.0) if counts is None else counts)


def row(value: float | None) -> dict[str, Any]:
    cell = {"value": value, "std_err": 0.0, "count": 2}
    return {"metrics": {"lml": cell, "lml_heldout": cell, "mpt": cell}}


def behind(rows: list[dict[str, Any]]) -> list[Any]:
    cells = [one["metrics"].get(BEHIND_BEST) for one in rows]
    return [cell and (round(cell["value"], 9), cell["std_err"], cell["count"]) for cell in cells]


def test_the_error_is_that_of_the_mean_of_the_parts_differences() -> None:
    rows = [row(-3.0), row(-2.0), row(-2.5)]
    noise = np.array([0.1, -0.1] * 4)
    found = [parts_of(EASY - 3), parts_of(EASY - 2), parts_of(EASY - 2.5 + noise)]
    add_behind_best(rows, found, ["{}"] * 3)
    error = float(np.std(noise, ddof=1)) / 8**0.5
    assert behind(rows) == [
        (1.0, pytest.approx(0, abs=1e-15), 2),
        (0.0, 0.0, 2),
        (0.5, pytest.approx(error), 2),
    ]
    assert list(rows[0]["metrics"]) == ["lml", "lml_heldout", BEHIND_BEST, "mpt"]


def test_parts_count_by_their_numbers_of_observations() -> None:
    counts, differences = np.array([1.0, 3.0] * 4), np.array([3.0, 0.1, -3.0, -0.1] * 2)
    rows = [row(-2.0), row(-3.0)]
    add_behind_best(
        rows, [parts_of(EASY, counts), parts_of(EASY - differences, counts)], ["{}"] * 2
    )
    variance = (4 * 9 + 4 * 3 * 0.01) / 7
    assert behind(rows)[1] == (1.0, pytest.approx((variance / 16) ** 0.5), 2)


@pytest.mark.parametrize("rows", [40, 500])
def test_two_errors_contain_the_expected_difference(rows: int) -> None:
    """N(0.3, 1.2²) is compared with the true N(0, 1) on held-out rows, 2,000 times. They contain it
    as often as two errors that are computed from single rows, whose differences are skewed."""
    repeats, rng = 2000, np.random.default_rng(5)
    expected = np.log(1.2) + (1 + 0.3**2) / (2 * 1.2**2) - 0.5
    missed = by_rows = 0
    for _ in range(repeats):
        x = rng.normal(size=rows)
        true, other = -0.5 * x**2, -0.5 * ((x - 0.3) / 1.2) ** 2 - np.log(1.2)
        split = [np.array_split(values, PARTS) for values in (true, other)]
        of_parts = [
            Parts(np.array([p.mean() for p in one]), np.array([float(len(p)) for p in one]))
            for one in split
        ]
        both = [row(float(values.mean())) for values in (true, other)]
        both[0]["metrics"]["lml_heldout"]["value"] += 10  # which one is best does not matter here
        add_behind_best(both, of_parts, ["{}"] * 2)
        cell = both[1]["metrics"][BEHIND_BEST]
        error = abs(cell["value"] - 10 - expected)
        missed += error > 2 * cell["std_err"]
        by_rows += error > 2 * np.std(true - other, ddof=1) / rows**0.5
    assert missed == pytest.approx(by_rows, abs=4 * (0.06 * 0.94 * repeats) ** 0.5)
    assert missed < 0.1 * repeats


def test_rows_of_other_data_are_not_compared() -> None:
    rows = [row(-3.0), row(-2.0), row(-9.0), row(-8.0), row(-1.0), row(-7.0)]
    data = ["1", "1", "2", "2", "3", None]
    add_behind_best(rows, [parts_of(EASY)] * 6, data)
    assert [one and one[0] for one in behind(rows)] == [1.0, 0.0, 1.0, 0.0, None, None]


def test_rows_without_a_value_or_parts_are_left_out() -> None:
    rows = [row(None), row(-2.0), row(-3.0), row(-4.0), {"metrics": {}}]
    easy = parts_of(EASY)
    add_behind_best(rows, [easy, easy, easy, None, easy], ["{}"] * 5)
    assert [one and one[0] for one in behind(rows)] == [None, 0.0, 1.0, None, None]


@pytest.mark.parametrize("parts", [EASY[:7], np.full(8, np.nan), EASY])
def test_few_missing_or_other_parts_give_no_error(parts: Any) -> None:
    rows = [row(-2.0), row(-3.0)]
    best = EASY[:7] if len(parts) == 8 and not np.isnan(parts).any() else EASY[: len(parts)]
    add_behind_best(rows, [parts_of(best), parts_of(parts)], ["{}"] * 2)
    assert behind(rows)[1] == (1.0, None, 2)


def test_the_swept_fields_of_the_data_tell_the_rows() -> None:
    spec = {"data": {"source": "digits", "seed": 3}, "model": {"latent_dim": 2}}
    fields = ["data.seed", "model.latent_dim", "data_set"]
    assert data_of(spec, fields) == '{"data.seed": 3}'
    assert data_of(spec, fields[1:]) == "{}"
    assert data_of({"data": {"seed": "run"}}, fields) is None


def test_the_mean_part_needs_the_same_parts_of_all() -> None:
    mean = mean_part([parts_of(EASY), parts_of(EASY + 1)])
    assert mean is not None
    assert mean.values.tolist() == pytest.approx((EASY + 0.5).tolist())
    assert mean.counts.tolist() == [5.0] * 8
    assert mean_part([parts_of(EASY), parts_of(EASY[1:])]) is None
    assert mean_part([parts_of(EASY), parts_of(EASY, np.full(8, 4.0))]) is None
    assert mean_part([parts_of(EASY), None]) is None
    assert mean_part([]) is None


def recorded(database: Database, **labels: Any) -> str:
    """An ended experiment with the held-out LML of three parts, of seed 4."""
    claim, batch = claimed(database), Batch()
    for x in range(3):
        batch.add({"seq": x + 1, "record": "point", "series": "lml_heldout_parts",
                   "labels": {"seed": 4, **labels}, "x": x, "value": -x, "std_err": None, "n": 5,
                   "reason": "one part"})  # fmt: skip
    with database.transaction() as session:
        record(session, claim, batch, 60)
        lease.finish(session, claim, Status.SUCCEEDED)
    return claim.experiment_id


def test_only_series_of_the_own_model_are_parts(either: Database) -> None:
    own, baseline = recorded(either), recorded(either, model="baseline")
    with either.snapshot() as session:
        (found,) = heldout_parts(session, [own, baseline]).items()
    assert (found[0], found[1].values.tolist()) == (own, [0, -1, -2])


@pytest.mark.parametrize(
    ("limit", "few"), [("MAX_PAIRED", 1), ("MAX_POINTS", 5), ("MAX_BLOCKS", 1)]
)
def test_very_many_experiments_points_or_blocks_are_not_read(
    either: Database, monkeypatch: pytest.MonkeyPatch, limit: str, few: int
) -> None:
    both = [recorded(either) for _ in range(2)]
    with either.snapshot() as session:
        assert len(heldout_parts(session, both)) == 2
        monkeypatch.setattr(pairing, limit, few)
        assert heldout_parts(session, both) == {}
