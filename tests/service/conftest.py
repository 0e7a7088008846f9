"""The service in this process, with a real database."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from mptcore.data.inspect import look
from mptcore.data.uploads import as_json
from service.app import create_app
from service.datasets import files
from service.settings import Settings


def client_of(settings: Settings) -> TestClient:
    """A client that carries the local key. An error of the service is a 500 here, as for users."""
    key = settings.key_file.read_text().strip()
    headers = {"Authorization": f"Bearer {key}"}
    return TestClient(create_app(settings), headers=headers, raise_server_exceptions=False)


@pytest.fixture
def api(settings: Settings) -> Iterator[TestClient]:
    with client_of(settings) as client:
        yield client


@pytest.fixture(scope="module")
def shared_api(
    prepared_store: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestClient]:
    """One store for all tests of a file, which store nothing or look only at their own objects. Its
    client may send requests at any rate."""
    store = shutil.copytree(prepared_store, tmp_path_factory.mktemp("shared") / "store")
    settings = Settings(store=store, database_url=None, data_dir=None, models_dir=None)
    with client_of(settings.model_copy(update={"rate_per_user": 10**9})) as client:
        yield client


@pytest.fixture
def inspected_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inspect uploads in this process, for tests of other things. A new process needs a third of a
    second to import numpy and the specs."""
    monkeypatch.setattr(files, "_inspected", lambda *file: as_json(look(*file)).encode())


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest) -> Settings:
    """Settings of a service on either database."""
    fixture = "settings" if request.param == "sqlite" else "lab"
    made: Settings = request.getfixturevalue(fixture)
    return made


@pytest.fixture
def processes(place: Settings) -> Iterator[list[TestClient]]:
    """Two API processes on one database, with the first admin's key."""
    with ExitStack() as stack:
        yield [stack.enter_context(client_of(place)) for _ in range(2)]


@pytest.fixture
def admin(processes: list[TestClient]) -> TestClient:
    return processes[0]
