"""One embedded service for all tests of the command line."""

from collections.abc import Iterator

import pytest

from mptlab import Client, serve


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A running embedded service, and the environment that finds it."""
    folder = tmp_path_factory.mktemp("embedded")
    port = serve.free_port()
    url = f"http://127.0.0.1:{port}"
    with serve.embedded(folder / "store", port, folder / "log"):
        key = (folder / "store" / "api-key").read_text().strip()
        with Client(url, key) as client:
            serve.wait_until(client.is_ready)
        yield {"MPT_URL": url, "MPT_STORE": str(folder / "store")}


@pytest.fixture
def client(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with Client() as made:
        yield made
