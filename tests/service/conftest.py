"""The service in this process, with a real database."""

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from mptcore.data.inspect import look
from mptcore.data.uploads import as_json
from service.app import create_app
from service.datasets import files
from service.settings import Settings


@pytest.fixture
def api(settings: Settings) -> Iterator[TestClient]:
    """A client that carries the local key. An error of the service is a 500 here, as for users."""
    key = settings.key_file.read_text().strip()
    with TestClient(
        create_app(settings),
        headers={"Authorization": f"Bearer {key}"},
        raise_server_exceptions=False,
    ) as client:
        yield client


@pytest.fixture
def inspected_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inspect uploads in this process, for tests of other things. A new process needs a third of a
    second to import numpy and the specs."""
    monkeypatch.setattr(files, "_inspected", lambda *file: as_json(look(*file)).encode())
