"""Sentences about columns that a model cannot use."""

from collections.abc import Sequence

MAX_NAMED = 10


def columns_are(columns: Sequence[str], are_names: bool, adjective: str) -> str:
    """Return `column a is` or `columns 0, 2 are` with the adjective, and how columns are counted if
    they have no names."""
    listed = ", ".join(columns[:MAX_NAMED]) + (", …" if len(columns) > MAX_NAMED else "")
    which = f"columns {listed} are" if len(columns) > 1 else f"column {listed} is"
    return f"{which} {adjective}" + ("" if are_names else " (counted from 0)")


def missing_values(columns: Sequence[str], are_names: bool, refusal: str) -> str:
    """Return why data with missing values in these columns are refused."""
    which = columns_are(columns, are_names, "incomplete")
    return f"{which}, with values that are empty or NaN: {refusal}"
