"""Signing a browser in: once by a code, while its key is valid, only from our own pages."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from httpx2 import Response
from sqlalchemy import select, update

from service.accounts import accounts, sign_ins
from service.accounts.keys import digest
from service.accounts.models import ApiKey, SignIn, SignInCode, User
from service.accounts.sign_in_routes import Refusals
from service.accounts.sign_ins import CODE_USED, COOKIE, new_code, renew
from service.accounts.users import UNKNOWN
from service.app import create_app
from service.db.engine import Database
from service.settings import Settings
from service.vocabulary import ROLE_SCOPES, Role, Scope
from service.web import gate

OWN = {"Sec-Fetch-Site": "same-origin"}
SPEC = {
    "model": {"family": "ppca", "latent_dim": 2, "init": "maximum_likelihood"},
    "data": {"source": "digits"},
    "evaluate": {"masks": {"schedule": "fixed", "size": 3, "per_size": 20}},
}


@pytest.fixture
def browser(settings: Settings) -> Iterator[TestClient]:
    """One that is not signed in."""
    with TestClient(create_app(settings), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def key(settings: Settings) -> str:
    return settings.key_file.read_text().strip()


def sign_in(browser: TestClient, headers: dict[str, str] = OWN, **given: Any) -> Response:
    return browser.post("/v1/sign-in", json=given, headers=headers)


def preview(browser: TestClient, code: str) -> Response:
    return browser.post("/v1/sign-in:preview", json={"code": code}, headers=OWN)


def refused(answer: Response, word: str) -> bool:
    return answer.status_code == 401 and word in answer.json()["detail"]


def test_a_key_signs_a_browser_in_and_out(browser: TestClient, key: str) -> None:
    assert browser.get("/v1/me").status_code == 401
    assert sign_in(browser, key=key).status_code == 204
    assert browser.get("/v1/me").json()["name"] == "local"
    kept = browser.cookies[COOKIE]
    assert browser.post("/v1/sign-out", headers=OWN).status_code == 204
    assert COOKIE not in browser.cookies
    browser.cookies.set(COOKIE, kept)
    assert refused(browser.get("/v1/me"), "sign in again")


def test_the_cookie_is_out_of_reach_of_scripts_and_of_other_sites(
    browser: TestClient, key: str
) -> None:
    flags = sign_in(browser, key=key).headers["set-cookie"].lower()
    for flag in ("httponly", "samesite=strict", "path=/", "max-age=604800"):
        assert flag in flags
    assert "secure" not in flags
    over_tls = sign_in(browser, {**OWN, "Origin": "https://testserver"}, key=key)
    assert "; secure" in over_tls.headers["set-cookie"].lower()


def test_a_code_signs_one_browser_in_once(browser: TestClient, api: TestClient) -> None:
    made = api.post("/v1/sign-in-codes").json()
    assert made["path"] == f"/sign-in#{made['code']}"
    assert sign_in(browser, code=made["code"]).status_code == 204
    assert browser.get("/v1/me").json()["name"] == "local"
    assert refused(sign_in(browser, code=made["code"]), "used before")


def test_a_preview_names_both_users_and_leaves_the_code_valid(
    browser: TestClient, api: TestClient, database: Database
) -> None:
    code = api.post("/v1/sign-in-codes").json()["code"]
    nobody = {"name": "local", "signed_in_as": None}
    assert preview(browser, code).json() == nobody
    assert COOKIE not in browser.cookies
    with database.transaction() as session:
        ann = accounts.add(session, "ann", Role.VIEWER)
        assert ann is not None
        scopes = ROLE_SCOPES[Role.VIEWER]
        _, key = accounts.add_key(session, ann, name=None, scopes=scopes, lasts_s=None)
    sign_in(browser, key=key)
    assert preview(browser, code).json() == {**nobody, "signed_in_as": "ann"}
    browser.post("/v1/sign-out", headers=OWN)
    assert preview(browser, code).json() == nobody
    assert sign_in(browser, code=code).status_code == 204
    assert refused(preview(browser, code), "used before")


@pytest.mark.parametrize("how", ["revoked", "expired", "disabled"])
def test_a_code_of_an_expired_key_signs_nobody_in(
    browser: TestClient, api: TestClient, database: Database, how: str
) -> None:
    code = api.post("/v1/sign-in-codes").json()["code"]
    with database.transaction() as session:
        if how == "disabled":
            session.execute(update(User).values(disabled_at=1.0))
        else:
            session.execute(update(ApiKey).values(ENDS[how]))
    for answer in (preview(browser, code), sign_in(browser, code=code)):
        assert refused(answer, how)
    assert COOKIE not in browser.cookies


def test_a_browser_cannot_create_keys_that_outlive_its_sign_in(
    browser: TestClient, key: str
) -> None:
    """No other sign-in, key, user, higher role or webhook, although this key may create all of
    them."""
    sign_in(browser, key=key)
    for method, path, body in (
        ("POST", "/v1/sign-in-codes", {}),
        ("POST", "/v1/users/local/keys", {}),
        ("POST", "/v1/users", {"name": "ann"}),
        ("PATCH", "/v1/users/ann", {"role": "admin"}),
        ("POST", "/v1/webhooks", {"url": "https://example.org/ended"}),
    ):
        answer = browser.request(method, path, json=body, headers=OWN)
        assert (answer.status_code, answer.json()["reason"]) == (403, "key_needed")
        by_key = browser.request(
            method, path, json=body, headers={"Authorization": f"Bearer {key}"}
        )
        assert by_key.is_success


def test_a_code_is_short_lived(browser: TestClient, api: TestClient, database: Database) -> None:
    code = api.post("/v1/sign-in-codes").json()["code"]
    with database.transaction() as session:
        session.execute(update(SignInCode).values(expires_at=SignInCode.expires_at - 601))
    assert refused(sign_in(browser, code=code), "ten minutes")


@pytest.mark.parametrize(
    "given", [{}, {"key": "a", "code": "b"}, {"keys": "a"}, {"key": 1}, {"code": "a" * 201}]
)
def test_a_sign_in_without_a_key_or_code_is_refused(
    browser: TestClient, given: dict[str, Any]
) -> None:
    assert sign_in(browser, **given).status_code == 422
    assert COOKIE not in browser.cookies


@pytest.mark.parametrize("name", ["key", "code"])
@pytest.mark.parametrize("text", ["", "a", "mpt_", "\\u0000", "\\ud800", "é"])
def test_unknown_keys_and_codes_are_refused(browser: TestClient, name: str, text: str) -> None:
    content = f'{{"{name}": "{text}"}}'
    answer = browser.post("/v1/sign-in", content=content, headers=OWN)
    assert answer.status_code in (401, 422), answer.text


def test_only_digests_are_kept(browser: TestClient, key: str, database: Database) -> None:
    sign_in(browser, key=key)
    with database.snapshot() as session:
        (kept,) = session.scalars(select(SignIn))
    assert kept.secret_sha256 == digest(browser.cookies[COOKIE].partition(".")[2])


@pytest.mark.parametrize("spoilt", ["", ".", "a", "a.b", "{id}.", "{id}.{other}"])
def test_an_incomplete_cookie_is_refused(browser: TestClient, key: str, spoilt: str) -> None:
    sign_in(browser, key=key)
    own_id = browser.cookies[COOKIE].partition(".")[0]
    browser.cookies.clear()
    browser.cookies.set(COOKIE, spoilt.format(id=own_id, other="0" * 64))
    assert browser.get("/v1/me").status_code == 401


ENDS = {
    "revoked": {"revoked_at": 1.0},
    "expired": {"expires_at": 1.0},
}


@pytest.mark.parametrize("how", ENDS)
def test_a_sign_in_ends_with_its_key(
    browser: TestClient, key: str, database: Database, how: str
) -> None:
    sign_in(browser, key=key)
    assert browser.get("/v1/me").status_code == 200
    with database.transaction() as session:
        session.execute(update(ApiKey).values(ENDS[how]))
    assert refused(browser.get("/v1/me"), how)


def test_a_sign_in_ends_after_a_week(browser: TestClient, key: str, database: Database) -> None:
    sign_in(browser, key=key)
    with database.transaction() as session:
        session.execute(update(SignIn).values(expires_at=SignIn.expires_at - 604_801))
    assert refused(browser.get("/v1/me"), "week")


def test_a_browser_has_the_scopes_of_its_key(browser: TestClient, database: Database) -> None:
    with database.transaction() as session:
        user = accounts.add(session, "ada", Role.MEMBER)
        assert user is not None
        scopes = [scope for scope in ROLE_SCOPES[Role.MEMBER] if scope != Scope.SUBMIT]
        _, key = accounts.add_key(session, user, name=None, scopes=scopes, lasts_s=None)
    sign_in(browser, key=key)
    assert browser.get("/v1/experiments").status_code == 200
    answer = browser.post("/v1/experiments", json={"spec": SPEC}, headers=OWN)
    assert (answer.status_code, answer.json()["reason"]) == (403, "scope_missing")
    assert browser.get("/v1/audit").status_code == 403


HOST = "http://testserver"
ORIGINS = [
    ({"Sec-Fetch-Site": "same-origin"}, True),
    ({"Sec-Fetch-Site": "same-origin", "Origin": "http://elsewhere.example"}, True),
    ({"Sec-Fetch-Site": "same-site", "Origin": HOST}, False),
    ({"Sec-Fetch-Site": "cross-site", "Origin": HOST}, False),
    ({"Sec-Fetch-Site": "none"}, False),
    ({"Origin": HOST}, True),
    ({"Origin": "https://testserver"}, True),
    ({"Origin": "http://testserver.evil.example"}, False),
    ({"Origin": "null"}, False),
    ({}, False),
]
"""Headers for the origin of a request, and whether it is one of our pages."""


@pytest.mark.parametrize(("headers", "ours"), ORIGINS)
@pytest.mark.parametrize("path", ["/v1/experiments:validate", "/v1/sign-in:renew"])
def test_a_cookie_allows_changes_only_from_our_own_pages(
    browser: TestClient, key: str, path: str, headers: dict[str, str], ours: bool
) -> None:
    sign_in(browser, key=key)
    answer = browser.post(path, json={"spec": SPEC}, headers=headers)
    assert (answer.status_code < 300) is ours
    assert ours or answer.json()["reason"] == "cross_origin"


@pytest.mark.parametrize("path", ["/v1/sign-in", "/v1/sign-in:preview", "/v1/sign-out"])
def test_no_other_site_signs_a_browser_in_or_out(browser: TestClient, key: str, path: str) -> None:
    sign_in(browser, key=key)
    answer = browser.post(path, json={"key": key}, headers={"Origin": "http://evil.example"})
    assert answer.json()["reason"] == "cross_origin"
    assert "set-cookie" not in answer.headers
    assert browser.get("/v1/me").status_code == 200


def test_a_key_needs_no_origin(api: TestClient) -> None:
    answer = api.post(
        "/v1/experiments:validate",
        json={"spec": SPEC},
        headers={"Sec-Fetch-Site": "cross-site", "Origin": "http://elsewhere.example"},
    )
    assert answer.status_code == 200


def test_a_key_overrides_a_cookie(browser: TestClient, key: str) -> None:
    sign_in(browser, key=key)
    assert browser.get("/v1/me", headers={"Authorization": "Bearer mpt_0"}).status_code == 401


def test_each_sign_in_has_its_own_cookie(browser: TestClient, key: str) -> None:
    cookies = set()
    for _ in range(2):
        sign_in(browser, key=key)
        cookies.add(browser.cookies[COOKIE])
    assert len({cookie.partition(".")[0] for cookie in cookies}) == 2


def test_a_second_sign_in_ends_the_first(browser: TestClient, key: str) -> None:
    sign_in(browser, key=key)
    first = browser.cookies[COOKIE]
    sign_in(browser, key=key)
    assert browser.get("/v1/me").status_code == 200
    browser.cookies.clear()
    browser.cookies.set(COOKIE, first)
    assert browser.get("/v1/me").status_code == 401


def test_expired_sign_ins_are_deleted(browser: TestClient, key: str, database: Database) -> None:
    sign_in(browser, key=key)
    browser.cookies.clear()
    with database.transaction() as session:
        new_code(session, key.split("_")[1])
        session.execute(update(SignIn).values(expires_at=1.0))
        session.execute(update(SignInCode).values(expires_at=1.0))
    sign_in(browser, key=key)
    with database.snapshot() as session:
        assert [*session.scalars(select(SignInCode))] == []
        assert len([*session.scalars(select(SignIn))]) == 1


def test_a_key_has_a_bounded_number_of_browsers(
    browser: TestClient, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sign_ins, "MAX_OF_KEY", 2)
    cookies = []
    for _ in range(3):
        assert sign_in(browser, key=key).status_code == 204
        cookies.append(browser.cookies[COOKIE])
        browser.cookies.clear()
    answers = [browser.get("/v1/me", headers={"Cookie": f"{COOKIE}={one}"}) for one in cookies]
    assert [one.status_code for one in answers] == [401, 200, 200]


def test_a_key_has_a_bounded_number_of_codes(
    browser: TestClient, api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sign_ins, "MAX_OF_KEY", 2)
    codes = [api.post("/v1/sign-in-codes").json()["code"] for _ in range(3)]
    assert [preview(browser, one).status_code for one in codes] == [401, 200, 200]


def test_the_audit_names_the_creator_of_a_code(api: TestClient) -> None:
    api.post("/v1/sign-in-codes")
    entry = api.get("/v1/audit").json()["items"][0]
    assert (entry["actor"], entry["action"]) == ("local", "sign_in_code.made")
    assert entry["object_id"] == entry["key_id"] == api.get("/v1/me").json()["key_id"]


def test_the_audit_has_each_sign_in_and_sign_out(
    browser: TestClient, api: TestClient, key: str
) -> None:
    browser.post("/v1/sign-out", headers=OWN)  # nobody is signed in: no line
    sign_in(browser, key=key)
    sign_in(browser, code=api.post("/v1/sign-in-codes").json()["code"])
    browser.post("/v1/sign-out", headers=OWN)
    lines = api.get("/v1/audit").json()["items"][:5]
    key_id = key.split("_")[1]
    assert {(one["actor"], one["key_id"], one["object_id"]) for one in lines} == {
        ("local", key_id, key_id)
    }
    assert [(one["action"], one["details"]) for one in reversed(lines)] == [
        ("sign_in.begun", {"given": "key"}),
        ("sign_in_code.made", {}),
        ("sign_in.ended", {}),
        ("sign_in.begun", {"given": "code"}),
        ("sign_in.ended", {}),
    ]


def test_the_audit_has_a_bounded_number_of_refused_sign_ins(
    browser: TestClient, api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.accounts.sign_in_routes.REFUSALS_AN_HOUR", 3)
    now = 0.0
    refusals = Refusals(timer=lambda: now)
    browser.app.state.refused_sign_ins = refusals  # type: ignore[attr-defined]
    for _ in range(5):
        assert refused(sign_in(browser, code="none"), "used before")
    now = 3601.0
    sign_in(browser, key=f"mpt_{'0' * 16}_{'0' * 64}")
    lines = [one for one in api.get("/v1/audit").json()["items"] if "refused" in one["action"]]
    assert [(one["actor"], one["object_id"]) for one in lines] == [("api", "testclient")] * 4
    assert [one["details"]["left_out_before"] for one in reversed(lines)] == [0, 0, 0, 2]
    assert [one["details"]["reason"] for one in lines[:2]] == [UNKNOWN, CODE_USED]


def aged(database: Database, seconds: float) -> None:
    with database.transaction() as session:
        session.execute(update(SignIn).values(renewed_at=SignIn.renewed_at - seconds))


def test_an_old_cookie_is_renewed_and_valid_for_another_minute(
    browser: TestClient, key: str, database: Database
) -> None:
    sign_in(browser, key=key)
    first = browser.cookies[COOKIE]
    assert "set-cookie" not in browser.post("/v1/sign-in:renew", headers=OWN).headers
    aged(database, 3601)
    assert browser.post("/v1/sign-in:renew", headers=OWN).status_code == 204
    second = browser.cookies[COOKIE]
    assert re.match(first.partition(".")[0], second)
    assert first != second
    for seconds, of_first in ((0, 200), (61, 401)):
        aged(database, seconds)
        for cookie, status in ((first, of_first), (second, 200)):
            browser.cookies.clear()
            browser.cookies.set(COOKIE, cookie)
            assert browser.get("/v1/me").status_code == status


def test_only_a_complete_cookie_is_renewed(
    browser: TestClient, key: str, database: Database
) -> None:
    sign_in(browser, key=key)
    kept = browser.cookies[COOKIE]
    spoilt = f"{kept.partition('.')[0]}.{'0' * 64}"
    aged(database, 3601)
    with database.transaction() as session:
        assert renew(session, spoilt) is None
    assert browser.get("/v1/me").status_code == 200


def test_the_owner_signs_out_the_thief_of_a_renewed_cookie(
    browser: TestClient, settings: Settings, key: str, database: Database
) -> None:
    """Use the earlier cookie, which is no longer valid for anything else."""
    sign_in(browser, key=key)
    with TestClient(create_app(settings)) as thief:
        thief.cookies.set(COOKIE, browser.cookies[COOKIE])
        for _ in range(2):
            aged(database, 3601)
            assert thief.post("/v1/sign-in:renew", headers=OWN).status_code == 204
        aged(database, 61)
        assert thief.get("/v1/me").status_code == 200
        assert browser.get("/v1/me").status_code == 401
        browser.post("/v1/sign-out", headers=OWN)
        assert thief.get("/v1/me").status_code == 401


def test_a_browser_counts_for_its_user(
    settings: Settings, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "RATE_PER_ADDRESS", 3)
    with TestClient(create_app(settings)) as browser:
        sign_in(browser, key=key)
        assert [browser.get("/v1/me").status_code for _ in range(6)] == [200] * 6
        browser.cookies.clear()
        assert 429 in [browser.get("/v1/me").status_code for _ in range(4)]
