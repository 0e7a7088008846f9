"""One embedded service for all tests of the command line."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from mptlab import Client, serve
from mptlab.cli import app
from mptlab.commands import context
from service.app import create_app
from service.operations.prepare import prepare
from service.settings import Settings
from tests.support.answers import Answers
from tests.support.forks import fork
from tests.support.processes import Lab, embedded_processes, embedded_service, wait_until
from tests.support.recording import Recording, Typed


@pytest.fixture(scope="session")
def environment(
    prepared_store: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """A running embedded service, and the environment that finds it."""
    folder = tmp_path_factory.mktemp("embedded")
    store = shutil.copytree(prepared_store, folder / "store")
    settings = Settings(store=store, database_url=None)
    with embedded_service(settings, folder / "log") as lab:
        lab.client().close()  # it answers
        yield {"MPT_URL": f"http://127.0.0.1:{lab.port}", "MPT_STORE": str(store)}


@pytest.fixture
def forked_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the processes of `serve.embedded` as forks, which takes seconds less."""

    @contextmanager
    def started(store: Path, port: int, log: Path, workers: int, with_gpus: bool) -> Iterator[None]:
        assert not with_gpus
        settings = Settings(store=store.absolute(), database_url=None)
        prepare(settings)
        with embedded_processes(settings, log.absolute(), port, workers):
            yield

    monkeypatch.setattr(serve, "_started", started)


@pytest.fixture
def client(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with Client() as made:
        yield made


@pytest.fixture
def direct(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of a service in this process, without a port between them."""
    key = settings.key_file.read_text().strip()
    headers = {"Authorization": f"Bearer {key}"}
    with (
        TestClient(create_app(settings), headers=headers) as service,
        Client("http://testserver", key) as client,
    ):
        monkeypatch.setattr(client, "_http", service)
        yield client


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Answers to all requests of a client; it sends none twice."""
    monkeypatch.setenv("MPT_RETRY_S", "0")
    answers = Answers()
    answers.says({})
    return answers


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Typed:
    """A function that runs a command on a recording client, and returns its exit status, output and
    errors."""

    def run(client: Recording, *words: str, text: str | None = None) -> tuple[int, str, str]:
        monkeypatch.setattr(context, "connected", lambda url: nullcontext(client))
        done = CliRunner().invoke(app, words, input=text, catch_exceptions=False)
        return done.exit_code, done.stdout, done.stderr

    return run


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
def killable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Killable]:
    """With the settings of an embedded store; a test may name the fixture of a lab's."""
    settings: Settings = request.getfixturevalue(getattr(request, "param", "settings"))
    lab = Lab(settings, tmp_path / "log", fork)
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
