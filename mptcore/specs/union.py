"""The experiment spec: the one language of client, service, database and runner.

It is a union of one class for each group of families, told apart by the family of its model.
"""

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, get_args

from pydantic import BaseModel, GetCoreSchemaHandler, TypeAdapter
from pydantic_core import CoreSchema, core_schema

from mptcore.specs.families.linear_gaussian.experiment import VectorExperiment
from mptcore.specs.families.masked_lm import TextExperiment
from mptcore.specs.families.vae.experiment import LatentExperiment


@dataclass(frozen=True)
class ByFamily:
    """Marks a union of experiment specs. The family of its model says which of them a value is; a
    value without a model is checked as the first one."""

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
    """The families of an experiment's model, in their order."""
    return [
        family
        for model in _models(experiment.model_fields["model"].annotation)
        for family in get_args(model.model_fields["family"].annotation)
    ]


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The models of a union, or the one that it is."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]


ExperimentSpec = Annotated[VectorExperiment | LatentExperiment | TextExperiment, ByFamily()]
"""Here a new family's experiment is registered; mptcore/run.py then lacks its implementation, as
the type checker says."""


@cache
def adapter_of(union: Any) -> TypeAdapter[Any]:
    """What validates a union of experiment specs."""
    return TypeAdapter(union)
