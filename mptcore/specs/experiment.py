"""The experiment spec: the one language of client, service, database and runner."""

from typing import Annotated, Any, get_args

from pydantic import BaseModel, Discriminator, Tag, TypeAdapter

from mptcore.specs.families.linear_gaussian.experiment import VectorExperiment
from mptcore.specs.families.linear_gaussian.models import Model
from mptcore.specs.families.masked_lm import MaskedLmModel, TextExperiment
from mptcore.specs.families.vae.experiment import LatentExperiment
from mptcore.specs.families.vae.models import LinearVaeModel, VaeModel

_MODELS: dict[str, tuple[type[BaseModel], ...]] = {
    "VectorExperiment": get_args(get_args(Model)[0]),
    "LatentExperiment": (LinearVaeModel, VaeModel),
    "TextExperiment": (MaskedLmModel,),
}
_OF_FAMILY = {
    family: name
    for name, models in _MODELS.items()
    for model in models
    for family in get_args(model.model_fields["family"].annotation)
}


def _kind(value: Any) -> str | None:
    """Which kind of experiment a value is meant to be: its model's family says so."""
    if isinstance(value, BaseModel):
        return type(value).__name__
    model = value.get("model") if isinstance(value, dict) else None
    if not isinstance(model, dict):
        return "VectorExperiment"  # which will say what is wrong
    family = model.get("family")
    return _OF_FAMILY.get(family) if isinstance(family, str) else None


_FAMILIES = ", ".join(map(repr, _OF_FAMILY))
ExperimentSpec = Annotated[
    Annotated[VectorExperiment, Tag("VectorExperiment")]
    | Annotated[LatentExperiment, Tag("LatentExperiment")]
    | Annotated[TextExperiment, Tag("TextExperiment")],
    Discriminator(
        _kind,
        custom_error_type="spec_problems",
        custom_error_message="the family is unknown",
        custom_error_context={"problems": [("/model/family", f"one of {_FAMILIES}")]},
    ),
]
EXPERIMENT: TypeAdapter[ExperimentSpec] = TypeAdapter(ExperimentSpec)
"""Reads what was accepted before; what comes from a user goes through validate_spec."""
