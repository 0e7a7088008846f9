"""Parser for JSON text that refuses values which cannot be stored. The API and the filter use
it."""

import json
import math
from collections.abc import Iterable
from typing import Any, NoReturn

from mptcore.specs.base import INT64_MAX, MAX_PROBLEMS, Problem, SpecError

MAX_DEPTH = 20
MAX_ITEMS = 200_000
"""Maximum number of values and containers in a text, counted by its commas and opening brackets."""
MAX_KEYS = 256
"""Maximum number of keys of an object. No model has as many fields."""
MAX_KEY_LENGTH = 256
TOO_LARGE = "the integer is too large: 64 bits hold those from -2^63 to 2^63 - 1"


def parse_json(text: bytes) -> Any:
    """Return the value of a JSON text (RFC 8259), without a byte order mark. Raise SpecError for
    text that is not JSON, exceeds the limits above, repeats a key, or has a number or character
    that cannot be stored."""
    if sum(map(text.count, (b",", b"[", b"{"))) > MAX_ITEMS:
        _refuse(f"JSON holds at most {MAX_ITEMS} items")
    try:
        value = json.loads(text.decode("utf-8-sig"), object_pairs_hook=_unique_keys)
    except UnicodeDecodeError as error:
        byte = error.start + len(text) - len(error.object)  # a byte order mark is no part of it
        _refuse(f"JSON must be UTF-8 text; byte {byte} is not")
    except RecursionError:
        _refuse(f"JSON nests at most {MAX_DEPTH} levels deep")
    except json.JSONDecodeError as error:
        _refuse(f"not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}")
    except ValueError as error:
        if isinstance(error, SpecError):
            raise
        _refuse(TOO_LARGE)
    found = _Findings()
    if isinstance(value, dict | list):
        found.check_items(value, None, 1)
    elif detail := _value_problem(value):
        _refuse(detail)
    if found.count:
        raise SpecError(found.problems, found.count)
    return value


def pointer_token(key: object) -> str:
    """Return a key as a step of a JSON pointer (RFC 6901)."""
    return "/" + str(key).replace("~", "~0").replace("/", "~1")


def _refuse(detail: str) -> NoReturn:
    raise SpecError([Problem("", detail)]) from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_KEYS:
        _refuse(f"an object has at most {MAX_KEYS} keys, not {len(pairs)}")
    items = dict(pairs)
    if len(items) < len(pairs):
        _refuse("an object may name each key once only")
    return items


_Place = tuple[Any, str | int] | None
"""Position of a container: the position of the container around it, and its key there. It becomes a
pointer only for a problem."""


class _Findings:
    """The first MAX_PROBLEMS problems of the values in a text, and the number of all."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.count = 0

    def check_items(self, container: dict[str, Any] | list[Any], place: _Place, depth: int) -> None:
        if depth > MAX_DEPTH:
            _refuse(f"JSON nests at most {MAX_DEPTH} levels deep")
        items: Iterable[tuple[str | int, Any]] = enumerate(container)
        if isinstance(container, dict):
            items = [item for item in container.items() if self._is_key(item[0], place)]
        for key, value in items:
            kind = type(value)
            if kind is dict or kind is list:
                self.check_items(value, (place, key), depth + 1)
            elif detail := _value_problem(value):
                self._add((place, key), detail)

    def _is_key(self, key: str, place: _Place) -> bool:
        if detail := _key_problem(key):
            self._add(place, f"a key {detail}")
        return detail is None

    def _add(self, place: _Place, detail: str) -> None:
        self.count += 1
        if self.count <= MAX_PROBLEMS:
            self.problems.append(Problem(_pointer(place), detail))


def _pointer(place: _Place) -> str:
    steps = []
    while place is not None:
        place, key = place
        steps.append(pointer_token(key))
    return "".join(reversed(steps))


def _key_problem(key: str) -> str | None:
    if len(key) > MAX_KEY_LENGTH:
        return f"has at most {MAX_KEY_LENGTH} characters"
    return _text_problem(key)


def _value_problem(value: Any) -> str | None:
    match value:
        case str() if detail := _text_problem(value):
            return f"text {detail}"
        case bool():
            return None
        case int() if not -INT64_MAX - 1 <= value <= INT64_MAX:
            return TOO_LARGE
        case float() if not math.isfinite(value):
            return "a number must be finite: no NaN, no Infinity"
    return None


def _text_problem(text: str) -> str | None:
    if "\0" in text:
        return "must not contain the character U+0000"
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return "must not contain half of a surrogate pair"
    return None
