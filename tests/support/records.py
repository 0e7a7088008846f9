"""The records of a made-up run: two series, a log, a metric."""

from typing import Any

CHECKPOINT_AFTER = 7


def point(seq: int) -> dict[str, Any]:
    """A point whose x is its place among the records."""
    return {"seq": seq, "record": "point", "series": "score", "x": seq, "labels": {"seed": seq % 2},
            "value": seq / 3, "std_err": 0.5, "n": 4}  # fmt: skip


def _records() -> list[dict[str, Any]]:
    return [
        {"seq": 1, "record": "log", "level": "info", "message": "begun"},
        *map(point, range(2, 14)),
        {"seq": 14, "record": "metric", "name": "lml", "labels": {}, "value": 1.0, "std_err": 0.0},
    ]


RECORDS = _records()
