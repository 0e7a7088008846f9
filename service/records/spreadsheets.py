"""CSV in which no text is a spreadsheet's formula, for every CSV that the service writes."""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""Characters that make a spreadsheet compute a cell (OWASP, "CSV Injection")."""
_STARTS = frozenset(FORMULA_STARTS)


def cell(value: Any) -> Any:
    """Return a value with an apostrophe before text that a spreadsheet would compute. Numbers stay
    as they are, and so does text that is a number, such as "-1.5"."""
    if isinstance(value, str) and value.startswith(FORMULA_STARTS) and not _is_number(value):
        return f"'{value}"
    return value


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as CSV. None is an empty cell."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(
        [cell(one) if isinstance(one, str) and one[:1] in _STARTS else one for one in row]
        for row in rows
    )
    return text.getvalue()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text == text.strip()
