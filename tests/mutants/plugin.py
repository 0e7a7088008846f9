"""A pytest plugin for mutants: the quickest tests run first, since each mutant is a new process.

Tests that start a PostgreSQL server are left out, since they would start one for each mutant. Their
twins on SQLite reach the same functions.
"""

import gc
import json
import os
import sys
from functools import cache
from itertools import accumulate
from pathlib import Path

import pytest
from mutmut.state import state

from service.datasets import child_environment
from worker import children

STATISTICS = Path("mutmut-stats.json")
"""In mutmut's folder, where the tests run: among others how long each test takes."""

MAX_S = 30
"""Seconds that a mutant's quickest tests may take together. The slower tests are left out."""

IN_CHILDREN = ("worker/warm_parent.py",)
"""Modules that run in child processes, where mutmut measures no coverage. All of their tests are
run for each mutant."""


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
        start = "from worker.warm_parent import main; main()"  # a mutant has its module's real name
        children.WARM_PARENT = (sys.executable, "-c", start)
    gc.freeze()  # pytest collects garbage five times at its end: not torch again, for each mutant


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    """While mutmut notes which functions each test reaches, name those of child processes too."""
    if os.environ.get("MUTANT_UNDER_TEST") == "stats":
        state()._stats.update(*map(functions, IN_CHILDREN))


@cache
def functions(module: str) -> frozenset[str]:
    """Return mutmut's names of the functions of a module that it has mutated."""
    file = Path(f"{module}.meta")
    names = json.loads(file.read_text())["exit_code_by_key"] if file.exists() else {}
    return frozenset(name.partition("__mutmut_")[0] for name in names)


def _durations_s() -> dict[str, float]:
    """Known duration of each test."""
    if not STATISTICS.exists():
        return {}
    found: dict[str, float] = json.loads(STATISTICS.read_text())["duration_by_test"]
    return found


def _needs_postgresql(item: pytest.Item) -> bool:
    assert isinstance(item, pytest.Function)
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    names = {*item.fixturenames, *(value for value in parameters if isinstance(value, str))}
    return bool(names & {"postgresql", "lab"})
