"""Secrets in files, which no log shows."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError
from pydantic_settings import SettingsError

from service.settings import SECRETS, Settings
from tests.support.forks import fork
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import Lab, wait_until
from tests.support.servers import Redis

PASSWORD = "a:p@ss/w#rd%"
URLS = {"database_url": "postgresql+psycopg://mpt@db:5432/mpt", "redis_url": "redis://broker:1/0"}


@pytest.fixture(autouse=True)
def no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.delenv(f"MPT_{name}".upper(), raising=False)


def write(folder: Path, monkeypatch: pytest.MonkeyPatch, **secrets: str) -> None:
    """Each into a file of its own, which its variable names."""
    for name, value in secrets.items():
        file = folder / name
        file.write_text(value)
        monkeypatch.setenv(f"MPT_{name}_FILE".upper(), str(file))


def test_each_secret_may_be_given_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passwords = {"database_password": PASSWORD, "redis_password": PASSWORD}
    write(tmp_path, monkeypatch, **{name: f"{text}\n" for name, text in (URLS | passwords).items()})
    settings = Settings()
    assert settings.url == "postgresql+psycopg://mpt:a%3Ap%40ss%2Fw%23rd%25@db:5432/mpt"
    assert settings.broker_url == "redis://:a%3Ap%40ss%2Fw%23rd%25@broker:1/0"
    assert PASSWORD not in repr(settings)
    assert "db:5432" not in repr(settings)


def test_a_password_in_the_url_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, broker = "postgresql+psycopg://mpt:own@db/mpt", "redis://user:own@broker/0"
    write(tmp_path, monkeypatch, database_url=url, database_password="x", redis_password="x",
          redis_url=broker)  # fmt: skip
    assert (Settings().url, Settings().broker_url) == (url, broker)


def test_a_name_in_the_url_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, monkeypatch, redis_url="redis://user@broker/0", redis_password="x")
    assert Settings().broker_url == "redis://user:x@broker/0"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "MPT_REDIS_URL_FILE cannot be read"),
        ("\n", "MPT_REDIS_URL_FILE names a file that is"),
    ],
)
def test_an_invalid_secret_file(
    content: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "redis"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("MPT_REDIS_URL_FILE", str(file))
    with pytest.raises(SettingsError, match=said):
        Settings()


def test_a_secret_is_given_in_one_place_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, monkeypatch, redis_url="redis://one/0")
    monkeypatch.setenv("MPT_REDIS_URL", "redis://other/0")
    with pytest.raises(SettingsError, match="both MPT_REDIS_URL and MPT_REDIS_URL_FILE"):
        Settings()


def test_a_bad_setting_shows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPT_REDIS_URL", PASSWORD)
    monkeypatch.setenv("MPT_LEASE_S", PASSWORD)  # as where two lines of a file changed places
    with pytest.raises(ValidationError) as raised:
        Settings()
    assert PASSWORD not in str(raised.value)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Redis]:
    server = Redis(tmp_path, PASSWORD)
    server.start()
    yield server
    server.stop()


@pytest.mark.slow
def test_processes_read_secrets_and_log_none(lab: Settings, guarded: Redis, tmp_path: Path) -> None:
    """A lab whose broker wants a password, and goes away and comes back."""
    files = {"database_url": lab.url, "database_password": "of-the-database",
             "redis_url": guarded.new_url(), "redis_password": PASSWORD}  # fmt: skip
    more = {}
    for name, value in files.items():
        (tmp_path / name).write_text(value)
        more[f"MPT_{name}_FILE".upper()] = str(tmp_path / name)
    unnamed = lab.model_copy(update={"database_url": None, "redis_url": None})
    running = Lab(unnamed, lab.store / "lab.log", fork)
    running.start_all(1, **more)
    said = running.log.read_text
    try:
        with running.client() as client:
            ended = client.wait(client.submit(ppca_spec())["id"], timeout_s=240)
            assert ended["status"] == "succeeded"
            assert "Redis is unreachable" not in said()  # where requests are counted
            guarded.stop()
            client.submit(ppca_spec(data__seed=5))
            wait_until(lambda: "the broker is unreachable" in said(), what="an unreachable broker")
            guarded.start()
            third = client.submit(ppca_spec(data__seed=6))["id"]
            assert client.wait(third, timeout_s=60)["attempt"] == 1
    finally:
        running.stop()
    for secret in (PASSWORD, "%3Ap%40ss", "of-the-database"):
        assert secret not in said()
