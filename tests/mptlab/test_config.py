"""Sources of the URL and the key, and the recipients of the key."""

from pathlib import Path

import httpx
import pytest

from mptlab import Client, Refused, config


@pytest.fixture
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MPT_STORE", str(tmp_path))
    for name in ("MPT_URL", "MPT_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def settings_of(client: Client) -> tuple[str, str]:
    client._http.close()
    assert client._http.base_url == client.url
    return client.url, client._http.headers["Authorization"]


@pytest.mark.usefixtures("_no_settings")
def test_sources_of_the_url_and_the_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The order is: arguments, environment variables, defaults of this machine."""
    (tmp_path / "api-key").write_text("mpt_file_a\n")
    assert settings_of(Client()) == ("http://127.0.0.1:8765", "Bearer mpt_file_a")
    monkeypatch.setenv("MPT_URL", "http://env:1")
    monkeypatch.setenv("MPT_API_KEY", "mpt_env_a")
    assert settings_of(Client()) == ("http://env:1", "Bearer mpt_env_a")
    assert settings_of(Client("http://given:1", "k")) == ("http://given:1", "Bearer k")
    assert Client("http://a", "k")._http.timeout == httpx.Timeout(30.0)
    assert Client("http://a", "k", timeout_s=3)._http.timeout == httpx.Timeout(3)


@pytest.mark.usefixtures("_no_settings")
def test_a_client_needs_a_key(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=rf"set MPT_API_KEY, .*{tmp_path}/api-key"):
        Client()


@pytest.mark.usefixtures("_no_settings")
@pytest.mark.parametrize("host", ["lab.example", "127.0.0.1.example", "10.0.0.1"])
def test_the_local_key_is_sent_to_no_other_machine(tmp_path: Path, host: str) -> None:
    (tmp_path / "api-key").write_text("mpt_file_a\n")
    with pytest.raises(Refused, match="no API key for"):
        Client(f"http://{host}:8765")
    assert settings_of(Client("http://localhost:1"))[1] == "Bearer mpt_file_a"


def test_the_default_store_is_in_the_data_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("MPT_STORE", raising=False)
    assert config.store() == tmp_path / "mptlab"
    monkeypatch.setenv("MPT_STORE", "/elsewhere")
    assert config.store() == Path("/elsewhere")


@pytest.mark.parametrize(
    ("url", "key"), [("lab:8765", "k"), ("http://lab", "k\n"), ("http://a", "ü")]
)
def test_a_client_refuses_an_invalid_url_or_key(url: str, key: str) -> None:
    with pytest.raises(Refused, match=r"is not a URL: start it with http|has an invalid character"):
        Client(url, key)
