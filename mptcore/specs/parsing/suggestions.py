"""Suggestions for misspelled names."""

from collections.abc import Collection
from difflib import get_close_matches

MAX_LENGTH = 100
"""Maximum length of a misspelled name for which a known name is suggested. The search takes a time
that grows with its square."""


def meant(given: str, known: Collection[str], before: str = "") -> str:
    """Return a question with the closest known name, and a space, or nothing. `before` precedes the
    name."""
    if len(given) > MAX_LENGTH:
        return ""
    near = _same(given, known) or get_close_matches(given, known, n=1)
    return f"did you mean {before}{near[0]}? " if near else ""


SYNONYMS = {
    "gpu": "cuda",
    "fa": "factor_analysis",
    "bert": "masked_lm",
    "ml": "maximum_likelihood",
    "mle": "maximum_likelihood",
    "yes": "true",
    "on": "true",
    "no": "false",
    "off": "false",
}


def _same(given: str, known: Collection[str]) -> list[str]:
    """Return the known name that differs only in case, or that also has the given name."""
    lower = SYNONYMS.get(given.lower(), given.lower())
    return [one for one in known if one.lower() == lower]
