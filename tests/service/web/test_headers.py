"""Headers of every answer, and the callers that get an answer."""

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.settings import Settings
from service.web.headers import SECURE

PAGE = "https://lab.example"


@pytest.mark.parametrize("path", ["/v1/me", "/healthz", "/nowhere", "/openapi.json"])
def test_every_answer_tells_browsers_to_trust_nothing(api: TestClient, path: str) -> None:
    found = api.get(path).headers
    assert {name: found[name] for name in SECURE} == SECURE


def test_other_origins_are_refused_unless_configured(settings: Settings) -> None:
    asks = {"Origin": PAGE, "Access-Control-Request-Method": "GET"}
    with TestClient(create_app(settings)) as api:
        assert "access-control-allow-origin" not in api.get("/healthz", headers=asks).headers
        assert api.options("/v1/me", headers=asks).status_code == 405
    named = settings.model_copy(update={"cors_origins": [PAGE]})
    with TestClient(create_app(named)) as api:
        found = api.get("/healthz", headers=asks).headers
        assert found["access-control-allow-origin"] == PAGE
        assert {"ETag", "Retry-After"} < {*found["access-control-expose-headers"].split(", ")}
        asks["Origin"] = "https://elsewhere.example"
        assert "access-control-allow-origin" not in api.get("/healthz", headers=asks).headers


@pytest.mark.parametrize(
    ("host", "status"), [("mpt.lab", 200), ("127.0.0.1:8765", 200), ("evil.example", 400)]
)
def test_only_configured_host_names_are_answered(
    settings: Settings, host: str, status: int
) -> None:
    headers = {"Host": host}
    with TestClient(create_app(settings)) as api:
        assert api.get("/healthz", headers=headers).status_code == 200
    careful = settings.model_copy(update={"trusted_hosts": ["mpt.lab"]})
    with TestClient(create_app(careful)) as api:
        assert api.get("/healthz", headers=headers).status_code == status


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer x", "Bearer mpt_", "Bearer mpt_a_b", "Basic eA", "Bearer mpt_é_x"],
)
def test_a_request_without_a_usable_key_is_told_to_send_one(
    shared_api: TestClient, header: str
) -> None:
    headers = {"Authorization": header.encode()}
    answer = shared_api.get("/v1/experiments", headers=headers)  # type: ignore[arg-type]
    assert (answer.status_code, answer.json()["reason"]) == (401, "unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"
