"""Refuse runs whose every result is not a finite number."""

import math
from collections.abc import Iterator

from mptcore.protocol.metrics import INTERIM, is_estimate
from mptcore.protocol.records import Metric, Record, RunError

MAX_NAMED = 3


def with_a_result(records: Iterator[Record | None], cure: str) -> Iterator[Record | None]:
    """Yield the records of a run. Raises RunError with the `cure` after the last one if results are
    NaN or infinite, and no other result is a number. Results are the estimates at the end of the
    run. A result that is null with a reason is not a failure."""
    not_finite: dict[str, float] = {}
    has_number = False
    for record in records:
        yield record
        if not isinstance(record, Metric) or record.value is None or not is_estimate(record.name):
            continue
        if not INTERIM.isdisjoint(record.labels):  # during training
            continue
        if math.isfinite(record.value):
            has_number = True
        else:
            not_finite.setdefault(record.name, record.value)
    if not_finite and not has_number:
        values = [f"{name} is {value:g}" for name, value in not_finite.items()]
        named = ", ".join(values[:MAX_NAMED]) + (", …" if len(values) > MAX_NAMED else "")
        raise RunError("error", f"no result is a finite number ({named}): {cure}")
