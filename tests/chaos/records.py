"""The records of a made-up run: two series, a log, a metric."""

from typing import Any

CHECKPOINT_AFTER = 7


def _records() -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = [
        {"seq": 1, "record": "log", "level": "info", "message": "begun"}
    ]
    for seq in range(2, 14):
        records.append({"seq": seq, "record": "point", "series": "score", "x": seq,
                        "labels": {"seed": seq % 2}, "value": seq / 3, "std_err": 0.5,
                        "n": 4})  # fmt: skip
    records.append({"seq": 14, "record": "metric", "name": "lml", "labels": {}, "value": 1.0,
                    "std_err": 0.0})  # fmt: skip
    return records


RECORDS = _records()
