"""Fixtures for all tests: settings with a separate store, a database, the published example."""

import gc
import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as examples

from service.db.engine import Database
from service.operations.prepare import prepare
from service.settings import Settings
from tests.support.certificates import read_certificates_once
from tests.support.servers import PostgreSQL, Redis, cluster_folder
from tests.support.statements import compile_once
from tests.support.warm import warm_parent
from worker import slot

collect_ignore = ["support/markov"]  # a package of its own: tests/e2e/test_outside_family.py
gc.disable()  # until all tests are collected, since nothing that is imported is garbage

# Before torch is loaded: no thread waits by spinning, since other tests use the processors. A run
# of two threads then takes half of the CPU time.
os.environ.setdefault("GOMP_SPINCOUNT", "0")

# Hundreds of processes compile our modules once, and pytest its form of the tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: no test asks a hub

# No test is about speed, and other processes use the machine.
examples.register_profile("any", deadline=None, suppress_health_check=[HealthCheck.too_slow])
examples.load_profile("any")

compile_once()
read_certificates_once()

REQUIRE_ALL = os.environ.get("MPT_TEST_REQUIRE_ALL") == "1"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip into a failure if all requirements must be installed."""
    report = yield
    if REQUIRE_ALL and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped, though MPT_TEST_REQUIRE_ALL=1: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude loaded objects from garbage collection, which took a sixth of the suite's time."""
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def one_warm_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots in this process share one warm parent, which has imported torch."""
    monkeypatch.setattr(slot, "WarmParent", warm_parent)


@pytest.fixture(scope="session")
def lab_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of PostgreSQL's migrated database, to copy with it."""
    return tmp_path_factory.mktemp("lab")


@pytest.fixture(scope="session")
def postgresql(lab_store: Path) -> Iterator[PostgreSQL]:
    """A real PostgreSQL server, with a migrated database to copy. Its folder is not pytest's, which
    is closed to the user that the server runs as under root."""
    with tempfile.TemporaryDirectory(dir=cluster_folder(), ignore_cleanup_errors=True) as folder:
        server = PostgreSQL(Path(folder))
        server.start()
        server.create("prepared")
        prepare(Settings(store=lab_store, database_url=server.url("prepared")))
        yield server
        server.stop()


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    """A real Redis server on a port of its own."""
    server = Redis(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def lab(
    postgresql: PostgreSQL, redis: Redis, lab_store: Path, tmp_path: Path
) -> Iterator[Settings]:
    """Settings of lab mode on real servers, with a database and a broker number of its own."""
    name = f"test_{uuid.uuid4().hex}"
    postgresql.create(name, template="prepared")
    yield Settings(
        store=shutil.copytree(lab_store, tmp_path / "lab"),
        database_url=postgresql.url(name),
        redis_url=redis.new_url(),
        data_dir=None,
        models_dir=None,
    )
    postgresql.drop(name)  # or the disk is given hundreds of them, and they are deleted at the end


@pytest.fixture(autouse=True)
def positions_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer has positions of its own; otherwise they may be a second old."""
    monkeypatch.setattr("service.queue.snapshot.MAX_AGE_S", 0.0)


@pytest.fixture(params=["sqlite", "postgresql"])
def either(request: pytest.FixtureRequest) -> Iterator[Database]:
    """The same test on both databases."""
    fixture = "settings" if request.param == "sqlite" else "lab"
    with closing(Database(request.getfixturevalue(fixture).url)) as database:
        yield database


@pytest.fixture(scope="session")
def prepared_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store to copy."""
    store = tmp_path_factory.mktemp("prepared") / "store"
    prepare(Settings(store=store, database_url=None))
    return store


@pytest.fixture
def settings(prepared_store: Path, tmp_path: Path) -> Settings:
    """A prepared embedded store of its own."""
    store = shutil.copytree(prepared_store, tmp_path / "store")
    return Settings(store=store, database_url=None, data_dir=None, models_dir=None)


@pytest.fixture
def database(settings: Settings) -> Database:
    return Database(settings.url)
