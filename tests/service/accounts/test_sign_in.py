"""Signing a browser in: by a key or once by a link, while its key is valid, only from our own
pages."""

import asyncio
import os
import time
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from fastapi.testclient import TestClient
from httpx2 import Response
from itsdangerous import TimestampSigner
from sqlalchemy import update

from service.accounts import accounts
from service.accounts.keys import digest, new_key
from service.accounts.models import ApiKey, User
from service.accounts.sign_in import LASTS_S, LINK_LASTS_S, session_key
from service.accounts.sign_in_routes import Refusals
from service.app import create_app
from service.db.engine import Database
from service.settings import Settings
from service.vocabulary import ROLE_SCOPES, Role, Scope
from service.web import gate
from service.web.sign_in_cookie import COOKIE, SignInCookie
from tests.support.callers import bearer
from tests.support.ppca_spec import ppca_spec

OWN = {"Sec-Fetch-Site": "same-origin"}
SPEC = {"spec": ppca_spec()}
WEBHOOK = {"url": "https://example.org/ended"}
ENDS: dict[str, Any] = {
    "revoked": update(ApiKey).values(revoked_at=1.0),
    "expired": update(ApiKey).values(expires_at=1.0),
    "disabled": update(User).values(disabled_at=1.0),
}


@pytest.fixture
def browser(settings: Settings) -> Iterator[TestClient]:
    """A browser that is not signed in."""
    with TestClient(create_app(settings), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def browsers(processes: list[TestClient]) -> list[TestClient]:
    """Two browsers at two API processes of one store, on each database."""
    for process in processes:
        del process.headers["Authorization"]
    return processes


@pytest.fixture
def key(settings: Settings) -> str:
    return settings.key_file.read_text().strip()


@pytest.fixture
def local_key(place: Settings) -> str:
    """The key of the store of `browsers`."""
    return place.key_file.read_text().strip()


def begin(browser: TestClient, headers: dict[str, str] = OWN, **given: Any) -> Response:
    return browser.post("/v1/sign-in", json=given, headers=headers)


def preview(browser: TestClient, code: str) -> Response:
    return browser.post("/v1/sign-in:preview", json={"code": code}, headers=OWN)


def new_code(api: TestClient, key: str) -> str:
    code: str = api.post("/v1/sign-in-codes", headers=bearer(key)).json()["code"]
    return code


def move(browser: TestClient, other: TestClient) -> None:
    """Give another browser the cookie."""
    other.cookies.set(COOKIE, browser.cookies[COOKIE])


def execute(settings: Settings, statement: Any) -> None:
    with Database(settings.url).transaction() as session:
        session.execute(statement)


def pass_time(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Check signatures as if so much time had passed."""
    at = int(time.time() + seconds)
    monkeypatch.setattr(TimestampSigner, "get_timestamp", lambda signer: at)


def refused(answer: Response, word: str = "") -> bool:
    return answer.status_code == 401 and word in answer.json()["detail"]


def test_a_key_signs_a_browser_in_and_out(browsers: list[TestClient], local_key: str) -> None:
    """In every process of the store; the answer of a sign-out deletes the cookie."""
    browser, other = browsers
    assert refused(browser.get("/v1/me"), "sign in")
    assert begin(browser, key=local_key).status_code == 204
    move(browser, other)
    for client in browsers:
        assert client.get("/v1/me").json()["name"] == "local"
    assert browser.post("/v1/sign-out", headers=OWN).status_code == 204
    assert COOKIE not in browser.cookies
    assert browser.get("/v1/me").status_code == 401
    assert other.get("/v1/me").status_code == 200


@pytest.mark.parametrize(
    ("page", "headers", "secure"),
    [
        ("http://testserver", OWN, False),
        ("https://testserver", OWN, True),
        ("http://testserver", {**OWN, "Origin": "https://testserver"}, True),
    ],
)
def test_the_cookie_is_out_of_reach_of_scripts_and_of_other_sites(
    browser: TestClient, key: str, page: str, headers: dict[str, str], secure: bool
) -> None:
    """Over TLS it is sent only over TLS, also behind an untrusted proxy that ends TLS."""
    browser.base_url = page
    begun = begin(browser, headers, key=key)
    cookie = "; ".join(f"{cookie.name}={cookie.value}" for cookie in browser.cookies.jar)
    ended = browser.post("/v1/sign-out", headers={**headers, "Cookie": cookie})
    for answer in (begun, ended):
        assert ("; secure" in answer.headers["set-cookie"].lower()) is secure
    flags = begun.headers["set-cookie"].lower()
    for flag in ("httponly", "samesite=strict", "path=/", f"max-age={7 * 86_400}"):
        assert flag in flags


def test_the_cookie_is_small_holds_no_secret_and_is_set_once(
    browser: TestClient, key: str, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    answer = begin(browser, key=key)
    cookie = browser.cookies[COOKIE]
    assert len(cookie) < 200
    held = b64decode(cookie.partition(".")[0]).decode()
    code = new_code(browser, key)
    later = [browser.get(path) for path in ("/v1/me", "/v1/experiments", "/", "/openapi.json")]
    later.append(preview(browser, code))
    assert [page.status_code for page in later] == [200] * 5
    assert not any("set-cookie" in page.headers for page in later)
    secret = key.split("_", 2)[2]
    secrets = (secret, digest(secret).hex(), settings.session_key_file.read_text())
    shown = [held, code, caplog.text, str(answer.headers), *(page.text for page in later)]
    assert not [secret for secret in secrets for text in shown if secret in text]
    assert cookie not in caplog.text
    assert code not in caplog.text


def spoilt_cookies(cookie: str, signed_by_another: str) -> list[str]:
    held, signed_at, signature = cookie.split(".")
    other = [part[:-1] + ("A" if part[-1] != "A" else "B") for part in cookie.split(".")]
    return [
        "", ".", "null", "a.b", "é", f"{other[0]}.{signed_at}.{signature}",
        f"{held}.{other[1]}.{signature}", f"{held}.{signed_at}", f"{held}.{signature}",
        f"{held}.{signed_at}.{signature[:-2]}", signed_by_another,
        f"{'0' * 16}.{'0' * 64}",  # as version 0.1 did
    ]  # fmt: skip


def test_a_spoilt_cookie_signs_nobody_in_and_counts_for_its_address(
    browser: TestClient, key: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was changed, cut off, signed with another key, or made by an earlier version."""
    begin(browser, key=key)
    cookie = browser.cookies[COOKIE]
    settings.session_key_file.unlink()
    with TestClient(create_app(settings)) as elsewhere:
        begin(elsewhere, key=key)
        spoilt = spoilt_cookies(cookie, elsewhere.cookies[COOKIE])
    browser.cookies.clear()
    for text in spoilt:
        headers = {"Cookie": f"{COOKIE}={text}".encode()}
        answer = browser.get("/v1/me", headers=headers)  # type: ignore[arg-type]
        assert refused(answer), text
    monkeypatch.setattr(gate, "RATE_PER_ADDRESS", len(spoilt) + 3)
    answers = [
        browser.get("/v1/me", headers={"Cookie": f"{COOKIE}=a.b.{i}"}).status_code for i in range(4)
    ]
    assert 429 in answers


@pytest.mark.parametrize("how", ENDS)
def test_a_sign_in_and_a_link_end_with_their_key(
    browsers: list[TestClient], place: Settings, local_key: str, how: str
) -> None:
    """At once, in every process."""
    browser, other = browsers
    begin(browser, key=local_key)
    move(browser, other)
    code = new_code(other, local_key)
    assert other.get("/v1/me").status_code == 200
    execute(place, ENDS[how])
    for client in browsers:
        assert refused(client.get("/v1/me"), how)
    other.cookies.clear()
    for answer in (preview(other, code), begin(other, code=code)):
        assert refused(answer, how)
    assert COOKIE not in other.cookies
    assert browser.post("/v1/sign-out", headers=OWN).status_code == 204
    assert COOKIE not in browser.cookies


def test_a_key_made_again_with_the_same_id_is_another(
    browser: TestClient, settings: Settings, key: str
) -> None:
    begin(browser, key=key)
    code = new_code(browser, key)
    again = f"mpt_{key.split('_')[1]}_{new_key().split('_')[2]}"
    execute(settings, update(ApiKey).values(secret_sha256=digest(again.split("_")[2])))
    assert refused(browser.get("/v1/me"), "sign in again")
    for answer in (preview(browser, code), begin(browser, code=code)):
        assert refused(answer, "sign in again")
    assert begin(browser, key=again).status_code == 204
    assert browser.get("/v1/me").status_code == 200


def test_a_link_signs_one_browser_in_once(browsers: list[TestClient], local_key: str) -> None:
    browser, other = browsers
    made = browser.post("/v1/sign-in-codes", headers=bearer(local_key)).json()
    assert made["path"] == f"/sign-in#{made['code']}"
    assert begin(browser, code=made["code"]).status_code == 204
    assert browser.get("/v1/me").json()["name"] == "local"
    assert refused(begin(other, code=made["code"]), "used before")
    assert COOKIE not in other.cookies


def test_a_link_that_two_browsers_use_at_once_signs_one_in(
    browsers: list[TestClient], local_key: str
) -> None:
    together = Barrier(2)

    def use(browser: TestClient, code: str) -> int:
        together.wait()
        return begin(browser, code=code).status_code

    with ThreadPoolExecutor(2) as pool:
        for _ in range(10):
            code = new_code(browsers[0], local_key)
            assert sorted(pool.map(use, browsers, [code] * 2)) == [204, 401]


def test_a_link_that_is_used_ends_the_earlier_ones_of_its_key(
    browser: TestClient, key: str, settings: Settings
) -> None:
    """Later ones remain, however soon they were made, and so do those of other keys."""
    with Database(settings.url).transaction() as session:
        local = accounts.find(session, "local")
        assert local is not None
        scopes = ROLE_SCOPES[Role.ADMIN]
        _, other_key = accounts.add_key(session, local, name=None, scopes=scopes, lasts_s=None)
    of_another = new_code(browser, other_key)
    first, second, third = (new_code(browser, key) for _ in range(3))
    statuses = [begin(browser, code=code).status_code for code in (second, first, third)]
    assert statuses == [204, 401, 204]
    assert begin(browser, code=of_another).status_code == 204


def test_a_sign_in_lasts_a_week_and_a_link_ten_minutes(
    browser: TestClient, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(browser, key=key)
    code = new_code(browser, key)
    pass_time(monkeypatch, LINK_LASTS_S + 5)
    for answer in (preview(browser, code), begin(browser, code=code)):
        assert refused(answer, "ten minutes")
    pass_time(monkeypatch, LASTS_S - 3600)
    assert browser.get("/v1/me").status_code == 200
    pass_time(monkeypatch, LASTS_S + 5)
    assert refused(browser.get("/v1/me"), "sign in again")


def test_a_link_used_while_the_clock_was_ahead_ends_no_later_one(
    browser: TestClient, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as ahead:
        pass_time(ahead, 7200)
        ahead.setattr(time, "time", lambda now=time.time: now() + 7200)
        early = new_code(browser, key)
        assert begin(browser, code=early).status_code == 204
    code = new_code(browser, key)
    assert begin(browser, code=code).status_code == 204
    for used in (early, code):
        assert refused(begin(browser, code=used), "ten minutes")


def test_a_sign_out_deletes_a_cookie_that_cannot_be_verified(browser: TestClient) -> None:
    """Its process may have another key or clock; otherwise the cookie would be valid again."""
    answer = browser.post("/v1/sign-out", headers={**OWN, "Cookie": f"{COOKIE}=a.b.c"})
    assert answer.status_code == 204
    assert f'{COOKIE}=""' in answer.headers["set-cookie"]


def test_other_cookies_are_not_parsed() -> None:
    """Old versions of Python take seconds for a long quoted one."""
    seen: list[Any] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        seen.extend(scope["headers"])

    lines = [(b"cookie", b'x="\\1\\1"; mpt_sign_in=a.b-c_d=; y=1'), (b"cookie", b"z=mpt_sign_in=e")]
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [*lines, (b"host", b"lab")]}
    asyncio.run(SignInCookie(inner, "key")(scope, None, None))  # type: ignore[arg-type]
    assert seen == [(b"cookie", b"mpt_sign_in=a.b-c_d="), (b"cookie", b""), (b"host", b"lab")]


def test_a_link_is_no_cookie_and_a_cookie_no_link(browser: TestClient, key: str) -> None:
    begin(browser, key=key)
    assert refused(begin(browser, code=browser.cookies[COOKIE]), "ten minutes")
    cookie = {"Cookie": f"{COOKIE}={new_code(browser, key)}"}
    browser.cookies.clear()
    assert refused(browser.get("/v1/me", headers=cookie))


def test_a_preview_names_both_users_and_leaves_the_code_valid(
    browser: TestClient, key: str, settings: Settings
) -> None:
    code = new_code(browser, key)
    nobody = {"name": "local", "signed_in_as": None}
    assert preview(browser, code).json() == nobody
    assert COOKIE not in browser.cookies
    begin(browser, key=add_key(settings, "ann", ROLE_SCOPES[Role.VIEWER], Role.VIEWER))
    assert preview(browser, code).json() == {**nobody, "signed_in_as": "ann"}
    browser.post("/v1/sign-out", headers=OWN)
    assert preview(browser, code).json() == nobody
    assert begin(browser, code=code).status_code == 204


def add_key(settings: Settings, name: str, scopes: Any, role: Role = Role.MEMBER) -> str:
    with Database(settings.url).transaction() as session:
        user = accounts.add(session, name, role)
        assert user is not None
        return accounts.add_key(session, user, name=None, scopes=scopes, lasts_s=None)[1]


@pytest.mark.parametrize(
    "given", [{}, {"key": "a", "code": "b"}, {"keys": "a"}, {"key": 1}, {"code": "a" * 201}]
)
def test_a_sign_in_without_a_key_or_code_is_refused(
    browser: TestClient, given: dict[str, Any]
) -> None:
    assert begin(browser, **given).status_code == 422
    assert COOKIE not in browser.cookies


@pytest.mark.parametrize("name", ["key", "code"])
@pytest.mark.parametrize("text", ["", "mpt_", "a.b.c", "\\u0000", "\\ud800", "é"])
def test_unknown_keys_and_codes_are_refused(browser: TestClient, name: str, text: str) -> None:
    content = f'{{"{name}": "{text}"}}'
    answer = browser.post("/v1/sign-in", content=content, headers=OWN)
    assert answer.status_code in (401, 422), answer.text


def test_a_browser_cannot_create_what_outlives_its_sign_in(browser: TestClient, key: str) -> None:
    """No other sign-in, key, user, higher role or webhook, although this key may create all of
    them."""
    begin(browser, key=key)
    for method, path, body in (
        ("POST", "/v1/sign-in-codes", {}),
        ("POST", "/v1/users/local/keys", {}),
        ("POST", "/v1/users", {"name": "ann"}),
        ("PATCH", "/v1/users/ann", {"role": "admin"}),
        ("POST", "/v1/webhooks", WEBHOOK),
    ):
        answer = browser.request(method, path, json=body, headers=OWN)
        assert (answer.status_code, answer.json()["reason"]) == (403, "key_needed")
        assert browser.request(method, path, json=body, headers=bearer(key)).is_success


def test_a_browser_has_the_scopes_of_its_key(browser: TestClient, settings: Settings) -> None:
    scopes = [scope for scope in ROLE_SCOPES[Role.MEMBER] if scope != Scope.SUBMIT]
    begin(browser, key=add_key(settings, "ada", scopes))
    assert browser.get("/v1/experiments").status_code == 200
    answer = browser.post("/v1/experiments", json=SPEC, headers=OWN)
    assert (answer.status_code, answer.json()["reason"]) == (403, "scope_missing")


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
def test_a_cookie_allows_changes_only_from_our_own_pages(
    browser: TestClient, key: str, headers: dict[str, str], ours: bool
) -> None:
    begin(browser, key=key)
    answer = browser.post("/v1/experiments:validate", json=SPEC, headers=headers)
    assert (answer.status_code < 300) is ours
    assert ours or answer.json()["reason"] == "cross_origin"


@pytest.mark.parametrize("path", ["/v1/sign-in", "/v1/sign-in:preview", "/v1/sign-out"])
def test_no_other_site_signs_a_browser_in_or_out(browser: TestClient, key: str, path: str) -> None:
    begin(browser, key=key)
    answer = browser.post(path, json={"key": key}, headers={"Origin": "http://evil.example"})
    assert answer.json()["reason"] == "cross_origin"
    assert "set-cookie" not in answer.headers
    assert browser.get("/v1/me").status_code == 200


def test_a_key_needs_no_origin_and_overrides_a_cookie(browser: TestClient, key: str) -> None:
    begin(browser, key=key)
    elsewhere = {"Sec-Fetch-Site": "cross-site", "Origin": "http://elsewhere.example"}
    by_key = {**bearer(key), **elsewhere}
    assert browser.post("/v1/experiments:validate", json=SPEC, headers=by_key).status_code == 200
    assert browser.get("/v1/me", headers=bearer("mpt_0")).status_code == 401


def test_the_audit_has_each_link_sign_in_and_sign_out(browser: TestClient, key: str) -> None:
    browser.post("/v1/sign-out", headers=OWN)  # nobody is signed in: no line
    begin(browser, key=key)
    begin(browser, code=new_code(browser, key))
    browser.post("/v1/sign-out", headers=OWN)
    lines = browser.get("/v1/audit", headers=bearer(key)).json()["items"][:4]
    key_id = key.split("_")[1]
    assert {(line["actor"], line["key_id"], line["object_id"]) for line in lines} == {
        ("local", key_id, key_id)
    }
    assert [(line["action"], line["details"]) for line in reversed(lines)] == [
        ("sign_in.begun", {"given": "key"}),
        ("sign_in_code.made", {}),
        ("sign_in.begun", {"given": "code"}),
        ("sign_in.ended", {}),
    ]


def test_the_audit_has_a_bounded_number_of_refused_sign_ins(
    browser: TestClient, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.accounts.sign_in_routes.REFUSALS_AN_HOUR", 3)
    now = 0.0
    refusals = Refusals(timer=lambda: now)
    browser.app.state.refused_sign_ins = refusals  # type: ignore[attr-defined]
    for _ in range(5):
        assert refused(begin(browser, code="none"), "used before")
    now = 3601.0
    begin(browser, key=f"mpt_{'0' * 16}_{'0' * 64}")
    entries = browser.get("/v1/audit", headers=bearer(key)).json()["items"]
    lines = [line for line in entries if "refused" in line["action"]]
    assert [(line["actor"], line["object_id"]) for line in lines] == [("api", "testclient")] * 4
    assert [line["details"]["left_out_before"] for line in reversed(lines)] == [0, 0, 0, 2]


def test_processes_that_start_together_have_one_session_key(tmp_path: Path) -> None:
    """It is never seen in part, and only its owner may read it."""
    for i in range(20):
        file, together = tmp_path / f"session-key-{i}", Barrier(4)

        def make(file: Path = file, together: Barrier = together) -> str:
            together.wait()
            return session_key(file)

        with ThreadPoolExecutor(4) as pool:
            keys = {future.result() for future in [pool.submit(make) for _ in range(4)]}
        assert keys == {file.read_text()}
        assert file.stat().st_mode & 0o777 == 0o600
    assert len({file.read_text() for file in tmp_path.iterdir()}) == 20


def test_a_session_key_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", crash)
        with pytest.raises(KeyboardInterrupt):
            session_key(tmp_path / "session-key")
    assert [*tmp_path.iterdir()] == []


def test_an_incomplete_session_key_signs_nothing(tmp_path: Path) -> None:
    file = tmp_path / "session-key"
    file.write_text("")
    with pytest.raises(ValueError, match="incomplete"):
        session_key(file)
