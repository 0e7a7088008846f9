"""Order of the rows of a sweep's table."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from mptlab.errors import Json

BESIDE = ("point", "points", "experiment_id", "status")
"""Columns of a sweep's table that are neither swept fields nor metrics."""
ERROR = " std_err"
MAX_NAMED = 20


def in_order(rows: Sequence[Json], column: str | None) -> list[Json]:
    """Return the rows of a sweep's table in the order of a swept field, a metric, or the error of a
    metric (`mpt std_err`); with a minus before its name, the highest value first. Rows without a
    value are last. Raises ValueError."""
    if column is None or not rows:
        return [*rows]
    name = column.removeprefix("-")
    known = _columns(rows)
    is_error = name.removesuffix(ERROR) in known and any(name in row for row in rows)
    if name not in known and not is_error:
        raise ValueError(_unknown(name, known))
    with_value = [row for row in rows if row.get(name) is not None]
    without = [row for row in rows if row.get(name) is None]
    descending = name != column
    with_value.sort(key=lambda row: _key(row[name]), reverse=descending)
    return with_value + without


def _columns(rows: Sequence[Json]) -> list[str]:
    """Return the names of the swept fields and metrics."""
    names = dict.fromkeys(name for row in rows for name in row)
    beside = {*BESIDE, *(f"{name} {what}" for name in names for what in ("std_err", "count"))}
    return [name for name in names if name not in beside]


def _unknown(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, n=1)
    meant = f": did you mean {near[0]}?" if near else ";"
    more = f" and {len(known) - MAX_NAMED} more" if len(known) > MAX_NAMED else ""
    return f"there is no column {name}{meant} there are {', '.join(known[:MAX_NAMED])}{more}"


def _key(value: Any) -> tuple[bool, float, str]:
    """Return a key that puts numbers before other values."""
    is_number = isinstance(value, int | float)
    return not is_number, value if is_number else 0.0, str(value)
