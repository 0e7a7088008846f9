"""The union of all experiment specs.

Client, service, database and runner use it. The family of its model selects the class.
"""

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel, GetCoreSchemaHandler, TypeAdapter
from pydantic_core import CoreSchema, core_schema

from mptcore.specs.base import Problem, reject
from mptcore.specs.built_in import BuiltIn
from mptcore.specs.experiment import OutsideExperiment
from mptcore.specs.outside import families_of, models_of, outside_families


@dataclass(frozen=True)
class ByFamily:
    """Discriminator of a union of experiment specs: the family of the model. A value without a
    model is validated as the first class."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        members = models_of(source)
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

        union = core_schema.tagged_union_schema(
            {one.__name__: handler.generate_schema(one) for one in members},
            choose,
            custom_error_type="spec_problems",
            custom_error_message="the family is unknown",
            custom_error_context=context,
        )
        if not outside_families().unusable:
            return union
        return core_schema.no_info_before_validator_function(_refuse_unusable, union)


ExperimentSpec = Annotated[BuiltIn | OutsideExperiment, ByFamily()]
"""An experiment of any family. OutsideExperiment stands for those of all families from outside."""


@cache
def adapter() -> TypeAdapter[Any]:
    """Return the validator of experiment specs."""
    return TypeAdapter(ExperimentSpec)


def _refuse_unusable(value: Any) -> Any:
    """Refuse a spec whose package cannot be imported, with the reason."""
    model = value.get("model") if isinstance(value, dict) else None
    family = model.get("family") if isinstance(model, dict) else None
    if isinstance(family, str) and family in outside_families().unusable:
        if (reason := missing_family(family)) is not None:
            reject([Problem("/model/family", reason)])
    return value


@cache
def known_families() -> tuple[str, ...]:
    """Return the families that this process can use, those from outside last."""
    return tuple(family for one in models_of(ExperimentSpec) for family in families_of(one))


def missing_family(family: str) -> str | None:
    """Return why this process cannot use a family, or None if it can."""
    if family in known_families():
        return None
    reason = outside_families().unusable.get(
        family, "no package that is installed here registers it"
    )
    return f"the family {family!r} cannot be used: {reason}"
