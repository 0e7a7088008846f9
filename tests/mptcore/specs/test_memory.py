"""What a spec says that its run takes of the memory."""

import json
from typing import Any

import pytest

from mptcore.specs import ExperimentSpec, Limits, SpecError, parse_spec
from mptcore.specs.families.masked_lm import BASE as BERT_BASE
from mptcore.specs.families.masked_lm import TOGETHER_BYTES
from tests.support.lm_specs import BASE, FRESH, TRAIN


def vectors(per_size: int, baseline: bool = False, **compute: Any) -> dict[str, Any]:
    """Six dimensions, two seeds."""
    model = {"family": "ppca", "latent_dim": 2, "noise_precision": 5.0, "init": "generator"}
    return {
        "model": model,
        "baseline": model if baseline else None,
        "data": {"source": "ppca", "n": 20, "dim": 6, "latent_dim": 2, "noise_precision": 5.0},
        "evaluate": {"masks": {"schedule": "all", "per_size": per_size}},
        "seeds": [1, 2],
        "compute": {"device": "cpu", **compute},
    }


def parsed(value: dict[str, Any], memory_bytes: int = 2**40) -> ExperimentSpec:
    return parse_spec(json.dumps(value).encode(), Limits(memory_bytes=memory_bytes))


def taken(value: dict[str, Any]) -> int:
    return parsed(value).memory_estimate()


def refused(value: dict[str, Any], memory_bytes: int) -> str:
    """The field that is, for its memory."""
    with pytest.raises(SpecError) as caught:
        parsed(value, memory_bytes)
    (problem,) = caught.value.problems
    assert f"at most {memory_bytes >> 20}" in problem.detail
    return problem.pointer


def test_scores_are_kept_of_each_seed_and_model() -> None:
    assert taken(vectors(1001)) - taken(vectors(1)) == 2 * 6 * 1000 * 32
    assert taken(vectors(1001, baseline=True)) - taken(vectors(1, baseline=True)) == 24_000 * 32
    target = vectors(1001)
    target["evaluate"] |= {"target_std_err": 0.1, "max_masks": 10**9}
    assert taken(target) < 2**20


def test_tables_of_a_moment_of_low_rank_are_made_of_each_dimension() -> None:
    """For D = 200, K = 10 and a rank of 128 at most; in training for each seed."""
    value = vectors(1)
    value["model"] |= {"latent_dim": 10, "init": "random"}
    value["data"]["dim"] = 200
    scored = 8 * (4 * 20 * 200 + 2 * 200**2 + 200 * 10 * (2 * 10 + 3 * 128)) + 2 * 200 * 32
    assert taken(value) == scored
    value["train"] = {"epochs": 1, "masks": {"schedule": "fixed", "size": 2, "per_size": 1}}
    trained = 8 * (200 * 10 * (6 * 10 + 3 * 128) + 20 * 200 + 6 * 200 * 10)
    assert taken(value) == scored + 2 * trained


def test_what_is_refused_for_its_memory_names_what_takes_it() -> None:
    large = vectors(10**6)
    parsed(large, taken(large))
    assert refused(large, taken(large) - 2**20) == "/evaluate/masks/per_size"
    large["data"]["n"] = 10**7
    assert refused(large, 2**31) == "/data"
    assert refused(vectors(1, memory_mib=2**11), 2**30) == "/compute/memory_mib"


def test_a_gpu_scores_more_masks_together() -> None:
    one_mask = 8 * 6 * (6 + 4 * 2)
    assert taken(vectors(3, device="cuda")) - taken(vectors(3)) == 6 * 3 * one_mask
    assert taken(vectors(10**6, device="auto")) - taken(vectors(10**6)) == 2**29
    assert taken(vectors(10**6, device="cuda", memory_mib=4)) - taken(vectors(10**6)) == 2**22


@pytest.mark.parametrize(
    ("compute", "weight", "trained"),
    [
        ({}, 4, 18),  # whichever worker takes it
        ({"device": "cuda"}, 2, 18),
        ({"device": "cuda", "precision": "float32"}, 4, 16),
        ({"device": "cpu"}, 4, 16),
        ({"device": "cpu", "precision": "bfloat16"}, 2, 18),
    ],
)
def test_a_language_models_weights(compute: dict[str, Any], weight: int, trained: int) -> None:
    """In training float32 with a gradient and two moments, and a copy for products in bfloat16."""
    spec = {**BASE, "compute": compute}
    assert taken(spec) == weight * BERT_BASE + TOGETHER_BYTES
    assert taken({**spec, "train": TRAIN}) == trained * BERT_BASE + TOGETHER_BYTES
    both = {**spec, "train": TRAIN, "baseline": FRESH}
    assert taken(both) == (trained + weight) * BERT_BASE + TOGETHER_BYTES
