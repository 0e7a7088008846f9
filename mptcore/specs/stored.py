"""Reader of stored specs, which this or an earlier version accepted.

Specs from users go through validate_spec, which accepts the present form only.
"""

from typing import Any

from pydantic import ValidationError

from mptcore.specs.union import ExperimentSpec, adapter


def stored_spec(value: Any) -> ExperimentSpec:
    """Return the spec in stored JSON. Raise ValidationError if no version accepted it."""
    spec: ExperimentSpec = adapter().validate_python(in_present_form(value))
    return spec


def stored_spec_if_known(value: Any) -> ExperimentSpec | None:
    """Return the spec in stored JSON, or None if this version cannot read it: the package of its
    family is gone, or another version of it is installed."""
    try:
        return stored_spec(value)
    except ValidationError:
        return None


def in_present_form(value: Any) -> Any:
    """Return the spec with the present names of its fields."""
    return _without_constants(_scores_of_texts(_fitted_proposals(_one_objective(value))))


def _one_objective(value: Any) -> Any:
    match value:
        case {"train": {"objectives": objectives, **train}, **rest}:  # until version 0.1
            return {**rest, "train": {**train, "objective": objectives}}
    return value


def _fitted_proposals(value: Any) -> Any:
    """Drop `rounds` of importance sampling. Until version 0.1 its proposal came from rounds of
    encoding and decoding; now it is fitted, with the same expected results."""
    match value:
        case {"model": {"conditionals": {"method": "importance", "rounds": _, **kept}, **model}}:
            conditionals = {"method": "importance", **kept}
            return {**value, "model": {**model, "conditionals": conditionals}}
    return value


def _scores_of_texts(value: Any) -> Any:
    """Drop `target` of scores of texts. In development versions of 0.2 the target `decision` scored
    only as much as it took to tell the best text of a group; now all texts get their scores."""
    match value:
        case {"evaluate": {"texts": {"target": _, **texts}, **evaluate}}:
            return {**value, "evaluate": {**evaluate, "texts": texts}}
    return value


def _without_constants(value: Any) -> Any:
    """Drop fields of development versions of 0.2 that had one useful value: the exact LML of a
    linear Gaussian, the objective of a language model, and masks for each observation of a VAE."""
    match value:
        case {
            "model": {"family": "ppca" | "factor_analysis"},
            "evaluate": {"lml": _, **evaluate},
        }:
            return {**value, "evaluate": evaluate}
        case {"model": {"family": "masked_lm"}, "train": {"objective": _, **train}}:
            return {**value, "train": train}
        case {"train": {"mask_each": _, **train}}:
            return {**value, "train": train}
    return value
