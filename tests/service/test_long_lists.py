"""Errors of long lists in requests."""

from typing import Annotated, Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from mptcore.specs import MAX_PROBLEMS, spec_error
from service.long_lists import first_errors


class Item(BaseModel):
    x: int


class Items(BaseModel):
    items: list[Item]


def long_list() -> TypeAdapter[list[Item]]:
    return TypeAdapter(Annotated[list[Item], first_errors(Item)])


def long_list_error(value: Any) -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        long_list().validate_python(value)
    return caught.value


def test_the_first_errors_of_a_long_list_are_listed_and_all_counted() -> None:
    value = [{"x": 1}, *({"x": "a"} for _ in range(MAX_PROBLEMS + 5))]
    *made, more = long_list_error(value).errors()
    assert [one["loc"] for one in made] == [(i + 1, "x") for i in range(MAX_PROBLEMS)]
    assert made[0]["input"] == "a"
    error = spec_error([*made, more], value, Items)
    assert (len(error.problems), error.count) == (MAX_PROBLEMS, MAX_PROBLEMS + 5)
    assert error.problems[0].detail == "an integer, not 'a'"


def test_a_list_with_few_errors_has_them_all_from_pydantic() -> None:
    value = [{"x": 1}, {"x": "a"}, *({"x": 2} for _ in range(MAX_PROBLEMS))]
    (error,) = long_list_error(value).errors(include_url=False)
    assert (error["loc"], error["type"]) == ((1, "x"), "int_parsing")
    assert long_list_error(3).errors()[0]["type"] == "list_type"
    assert long_list().validate_python([{"x": 1}]) == [Item(x=1)]
