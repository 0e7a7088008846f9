"""Messages about refused specs, word for word; refused.ndjson has one case per line."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, TypeAdapter, ValidationError

from mptcore.specs import (
    ExperimentSpec,
    Limits,
    LinearGaussianExperiment,
    Problem,
    SpecError,
    VaeExperiment,
    parse_json,
    validate_spec,
)
from mptcore.specs.parsing.sentences import sentence
from mptcore.specs.parsing.suggestions import MAX_LENGTH, meant
from mptcore.specs.train import one_or_more
from tests.support.lm_specs import BASE
from tests.support.vae_specs import DEEP, LINEAR, changed

VECTORS: dict[str, Any] = {
    "model": {"family": "ppca", "latent_dim": 2, "noise_precision": 5.0, "init": "random"},
    "data": {"source": "ppca", "n": 20, "dim": 6, "latent_dim": 2, "noise_precision": 5.0},
    "evaluate": {"masks": {"schedule": "all", "per_size": 3}},
}
BASES = {"vectors": VECTORS, "text": BASE, "vae": DEEP, "linear_vae": LINEAR}
CASES = Path(__file__).with_name("refused.ndjson").read_text().splitlines()


def problems(spec: dict[str, Any], limits: Limits | None = None) -> list[str]:
    with pytest.raises(SpecError) as error:
        validate_spec(spec, limits)
    return [f"{problem.pointer}: {problem.detail}" for problem in error.value.problems]


@pytest.mark.parametrize("line", CASES)
def test_each_problem_names_its_field(line: str) -> None:
    case = json.loads(line)
    spec = BASES[case["base"]]
    for path, value in case["change"].items():
        spec = changed(spec, path, value)
    assert problems(spec) == case["problems"]


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("latent_dim", "model.latent_dim or data.latent_dim"),
        ("latent_dims", "model.latent_dim or data.latent_dim"),
        ("evaluate/latent_dim", "model.latent_dim or data.latent_dim"),
        ("family", "model.family"),  # the baseline, which has one too, is not given
        ("learning_rate", "train.learning_rate"),
        ("per_size", "evaluate.masks.per_size"),
        ("rates", "train.masks.rates"),  # not of the schedule of evaluate.masks
        ("seed", "seeds or data.seed"),
        ("sead", "seeds"),
    ],
)
def test_an_unknown_field_may_belong_to_another_part(path: str, meant: str) -> None:
    (told,) = problems(changed(VECTORS, path, 1))
    assert told.startswith(f"/{path}: unknown field; allowed here: ")
    assert told.endswith(f"; did you mean {meant}?")


def test_the_first_unknown_fields_get_suggestions() -> None:
    """A hundred took 33 ms of the processor."""
    found = problems({**VECTORS, **{f"latent_dims{i}": 1 for i in range(15)}})
    assert len(found) == 15
    assert ["did you mean" in told for told in found] == [True] * 10 + [False] * 5


@pytest.mark.parametrize("path", ["checkpoint", "latent_dim" * 11])
def test_a_field_of_no_part_is_not_suggested(path: str) -> None:
    (told,) = problems(changed(VECTORS, path, 1))
    assert told.endswith("model, seeds, train")


TWO_RATES = {"schedule": "rates", "rates": [0.1, 0.5]}
WEIGHTS = {"init": "experiment", "experiment": "e"}
UPLOAD = {"source": "upload", "dataset": "abc", "n": 20}


def test_values_just_within_a_bound_are_accepted() -> None:
    within: list[tuple[dict[str, Any], str, Any]] = [
        (VECTORS, "data/heldout", 0.5),
        (VECTORS, "data", {**VECTORS["data"], "n": 2, "heldout": 0.5}),
        (VECTORS, "train", {"epochs": 2, "batch_size": 20, "curve_at": [0, 2]}),
        (VECTORS, "evaluate", {"target_std_err": 0.1, "max_masks": 100}),
        (LINEAR, "model/latent_dim", 3),
        (BASE, "data/lines", ["a" * 100_000, "b" * 100_000]),
        (BASE, "train", {"steps": 12, "warmup_steps": 12, "curve_at": [12]}),
        (BASE, "evaluate", {"masks": TWO_RATES, "target_std_err": 1.0, "max_masks": 100}),
        (VECTORS, "model", {"family": "ppca", "latent_dim": 5, **WEIGHTS}),
        (VECTORS, "data", {**UPLOAD, "dim": 3, "columns": ["a", "b", "c"]}),
        (LINEAR, "model", {**LINEAR["model"], **WEIGHTS, "trained_by": "elbo"}),
        (DEEP, "model/network", {"layers": "convolutional", "channels": [4, 4, 4]}),
    ]
    for base, path, value in within:
        validate_spec(changed(base, path, value))
    lines = ["a" * 100_000, "b" * 100_000, "c"]
    detail = "/data/lines: at most 200000 characters in all, not 200001: upload longer texts"
    assert problems(changed(BASE, "data/lines", lines)) == [detail]


def test_the_minimum_of_masks_for_a_target_is_accepted() -> None:
    """Ten of each of twelve sizes: a pilot of eight, and two."""
    spec = changed(VECTORS, "data/dim", 12)
    target = {"target_std_err": 0.1, "max_masks": 120}
    validate_spec(changed(spec, "evaluate", target))
    told = "/evaluate/max_masks: at least 120 here: a pilot of 8 masks of each size, and two"
    assert problems(changed(spec, "evaluate", {**target, "max_masks": 119})) == [told]


def test_a_spec_too_large_for_the_server_says_what_to_lower() -> None:
    tiny = Limits(mask_work=1, train_work=1)
    trained = changed(VECTORS, "train", {"epochs": 4})
    scored, trains = problems(trained, tiny)
    assert scored.startswith("/evaluate/masks/per_size: 18 masks of 20000 multiplications")
    assert scored.endswith("are accepted: lower per_size")
    assert trains.startswith("/train/epochs: 30 masks of 20000 multiplications")
    assert trains.endswith("are accepted: lower epochs or train.masks.per_size")
    target = changed(VECTORS, "evaluate", {"target_std_err": 0.1, "max_masks": 500})
    (of_target,) = problems(target, tiny)
    assert of_target.startswith("/evaluate/max_masks: 500 masks")
    assert of_target.endswith("lower max_masks")
    size = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
            "intermediate_size": 4096}  # fmt: skip
    large = changed(changed(BASE, "model/init", "random"), "model/architecture", size)
    needed = 16 * (24 * (4 * 1024**2 + 2 * 1024 * 4096) + 512 * 1024)
    validate_spec(large, Limits(memory_bytes=needed))
    assert problems(large, Limits(memory_bytes=needed - 1)) == [
        f"/model/architecture: a run takes at most {(needed - 1) >> 20} MiB; this takes "
        f"{needed >> 20} in training, the vocabulary not counted"
    ]


def test_integers_are_limited_to_64_bits() -> None:
    for number in (-(2**63), 2**63 - 1):
        assert parse_json(f'{{"a": [{number}]}}'.encode()) == {"a": [number]}
    for number in (-(2**63) - 1, 2**63):
        with pytest.raises(SpecError, match=r"^/a/0: the integer is too large: 64 bits hold"):
            parse_json(f'{{"a": [{number}]}}'.encode())


def test_the_closest_known_name_is_suggested() -> None:
    known = ["latent_dim", "latent_dims", "noise"]
    assert meant("latent_dimz", known, "--") == "did you mean --latent_dim? "
    assert meant("nois", known) == "did you mean noise? "
    assert meant("xyz", known) == ""
    long = "a" * MAX_LENGTH
    assert meant(long, [f"{long}b"]) == f"did you mean {long}b? "
    assert meant(f"{long}a", [f"{long}b"]) == ""


def test_problems_of_a_part_have_the_pointer_in_the_whole_spec() -> None:
    inner = SpecError([Problem("/a", "no"), Problem("", "none")], count=7)
    outer = inner.within("/specs/3")
    assert outer.problems == [Problem("/specs/3/a", "no"), Problem("/specs/3", "none")]
    assert (inner.count, outer.count, SpecError(inner.problems).count) == (7, 7, 2)
    assert str(outer) == "/specs/3/a: no; /specs/3: none"


@pytest.mark.parametrize("kind", ["enum", "literal_error"])
def test_a_wrong_choice_is_refused_with_the_allowed_values(kind: str) -> None:
    def told(expected: str) -> str:
        return sentence({"type": kind, "ctx": {"expected": expected}})

    assert told("'a'") == "'a' is the only value"
    assert told("'a' or 'b'") == "one of 'a' or 'b'"


def test_a_pattern_without_a_description_is_shown_itself() -> None:
    context = {"pattern": "^a$"}
    assert sentence({"type": "string_pattern_mismatch", "ctx": context}) == "text like ^a$"


def test_a_single_choice_is_read_as_a_list() -> None:
    choices = Literal["a", "b"]
    adapter: TypeAdapter[Any] = TypeAdapter(
        Annotated[tuple[choices, ...], Field(strict=False), one_or_more(choices)]
    )
    assert adapter.validate_python("a") == adapter.validate_python(["a"]) == ("a",)
    one, several = adapter.json_schema()["anyOf"]
    assert one["enum"] == several["items"]["enum"] == ["a", "b"]
    assert several["maxItems"] == 2


def test_the_family_of_the_model_selects_the_experiment_class() -> None:
    """A value without a discriminator is checked as the first kind."""
    adapter: TypeAdapter[Any] = TypeAdapter(ExperimentSpec)
    for base, kind in ((VECTORS, LinearGaussianExperiment), (LINEAR, VaeExperiment)):
        spec = adapter.validate_python(base)
        assert type(spec) is kind
        assert adapter.validate_python(spec) is spec
    for value in ("text", 3, {}, {"model": "x"}):
        with pytest.raises(ValidationError, match="LinearGaussianExperiment"):
            adapter.validate_python(value)
    for family in ("gan", ["ppca"], None):
        with pytest.raises(ValidationError, match="the family is unknown"):
            adapter.validate_python({"model": {"family": family}})


def test_the_closest_family_is_suggested() -> None:
    (problem,) = problems(changed(VECTORS, "model/family", "pca"))
    assert problem.endswith("; did you mean ppca?")


def test_a_single_value_is_shown_as_a_list() -> None:
    (problem,) = problems(changed(VECTORS, "seeds", 3))
    assert problem.endswith(": write [3]")
