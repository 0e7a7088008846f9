"""Specs of VAEs that are refused, each by the field that is wrong."""

from typing import Any

import pytest

from mptcore.specs import Limits, SpecError, validate_spec
from tests.support.vae_specs import DEEP, LINEAR, changed

REFUSED: dict[str, tuple[dict[str, Any], str, Any, str]] = {
    "grid of many dimensions": (LINEAR, "model/latent_dim", 4, "/model/conditionals/method"),
    "too many nodes": (
        changed(LINEAR, "model/latent_dim", 3), "model/conditionals/nodes", 500,
        "/model/conditionals/nodes"),
    "data that are not binary": (LINEAR, "data/binarize", None, "/data/binarize"),
    "simulated data": (
        LINEAR, "data",
        {"source": "ppca", "n": 9, "dim": 5, "latent_dim": 2, "noise_precision": 1.0},
        "/model/likelihood/distribution"),
    "binary and standardized": (LINEAR, "data/standardize", True, "/data/standardize"),
    "lml without a grid": (
        DEEP, "train", {"objective": ["lml"], "epochs": 1}, "/train/objective/0"),
    "an objective twice": (
        DEEP, "train", {"objective": ["mpt", "mpt"], "epochs": 1}, "/train/objective"),
    "no objective": (DEEP, "train", {"objective": [], "epochs": 1}, "/train/objective"),
    "grid for a deep model": (
        DEEP, "evaluate/lml", {"method": "gauss_hermite"}, "/evaluate/lml/method"),
    "iwae for a grid": (LINEAR, "evaluate", {"lml": {"method": "iwae"}}, "/evaluate/lml/method"),
    "annealing beside a grid": (LINEAR, "evaluate", {"ais": {}}, "/evaluate/ais"),
    "images of another size": (
        DEEP, "model/network", {"layers": "convolutional", "channels": [4, 4, 4, 4]},
        "/model/network/channels"),
    "no images": (
        {**DEEP, "model": {**DEEP["model"], "network": {"layers": "convolutional"}}}, "data",
        {"source": "ppca", "n": 9, "dim": 5, "latent_dim": 2, "noise_precision": 1.0},
        "/model/network/layers"),
    "a baseline of other data": (
        LINEAR, "baseline", {"family": "ppca", "latent_dim": 2, "init": "maximum_likelihood"},
        "/baseline"),
    "all masks, sampled": (
        {**DEEP, "data": {"source": "ppca", "n": 9, "dim": 5, "latent_dim": 2,
                          "noise_precision": 1.0}}, "evaluate",
        {"masks": {"schedule": "all", "design": "exhaustive"}}, "/evaluate/masks/design"),
    "a narrow grid": (LINEAR, "model/conditionals/extent", 2.0, "/model/conditionals/extent"),
    "an objective of no experiment": (DEEP, "model/trained_by", "elbo", "/model/trained_by"),
    "memory for many masks": (DEEP, "compute/memory_mib", 100, "/compute/memory_mib"),
    "weights of no experiment": (DEEP, "model/init", "experiment", "/model/experiment"),
    "no steps": (
        DEEP, "model/conditionals", {"method": "importance", "steps": 0},
        "/model/conditionals/steps"),
    "an unknown activation": (
        DEEP, "model/network/activation", "softmax", "/model/network/activation"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_specs_are_refused(name: str) -> None:
    base, path, value, pointer = REFUSED[name]
    with pytest.raises(SpecError) as refused:
        validate_spec(changed(base, path, value))
    assert pointer in [problem.pointer for problem in refused.value.problems]


TOO_LARGE: dict[str, tuple[dict[str, Any], str, Any, str]] = {
    "nodes of training": (
        {**changed(LINEAR, "model/conditionals/nodes", 700), "train": {
            "objective": ["mpt"], "epochs": 1,
            "masks": {"schedule": "fixed", "rate": 0.15, "per_size": 3}}},
        "seeds", [1], "/model/conditionals/nodes"),
    "nodes of the LML": (
        LINEAR, "evaluate/lml", {"method": "uniform_grid", "nodes": 700, "extent": 4.0},
        "/model/conditionals/nodes"),
    "draws of training": (
        {**DEEP, "train": {"objective": ["mpt"], "epochs": 1}}, "model/conditionals",
        {"method": "importance", "train_draws": 100_000}, "/data"),
    "chains": (
        changed(DEEP, "model/network/widths", [16_384]), "evaluate/ais/chains", 10_000, "/data"),
    "masks": (DEEP, "evaluate/masks/per_size", 1_000_000, "/evaluate/masks"),
}  # fmt: skip


@pytest.mark.parametrize("name", TOO_LARGE)
def test_too_large_specs_are_refused(name: str) -> None:
    base, path, value, pointer = TOO_LARGE[name]
    limits = Limits(memory_bytes=2**30, latent_work=4 * 10**11)
    with pytest.raises(SpecError) as refused:
        validate_spec(changed(base, path, value), limits)
    (problem,) = refused.value.problems
    assert problem.pointer == pointer
    assert "lower" in problem.detail
    validate_spec(DEEP, limits)
    validate_spec(LINEAR, limits)
