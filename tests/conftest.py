"""What all tests share: settings of a store of their own, a database, the published example."""

import os
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from service.database import Database
from service.prepare import prepare
from service.settings import Settings

REQUIRE_ALL = os.environ.get("MPT_TEST_REQUIRE_ALL") == "1"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where everything is there, a skip is a failure."""
    report = yield
    if REQUIRE_ALL and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped, though MPT_TEST_REQUIRE_ALL=1: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def prepared_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("prepared") / "store"
    prepare(Settings(store=store, database_url=None))
    return store


@pytest.fixture
def settings(prepared_store: Path, tmp_path: Path) -> Settings:
    """A prepared embedded store of its own."""
    store = shutil.copytree(prepared_store, tmp_path / "store")
    return Settings(store=store, database_url=None)


@pytest.fixture
def database(settings: Settings) -> Database:
    return Database(settings.url)


def ppca_spec(**changes: Any) -> dict[str, Any]:
    """A small experiment; `evaluate__masks={...}` changes one part."""
    spec: dict[str, Any] = {
        "model": {"family": "ppca", "latent_dim": 2, "noise_precision": 5.0, "init": "generator"},
        "data": {
            "source": "ppca",
            "n": 50,
            "dim": 6,
            "latent_dim": 2,
            "noise_precision": 5.0,
            "seed": 3,
        },
        "evaluate": {"masks": {"schedule": "all", "per_size": 4}},
        "seeds": [4],
        "compute": {"device": "cpu", "threads": 1},
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        part = spec
        for parent in parents:
            part = part.setdefault(parent, {})
        if value is ...:
            del part[last]
        else:
            part[last] = value
    return spec
