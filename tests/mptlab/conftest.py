"""One embedded service for all tests of the command line."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mptlab import Client, serve
from service.settings import Settings
from tests.support.answers import Answers
from tests.support.processes import Lab, wait_until


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


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Answers to all requests of a client; it sends none twice."""
    monkeypatch.setenv("MPT_RETRY_S", "0")
    answers = Answers()
    answers.says({})
    return answers


@dataclass
class Killable:
    """An API process without a worker, and a client whose messages about outages are in `told`."""

    lab: Lab
    client: Client
    told: list[str] = field(default_factory=list)

    def start(self) -> None:
        self.lab.start("api", "api", "--port", str(self.lab.port))

    def kill(self) -> None:
        self.lab.processes["api"].kill()
        self.lab.processes["api"].wait()

    def wait_until_missed(self) -> None:
        wait_until(lambda: bool(self.told), what="an outage")


@pytest.fixture
def killable(settings: Settings, tmp_path: Path) -> Iterator[Killable]:
    lab = Lab(settings, tmp_path / "log")
    told: list[str] = []
    key = settings.key_file.read_text().strip()
    with Client(f"http://127.0.0.1:{lab.port}", key, on_outage=told.append) as client:
        made = Killable(lab, client, told)
        made.start()
        try:
            lab.client().close()  # it answers
            yield made
        finally:
            lab.stop()
