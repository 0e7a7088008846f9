"""Errors of long lists. Pydantic needs microseconds for each error that it reports, and no other
thread runs during this time. So most errors of 100,000 wrong values are only counted."""

from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import InitErrorDetails, PydanticCustomError

from mptcore.specs.base import MAX_PROBLEMS
from mptcore.specs.parsing.problems import MORE_ERRORS


def first_errors(item: Any) -> WrapValidator:
    """Return a validator for a list of `item` that reports the errors of the first bad items and
    the number of the other errors."""

    @cache
    def adapter() -> TypeAdapter[Any]:
        return TypeAdapter(item)

    def check(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        try:
            return validate(value)
        except ValidationError as error:
            count = error.error_count()
            if count <= MAX_PROBLEMS or not isinstance(value, list):
                raise
        raise ValidationError.from_exception_data("list", _first(adapter(), value, count))

    return WrapValidator(check)


def _first(item: TypeAdapter[Any], values: list[Any], count: int) -> list[InitErrorDetails]:
    found: list[InitErrorDetails] = []
    for i, value in enumerate(values):
        try:
            item.validate_python(value)
        except ValidationError as error:
            found += [_located(i, one) for one in error.errors(include_url=False)]
        if len(found) >= MAX_PROBLEMS:
            break
    if count > len(found):
        more = PydanticCustomError(MORE_ERRORS, "more", {"count": count - len(found)})
        found.append(InitErrorDetails(type=more, input=None))
    return found


def _located(i: int, error: Any) -> InitErrorDetails:
    same = PydanticCustomError(error["type"], error["msg"], error.get("ctx"))
    return InitErrorDetails(type=same, loc=(i, *error["loc"]), input=error["input"])
