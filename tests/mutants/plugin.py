"""A pytest plugin for mutants: the quickest tests run first, since each mutant is a new process.

Tests that start a PostgreSQL server are left out, since they would start one for each mutant. Their
twins on SQLite reach the same functions.
"""

import gc
import json
import os
from itertools import accumulate
from pathlib import Path

import pytest

from service.datasets import child_environment

STATISTICS = Path("mutmut-stats.json")
"""In mutmut's folder, where the tests run: among others how long each test takes."""

MAX_S = 30
"""Seconds that a mutant's quickest tests may take together. The slower tests are left out."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    durations = _durations_s()
    kept = [item for item in items if not _needs_postgresql(item)]
    kept.sort(key=lambda item: durations.get(item.nodeid, 0.0))
    if not config.option.collectonly and os.environ.get("MUTANT_UNDER_TEST") != "stats":
        sums = accumulate(durations.get(item.nodeid, 0.0) for item in kept)
        kept = kept[: max(1, sum(sum_s <= MAX_S for sum_s in sums))]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept
    if "__mutmut_" in os.environ.get("MUTANT_UNDER_TEST", ""):
        child_environment.NAMES |= {
            "MUTANT_UNDER_TEST"
        }  # runners and their parents are mutants too
    gc.freeze()  # pytest collects garbage five times at its end: not torch again, for each mutant


def _durations_s() -> dict[str, float]:
    """By test, as far as they are known."""
    if not STATISTICS.exists():
        return {}
    found: dict[str, float] = json.loads(STATISTICS.read_text())["duration_by_test"]
    return found


def _needs_postgresql(item: pytest.Item) -> bool:
    assert isinstance(item, pytest.Function)
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    names = {*item.fixturenames, *(value for value in parameters if isinstance(value, str))}
    return bool(names & {"postgresql", "lab"})
