"""Checkpoints that neither the folders of a machine nor the hub have."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from mptcore.specs import validate_spec
from mptlab.serve import free_port
from service.experiments import hub_reach
from service.experiments.hub_reach import hub_answers, hub_url
from service.experiments.inputs import LOCAL_CURE, OFFLINE, Inputs
from service.settings import Settings
from service.web.main import create_app
from tests.service.accounts.test_users import bearer
from tests.support.lm_specs import BASE
from tests.support.processes import wait_until

SPEC = {**BASE, "model": {"family": "masked_lm", "checkpoint": "my-ber"}}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """URL of a hub that does not answer, and no cached models."""
    url = f"http://127.0.0.1:{free_port()}"
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_ENDPOINT", url)
    return url


class Unauthorized(BaseHTTPRequestHandler):
    """Answer of the hub about a model that it does not show."""

    def do_HEAD(self) -> None:
        self.send_response(401)
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def answering(hub: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """URL of a hub that answers."""
    with HTTPServer(("127.0.0.1", 0), Unauthorized) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("HF_ENDPOINT", url)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield url
        server.shutdown()


def details(settings: Settings) -> list[str]:
    return [one.detail for one in Inputs(settings).problems(validate_spec(SPEC))]


def test_mpt_serve_refuses_a_checkpoint_that_no_run_could_load(
    settings: Settings, hub: str
) -> None:
    local = settings.model_copy(update={"local_checkpoints": True})
    for folder in ("my-bert-0123456789ab", ".copied"):
        (settings.store / "models" / folder).mkdir(parents=True)
    told = "there is no checkpoint my-ber; there are my-bert-0123456789ab; the hub, "
    told += f"{hub}, cannot be reached from here: {LOCAL_CURE}"
    headers = bearer(settings.key_file.read_text().strip())
    with TestClient(create_app(local), headers=headers) as api:
        for path in ("/v1/experiments", "/v1/experiments:validate"):
            answer = api.post(path, json={"spec": SPEC})
            assert answer.status_code == 422
            problem = {"pointer": "/spec/model/checkpoint", "detail": told}
            assert answer.json()["errors"] == [problem]
    (settings.store / "models" / "my-ber").mkdir()
    assert details(local) == []


def test_a_lab_may_have_the_checkpoint_on_another_machine(
    settings: Settings, hub: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert details(settings) == []
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert details(settings) == []


def test_a_hub_that_answers_may_have_the_checkpoint(settings: Settings, answering: str) -> None:
    assert details(settings.model_copy(update={"local_checkpoints": True})) == []


def test_a_disabled_hub_is_not_asked(
    settings: Settings, answering: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (told,) = details(settings.model_copy(update={"local_checkpoints": True}))
    assert told == f"there is no checkpoint my-ber; there is none at all; {OFFLINE}: {LOCAL_CURE}"


def test_a_cached_checkpoint_needs_no_hub(settings: Settings, hub: str, tmp_path: Path) -> None:
    (tmp_path / "hub" / "hub" / "models--my-ber").mkdir(parents=True)
    assert details(settings.model_copy(update={"local_checkpoints": True})) == []


def test_a_hub_that_is_silent_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_reach, "ANSWER_S", 0.01)
    waits = threading.Event()
    monkeypatch.setattr(hub_reach, "_answers", lambda url: waits.wait())
    assert not hub_answers("http://silent")
    waits.set()


def test_concurrent_misses_ask_the_hub_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    goes = threading.Event()

    def answers(url: str) -> bool:
        asked.append(url)
        return goes.wait(30)

    monkeypatch.setattr(hub_reach, "_answers", answers)
    monkeypatch.setattr(hub_reach, "ANSWER_S", 30)
    with ThreadPoolExecutor(8) as pool:
        found = [pool.submit(hub_answers, "http://once") for _ in range(8)]
        wait_until(lambda: bool(asked), what="a request")
        goes.set()
        assert all(one.result() for one in found)
    assert asked == ["http://once"]


def test_the_password_of_a_mirror_is_not_told(
    settings: Settings, hub: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.experiments.inputs.hub_answers", lambda _: False)
    monkeypatch.setenv("HF_ENDPOINT", "http://me:secret@mirror:80/x")
    (told,) = details(settings.model_copy(update={"local_checkpoints": True}))
    assert "the hub, http://mirror:80/x, cannot be reached" in told


def test_the_url_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://mirror")
    assert hub_url() == "http://mirror"
    monkeypatch.delenv("HF_ENDPOINT")
    assert hub_url() == "https://huggingface.co"
    assert not hub_answers("not a URL")
