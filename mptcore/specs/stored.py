"""Reading specs that were accepted before, by this version or an earlier one.

What comes from a user goes through validate_spec, which knows the present form alone.
"""

from typing import Any

from mptcore.specs.union import ExperimentSpec, adapter_of


def stored_spec(value: Any, union: Any = ExperimentSpec) -> ExperimentSpec:
    """The spec that was stored as JSON. Raises ValidationError where no version accepted it."""
    spec: ExperimentSpec = adapter_of(union).validate_python(in_present_form(value))
    return spec


def in_present_form(value: Any) -> Any:
    """The same spec with the names that its fields have now."""
    return _fitted_proposals(_one_objective(value))


def _one_objective(value: Any) -> Any:
    match value:
        case {"train": {"objectives": objectives, **train}, **rest}:  # until version 0.1
            return {**rest, "train": {**train, "objective": objectives}}
    return value


def _fitted_proposals(value: Any) -> Any:
    """Importance sampling had `rounds` of encoding and decoding for its proposal, until version
    0.1. Now a proposal is fitted: what is estimated is the same."""
    match value:
        case {"model": {"conditionals": {"method": "importance", "rounds": _, **kept}, **model}}:
            conditionals = {"method": "importance", **kept}
            return {**value, "model": {**model, "conditionals": conditionals}}
    return value
