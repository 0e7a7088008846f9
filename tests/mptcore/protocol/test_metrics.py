"""Meanings of metrics."""

import json
import re
from pathlib import Path

import pytest

from mptcore.protocol.metrics import meaning

ROWS = {"data": {"source": "upload"}}
TEXTS = {"data": {"source": "text"}, "evaluate": {"dimensions": 20}}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("lml", "log marginal likelihood of a row, in nats"),
        ("mpt_heldout", "mpt of the held-out rows"),
        ("lml_population", "lml, with the error over the choice of rows"),
        ("area_population", "area, with the error over the choice of texts"),
        ("mpt_not_final", "mpt, which is not final yet"),
        ("lml_heldout_population_half_interval",
         "half the width of the 95 % interval of lml_heldout_population"),
        ("score_difference", "model minus baseline, on the same masks"),
        ("lml_heldout_ess", "median effective sample size of lml_heldout"),
        ("other", ""),
    ],
)  # fmt: skip
def test_a_metric_has_a_meaning(name: str, told: str) -> None:
    assert meaning(name, ROWS) == told


def test_an_area_is_for_a_number_of_tokens() -> None:
    assert meaning("area", TEXTS) == "masked scores, integrated over rates, for 20 tokens: nats"


def test_an_lml_of_standardized_values_says_so() -> None:
    scaled = {"data": {"source": "upload", "standardize": "columns"}}
    assert meaning("lml_heldout", scaled) == "lml of the held-out rows; of standardized values"
    assert "standardized" not in meaning("difference", scaled)


def test_the_metrics_of_the_goldens_have_meanings() -> None:
    """So have those of every family."""
    folder = Path(__file__).parents[1] / "goldens"
    lines = [line for file in folder.glob("*.ndjson") for line in file.read_text().splitlines()]
    names = {record["name"] for record in map(json.loads, lines) if record["record"] == "metric"}
    assert sorted(name for name in names if not meaning(name, ROWS)) == []


@pytest.mark.parametrize("page", ["spec.md", "language-models.md"])
def test_the_metrics_of_the_docs_have_meanings(page: str) -> None:
    text = (Path(__file__).parents[3] / "docs" / page).read_text()
    (table,) = re.findall(r"\n\| metric \|[^\n]*\n\|---\|---\|\n((?:\|.*\n)+)", text)
    cells = (row.split("|")[1] for row in table.splitlines())
    names = [name for one in cells for name in re.findall("`(.+?)`", one)]
    assert len(names) > 8
    assert [name for name in names if not meaning(name, ROWS)] == []


def test_an_lml_of_the_standardized_rows_says_so() -> None:
    scaled = {"data": {"source": "upload", "standardize": "columns"}}
    assert meaning("lml", scaled).endswith("of a row, in nats; of standardized values")
