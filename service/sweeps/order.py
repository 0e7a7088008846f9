"""Order of the rows of a sweep's table."""

from collections.abc import Sequence
from typing import Any

from mptcore.specs import Problem
from mptcore.specs.parsing.suggestions import meant
from service.refusals import invalid

ERROR = " std_err"
MAX_NAMED = 20
"""Maximum number of columns that a refusal names."""


def in_order(rows: Sequence[dict[str, Any]], order_by: str, columns: Sequence[str]) -> list[int]:
    """Return the indices of a table's rows in the order of a swept field, a metric, or the error of
    a metric: `mpt std_err desc`. Rows without a value are last. Raises ApiError."""
    name, _, direction = order_by.rpartition(" ")
    if direction not in ("asc", "desc"):
        name, direction = order_by, "asc"
    metric = name.removesuffix(ERROR)
    if name not in columns and not any(metric in row["metrics"] for row in rows):
        more = f" and {len(columns) - MAX_NAMED} more" if len(columns) > MAX_NAMED else ""
        known = f"{', '.join(columns[:MAX_NAMED])}{more}"
        detail = f"there is no column {name}: {meant(name, columns)}there are {known}"
        raise invalid([Problem("/query/order_by", detail)])
    part = "value" if name in columns else "std_err"
    values = [row["fields"].get(name, (row["metrics"].get(metric) or {}).get(part)) for row in rows]
    known_values = [i for i, value in enumerate(values) if value is not None]
    known_values.sort(key=lambda i: _key(values[i]), reverse=direction == "desc")
    return known_values + [i for i, value in enumerate(values) if value is None]


def _key(value: Any) -> tuple[bool, float, str]:
    """Return a key that puts numbers before other values."""
    is_number = isinstance(value, int | float)
    return not is_number, value if is_number else 0.0, str(value)
