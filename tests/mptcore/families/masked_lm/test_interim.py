"""Interim points of a curve over rates."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mptcore.families.masked_lm import curve
from mptcore.families.masked_lm.estimates import Area, RateScores, mean_so_far
from mptcore.protocol.records import Point, Record
from mptcore.run import run
from mptlab_contract import records
from tests.support import tiny_lm
from tests.support.runs import points, spec_of, value_of

INTERIM = "score_by_rate_interim"
LANGUAGE: dict[str, Any] = {"family": "masked_lm", "checkpoint": "tiny"}
CURVE: dict[str, Any] = {
    "model": LANGUAGE,
    "baseline": {**LANGUAGE, "init": "random"},
    "data": {"source": "text", "lines": tiny_lm.lines(12)},
    "evaluate": {"masks": {"schedule": "rates", "rates": [0.3, 0.7], "per_size": 2}},
    "compute": {"threads": 1, "memory_mib": 1},
    "seeds": [4],
}
TARGET = {**CURVE, "evaluate": {**CURVE["evaluate"], "target_std_err": 20.0, "max_masks": 2000}}
PIECE = 5
"""A tenth of 2 rates · 2 masks · 12 sequences."""


@pytest.fixture(autouse=True)
def _models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_lm.checkpoint(tmp_path / "models" / "tiny")
    monkeypatch.setenv("MPT_MODELS_DIR", str(tmp_path / "models"))


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few tokens are many."""
    monkeypatch.setattr(curve, "PIECE_TOKENS", 1)


def ran(spec: dict[str, Any]) -> list[Record]:
    return list(run(spec_of(spec)))


def places(found: list[Point], rate: float) -> list[float]:
    return [one.x for one in found if one.labels["rate"] == rate]


@pytest.mark.usefixtures("long")
def test_a_long_curve_has_an_interim_point_at_every_tenth() -> None:
    found = points(ran(CURVE), INTERIM)
    assert {one.labels["model"] for one in found} == {"model", "baseline"}
    model = [one for one in found if one.labels["model"] == "model"]
    assert places(model, 0.3) == [5, 10, 15, 20]
    assert places(model, 0.7) == [1, 6, 11, 16, 21]
    assert all(one.n <= one.x for one in model)
    errors = [one.std_err for one in model if one.x >= PIECE * 2]
    assert None not in errors


def test_a_short_curve_has_an_interim_point_only_at_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short = ran(CURVE)
    assert points(short, INTERIM) == []
    monkeypatch.setattr(curve, "PIECE_TOKENS", 1)
    long = [one for one in ran(CURVE) if isinstance(one, Point)]
    final = [one for one in long if one.series != INTERIM]
    expected = [one for one in short if isinstance(one, Point)]
    assert [(one.series, one.x, one.labels) for one in final] == [
        (one.series, one.x, one.labels) for one in expected
    ]
    values = [value_of(one) for one in expected]
    assert [value_of(one) for one in final] == pytest.approx(values, rel=1e-5)


@pytest.mark.usefixtures("long")
def test_no_interim_point_before_a_token_is_drawn() -> None:
    model = {**LANGUAGE, "corruption": "bert"}
    rare = {"masks": {"schedule": "rates", "rates": [0.02, 0.9], "per_size": 2}}
    found = points(ran({**CURVE, "model": model, "baseline": None, "evaluate": rare}), INTERIM)
    assert places(found, 0.02)[0] > PIECE
    assert None not in [one.value for one in found]


@pytest.mark.usefixtures("long")
def test_interim_points_do_not_depend_on_memory() -> None:
    """Memory differs between machines, but a run that resumes elsewhere gives the same records."""
    large = {**CURVE, "compute": {**CURVE["compute"], "memory_mib": 100}}
    first, second = (points(ran(one), INTERIM) for one in (CURVE, large))
    assert [(one.x, one.n, one.labels) for one in first] == [
        (one.x, one.n, one.labels) for one in second
    ]


@pytest.mark.usefixtures("long")
@pytest.mark.parametrize("spec", [CURVE, TARGET], ids=["curve", "target"])
def test_resumed_records_are_those_of_an_undisturbed_run(
    spec: dict[str, Any], tmp_path: Path
) -> None:
    whole = records(spec_of(spec), tmp_path / "whole")
    assert sum(INTERIM in line for line in whole) > 3
    for i, stop_after in enumerate(range(1, len(whole), max(1, len(whole) // 6))):
        folder = tmp_path / str(i)
        first = records(spec_of(spec), folder, stop_after)
        assert first + records(spec_of(spec), folder) == whole


def test_a_run_with_a_target_has_interim_points_after_each_round() -> None:
    found = ran(TARGET)
    interim = [one for one in points(found, INTERIM) if one.labels["model"] == "model"]
    final = [one for one in points(found, "score_by_rate") if one.labels["model"] == "model"]
    for one in final:
        rounds = [r for r in interim if r.labels["rate"] == one.x]
        assert len(rounds) == 2
        assert rounds[0].x < rounds[1].x
        assert rounds[0].n < rounds[1].n < one.n
        for earlier in rounds:
            assert earlier.std_err is not None
            assert abs(value_of(earlier) - value_of(one)) < 4 * earlier.std_err


def scores(per_size: int, n: int) -> RateScores:
    generator = torch.Generator().manual_seed(3)
    weights = torch.randint(0, 5, (per_size, n), generator=generator).double()
    sums = -torch.rand(2, per_size, n, generator=generator, dtype=torch.float64) * weights
    return RateScores(0.5, sums, weights)


@pytest.mark.parametrize("per_size", [1, 3])
def test_the_mean_over_all_masks_is_that_of_the_rate(per_size: int) -> None:
    """The error over the population counts each sequence once."""
    whole = scores(per_size, 40)
    area = Area(2, 40)
    area.add(whole, None, 1.0)
    found = mean_so_far(whole.sums.flatten(1), whole.weights.flatten(), 40)
    for model, estimate in enumerate(found):
        expected = area.population(model)
        assert estimate.mean == pytest.approx(expected.mean)
        assert estimate.std_err == pytest.approx(expected.std_err)
        assert (estimate.n, estimate.degrees) == (whole.n, 39)


def test_the_error_of_an_interim_mean_is_that_of_the_remaining_masks() -> None:
    """With sequences in random order, one in twenty deviates by more than two errors."""
    z = []
    whole = scores(1, 4000)
    for start in range(0, 4000, 40):
        part = slice(start, start + 40)
        first, _ = mean_so_far(whole.sums[:, 0, part], whole.weights[0, part], 4000)
        assert first.std_err is not None
        z.append((first.mean - whole.means()[0].item()) / first.std_err)
    assert 0.8 < torch.tensor(z).square().mean().sqrt() < 1.2


def test_one_sequence_has_no_error() -> None:
    (only,) = mean_so_far(torch.tensor([[-3.0]]).double(), torch.tensor([2.0]).double(), 9)
    assert (only.mean, only.std_err, only.n) == (-1.5, None, 1)
