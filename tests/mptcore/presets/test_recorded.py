"""Presets, their order and the figures of their verdicts are the recorded ones."""

import json
from typing import Any

import pytest

from mptcore.presets import PRESETS
from tests.mptcore.presets.recorded import FILE, described, figures

RECORDED: dict[str, dict[str, Any]] = {row["name"]: row for row in json.loads(FILE.read_text())}


def test_presets_are_listed_in_the_recorded_order() -> None:
    assert [*PRESETS] == [*RECORDED]


@pytest.mark.parametrize("name", RECORDED)
def test_a_preset_is_the_recorded_one(name: str) -> None:
    assert {"name": name, **described(PRESETS[name])} == {
        field: value for field, value in RECORDED[name].items() if field != "figures"
    }


@pytest.mark.parametrize("name", RECORDED)
def test_figures_on_made_up_results_are_the_recorded_ones(name: str) -> None:
    """Except for rounding, and for the digits of Student's t."""
    for row, recorded in zip(figures(PRESETS[name]), RECORDED[name]["figures"], strict=True):
        what, *numbers, half_width, power, outcome = row
        assert [what, outcome] == [recorded[0], recorded[-1]]
        assert numbers == pytest.approx(recorded[1:5], rel=1e-12), what
        assert (half_width, power) == pytest.approx(recorded[5:7], rel=1e-5, abs=1e-9), what
