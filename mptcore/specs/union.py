"""The union of all experiment specs.

Client, service, database and runner use it. The family of its model selects the class.
"""

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, get_args

from pydantic import BaseModel, GetCoreSchemaHandler, TypeAdapter
from pydantic_core import CoreSchema, core_schema

from mptcore.specs.families.linear_gaussian import LinearGaussianExperiment
from mptcore.specs.families.masked_lm import MaskedLmExperiment
from mptcore.specs.families.vae.experiment import VaeExperiment


@dataclass(frozen=True)
class ByFamily:
    """Discriminator of a union of experiment specs: the family of the model. A value without a
    model is validated as the first class."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        members: tuple[type[BaseModel], ...] = get_args(source)
        of_family = {family: one.__name__ for one in members for family in families_of(one)}
        known = ", ".join(map(repr, of_family))
        context: dict[str, Any] = {"problems": [("/model/family", f"one of {known}")]}

        def choose(value: Any) -> str | None:
            if isinstance(value, BaseModel):
                return type(value).__name__
            model = value.get("model") if isinstance(value, dict) else None
            if not isinstance(model, dict):
                return members[0].__name__
            family = model.get("family")
            return of_family.get(family) if isinstance(family, str) else None

        return core_schema.tagged_union_schema(
            {one.__name__: handler.generate_schema(one) for one in members},
            choose,
            custom_error_type="spec_problems",
            custom_error_message="the family is unknown",
            custom_error_context=context,
        )


def families_of(experiment: type[BaseModel]) -> list[str]:
    """Return the families of an experiment's model, in their order."""
    return [
        family
        for model in models_of(experiment.model_fields["model"].annotation)
        for family in get_args(model.model_fields["family"].annotation)
    ]


def models_of(annotation: Any) -> list[type[BaseModel]]:
    """Return the models in an annotation: one, or the members of a union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in models_of(part)]


ExperimentSpec = Annotated[
    LinearGaussianExperiment | VaeExperiment | MaskedLmExperiment, ByFamily()
]
"""Register the experiment of a new family here. mypy then reports that mptcore/run.py lacks its
implementation."""


@cache
def adapter() -> TypeAdapter[Any]:
    """Return the validator of experiment specs."""
    return TypeAdapter(ExperimentSpec)
