"""Sentences that state what is allowed, for pydantic's errors."""

import json
import re
from collections.abc import Sequence
from typing import Any

from mptcore.specs.parsing.suggestions import meant

ONE_OF = "one of "
QUOTED = re.compile(r"'([^']*)'")
DATA_FORMATS = ("csv", "tsv", "npy", "npz", "parquet")
LETTERS = "letters, digits"
PATTERNS = {
    r"^[A-Za-z0-9-]{1,64}$": "the id of an experiment, from the answer to its submission",
    r"^[a-z0-9-]{1,64}$": "the id of an upload, from the answer to the upload",
    r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\.(txt|jsonl|csv|parquet)$": "a file's name that ends with "
    f".txt, .jsonl, .csv or .parquet: {LETTERS}, _, . and -, and no folder",
    r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$": f"a name of up to 100 {LETTERS}, _, . and -",
    r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,95}(/[A-Za-z0-9][A-Za-z0-9_.-]{0,95})?$": "a checkpoint's name, "
    f"as bert-base-uncased or owner/name: {LETTERS}, _, . and -; a folder of this machine is "
    "read from MPT_MODELS_DIR: move or link it there, and give its name",
}
"""Descriptions of the text patterns in specs."""

KINDS = {
    "int_type": "an integer",
    "int_parsing": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text, in quotes",
    "list_type": "a list, in brackets: […]",
    "tuple_type": "a list, in brackets: […]",
}


BOUNDS = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")
MAX_SHOWN = 40
"""Maximum length of a wrong value that a sentence repeats."""
UNION = "union"
"""Type of an error that holds the errors of all members of a union of plain types."""


def sentence(error: Any) -> str:
    """Return the sentence for an error that needs no context."""
    context = error.get("ctx", {})
    match error["type"]:
        case "missing":
            return "this field is required"
        case "none_required":
            return "null: this family has no such part"
        case kind if kind == UNION:
            return _union_sentence(error)
        case "literal_error" | "enum" if " or " not in context["expected"]:
            return f"{context['expected']} is the only value"
        case "literal_error" | "enum":
            expected = context["expected"]
            return one_of(expected, QUOTED.findall(expected), error.get("input"))
        case "less_than" | "less_than_equal" if _is_percentage(error):
            given = error["input"]
            return f"{_plain(error['msg'])}: a fraction, {given / 100:g} for {given:g} %"
        case "string_pattern_mismatch":
            return PATTERNS.get(context["pattern"], f"text like {context['pattern']}")
        case kind if kind in KINDS:
            value = error.get("input")
            wrong = _unquoted(error) or f"{not_given(value, kind)}{_as_written(value, kind)}"
            return f"{KINDS[kind]}{wrong}"
        case kind if kind in BOUNDS:
            return f"{_plain(error['msg'])}{not_given(error.get('input'))}"
        case _:
            return _plain(error["msg"])


def _union_sentence(error: Any) -> str:
    """Return all that a union of plain types allows, as one list."""
    allowed: list[str] = []
    for member in error["ctx"]["errors"]:
        match member["type"]:
            case "literal_error" | "enum":
                allowed += re.split(", | or ", member["ctx"]["expected"])
            case "bool_type" | "bool_parsing":
                allowed += ["true", "false"]
            case kind if kind in KINDS:
                allowed.append(KINDS[kind])
            case _:
                allowed.append(sentence(member).removesuffix(not_given(member.get("input"))))
    listed = " or ".join(filter(None, [", ".join(allowed[:-1]), allowed[-1]]))
    value = error["input"]
    types = [member["type"] for member in error["ctx"]["errors"]]
    wrong = not_given(value, "string_type" if "string_type" in types else "")
    near = meant(value, [text.strip("'") for text in allowed]) if isinstance(value, str) else ""
    return f"{listed}{wrong}{f'; {near.strip()}' if near else ''}"


def not_given(value: object, kind: str = "") -> str:
    """Return the end of a sentence about a wrong value: the value itself if it is short. Where text
    is expected it may be secret, so only its type is named."""
    if kind == "string_type" and isinstance(value, int | float):
        return ", not a number"
    match value:
        case None | bool():
            return f", not {json.dumps(value)}"
        case int() | float() if len(f"{value}") <= MAX_SHOWN:
            return f", not {value}"
        case int():
            return ""
        case str() if len(value) <= MAX_SHOWN:
            return f", not {value!r}"
        case str():
            return f", not a text of {len(value)} characters"
        case dict():
            return ", not an object"
        case list() | tuple():
            return ", not a list"
    return ""


def one_of(listed: str, allowed: Sequence[str], given: object) -> str:
    """Return the list of allowed values, with the one that was probably meant."""
    advice = ""
    if given in DATA_FORMATS and "upload" in allowed:
        advice = "upload the file (mpt upload FILE), then use the source upload"
    elif isinstance(given, str):
        advice = meant(given, allowed).strip()
    elif given is not None:
        listed += not_given(given)
    return f"{ONE_OF}{listed}; {advice}" if advice else f"{ONE_OF}{listed}"


def _is_percentage(error: Any) -> bool:
    """Return whether a percentage was given for a fraction."""
    maximum = error["ctx"].get("lt", error["ctx"].get("le"))
    return bool(maximum == 1 and 2 < error["input"] <= 100)


def _unquoted(error: Any) -> str:
    """Return advice for a number in quotes."""
    given = error.get("input")
    if not (error["type"] in ("int_type", "float_type") and isinstance(given, str)):
        return ""
    try:
        float(given)
    except ValueError:
        return ""
    return ", without quotes"


def _as_written(value: object, kind: str) -> str:
    """Return how to write a value that was meant for this type, or nothing."""
    match kind.partition("_")[0], value:
        case _, str() if len(value) > MAX_SHOWN:
            return ""
        case "bool", str() if near := meant(value, ("true", "false")):
            return f"; {near.strip()}"
        case "list" | "tuple", str() if value and ".." not in value:
            return f": write {json.dumps([_value(part) for part in value.split(',')])}"
        case "list" | "tuple", int() | float() if not isinstance(value, bool):
            return f": write [{value}]"
        case "int", float() if value.is_integer() and abs(value) < 2**53:
            return f": write {value:.0f}"
        case "float", str() if number := NUMBER.fullmatch(value):
            exact = float(number[1].replace(",", ".")) / (100 if number[2] else 1)
            return f": write {exact:.15g}"
    return ""


NUMBER = re.compile(r"(-?\d+(?:[.,]\d+)?)( ?%)?")
"""A number with a decimal comma, or a percentage."""


def _value(text: str) -> object:
    """Return a number that is written as JSON, or else the text itself."""
    return json.loads(text) if re.fullmatch(r" *-?\d+(\.\d+)? *", text) else text.strip()


def _plain(message: str) -> str:
    return message.replace("Input should be ", "").replace("String should ", "text should ")
