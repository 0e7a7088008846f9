"""Conversion of pydantic's errors to problems: a pointer to the field and the allowed values."""

import json
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError

from mptcore.specs.base import MAX_PROBLEMS, Problem, SpecError
from mptcore.specs.compute import Limits
from mptcore.specs.outside import models_of
from mptcore.specs.parsing.json_text import parse_json, pointer_token
from mptcore.specs.parsing.sentences import ONE_OF, QUOTED, UNION, not_given, one_of, sentence
from mptcore.specs.parsing.suggestions import meant, meant_field
from mptcore.specs.union import ExperimentSpec, adapter


def parse_spec(text: bytes, limits: Limits | None = None) -> ExperimentSpec:
    """Return the spec in a JSON text. Raise SpecError."""
    return validate_spec(parse_json(text), limits)


def validate_spec(value: object, limits: Limits | None = None) -> ExperimentSpec:
    """Return the spec in a value that parse_json returned. Raise SpecError."""
    try:
        spec: ExperimentSpec = adapter().validate_python(value)
    except ValidationError as error:
        raise spec_error(error.errors(include_url=False), value, ExperimentSpec) from None
    if problems := spec.limit_problems(limits or Limits()):
        raise SpecError(problems)
    return spec


def spec_error(
    errors: Sequence[Any],
    value: object,
    model: Any,
    sentence_of: Callable[[Any], str] = sentence,
) -> SpecError:
    """Return the problems in pydantic's errors about `value`, validated as `model`: a model, or a
    union. Only problems that SpecError lists get sentences."""
    shown = _with_whole_unions(_without_consequences(errors), value, model)
    problems: list[Problem] = []
    count = 0
    for error in shown:
        if error["type"] == MORE_ERRORS:
            count += error["ctx"]["count"]
        elif count < MAX_PROBLEMS:
            found = _problems(error, value, model, sentence_of, count < MAX_MEANT)
            problems += found
            count += len(found)
        else:
            count += 1
    return SpecError(problems, count)


UNKNOWN_FIELD = "unknown field"
"""Beginning of the detail of a problem with a field that does not exist."""
MAX_MEANT = 10
"""Maximum number of problems up to which unknown fields get suggestions. Each one is searched
for in all fields."""
MORE_ERRORS = "more_errors"
"""Type of an error that represents `count` further errors."""


def _without_consequences(errors: Sequence[Any]) -> Sequence[Any]:
    """Drop errors about lists that are too short because some of their items are bad: pydantic
    drops bad items before it counts."""
    short = {error["loc"] for error in errors if error["type"] == "too_short"}
    if not short:
        return errors
    outer = {error["loc"][:i] for error in errors for i in range(len(error["loc"]))}
    short &= outer
    return [e for e in errors if e["type"] != "too_short" or e["loc"] not in short]


def _with_whole_unions(errors: Sequence[Any], value: object, model: Any) -> Sequence[Any]:
    """Replace the errors of all members of a union of plain types, which contradict each other, by
    one error."""
    merged: list[Any] = []
    for error in errors:
        last = merged[-1] if merged else None
        members = last["ctx"]["errors"] if last and last["type"] == UNION else [last]
        if last and _is_same_union(members[0], error, value, model):
            merged[-1] = {
                "type": UNION,
                "loc": error["loc"][:-1],
                "input": error["input"],
                "ctx": {"errors": [*members, error]},
            }
        else:
            merged.append(error)
    return merged


def _is_same_union(error: Any, following: Any, value: object, model: Any) -> bool:
    """Return whether two errors are about one value: their locations end in the names of types."""
    pair = error, following
    outer, inputs = {part["loc"][:-1] for part in pair}, {id(part.get("input")) for part in pair}
    if len(outer) > 1 or len(inputs) > 1 or any(part["type"] in OF_OBJECTS for part in pair):
        return False
    return len({_locate(part["loc"], value, model)[0] for part in pair}) == 1


OF_OBJECTS = ("missing", "extra_forbidden", "spec_problems", MORE_ERRORS)
"""Types of errors about objects, not about members of a union of plain types."""


def _problems(
    error: Any, value: object, model: Any, sentence_of: Callable[[Any], str], has_meant: bool
) -> list[Problem]:
    context = error.get("ctx", {})
    pointer, holder, members = _locate(error["loc"], value, model)
    match error["type"]:
        case "spec_problems":
            found = [Problem(pointer + inner, detail) for inner, detail in context["problems"]]
            return [_with_meant(one, value) for one in found]
        case "extra_forbidden":
            known = sorted(holder.model_fields)
            near = _meant_field(error["loc"], known, value, model) if has_meant else ""
            detail = f"{UNKNOWN_FIELD}; allowed here: {', '.join(known)}"
            return [Problem(pointer, f"{detail}; {near}" if near else detail)]
        case "union_tag_invalid" | "union_tag_not_found":
            tag = context["discriminator"].strip("'")
            allowed = [value for member in members for value in _tags(member, tag)]
            listed = ", ".join(map(repr, allowed))
            place = f"{pointer}/{tag}"
            return [Problem(place, one_of(listed, [*map(str, allowed)], _at(value, place)))]
        case "model_type" | "model_attributes_type" | "dict_type":
            return [Problem(pointer, f"a JSON object{_as_object(error['input'], members)}")]
        case "too_short":
            return [Problem(pointer, f"at least {context['min_length']} items")]
        case "too_long":
            return [Problem(pointer, f"at most {context['max_length']} items")]
        case _:
            return [Problem(pointer, f"{sentence_of(error)}{_or_null(error, holder)}")]


def _as_object(value: object, members: Sequence[type[BaseModel]]) -> str:
    """Return the end of a sentence about a value that is not an object: the object that has this
    text as its tag, if there is one."""
    tags = (
        name
        for member in members
        for name in member.model_fields
        if isinstance(value, str) and value in _tags(member, name)
    )
    tag = next(tags, None) if len(members) > 1 else None
    advice = "" if tag is None else f": {json.dumps({tag: value})}"
    return f"{not_given(value)}{advice}"


def _or_null(error: Any, holder: type[BaseModel]) -> str:
    """Return advice where null leaves out what 0, false or an empty text was given for."""
    field = holder.model_fields.get(str(error["loc"][-1])) if error["loc"] else None
    is_nullable = field is not None and type(None) in get_args(field.annotation)
    return "; null for none" if is_nullable and error["input"] in (0, "") else ""


def _meant_field(
    location: Sequence[str | int], known: Sequence[str], value: object, model: Any
) -> str:
    """Return a question with the fields that an unknown field may mean, or nothing."""
    name = str(location[-1])
    for experiment in models_of(ExperimentSpec):
        if experiment.__name__ in location:
            place = location[: location.index(experiment.__name__)]
            spec = _at(value, _locate(place, value, model)[0])
            return meant_field(name, known, experiment, spec)
    return meant(name, known).strip()


def _locate(
    location: Sequence[str | int], value: object, model: Any
) -> tuple[str, type[BaseModel], list[type[BaseModel]]]:
    """Return the JSON pointer of a location, the model that has its last step as a field, and the
    models that are allowed there. A location also contains the tag of each union on its way; the
    pointer leaves tags out."""
    members = models_of(model)
    pointer, holder = "", members[0]
    for step in location:
        if len(members) > 1:
            members = [member for member in members if step in _names(member)] or members[:1]
            holder = members[0]
            continue
        holder = members[0] if members else holder
        if isinstance(value, dict) and not (step in value or step in holder.model_fields):
            continue  # a branch of a union of plain types
        if isinstance(value, list) and not isinstance(step, int):
            continue  # the same
        if isinstance(value, list):  # its items have the type that the field's annotation names
            value = value[int(step)]
            pointer += pointer_token(step)
            continue
        if not isinstance(value, dict):
            continue
        value = value.get(step)
        field = holder.model_fields.get(str(step)) if members else None
        members = models_of(field.annotation) if field else []
        pointer += pointer_token(step)
    return pointer, holder, members


def _with_meant(problem: Problem, value: object) -> Problem:
    """Add to a list of allowed values the one that was probably meant."""
    listed = problem.detail.removeprefix(ONE_OF)
    if listed == problem.detail:
        return problem
    given = _at(value, problem.pointer)
    return Problem(problem.pointer, one_of(listed, QUOTED.findall(listed), given))


def _at(value: object, pointer: str) -> object:
    """Return the value at a pointer without escapes, or None."""
    for step in pointer.split("/")[1:]:
        if isinstance(value, list) and step.isdecimal():
            value = value[int(step)]
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value


def _names(model: type[BaseModel]) -> list[Any]:
    """Return the names that a location may use for a member of a union."""
    return [model.__name__, *_tags(model)]


def _tags(model: type[BaseModel], name: str | None = None) -> list[Any]:
    """Return the values of a model's tag, or of all its literals."""
    return [
        value
        for field, info in model.model_fields.items()
        if get_origin(info.annotation) is Literal and name in (None, field)
        for value in get_args(info.annotation)
    ]
