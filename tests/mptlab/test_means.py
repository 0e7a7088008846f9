"""Means over seeds, by the table of examples that the dashboard's scripts are tested with too."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from mptlab.means import over_seeds

EXAMPLES = json.loads((Path(__file__).parents[1] / "support" / "means.json").read_text())


@pytest.mark.parametrize("example", EXAMPLES, ids=[one["case"] for one in EXAMPLES])
def test_means_are_those_of_the_table(example: dict[str, Any]) -> None:
    found = [asdict(one) for one in over_seeds(example["metrics"])]
    expected = [one | {"std_err": pytest.approx(one["std_err"])} for one in example["means"]]
    assert found == expected


def test_the_title_names_the_labels_other_than_the_seed() -> None:
    metric = {"name": "perplexity", "value": 2.0, "std_err": None}
    labels = {"seed": 4, "model": "baseline", "of": "area"}
    (mean,) = over_seeds([metric | {"labels": labels}])
    assert mean.title == "perplexity[model=baseline,of=area]"
    (mean,) = over_seeds([metric | {"labels": {"seed": 4}}])
    assert mean.title == "perplexity"
