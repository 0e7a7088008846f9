"""JSON text to values, refusing what would break further on: one place for API and filter."""

import json
import math
from typing import Any, NoReturn

from mptcore.specs.base import INT64_MAX, Problem, SpecError

MAX_DEPTH = 20
TOO_LARGE = "the integer is too large: 64 bits hold those from -2^63 to 2^63 - 1"


def parse_json(text: bytes) -> Any:
    """The value of a JSON text. Raises SpecError for text that is not JSON (RFC 8259), nests
    deeper than MAX_DEPTH, repeats a key, or holds a number or character that cannot be kept."""
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_unique_keys)
    except UnicodeDecodeError as error:
        _refuse(f"JSON is UTF-8 text; byte {error.start} is not")
    except RecursionError:
        _refuse(f"JSON nests at most {MAX_DEPTH} levels deep")
    except json.JSONDecodeError as error:
        _refuse(f"not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}")
    except ValueError as error:
        if isinstance(error, SpecError):
            raise
        _refuse(TOO_LARGE)
    problems: list[Problem] = []
    _check(value, "", 1, problems)
    if problems:
        raise SpecError(problems)
    return value


def pointer_token(key: object) -> str:
    """A key as one step of a JSON pointer (RFC 6901)."""
    return "/" + str(key).replace("~", "~0").replace("/", "~1")


def _refuse(detail: str) -> NoReturn:
    raise SpecError([Problem("", detail)]) from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    items = dict(pairs)
    if len(items) < len(pairs):
        _refuse("an object may name each key once only")
    return items


def _check(value: Any, pointer: str, depth: int, problems: list[Problem]) -> None:
    match value:
        case dict() | list() if depth > MAX_DEPTH:
            problems.append(Problem("", f"JSON nests at most {MAX_DEPTH} levels deep"))
        case dict():
            for key, item in value.items():
                if _text_problem(key):
                    problems.append(Problem(pointer, f"a key {_text_problem(key)}"))
                else:
                    _check(item, pointer + pointer_token(key), depth + 1, problems)
        case list():
            for i, item in enumerate(value):
                _check(item, f"{pointer}/{i}", depth + 1, problems)
        case str() if detail := _text_problem(value):
            problems.append(Problem(pointer, f"text {detail}"))
        case bool():
            pass
        case int() if not -INT64_MAX - 1 <= value <= INT64_MAX:
            problems.append(Problem(pointer, TOO_LARGE))
        case float() if not math.isfinite(value):
            problems.append(Problem(pointer, "a number is finite: no NaN, no Infinity"))


def _text_problem(text: str) -> str | None:
    if "\0" in text:
        return "may not hold the character U+0000"
    if any("\ud800" <= c <= "\udfff" for c in text):
        return "may not hold half of a surrogate pair"
    return None
