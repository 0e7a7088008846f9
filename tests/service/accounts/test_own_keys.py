"""Keys that a member makes in the browser after a fresh sign-in by an account."""

import time
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.accounts.oidc import FRESH_S
from service.settings import Settings
from tests.support.callers import bearer
from tests.support.oidc_provider import Person, RealProvider
from tests.support.signing_in import LAPTOP, OWN, begin, finish, sign_in

NOW = time.time()


def test_a_key_is_made_in_the_browser_after_a_sign_in_with_a_password(
    browser: TestClient, provider: RealProvider
) -> None:
    """Later the provider knows the person, and asks for the password again nevertheless."""
    person = Person()
    finish(browser, person.sign_in(begin(browser), "ann"))
    assert browser.post("/v1/me/keys", json=LAPTOP, headers=OWN).status_code == 201
    provider.forge(auth_time=NOW - 3600)
    finish(browser, person.sign_in(begin(browser), "ann"))
    assert person.passwords == 1
    refusal = browser.post("/v1/me/keys", json=LAPTOP, headers=OWN)
    assert (refusal.status_code, refusal.json()["reason"]) == (403, "sign_in_again")
    provider.forge()
    assert finish(browser, person.sign_in(begin(browser, fresh=True), "ann")).status_code == 204
    assert person.passwords == 2
    made = browser.post("/v1/me/keys", json=LAPTOP, headers=OWN).json()
    assert made["name"] == "laptop"
    assert made["expires_at"] is not None
    browser.cookies.clear()
    assert browser.get("/v1/me", headers=bearer(made["key"])).json()["name"] == "ann"
    by_key = browser.post("/v1/me/keys", json=LAPTOP, headers=bearer(made["key"]))
    assert (by_key.status_code, by_key.json()["reason"]) == (403, "sign_in_again")


def test_a_key_needs_a_sign_in_of_the_last_ten_minutes(
    browser: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign_in(browser, fresh=True)
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + FRESH_S + 1)
    answer = browser.post("/v1/me/keys", json=LAPTOP, headers=OWN)
    assert (answer.status_code, answer.json()["reason"]) == (403, "sign_in_again")


@pytest.mark.parametrize(
    "at",
    [NOW - 3600, NOW + 3600, NOW * 1000, None, "raw:NaN", "raw:1e999"],
    ids=["earlier", "later", "milliseconds", "none", "nan", "infinite"],
)
def test_a_provider_that_asks_for_no_password_lets_nobody_make_a_key(
    browser: TestClient, provider: RealProvider, at: float | str | None
) -> None:
    """Nor does one that gives no such time, or an impossible one."""
    provider.forge(auth_time=at)
    assert sign_in(browser, fresh=True).status_code == 204
    answer = browser.post("/v1/me/keys", json=LAPTOP, headers=OWN)
    assert (answer.status_code, answer.json()["reason"]) == (403, "sign_in_again")


def test_a_browser_signed_in_by_a_key_makes_none(browser: TestClient, oidc: Settings) -> None:
    key = oidc.key_file.read_text().strip()
    browser.post("/v1/sign-in", json={"key": key}, headers=OWN)
    assert browser.post("/v1/me/keys", json=LAPTOP, headers=OWN).status_code == 403


@pytest.mark.parametrize(
    "body",
    [
        {"lasts_days": 30},
        {"name": "laptop"},
        {"name": "laptop", "lasts_days": None},
        {**LAPTOP, "lasts_days": 91},
        {**LAPTOP, "scopes": ["admin"]},
    ],
)
def test_a_key_of_ones_own_has_a_name_an_end_and_no_more_than_the_role(
    browser: TestClient, body: dict[str, Any]
) -> None:
    sign_in(browser, fresh=True)
    assert browser.post("/v1/me/keys", json=body, headers=OWN).status_code == 422
