"""The memory estimate of a spec."""

import json
from typing import Any

import pytest

from mptcore.specs import (
    ExperimentSpec,
    Limits,
    LinearGaussianExperiment,
    SpecError,
    VaeExperiment,
    parse_spec,
    validate_spec,
)
from mptcore.specs.families.masked_lm import BASE as BERT_BASE
from mptcore.specs.families.masked_lm import TOGETHER_BYTES
from tests.support.lm_specs import BASE, FRESH, TRAIN
from tests.support.vae_specs import DEEP, LINEAR, changed


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


def test_fitted_parameters_are_kept_of_each_data_set() -> None:
    def more(init: str, seed: int | str) -> int:
        """Bytes that ten more seeds take, beside their scores."""
        one = vectors(1)
        one["model"] = {**one["model"], "init": init}
        one["data"] = {**one["data"], "seed": seed}
        return taken({**one, "seeds": [*range(12)]}) - taken(one) - 10 * 6 * 32

    assert more("maximum_likelihood", "run") == 10 * 3 * 8 * 6 * (2 + 2)
    assert more("maximum_likelihood", 1) == more("random", "run") == 0


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


def test_a_memory_refusal_names_the_field_that_uses_the_memory() -> None:
    large = vectors(10**6)
    parsed(large, taken(large))
    assert refused(large, taken(large) - 2**20) == "/evaluate/masks/per_size"
    most, needed = (taken(large) - 2**20) >> 20, taken(large) >> 20
    with pytest.raises(SpecError) as caught:
        parsed(large, taken(large) - 2**20)
    assert caught.value.problems[0].detail == (
        f"a run takes at most {most} MiB; this takes about {needed}: N · D, D², D · K², the masks "
        "of a step and all scores count"
    )
    large["data"]["n"] = 10**7
    assert refused(large, 2**31) == "/data"
    assert refused(vectors(1, memory_mib=2**11), 2**30) == "/compute/memory_mib"


def test_a_gpu_scores_more_masks_together() -> None:
    one_mask = 8 * 6 * (6 + 4 * 2)
    assert taken(vectors(3, device="cuda")) - taken(vectors(3)) == 6 * 3 * one_mask
    assert taken(vectors(10**6, device="cuda")) - taken(vectors(10**6)) == 2**29
    assert taken(vectors(10**6, device="auto")) == taken(vectors(10**6)), "auto is the CPU"
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
    limited = {**spec, "compute": {**compute, "memory_mib": 3}}
    assert taken(limited) == weight * BERT_BASE + 3 * 2**20


VAE_BYTES = 2**28 + 2**29
"""Memory of a VAE that may run on a GPU, without that for its data and nodes or draws."""


def latent_memory(base: dict[str, Any], **changes: Any) -> int:
    return validate_spec({**base, **changes}).memory_estimate()


def test_a_vae_with_a_grid_needs_memory_for_outputs_at_each_node() -> None:
    """The data three times, three outputs of 64 pixels at 20² nodes; in training also the memory
    that the gradient needs for each mask, row and pixel."""
    whole = latent_memory(LINEAR)
    assert whole == 4 * (3 * 1797 * 64 + 3 * 400 * 64) + VAE_BYTES
    assert latent_memory(LINEAR, compute={"precision": "float64"}) - VAE_BYTES == 2 * (
        whole - VAE_BYTES
    )
    wider = {"lml": {"method": "uniform_grid", "nodes": 30, "extent": 4.0}}
    assert latent_memory(LINEAR, evaluate=wider) - whole == 4 * 3 * 500 * 64
    train = {"objective": "mpt", "epochs": 1,
             "masks": {"schedule": "fixed", "rate": 0.5, "per_size": 3}}  # fmt: skip
    assert latent_memory(LINEAR, train=train) - whole == 4 * 3 * 400 * (4 * 1797 + 6 * 64)
    batches = {**train, "batch_size": 10}
    assert latent_memory(LINEAR, train=batches) - whole == 4 * 3 * 400 * (4 * 10 + 6 * 64)


def test_a_vae_without_a_grid_needs_memory_for_activations() -> None:
    """64 outputs and 64 hidden units, for twenty starts of each of four latent dimensions."""
    whole = latent_memory(DEEP)
    assert whole == 4 * (3 * 1797 * 64 + 6 * 80 * 128) + VAE_BYTES
    chains = {**DEEP["evaluate"], "ais": {"chains": 5}}
    assert latent_memory(DEEP, evaluate=chains) - whole == 4 * 6 * 5 * 128
    many = changed(DEEP, "model/conditionals/draws", 90)
    assert latent_memory(many) - whole == 4 * 6 * 10 * 128
    train = {"objective": "mpt", "epochs": 1, "batch_size": 10,
             "masks": {"schedule": "fixed", "rate": 0.5, "per_size": 3}}  # fmt: skip
    assert latent_memory(DEEP, train=train) - whole == 4 * 10 * 128 * (4 * 3 * 4 + 4)
    importance = changed(DEEP, "model/conditionals", {"method": "importance", "train_draws": 7})
    trained = latent_memory(importance, train=train) - latent_memory(importance)
    assert trained == 4 * 10 * 128 * (4 * 3 * 7 + 4)


@pytest.mark.parametrize(
    ("spec", "pointer", "lower"),
    [(LINEAR, "/model/conditionals/nodes", "nodes"), (DEEP, "/data", "draws, samples, chains")],
    ids=["grid", "sampled"],
)
def test_a_vae_that_is_too_large_says_what_to_lower(
    spec: dict[str, Any], pointer: str, lower: str
) -> None:
    parsed = validate_spec(spec)
    assert isinstance(parsed, VaeExperiment)
    needed, work = parsed.memory_estimate(), parsed.work()
    assert parsed.limit_problems(Limits(memory_bytes=needed, latent_work=work)) == []
    (memory,) = parsed.limit_problems(Limits(memory_bytes=needed - 1))
    assert (memory.pointer, memory.detail) == (
        pointer,
        f"a run takes at most {(needed - 1) >> 20} MiB; this takes about {needed >> 20}: lower "
        f"{lower}, data.n, train.batch_size or the masks of a step",
    )
    (slow,) = parsed.limit_problems(Limits(latent_work=work - 1))
    assert (slow.pointer, slow.detail) == (
        "/evaluate/masks",
        f"masks · N · D · (nodes or draws) in all is at most {work - 1:.0e}; this is {work:.2e}: "
        f"lower {lower}, data.n, masks or epochs",
    )


@pytest.mark.parametrize("spec", [vectors(1), LINEAR], ids=["vectors", "vae"])
def test_data_of_too_many_numbers_are_refused(spec: dict[str, Any]) -> None:
    parsed = validate_spec(spec)
    assert isinstance(parsed, LinearGaussianExperiment | VaeExperiment)
    n, dim = parsed.data.n, parsed.data.dim
    assert parsed.limit_problems(Limits(elements=n * dim)) == []
    (problem,) = parsed.limit_problems(Limits(elements=n * dim - 1))
    assert (problem.pointer, problem.detail) == (
        "/data", f"N · D is at most {n * dim - 1}; {n} · {dim} is more"
    )  # fmt: skip


def test_a_gpu_has_room_for_one_mask_at_least() -> None:
    value = vectors(1, device="cuda", memory_mib=1)
    value["model"] |= {"latent_dim": 2000, "init": "random"}
    value["data"]["dim"] = 2048
    one_mask = 8 * 2048 * (6 + 4 * 2000)
    mebibytes = (one_mask >> 20) + 1
    parsed(changed(value, "compute/memory_mib", mebibytes))
    with pytest.raises(SpecError) as caught:
        parsed(changed(value, "compute/memory_mib", mebibytes - 1))
    (problem,) = caught.value.problems
    assert (problem.pointer, problem.detail) == (
        "/compute/memory_mib", f"one mask takes up to {mebibytes} MiB here: give that or more"
    )  # fmt: skip


def test_a_baseline_adds_its_dimensions_to_the_work_of_each_mask() -> None:
    value = vectors(1)
    value["model"] |= {"latent_dim": 10, "init": "random"}
    value["data"]["dim"] = 200
    value["baseline"] = {**value["model"], "latent_dim": 5}
    spec = validate_spec(value)
    work = 200 * 200**2 * (10 + 5)
    assert spec.limit_problems(Limits(mask_work=work)) == []
    assert len(spec.limit_problems(Limits(mask_work=work - 1))) == 1
