"""Means over seeds, by the table of examples that the dashboard's scripts are tested with too."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.calibration.seeds import CASES, coverage
from service.records.means import mean_of, over_seeds

EXAMPLES = json.loads((Path(__file__).parents[2] / "support" / "means.json").read_text())


@pytest.mark.parametrize("example", EXAMPLES, ids=[one["case"] for one in EXAMPLES])
def test_means_are_those_of_the_table(example: dict[str, Any]) -> None:
    found = [asdict(one) for one in over_seeds(example["metrics"])]
    assert [one.pop("reason") for one in found] == [None] * len(found)
    expected = [one | {"std_err": pytest.approx(one["std_err"])} for one in example["means"]]
    assert found == expected


def test_the_title_names_the_labels_other_than_the_seed() -> None:
    metric = {"name": "perplexity", "value": 2.0, "std_err": None}
    labels = {"seed": 4, "model": "baseline", "of": "area"}
    (mean,) = over_seeds([metric | {"labels": labels}])
    assert mean.title == "perplexity[model=baseline,of=area]"
    (mean,) = over_seeds([metric | {"labels": {"seed": 4}}])
    assert mean.title == "perplexity"


def test_a_mean_states_which_variation_its_error_covers() -> None:
    def covers(name: str, *seeds: int) -> str:
        metrics = [
            {"name": name, "value": 1.0, "std_err": 0.1, "labels": {"seed": seed}} for seed in seeds
        ]
        (mean,) = over_seeds(metrics)
        return mean.covers

    assert covers("lml", 1) == "the masks or samples of this seed, not its training"
    assert covers("lml", 1, 2) == "the variation between seeds: training, masks, samples"
    assert covers("pll_population", 1).startswith("the choice of texts and the masks")
    assert covers("pll_population", 1, 2).startswith("the choice of texts and the variation")
    assert covers("lml_population", 1).startswith("the choice of rows and")
    assert covers("lml_heldout_population", 1).startswith("the choice of held-out rows and")


@pytest.mark.parametrize("case", CASES)
def test_95_percent_intervals_contain_the_truth(case: str) -> None:
    """The short form of `make calibration`: at least 95 %, less four standard errors."""
    assert coverage(case, repeats := 1000) > 0.95 - 4 * math.sqrt(0.95 * 0.05 / repeats)


def test_values_beyond_all_sums_have_no_mean() -> None:
    for values in ([1e308, 1e308], [1e308, -1e308]):
        assert mean_of("lml", values, [None, None]) == (None, None)
