"""Specs of language models that are refused, each by the field that is wrong."""

import json
from typing import Any

import pytest

from mptcore.specs import SpecError, parse_spec
from tests.support.lm_specs import BASE, FRESH, TRAIN, with_data, with_model

HUGE = {
    "hidden_size": 16_384,
    "num_hidden_layers": 256,
    "num_attention_heads": 16,
    "intermediate_size": 65_536,
}
BERT = {**BASE["model"], "corruption": "bert"}
TARGET = {"target_std_err": 1.0}
WRONG: list[tuple[dict[str, Any], str, str]] = [
    (with_model(family="masked"), "/model/family", "'masked_lm'"),
    (with_model(checkpoint="../etc"), "/model/checkpoint", "a checkpoint's name"),
    (with_model(checkpoint="https://x.org/m"), "/model/checkpoint", "a checkpoint's name"),
    (with_model(checkpoint="/etc/passwd"), "/model/checkpoint", "a checkpoint's name"),
    (with_model(init="experiment"), "/model/experiment", "only with init experiment"),
    (with_model(latent_dim=2), "/model/latent_dim", "unknown field"),
    (
        with_model(
            architecture={
                "hidden_size": 10,
                "num_hidden_layers": 1,
                "num_attention_heads": 3,
                "intermediate_size": 4,
            }
        ),
        "/model/architecture/num_attention_heads",
        "divisor",
    ),
    (with_data(lines=["a"], file="b.txt"), "/data/file", "exactly one"),
    (with_data(file="../b.txt"), "/data/file", "a file's name"),
    (with_data(lines=["x" * 100_000] * 3), "/data/lines", "upload longer"),
    (
        {**BASE, "data": {"source": "glue", "subset": "ax", "split": "validation"}},
        "/data/split",
        "the splits of ax are test",
    ),
    ({**BASE, "data": {"source": "mnist"}}, "/data/source", "'glue', 'text'"),
    ({**BASE, "evaluate": {"masks": {"schedule": "all"}}}, "/evaluate/masks/schedule", "'rates'"),
    (
        {**BASE, "evaluate": {"masks": {"schedule": "rates", "rates": [0.5, 0.2, 0.5]}}},
        "/evaluate/masks/rates",
        "a rate may be listed once only",
    ),
    ({**BASE, "evaluate": {"sequences": 5}}, "/evaluate/sequences", "orders and pll"),
    ({**BASE, "evaluate": {**TARGET, "target": "difference"}}, "/evaluate/target", "give one, or"),
    ({**BASE, "evaluate": {"target": "cumulative"}}, "/evaluate/target", "leave it area"),
    (
        {**BASE, "evaluate": {**TARGET, "target": "cumulative", "orders": 1}},
        "/evaluate/orders",
        "leave it 0",
    ),
    (
        {**BASE, "model": BERT, "evaluate": {**TARGET, "target": "cumulative"}},
        "/evaluate/target",
        "use area",
    ),
    ({**BASE, "evaluate": {**TARGET, "max_masks": 989}}, "/evaluate/max_masks", "at least 990"),
    (
        {**BASE, "evaluate": {**TARGET, "target": "cumulative", "max_masks": 199}},
        "/evaluate/max_masks",
        "at least 200",
    ),
    ({**BASE, "seeds": [1, 2], "train": TRAIN}, "/seeds", "an experiment for each"),
    ({**BASE, "train": {**TRAIN, "curve_at": [13]}}, "/train/curve_at/0", "from 0 to 12"),
    ({**BASE, "data": {**BASE["data"], "heldout": 0.5}}, "/data/heldout", "train is missing"),
    ({**BASE, "model": BERT, "train": TRAIN}, "/train/masks/schedule", "use fixed, ramp or rates"),
    ({**BASE, "model": BERT, "evaluate": {"pll": True}}, "/evaluate/pll", "exact numbers"),
    ({**BASE, "baseline": {**FRESH, "architecture": HUGE}}, "/baseline/architecture", "at most"),
]


@pytest.mark.parametrize(("value", "pointer", "allowed"), WRONG)
def test_a_wrong_spec_names_the_field(value: dict[str, Any], pointer: str, allowed: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(json.dumps(value).encode())
    found = {problem.pointer: problem.detail for problem in caught.value.problems}
    assert pointer in found, found
    assert allowed in found[pointer]
