"""Refuse runs whose every result is not a finite number."""

import math
from collections.abc import Iterator

from mptcore.protocol.records import Metric, Record, RunError

COUNTS = ("masks", "target_reached", "area_width", "active_units", "kl")
COUNTS_OF = ("texts_", "groups_", "sequences_")
QUALITIES = ("_ess", "_bias_estimate", "_doubtful", "_half_interval")
"""Names, beginnings and ends of names of metrics that describe the work, a model or the quality of
an estimate, but are no estimates."""
MAX_NAMED = 3


def with_a_result(records: Iterator[Record | None], cure: str) -> Iterator[Record | None]:
    """Yield the records of a run. Raises RunError with the `cure` after the last one if results are
    NaN or infinite, and no other result is a number. Results are the estimates at the end of the
    run. A result that is null with a reason is not a failure."""
    not_finite: dict[str, float] = {}
    has_number = False
    for record in records:
        yield record
        if not isinstance(record, Metric) or record.value is None or not _is_result(record):
            continue
        if math.isfinite(record.value):
            has_number = True
        else:
            not_finite.setdefault(record.name, record.value)
    if not_finite and not has_number:
        values = [f"{name} is {value:g}" for name, value in not_finite.items()]
        named = ", ".join(values[:MAX_NAMED]) + (", …" if len(values) > MAX_NAMED else "")
        raise RunError("error", f"no result is a finite number ({named}): {cure}")


def _is_result(metric: Metric) -> bool:
    """Return whether a metric is an estimate, and not one during training."""
    name, is_interim = metric.name, "epoch" in metric.labels or "step" in metric.labels
    is_description = name in COUNTS or name.startswith(COUNTS_OF) or name.endswith(QUALITIES)
    return not is_interim and not is_description
