"""Signing in by an account of a real OpenID Connect provider: who may, and what is refused."""

import time
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError
from sqlalchemy import update
from starlette.types import Receive, Scope, Send

from service.accounts import oidc as oidc_module
from service.accounts.models import ApiKey
from service.accounts.oidc import MAX_AT_ONCE, ROUND_LASTS_S
from service.accounts.oidc_users import KEY_NAME
from service.app import create_app
from service.db.engine import Database
from service.settings import Settings, is_provider_url
from service.vocabulary import Role
from service.web.sign_in_cookie import COOKIE
from tests.support.oidc_provider import Person, RealProvider, with_provider
from tests.support.signing_in import (
    LAPTOP,
    OWN,
    admin_of,
    audited,
    begin,
    beside,
    finish,
    refused,
    sign_in,
)


def test_an_account_signs_a_browser_in_and_adds_its_user(
    browser: TestClient, oidc: Settings
) -> None:
    assert sign_in(browser).status_code == 204
    me = browser.get("/v1/me").json()
    assert (me["name"], me["role"]) == ("ann", "member")
    assert sign_in(browser).status_code == 204
    users = browser.get("/v1/users", headers=admin_of(oidc)).json()["items"]
    assert [user["name"] for user in users] == ["ann", "local"]
    assert audited(browser, oidc)[-3:] == ["user.added", "sign_in.begun", "sign_in.begun"]


def test_a_sign_in_lasts_a_day_and_ends_like_any_key(
    browser: TestClient, oidc: Settings, provider: RealProvider
) -> None:
    sign_in(browser)
    key = browser.get("/v1/users/ann/keys").json()["items"][0]
    assert (
        datetime.fromisoformat(key["expires_at"]) - datetime.fromisoformat(key["created_at"])
    ).total_seconds() <= 86_400.5
    path = f"/v1/users/ann/keys/{key['id']}"
    assert browser.delete(path, headers=admin_of(oidc)).status_code == 204
    assert browser.get("/v1/me").status_code == 401
    sign_in(browser)
    with Database(oidc.url).transaction() as session:
        session.execute(
            update(ApiKey).where(ApiKey.authenticated_at.is_not(None)).values(expires_at=1.0)
        )
    assert browser.get("/v1/me").status_code == 401
    sign_in(browser)
    assert len(browser.get("/v1/users/ann/keys").json()["items"]) == 1


def test_the_list_keeps_ended_keys_of_programs_but_not_ended_sign_ins(browser: TestClient) -> None:
    sign_in(browser, fresh=True)
    key_id = browser.post("/v1/me/keys", json=LAPTOP, headers=OWN).json()["id"]
    browser.delete(f"/v1/users/ann/keys/{key_id}", headers=OWN)
    browser.post("/v1/sign-out", headers=OWN)
    sign_in(browser)
    keys = browser.get("/v1/users/ann/keys").json()["items"]
    assert [(key["name"], key["revoked_at"] is None) for key in keys] == [
        ("laptop", False),
        (KEY_NAME, True),
    ]


def test_signing_out_ends_each_copy_of_the_cookie(browser: TestClient) -> None:
    sign_in(browser)
    copy = {"Cookie": f"{COOKIE}={browser.cookies[COOKIE]}"}
    assert browser.post("/v1/sign-out", headers=OWN).status_code == 204
    assert browser.get("/v1/me", headers=copy).status_code == 401


@pytest.mark.parametrize("by", ["account", "key"])
def test_another_sign_in_in_the_same_browser_ends_each_copy_of_the_cookie(
    browser: TestClient, oidc: Settings, provider: RealProvider, by: str
) -> None:
    sign_in(browser)
    copy = {"Cookie": f"{COOKIE}={browser.cookies[COOKIE]}"}
    if by == "account":
        provider.add("bob")
        assert sign_in(browser, "bob").status_code == 204
    else:
        body = {"key": oidc.key_file.read_text().strip()}
        assert browser.post("/v1/sign-in", json=body, headers=OWN).status_code == 204
    assert browser.get("/v1/me").json()["name"] in ("bob", "local")
    browser.cookies.clear()
    assert browser.get("/v1/me", headers=copy).status_code == 401


def test_another_browser_cannot_finish_a_sign_in(browser: TestClient, oidc: Settings) -> None:
    """Nor can this one with another state, or after a later begin."""
    returned = Person().sign_in(begin(browser), "ann")
    with TestClient(create_app(oidc)) as other:
        assert refused(finish(other, returned), "not begun in this browser")
        begin(other)
        assert refused(finish(other, returned), "not begun in this browser")
        assert other.get("/v1/me").status_code == 401
    assert refused(finish(browser, {**returned, "state": "other"}), "not begun in this browser")
    assert refused(finish(browser, {**returned, "state": ""}), "not begun in this browser")
    assert finish(browser, returned).status_code == 204


def test_a_code_serves_once(browser: TestClient) -> None:
    """The browser forgets the round, and the provider refuses a copy of its earlier cookie."""
    url = begin(browser)
    before = browser.cookies[COOKIE]
    returned = Person().sign_in(url, "ann")
    assert finish(browser, returned).status_code == 204
    assert refused(finish(browser, returned), "not begun in this browser")
    browser.cookies.clear()
    browser.cookies.set(COOKIE, before)
    assert refused(finish(browser, returned), "invalid_grant")
    assert browser.get("/v1/me").status_code == 401


def test_a_code_of_another_round_is_refused(browser: TestClient, oidc: Settings) -> None:
    """A stolen code is of no use without the verifier, which never left the browser's cookie."""
    stolen = Person().sign_in(begin(browser), "ann")["code"]
    with TestClient(create_app(oidc)) as thief:
        returned = Person().sign_in(begin(thief), "ann")
        assert refused(finish(thief, {**returned, "code": stolen}), "invalid_grant")


def test_a_round_lasts_ten_minutes(browser: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    returned = Person().sign_in(begin(browser), "ann")
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + ROUND_LASTS_S + 1)
    assert refused(finish(browser, returned), "ten minutes")


def test_a_refusal_of_the_provider_is_shown(browser: TestClient) -> None:
    state = Person().sign_in(begin(browser), "ann")["state"]
    returned = {"state": state, "error": "access_denied"}
    assert refused(finish(browser, returned), "access_denied")


NOW = time.time()


@pytest.mark.parametrize(
    ("claims", "word"),
    [
        ({"exp": NOW - 3600, "iat": NOW - 7200}, "expired"),
        ({"iat": NOW + 3600}, "future"),
        ({"aud": "another"}, "aud"),
        ({"aud": ["lab", "another"], "azp": "another"}, "azp"),
        ({"iss": "https://elsewhere.example"}, "iss"),
        ({"nonce": "another"}, "nonce"),
        ({"at_hash": "another"}, "at_hash"),
        ({"sub": ""}, "sub"),
        ({"sub": "a\0b"}, "sub"),
        ({"sub": "a" * 256}, "sub"),
    ],
)
def test_an_id_token_that_is_not_for_this_sign_in_is_refused(
    browser: TestClient, provider: RealProvider, claims: dict[str, Any], word: str
) -> None:
    provider.forge(**claims)
    assert refused(sign_in(browser), word)
    assert browser.get("/v1/me").status_code == 401


@pytest.mark.parametrize("forged", [{"signed_by": "stranger"}, {"alg": "none"}, {"alg": "HS256"}])
def test_an_id_token_without_the_signature_of_the_provider_is_refused(
    browser: TestClient, provider: RealProvider, forged: dict[str, str]
) -> None:
    """Also if it names a key of the provider. HS256 is signed with the public key, as a text."""
    provider.forge(**forged)
    assert refused(sign_in(browser), "not valid")


def test_an_answer_of_another_issuer_is_refused(browser: TestClient) -> None:
    returned = Person().sign_in(begin(browser), "ann")
    assert refused(finish(browser, {**returned, "iss": "https://elsewhere.example"}), "not begun")


def test_userinfo_about_another_account_is_refused(
    browser: TestClient, provider: RealProvider
) -> None:
    provider.forge(userinfo={"sub": "bob"})
    assert refused(sign_in(browser), "another account")


@pytest.mark.parametrize(
    ("token", "status"),
    [
        ({"expires_in": 30}, 204),
        ({"expires_in": -1}, 503),
        ({"token_type": "mac"}, 503),
    ],
)
def test_userinfo_needs_a_valid_access_token_of_any_length_of_life(
    browser: TestClient, provider: RealProvider, token: dict[str, Any], status: int
) -> None:
    """The provider's ID tokens have no name here, so userinfo is requested."""
    provider.forge(token=token)
    assert sign_in(browser).status_code == status


@pytest.mark.parametrize("name", ["authorization_endpoint", "token_endpoint", "jwks_uri"])
@pytest.mark.parametrize("url", ["http://a.example", "file:///a", "https://a.example/\ud800", None])
def test_an_insecure_address_of_the_provider_is_not_used(
    settings: Settings, provider: RealProvider, name: str, url: str | None
) -> None:
    provider.forge(discovery={name: url})
    with TestClient(create_app(with_provider(settings, provider))) as browser:
        answer = browser.post("/v1/sign-in:begin", json={}, headers=OWN)
    assert (answer.status_code, answer.json()["reason"]) == (503, "provider_away")


DEEP = "raw:" + "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "forged",
    [
        {"userinfo": {"groups": DEEP}},
        {"auth_time": "raw:1" + "0" * 400},
        {"auth_time": None, "userinfo": {"auth_time": ["a"]}},
        {"auth_time": None, "userinfo": {"auth_time": "a"}},
    ],
    ids=["deep", "huge", "list", "text"],
)
def test_an_answer_of_another_form_is_the_provider_s_fault(
    browser: TestClient, provider: RealProvider, forged: dict[str, Any]
) -> None:
    provider.forge(**forged)
    assert sign_in(browser).status_code == 503


def test_rotated_keys_are_read_again_but_not_in_a_loop(
    browser: TestClient, provider: RealProvider
) -> None:
    assert sign_in(browser).status_code == 204
    provider.rotate()
    assert sign_in(browser).status_code == 204
    for _ in range(2):
        provider.forge(kid="unknown")
        requests = provider.key_requests()
        assert refused(sign_in(browser), "kid")
        assert provider.key_requests() == requests
        provider.forge()
    assert sign_in(browser).status_code == 204


def test_keys_of_a_kind_that_this_lab_does_not_know_are_left_out(
    browser: TestClient, provider: RealProvider
) -> None:
    odd = [
        5,
        {"kid": "a"},
        {"kid": 5, "kty": "EC", "crv": "P-256", "x": "aa", "y": "bb"},
        {"kid": "b", "kty": "EC", "crv": "brainpoolP256r1", "x": "aa", "y": "bb"},
        {"kid": "c", "kty": "OKP", "crv": "Ed9999", "x": "aa"},
        {"kid": "d", "kty": "RSA", "n": "!", "e": "AQAB"},
        {"kid": "e", "kty": "RSA", "n": "AQAB", "e": "AQAB", "key_ops": ["weird"]},
        {"kid": "f", "kty": "AKP", "alg": "ML-DSA-65", "pub": "aa"},
    ]
    provider.forge(more_keys=odd)
    assert sign_in(browser).status_code == 204


def test_all_who_sign_in_just_after_a_rotation_succeed(
    browser: TestClient, provider: RealProvider
) -> None:
    sign_in(browser)
    provider.rotate()
    provider.forge(after_ms={"/jwks": 1000})
    browsers = [beside(browser) for _ in range(3)]
    returned = [Person().sign_in(begin(other), "ann") for other in browsers]
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(finish, browsers, returned))
    assert [answer.status_code for answer in answers] == [204, 204, 204]


def test_a_stranger_with_many_rounds_does_not_stall_the_sign_ins_of_others(
    settings: Settings, provider: RealProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They replay one round, and the provider is slow to refuse the code."""
    monkeypatch.setattr(oidc_module, "ROUND_S", 4.0)
    app = create_app(with_provider(settings, provider))
    with TestClient(app) as browser, ThreadPoolExecutor(MAX_AT_ONCE + 4) as pool:
        state = parse_qs(urlsplit(begin(browser)).query)["state"][0]
        provider.forge(after_ms={"/token": 60_000})
        strangers = [beside(browser, "192.0.2.1") for _ in range(MAX_AT_ONCE + 4)]
        for stranger in strangers:
            stranger.cookies.set(COOKIE, browser.cookies[COOKIE])
        returned = {"state": state, "code": "of a stranger"}
        stalled = [pool.submit(finish, stranger, returned) for stranger in strangers]
        wait(stalled, timeout=1)
        begin(browser)
        assert not any(request.done() for request in stalled)


def test_keys_and_open_sessions_go_on_while_the_provider_is_away(
    place: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may go before or during a sign-in, and is used again as soon as it answers."""
    monkeypatch.setattr(oidc_module, "METADATA_S", 0.0)
    provider = RealProvider()
    provider.start()
    provider.add("ann", groups=["staff"])
    settings = with_provider(place, provider)
    with TestClient(create_app(settings)) as browser, TestClient(create_app(settings)) as other:
        assert sign_in(browser).status_code == 204
        returned = Person().sign_in(begin(other), "ann")
        provider.stop()
        attempts = (
            other.post("/v1/sign-in:begin", json={}, headers=OWN),
            finish(other, returned),
        )
        for answer in attempts:
            assert (answer.status_code, answer.json()["reason"]) == (503, "provider_away")
            assert provider.issuer in answer.json()["detail"]
        assert browser.get("/v1/me").json()["name"] == "ann"
        assert other.get("/v1/me", headers=admin_of(settings)).json()["name"] == "local"
        provider.start()
        assert sign_in(other).status_code == 204
    provider.stop()


def test_a_discovery_document_of_another_issuer_is_refused(
    place: Settings, provider: RealProvider
) -> None:
    other = with_provider(place, provider, oidc_issuer=f"http://localhost:{provider.port}")
    with TestClient(create_app(other)) as browser:
        answer = browser.post("/v1/sign-in:begin", json={}, headers=OWN)
    assert answer.json()["reason"] == "provider_away"


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"oidc_issuer": "http://id.example.org"}, "https"),
        ({"oidc_issuer": "ftp://127.0.0.1"}, "https"),
        ({"oidc_issuer": "https://id.example.org/?a"}, "without"),
        ({"oidc_client_id": None}, "all three"),
        ({"oidc_client_secret": None}, "all three"),
        ({"oidc_roles": {"staff": "owner"}}, "admin"),
    ],
)
def test_wrong_settings_are_refused(settings: Settings, given: dict[str, Any], word: str) -> None:
    right = {
        "oidc_issuer": "https://id.example.org",
        "oidc_client_id": "lab",
        "oidc_client_secret": "secret",
    }
    Settings(**{**settings.model_dump(), **right})
    with pytest.raises(ValidationError, match=word):
        Settings(**{**settings.model_dump(), **right, **given})


@pytest.mark.parametrize(
    ("url", "issuer", "is_secure"),
    [
        ("https://keys.example.org/a?b", "https://id.example.org", True),
        ("http://id.example.org", "https://id.example.org", False),
        ("http://127.0.0.1:8080/a", "https://id.example.org", False),
        ("http://127.0.0.1:8080/a", "http://localhost:8080", True),
        ("https:///a", "https://id.example.org", False),
        ("file:///etc/passwd", "https://id.example.org", False),
    ],
)
def test_addresses_of_a_provider_are_secure(url: str, issuer: str, is_secure: bool) -> None:
    assert is_provider_url(url, issuer) is is_secure


def test_without_the_settings_nothing_changes(place: Settings) -> None:
    with TestClient(create_app(place)) as browser:
        assert "data-provider" not in browser.get("/sign-in").text
        for path, body in (("begin", {}), ("finish", {"state": "a", "code": "b"})):
            answer = browser.post(f"/v1/sign-in:{path}", json=body, headers=OWN)
            assert (answer.status_code, answer.json()["reason"]) == (404, "not_found")


def test_no_other_site_begins_or_finishes_a_sign_in(browser: TestClient) -> None:
    returned = Person().sign_in(begin(browser), "ann")
    elsewhere = {"Origin": "http://evil.example"}
    for path, body in (("begin", {}), ("finish", returned)):
        answer = browser.post(f"/v1/sign-in:{path}", json=body, headers=elsewhere)
        assert answer.json()["reason"] == "cross_origin"
    assert browser.get("/v1/me").status_code == 401


def test_a_client_that_names_no_host_gets_an_answer(browser: TestClient) -> None:
    async def without_host(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name, value) for name, value in scope["headers"] if name != b"host"]
        await browser.app({**scope, "headers": headers}, receive, send)

    client = TestClient(without_host, raise_server_exceptions=False)
    assert client.post("/v1/sign-in:begin", json={}, headers=OWN).status_code == 200


def test_the_settings_are_read_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the lab\n")
    monkeypatch.setenv("MPT_OIDC_ISSUER", "https://id.example.org/realms/lab")
    monkeypatch.setenv("MPT_OIDC_CLIENT_ID", "lab")
    monkeypatch.setenv("MPT_OIDC_CLIENT_SECRET_FILE", str(secret))
    monkeypatch.setenv("MPT_OIDC_ROLES", '{"lab-admins": "admin"}')
    settings = Settings()
    assert settings.oidc_client_secret is not None
    assert settings.oidc_client_secret.get_secret_value() == "of the lab"
    assert settings.oidc_roles == {"lab-admins": Role.ADMIN}
    assert "of the lab" not in repr(settings)
