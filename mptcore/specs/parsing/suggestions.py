"""Suggestions for misspelled names."""

from collections.abc import Collection
from difflib import get_close_matches


def meant(given: str, known: Collection[str], before: str = "") -> str:
    """Return a question with the closest known name, and a space, or nothing. `before` precedes the
    name."""
    near = get_close_matches(given, known, n=1)
    return f"did you mean {before}{near[0]}? " if near else ""
