"""Requests are counted for their user or, without a known valid key, for their address."""

import time
from contextlib import ExitStack

import pytest
from fastapi.testclient import TestClient
from httpx2 import Response
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from service.accounts.keys import new_key
from service.app import create_app
from service.settings import Settings
from service.web import gate
from tests.service.web.test_gate import ME, served

WRONG = {"Authorization": f"Bearer {new_key()}"}


def statuses(api: TestClient, count: int, **headers: str) -> list[int]:
    return [api.get(ME, headers=headers).status_code for _ in range(count)]


def check_refused(answer: Response) -> None:
    assert (answer.status_code, answer.json()["reason"]) == (429, "rate_exceeded")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["request_id"] == answer.headers["x-request-id"]
    assert 1 <= int(answer.headers["retry-after"]) <= gate.WINDOW_S


def test_a_user_over_the_rate_limit_is_refused_until_the_window_ends(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "WINDOW_S", 3)
    with served(settings, rate_per_user=3) as api:
        assert statuses(api, 3) == [200, 200, 200]
        refused = api.get(ME)
        check_refused(refused)
        time.sleep(int(refused.headers["retry-after"]) + 0.1)
        assert statuses(api, 1) == [200]


def test_keys_of_a_user_are_counted_together(settings: Settings) -> None:
    with served(settings, rate_per_user=5) as api:
        mine = api.get(ME).json()["name"]
        second = api.post(f"/v1/users/{mine}/keys", json={"name": "b"}).json()["key"]
        api.post("/v1/users", json={"name": "ann"})
        hers = api.post("/v1/users/ann/keys", json={"name": "c"}).json()["key"]
        for key in (second, hers):
            api.get(ME, headers={"Authorization": f"Bearer {key}"})  # it is known from here on
        assert statuses(api, 2, Authorization=f"Bearer {second}") == [200, 429]
        assert statuses(api, 2) == [429, 429]
        assert statuses(api, 1, Authorization=f"Bearer {hers}") == [200]


def test_wrong_keys_are_limited_by_address_without_harm_to_known_users(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bad bodies count, too. The probes of a load balancer do not."""
    monkeypatch.setattr(gate, "RATE_PER_ADDRESS", 4)
    with served(settings) as api:
        assert statuses(api, 3, **WRONG) == [401, 401, 401]
        check_refused(api.post("/v1/experiments", content=b"{", headers=WRONG))
        assert api.get("/healthz", headers=WRONG).status_code == 200
        assert statuses(api, 1) == [200]


def test_what_a_proxy_adds_to_all_requests_identifies_nobody(settings: Settings) -> None:
    """A password of a proxy made all signed-in users one user: with the requests of one, those of
    the others were refused. Other cookies of a browser made one user many."""
    with served(settings, rate_per_user=12) as api:
        api.post("/v1/users", json={"name": "ann"})
        hers = {"Authorization": f"Bearer {api.post('/v1/users/ann/keys', json={}).json()['key']}"}
        cookies = []
        own_page = {"Sec-Fetch-Site": "same-origin"}
        for headers in ({}, hers):
            code = api.post("/v1/sign-in-codes", headers=headers).json()["code"]
            answer = api.post("/v1/sign-in", json={"code": code}, headers=own_page)
            cookies.append(answer.headers["set-cookie"].partition(";")[0])
            api.cookies.clear()
        proxy = {"Authorization": "Basic bGFiOnNoYXJlZA==", **own_page}
        names = [api.get(ME, headers={**proxy, "Cookie": one}).json()["name"] for one in cookies]
        assert names[1] == "ann" != names[0]
        assert 429 in statuses(api, 12, Cookie=f"theme=dark; {cookies[0]}", **proxy)
        assert statuses(api, 2, Cookie=cookies[1], **proxy) == [200, 200]
        assert statuses(api, 1, Cookie=f"{cookies[0]}; theme=light", **proxy) == [429]


@pytest.mark.parametrize(("trusted", "apart"), [("testclient", True), ("10.0.0.1", False)])
def test_forwarded_addresses_are_used_only_from_trusted_proxies(
    settings: Settings,
    trusted: str,
    apart: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Addresses are trusted as uvicorn does with --forwarded-allow-ips. The log says once that a
    proxy is not trusted."""
    monkeypatch.setattr(gate, "RATE_PER_ADDRESS", 1)
    app = create_app(settings)
    proxied = ProxyHeadersMiddleware(app, trusted)  # type: ignore[arg-type]
    with TestClient(proxied) as api:  # type: ignore[arg-type]
        found = [statuses(api, 1, **{"X-Forwarded-For": f"192.0.2.{i}"})[0] for i in range(3)]
    assert found == [401, 401 if apart else 429, 401 if apart else 429]
    assert caplog.text.count("FORWARDED_ALLOW_IPS") == (0 if apart else 1)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::2:0:0:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("192.0.2.1", "192.0.2.2", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("a name", "another", False),
    ],
)
def test_the_address_of_a_client(
    settings: Settings, one: str, other: str, same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "RATE_PER_ADDRESS", 1)
    app = create_app(settings)
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(TestClient(app, client=(address, 1))) for address in (one, other)
        )
        assert statuses(first, 1) == [401]
        assert statuses(second, 1) == [429 if same else 401]
