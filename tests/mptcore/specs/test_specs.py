"""Problems of a spec: the field, and the allowed values."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from mptcore.protocol.orders import parse_assignment
from mptcore.specs import (
    AllSizes,
    ExperimentSpec,
    Limits,
    SpecError,
    Train,
    parse_spec,
    stored_spec,
    validate_spec,
)
from mptcore.specs.base import Spec

GOOD: dict[str, Any] = {
    "model": {"family": "ppca", "latent_dim": 2, "noise_precision": 5.0, "init": "generator"},
    "data": {"source": "ppca", "n": 20, "dim": 6, "latent_dim": 2, "noise_precision": 5.0},
    "evaluate": {"masks": {"schedule": "all", "per_size": 3}},
    "seeds": [1, 2],
}


def changed(pointer: str, value: Any) -> bytes:
    """GOOD with one field set, as JSON text."""
    spec = deepcopy(GOOD)
    holder = spec
    *path, last = pointer.strip("/").split("/")
    for step in path:
        holder = holder.setdefault(step, {})
    holder[last] = value
    return json.dumps(spec).encode()


def problems(text: bytes, limits: Limits | None = None) -> dict[str, str]:
    with pytest.raises(SpecError) as error:
        parse_spec(text, limits)
    found: dict[str, str] = {}
    for problem in error.value.problems:
        found[problem.pointer] = f"{found.get(problem.pointer, '')}{problem.detail}; "
    return found


def test_a_good_spec_round_trips() -> None:
    spec = parse_spec(json.dumps(GOOD).encode())
    assert stored_spec(spec.model_dump(mode="json")) == spec
    assert parse_spec(spec.model_dump_json().encode()) == spec


FIXED: dict[str, Any] = {"schedule": "fixed"}
SINGLE: list[tuple[str, Any, str, str]] = [
    ("/evaluate/masks/bogus", 1, "/evaluate/masks/bogus", "unknown field"),
    ("/evaluate/masks/schedule", "some", "/evaluate/masks/schedule", "'all'"),
    ("/model/latent_dim", 6, "/model/latent_dim", "at most 5, fewer than the data's 6"),
    ("/data/latent_dim", 6, "/data/latent_dim", "less than dim"),
    ("/data/n", True, "/data/n", "integer"),
    ("/evaluate/masks/per_size", 0, "/evaluate/masks/per_size", "greater than or equal to 1"),
    ("/evaluate/masks", {**FIXED, "rate": 0}, "/evaluate/masks/rate", "greater than 0"),
    ("/evaluate/masks", {**FIXED, "rate": 1.5}, "/evaluate/masks/rate", "less than or equal to 1"),
    ("/evaluate/masks", FIXED, "/evaluate/masks/size", "exactly one of size and rate"),
    (
        "/evaluate/masks",
        {"schedule": "sizes", "sizes": [2, 2]},
        "/evaluate/masks/sizes",
        "once only",
    ),
    ("/model/noise_precision", 4.0, "/model/noise_precision", "the data's own"),
    ("/seeds", [], "/seeds", "at least 1"),
    ("/seeds", [-1], "/seeds/0", "greater than or equal to 0"),
    ("/compute/device", "tpu", "/compute/device", "'cuda'"),
    ("/data", None, "/data", "JSON object"),
    ("/model/noise_precision", float("nan"), "/model/noise_precision", "no NaN"),
    ("/model/noise_precision", float("inf"), "/model/noise_precision", "no NaN, no Infinity"),
    ("/seeds", [2**63], "/seeds/0", "the integer is too large"),
]


@pytest.mark.parametrize(("field", "value", "pointer", "says"), SINGLE)
def test_a_bad_field_is_named_with_the_allowed_values(
    field: str, value: Any, pointer: str, says: str
) -> None:
    found = problems(changed(field, value))
    assert next(iter(found)) == pointer
    assert says in found[pointer]


def test_a_bad_item_does_not_make_a_list_too_short() -> None:
    assert list(problems(changed("/seeds", [-1]))) == ["/seeds/0"]


def test_all_problems_are_reported_at_once() -> None:
    spec = {**GOOD, "bogus": 1, "seeds": [], "compute": {"threads": 0}}
    found = problems(json.dumps(spec).encode())
    assert set(found) == {"/bogus", "/seeds", "/compute/threads"}


def test_a_missing_field_is_named() -> None:
    required = "this field is required; "
    assert problems(b"{}") == {"/model": required, "/data": required}


def test_exhaustive_is_for_few_dimensions() -> None:
    spec = deepcopy(GOOD)
    spec["data"]["dim"] = 30
    spec["evaluate"]["masks"] = {"schedule": "all", "design": "exhaustive"}
    found = problems(json.dumps(spec).encode())
    assert "at most 100000 masks" in found["/evaluate/masks/design"]


def test_limits_name_the_field_that_is_too_large() -> None:
    text = json.dumps(GOOD).encode()
    assert "/data" in problems(text, Limits(elements=100))
    assert "lower per_size" in problems(text, Limits(mask_work=10))["/evaluate/masks/per_size"]
    few = problems(text, Limits(memory_bytes=2**10))
    assert "at most 0 MiB" in few["/data"]


LARGE = "/evaluate/masks/per_size"


def test_work_of_up_to_thirty_days_is_accepted() -> None:
    """The limit is for two cores, as docs/speed.md describes."""
    spec = deepcopy(GOOD)
    spec["model"] |= {"latent_dim": 50, "init": "random"}
    spec["data"]["dim"] = 784
    spec["evaluate"]["masks"]["per_size"] = 1_245_000
    parse_spec(json.dumps(spec).encode(), Limits(memory_bytes=2**37))
    spec["evaluate"]["masks"]["per_size"] = 2_500_000
    assert problems(json.dumps(spec).encode(), Limits(memory_bytes=2**37)) == {
        LARGE: "1960000000 masks of 30732800 multiplications (D² · K, at least 20000) take two "
        "cores 58.1 days; at most 28.9 are accepted: lower per_size; "
    }


def test_masks_of_few_dimensions_count_the_cost_of_drawing_them() -> None:
    limits = Limits(mask_work=6 * 3 * 20_000)
    parse_spec(json.dumps(GOOD).encode(), limits)
    assert list(problems(changed("/evaluate/masks/per_size", 4), limits)) == [LARGE]


def test_a_spec_is_a_json_object() -> None:
    assert problems(b"[]") == {"": "a JSON object, not a list; "}


class Weights(Spec):
    weights: tuple[float, ...] | None = None
    pairs: tuple[tuple[int, float], ...] = ()


def test_a_tuple_is_given_as_a_list_of_strict_items() -> None:
    value = Weights.model_validate({"weights": [0.5, 2], "pairs": [[1, 0.5], [2, 1.5]]})
    assert (value.weights, value.pairs) == ((0.5, 2.0), ((1, 0.5), (2, 1.5)))
    for wrong in ({"weights": "12"}, {"weights": ["1"]}, {"pairs": [[1.0, 2.0]]}):
        with pytest.raises(ValidationError):
            Weights.model_validate(wrong)


LINEAR_VAE = {
    "model": {
        "family": "linear_vae",
        "latent_dim": 1,
        "likelihood": {"distribution": "bernoulli"},
    },
    "data": {"source": "digits", "binarize": "threshold"},
}
TRAINED: list[dict[str, Any]] = [
    {**GOOD, "model": {**GOOD["model"], "init": "random"}, "train": {"epochs": 1}},
    {**LINEAR_VAE, "train": {"epochs": 1}},
]


@pytest.mark.parametrize("spec", TRAINED, ids=lambda spec: spec["model"]["family"])
def test_an_objective_is_a_list_or_one_string(spec: dict[str, Any]) -> None:
    def with_objective(value: Any) -> ExperimentSpec:
        return validate_spec({**spec, "train": {**spec["train"], "objective": value}})

    one = with_objective("mpt")
    assert one == with_objective(["mpt"])
    assert one.model_dump(mode="json")["train"]["objective"] == ["mpt"]
    with pytest.raises(SpecError, match=r"^/train/objective: (one of )?'mpt'"):
        with_objective("elb")
    with pytest.raises(SpecError, match=r"^/train/objective: at least 1 items$"):
        with_objective([])
    if spec["model"]["family"] != "linear_vae":
        with pytest.raises(SpecError, match=r"^/train/objective: at most 1 items$"):
            with_objective(["mpt", "mpt"])


def test_specs_stored_by_an_earlier_version_are_read_and_run() -> None:
    """`objectives` until version 0.1; a request may not say so any more."""
    old = {**LINEAR_VAE, "train": {"objectives": ["mpt", "elbo"], "epochs": 2}}
    now = validate_spec({**LINEAR_VAE, "train": {"objective": ["mpt", "elbo"], "epochs": 2}})
    assert stored_spec(old) == now
    assert parse_assignment(json.dumps({"spec": old}).encode()).spec == now
    with pytest.raises(SpecError, match=r"/train/objectives: unknown field; allowed here: .*obj"):
        validate_spec(old)


def test_a_proposal_by_rounds_that_was_stored_is_fitted_now() -> None:
    """`rounds` of importance sampling until version 0.1."""
    likelihood = {"distribution": "gaussian", "noise_precision": 4.0}
    vae = {"family": "vae", "latent_dim": 2, "likelihood": likelihood}
    method = {"method": "importance", "draws": 64}
    spec = {"model": {**vae, "conditionals": method}, "data": {"source": "digits"}}
    old = {**spec, "model": {**vae, "conditionals": {**method, "rounds": 3}}}
    assert stored_spec(old) == validate_spec(spec)
    with pytest.raises(SpecError, match=r"/model/conditionals/rounds: unknown field"):
        validate_spec(old)
    recursive = {**spec, "model": {**vae, "conditionals": {"method": "recursive"}}}
    assert stored_spec(recursive) == validate_spec(recursive)


STORED_DECISION = """
{"model": {"family": "masked_lm", "checkpoint": "tiny", "revision": null, "init": "pretrained",
"experiment": null, "architecture": null, "corruption": "mask"}, "baseline": null, "data":
{"packing": "sentences", "max_length": 512, "n": null, "heldout": null, "seed": 0, "source": "text",
"file": null, "lines": ["a b", "b a"], "dataset": null, "column": "text", "second_column": null},
"train": null, "evaluate": {"masks": {"schedule": "rates", "rates": [0.1, 0.5, 0.9], "per_size": 1},
"dimensions": 512, "orders": 0, "pll": false, "sequences": null, "target_std_err": null, "target":
"area", "max_masks": 1000000, "texts": {"scores": ["cumulative"], "per_token": false,
"target_std_err": 0.5, "relative": false, "max_masks": 10000, "group_size": 2, "group_column": null,
"category_column": null, "label_column": null, "target": "decision", "prefix_column": null,
"window_overlap": null, "wild_type": null}}, "seeds": [0], "compute": {"device": "auto", "threads":
2, "max_runtime_s": 3600, "memory_mib": null, "determinism": "exact", "precision": "auto"}}"""
"""Stored by a development version of 0.2."""


@pytest.mark.parametrize("target", ["decision", "scores"])
def test_a_stored_target_of_texts_gives_scores_now(target: str) -> None:
    """`target` of scores of texts in development versions of 0.2."""
    old = json.loads(STORED_DECISION)
    old["evaluate"]["texts"]["target"] = target
    found = stored_spec(old)
    with pytest.raises(SpecError, match=r"/evaluate/texts/target: unknown field"):
        validate_spec(old)
    del old["evaluate"]["texts"]["target"]
    assert found == validate_spec(old)
    assert stored_spec(found.model_dump(mode="json")) == found


CONSTANTS = [("evaluate", "lml"), ("train", "mask_each"), ("train", "objective")]


@pytest.mark.parametrize(
    ("stored", "part", "name"),
    [
        (stored, *field)
        for stored, field in zip(
            Path(__file__).with_name("stored.ndjson").read_text().splitlines(),
            CONSTANTS,
            strict=True,
        )
    ],
    ids=["ppca", "vae", "masked_lm"],
)
def test_fields_of_one_value_that_were_stored_are_left_out_now(
    stored: str, part: str, name: str
) -> None:
    """In development versions of 0.2; a request may not have them any more."""
    old = json.loads(stored)
    found = stored_spec(old)
    assert parse_assignment(json.dumps({"spec": old}).encode()).spec == found
    with pytest.raises(SpecError, match=rf"/{part}/{name}: unknown field; allowed here: "):
        validate_spec(old)
    del old[part][name]
    assert found == validate_spec(old)


def test_observations_that_do_not_fill_a_batch_are_a_step_too() -> None:
    whole = Train(epochs=3)
    assert whole.steps_per_epoch(10) == 1
    steps = {size: Train(epochs=3, batch_size=size).steps_per_epoch(10) for size in (3, 5, 10, 11)}
    assert steps == {3: 4, 5: 2, 10: 1, 11: 1}
    some = Train(epochs=3, batch_size=3, masks=AllSizes(per_size=2))
    assert [some.masks_of_epoch(epoch, 10, 6) for epoch in (1, 2, 3)] == [48, 48, 12]
    assert Train(epochs=3, batch_size=3, objective=("lml",)).masks_of_epoch(1, 10, 6) == 4


def test_the_schema_says_that_an_objective_may_be_a_string() -> None:
    schema = TypeAdapter(ExperimentSpec).json_schema()
    objective = schema["$defs"]["VaeTrain"]["properties"]["objective"]
    one, several = objective["anyOf"]
    assert one["enum"] == several["items"]["enum"] == ["mpt", "elbo", "lml"]
