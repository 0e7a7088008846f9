"""What pytest is told about mutants: each is a new process, so that what is quick comes first.

Left out are the tests that start a PostgreSQL server, once for each mutant. Their twins on SQLite
ask the same functions.
"""

import gc
import json
from pathlib import Path

import pytest

STATISTICS = Path("mutmut-stats.json")
"""In mutmut's folder, where the tests run: among others how long each test takes."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if _needs_postgresql(item)]
    config.hook.pytest_deselected(items=left_out)
    durations = _durations_s()
    kept = [item for item in items if item not in left_out]
    items[:] = sorted(kept, key=lambda item: durations.get(item.nodeid, 0.0))
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
