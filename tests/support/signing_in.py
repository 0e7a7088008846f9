"""Steps of a sign-in by an account of the lab's provider, as a browser takes them."""

from typing import Any

from fastapi.testclient import TestClient
from httpx2 import Response

from service.settings import Settings
from tests.support.callers import bearer
from tests.support.oidc_provider import Person

OWN = {"Sec-Fetch-Site": "same-origin"}
"""Header of a request from our own pages."""
LAPTOP = {"name": "laptop", "lasts_days": 30}
"""A key that a member makes in the browser."""


def begin(browser: TestClient, **how: Any) -> str:
    answer = browser.post("/v1/sign-in:begin", json=how, headers=OWN)
    assert answer.status_code == 200, answer.text
    url: str = answer.json()["url"]
    return url


def finish(browser: TestClient, returned: dict[str, str]) -> Response:
    return browser.post("/v1/sign-in:finish", json=returned, headers=OWN)


def sign_in(browser: TestClient, login: str = "ann", **how: Any) -> Response:
    """Sign in as a person does, in a browser that the provider does not know."""
    return finish(browser, Person().sign_in(begin(browser, **how), login))


def refused(answer: Response, word: str) -> bool:
    return answer.status_code == 401 and word in answer.json()["detail"]


def beside(browser: TestClient, address: str = "testclient") -> TestClient:
    """Return another browser at the same service."""
    other = TestClient(browser.app, client=(address, 50_000), raise_server_exceptions=False)
    other.portal = browser.portal
    return other


def admin_of(settings: Settings) -> dict[str, str]:
    return bearer(settings.key_file.read_text().strip())


def audited(browser: TestClient, settings: Settings) -> list[str]:
    """The actions in the audit log, the oldest first."""
    items = browser.get("/v1/audit", headers=admin_of(settings)).json()["items"]
    return [line["action"] for line in reversed(items)]


def as_admin(browser: TestClient, method: str, path: str, **body: Any) -> Response:
    settings: Settings = browser.app.state.settings  # type: ignore[attr-defined]
    return browser.request(method, path, headers=admin_of(settings), json=body or None)
