"""JSON texts that are refused before they are validated, and values with many errors."""

import json
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from mptcore.specs import MAX_PROBLEMS, SpecError, parse_json, spec_error
from mptcore.specs.parsing import problems
from mptcore.specs.parsing.json_text import MAX_DEPTH, MAX_ITEMS, MAX_KEY_LENGTH, MAX_KEYS
from mptcore.specs.parsing.sentences import sentence


def refused(text: bytes) -> SpecError:
    with pytest.raises(SpecError) as caught:
        parse_json(text)
    return caught.value


TOO_DEEP = "JSON nests at most 20 levels deep"
TOO_LARGE = "the integer is too large: 64 bits hold those from -2^63 to 2^63 - 1"


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        (
            b'{"a": 1,\n 2}',
            "not valid JSON: Expecting property name enclosed in double quotes at line 2, column 2",
        ),
        (b'"a\xff"', "JSON must be UTF-8 text; byte 2 is not"),
        (b"[" * 21 + b"]" * 21, TOO_DEEP),
        (b"[" * 100_000 + b"]" * 100_000, TOO_DEEP),
        (b'{"a": 1, "a": 2}', "an object may name each key once only"),
        (b"1" * 5000, TOO_LARGE),
        (b"9223372036854775808", TOO_LARGE),
        (b"-Infinity", "a number must be finite: no NaN, no Infinity"),
        (b'"\\u0000"', "text must not contain the character U+0000"),
        (b'"\\ud800"', "text must not contain half of a surrogate pair"),
    ],
)
def test_a_refused_text_gives_a_reason(text: bytes, detail: str) -> None:
    (problem,) = refused(text).problems
    assert (problem.pointer, problem.detail) == ("", detail)


def test_a_refused_value_is_named_by_its_pointer() -> None:
    def found(value: Any) -> list[tuple[str, str]]:
        return [(one.pointer, one.detail) for one in refused(json.dumps(value).encode()).problems]

    number = "a number must be finite: no NaN, no Infinity"
    assert found({"a/b": [1, {"m~n": float("nan")}]}) == [("/a~1b/1/m~0n", number)]
    key = "a key must not contain the character U+0000"
    assert found({"a": {"\0": float("nan"), "b": float("inf")}}) == [("/a", key), ("/a/b", number)]
    assert found([2**63, -(2**63)]) == [("/0", TOO_LARGE)]
    long = f"a key has at most {MAX_KEY_LENGTH} characters"
    assert found([{"a" * (MAX_KEY_LENGTH + 1): 1}]) == [("/0", long)]


def test_the_first_problems_are_listed_and_all_are_counted() -> None:
    for count in (MAX_PROBLEMS, MAX_PROBLEMS + 3):
        error = refused(json.dumps([float("nan")] * count).encode())
        assert (len(error.problems), error.count) == (MAX_PROBLEMS, count)


@pytest.mark.parametrize("opening", [b"1,", b"[", b"{"])
def test_a_text_of_too_many_items_is_refused_before_it_is_parsed(
    opening: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mptcore.specs.parsing.json_text.json", None)
    (problem,) = refused(opening * (MAX_ITEMS + 1)).problems
    assert problem.detail == f"JSON holds at most {MAX_ITEMS} items"


def test_an_object_of_too_many_keys_is_refused() -> None:
    value = {f"a{i}": 1 for i in range(MAX_KEYS + 1)}
    (problem,) = refused(json.dumps(value).encode()).problems
    assert problem.detail == f"an object has at most {MAX_KEYS} keys, not {MAX_KEYS + 1}"


def test_texts_just_within_the_limits_are_read() -> None:
    nested: Any = 1
    for _ in range(MAX_DEPTH):
        nested = [nested]
    within = [
        nested,
        {f"a{i}": 1 for i in range(MAX_KEYS)},
        {"a" * MAX_KEY_LENGTH: [True, None, "ü", 1.5]},
        [1] * MAX_ITEMS,
    ]
    for value in within:
        assert parse_json(json.dumps(value).encode()) == value


def test_a_byte_order_mark_is_left_out() -> None:
    assert parse_json(b'\xef\xbb\xbf{"a": "\xef\xbb\xbf"}') == {"a": "\ufeff"}
    (problem,) = refused(b'\xef\xbb\xbf{"a":\xff}').problems
    assert problem.detail == "JSON must be UTF-8 text; byte 8 is not"


class Item(BaseModel):
    x: int


class Items(BaseModel):
    items: list[Item]


def test_at_most_a_hundred_messages_are_written() -> None:
    value = {"items": [{"x": "a"}] * 5000}
    with pytest.raises(ValidationError) as caught:
        Items.model_validate(value)
    made: list[Any] = []

    def noting(one: Any) -> str:
        made.append(one)
        return sentence(one)

    error = spec_error(caught.value.errors(), value, Items, noting)
    assert error.count == 5000
    assert len(made) == len(error.problems) == MAX_PROBLEMS


def test_lists_that_are_too_short_are_compared_with_no_other_error() -> None:
    """Each was compared with all."""
    compared: list[int] = []

    class Location(tuple[Any, ...]):
        __slots__ = ()
        __hash__ = tuple.__hash__

        def __eq__(self, other: object) -> bool:
            compared.append(1)
            return tuple.__eq__(self, other)

        def __getitem__(self, part: Any) -> Any:
            found = tuple.__getitem__(self, part)
            compared.append(1)
            return Location(found) if isinstance(part, slice) else found

    locations = [("grid", f"a{i}") for i in range(1000)] + [("grid", "a0", 3)]
    found = [
        {"type": "too_short" if len(one) == 2 else "int_type", "loc": Location(one)}
        for one in locations
    ]
    kept = problems._without_consequences(found)
    assert len(compared) < 20 * len(locations)
    assert len(kept) == len(found) - 1
