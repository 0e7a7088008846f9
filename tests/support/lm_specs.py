"""Specs of language models on the checkpoint `tiny`."""

from typing import Any

from tests.support import tiny_lm

BASE: dict[str, Any] = {
    "model": {"family": "masked_lm", "checkpoint": "tiny"},
    "data": {"source": "text", "lines": tiny_lm.lines(30)},
    "evaluate": {"masks": {"schedule": "rates", "rates": [0.1, 0.3, 0.5, 0.7]}, "dimensions": 10},
    "compute": {"threads": 1, "memory_mib": 1},
}
TRAIN = {
    "steps": 12,
    "batch_size": 8,
    "learning_rate": 0.01,
    "warmup_steps": 3,
    "evaluate_every": 4,
    "curve_at": [0, 6],
    "masks": {"schedule": "uniform"},
}
FRESH = {**BASE["model"], "init": "random"}


def with_model(**changes: Any) -> dict[str, Any]:
    return {**BASE, "model": {**BASE["model"], **changes}}


def with_data(**changes: Any) -> dict[str, Any]:
    return {**BASE, "data": {"source": "text", **changes}}
