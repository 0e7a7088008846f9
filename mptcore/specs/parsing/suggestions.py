"""What someone meant who wrote a name that there is not."""

from collections.abc import Collection
from difflib import get_close_matches


def meant(given: str, known: Collection[str], before: str = "") -> str:
    """A question with the known name that is most like it, if any is, and a space; `before` stands
    before the name."""
    near = get_close_matches(given, known, n=1)
    return f"did you mean {before}{near[0]}? " if near else ""
