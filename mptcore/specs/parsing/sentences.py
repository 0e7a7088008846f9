"""Sentences that state what is allowed, for pydantic's errors."""

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


def sentence(error: Any) -> str:
    """Return the sentence for an error that needs no context."""
    context = error.get("ctx", {})
    match error["type"]:
        case "missing":
            return "this field is required"
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
            return f"{KINDS[kind]}{_unquoted(error)}"
        case _:
            return _plain(error["msg"])


def one_of(listed: str, allowed: Sequence[str], given: object) -> str:
    """Return the list of allowed values, with the one that was probably meant."""
    cure = ""
    if given in DATA_FORMATS and "upload" in allowed:
        cure = "upload the file (mpt upload FILE), then use the source upload"
    elif isinstance(given, str):
        cure = meant(given, allowed).strip()
    return f"{ONE_OF}{listed}; {cure}" if cure else f"{ONE_OF}{listed}"


def _is_percentage(error: Any) -> bool:
    """Return whether a percentage was given for a fraction."""
    most = error["ctx"].get("lt", error["ctx"].get("le"))
    return bool(most == 1 and 2 < error["input"] <= 100)


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


def _plain(message: str) -> str:
    return message.replace("Input should be ", "").replace("String should ", "text should ")
