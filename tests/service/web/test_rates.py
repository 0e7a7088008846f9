"""Limits of request rates, and the answers of refused requests."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from fastapi.testclient import TestClient
from httpx2 import Response
from pydantic import SecretStr
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from service.app import create_app
from service.settings import Settings
from service.web import rates
from service.web.rates import WINDOW_S
from tests.support.processes import wait_until

ME, WRONG = "/v1/me", {"Authorization": "Bearer mpt_0"}


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of two seconds."""
    monkeypatch.setattr(rates, "WINDOW_S", 2)


@contextmanager
def served(settings: Settings, **limits: int) -> Iterator[TestClient]:
    """The service with the local key, after a successful request."""
    key = settings.key_file.read_text().strip()
    app = create_app(settings.model_copy(update=limits))
    with TestClient(app, headers={"Authorization": f"Bearer {key}"}) as api:
        api.get(ME)
        yield api


def statuses(api: TestClient, count: int, **headers: str) -> list[int]:
    return [api.get(ME, headers=headers).status_code for _ in range(count)]


def seconds_left(answer: Response) -> int:
    return int(answer.headers["ratelimit"].split(";t=")[1])


def check_refused(answer: Response) -> None:
    assert answer.status_code == 429
    assert answer.json()["reason"] == "rate_exceeded"
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["request_id"] == answer.headers["x-request-id"]
    assert 1 <= int(answer.headers["retry-after"]) <= WINDOW_S


def test_each_rate_window_reports_its_own_end(settings: Settings, soon: None) -> None:
    with served(settings, rate_per_user=3) as api:
        wait_until(lambda: seconds_left(api.get(ME)) == 1)
        wait_until(lambda: seconds_left(api.get(ME)) == 2)
        assert api.get(ME).status_code == 200


def test_a_user_over_the_rate_limit_gets_retry_after(settings: Settings) -> None:
    with served(settings, rate_per_user=3) as api:
        for left in (2, 1, 0):
            answer = api.get(ME)
            assert answer.headers["ratelimit-policy"] == '"user";q=3;w=10'
            assert answer.headers["ratelimit"].startswith(f'"user";r={left};t=')
            assert answer.status_code == 200
        check_refused(api.get(ME))


def test_a_rate_refusal_ends_with_its_window(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(settings, rate_per_user=1) as api:
        assert statuses(api, 2) == [200, 429]
        later = time.time() + int(api.get(ME).headers["retry-after"]) + 1
        monkeypatch.setattr("limits.aio.storage.memory.time.time", lambda: later)
        assert statuses(api, 1) == [200]


def test_keys_of_a_user_are_counted_together(settings: Settings) -> None:
    with served(settings, rate_per_user=5) as api:
        (mine,) = [api.get(ME).json()["name"]]
        second = api.post(f"/v1/users/{mine}/keys", json={"name": "b"}).json()["key"]
        api.post("/v1/users", json={"name": "ann"})
        hers = api.post("/v1/users/ann/keys", json={"name": "c"}).json()["key"]
        for key in (second, hers):
            api.get(ME, headers={"Authorization": f"Bearer {key}"})  # it is known from here on
        assert statuses(api, 2, Authorization=f"Bearer {second}") == [200, 429]
        assert statuses(api, 2) == [429, 429]
        assert statuses(api, 1, Authorization=f"Bearer {hers}") == [200]


def test_wrong_keys_are_limited_by_address_without_harm_to_known_users(
    settings: Settings,
) -> None:
    with served(settings, rate_per_address=4) as api:
        assert statuses(api, 4, **WRONG) == [401, 401, 401, 429]
        check_refused(api.get(ME, headers=WRONG))
        assert statuses(api, 1) == [200]


def test_health_probes_are_counted_separately(settings: Settings) -> None:
    """Health checks and other requests have separate limits, also for each address."""
    with served(settings, rate_per_address=3) as api:
        assert statuses(api, 3, **WRONG) == [401, 401, 429]
        found = [api.get("/healthz", headers=WRONG) for _ in range(4)]
        assert [one.status_code for one in found] == [200, 200, 200, 429]
        assert found[0].headers["ratelimit-policy"] == '"health";q=3;w=10'
        check_refused(found[-1])


def test_a_health_probe_does_not_query_redis(lab: Settings) -> None:
    """Redis may be slow or unreachable, and the process is still alive."""
    with served(lab, rate_per_address=1) as one, served(lab, rate_per_address=1) as other:
        assert [api.get("/healthz").status_code for api in (one, other)] == [200, 200]


def test_bad_bodies_are_counted_too(settings: Settings) -> None:
    with served(settings, rate_per_address=3, rate_per_user=2) as api:
        refused = {"content": b"{", "headers": {**WRONG, "Content-Type": "application/json"}}
        found = [api.post("/v1/experiments", **refused).status_code for _ in range(3)]  # type: ignore[arg-type]
        assert found[-1] == 429
        mine = {"content": b"{", "headers": {"Content-Type": "application/json"}}
        found = [api.post("/v1/experiments", **mine).status_code for _ in range(3)]  # type: ignore[arg-type]
        assert found == [422, 422, 429]
        assert api.get("/readyz", headers=WRONG).status_code == 429


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
        first = statuses(api, 12, Cookie=f"theme=dark; {cookies[0]}", **proxy)
        assert 429 in first
        assert statuses(api, 2, Cookie=cookies[1], **proxy) == [200, 200]
        assert statuses(api, 1, Cookie=f"{cookies[0]}; theme=light", **proxy) == [429]
        assert api.get(ME, headers=proxy).headers["ratelimit"].startswith('"address"')


def test_a_revoked_key_is_unknown(settings: Settings) -> None:
    with served(settings, rate_per_address=6) as api:
        name = api.get(ME).json()["name"]
        made = api.post(f"/v1/users/{name}/keys", json={"name": "b"}).json()
        bearer = {"Authorization": f"Bearer {made['key']}"}
        assert statuses(api, 1, **bearer) == [200]
        api.delete(f"/v1/users/{name}/keys/{made['id']}")
        assert api.get(ME, headers=bearer).headers["ratelimit"].startswith('"user"')
        assert api.get(ME, headers=bearer).headers["ratelimit"].startswith('"address"')


@pytest.mark.parametrize(("trusted", "apart"), [("testclient", True), ("10.0.0.1", False)])
def test_forwarded_addresses_are_used_only_from_trusted_proxies(
    settings: Settings, trusted: str, apart: bool
) -> None:
    """Addresses are trusted as uvicorn does with --forwarded-allow-ips."""
    app = create_app(settings.model_copy(update={"rate_per_address": 1}))
    proxied = ProxyHeadersMiddleware(app, trusted)  # type: ignore[arg-type]
    with TestClient(proxied) as api:  # type: ignore[arg-type]
        found = [statuses(api, 1, **{"X-Forwarded-For": f"192.0.2.{i}"})[0] for i in range(3)]
    assert found == [401, 401 if apart else 429, 401 if apart else 429]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::2:0:0:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("192.0.2.1", "192.0.2.2", False),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("a name", "another", False),
        ("x" * 20_000 + "1", "x" * 20_000 + "2", True),  # which Redis would keep
    ],
)
def test_the_address_of_a_client(settings: Settings, one: str, other: str, same: bool) -> None:
    app = create_app(settings.model_copy(update={"rate_per_address": 1}))
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(TestClient(app, client=(address, 1))) for address in (one, other)
        )
        assert statuses(first, 1) == [401]
        assert statuses(second, 1) == [429 if same else 401]


def test_the_processes_of_a_lab_count_together(lab: Settings) -> None:
    with served(lab, rate_per_user=3) as one, served(lab, rate_per_user=3) as other:
        assert statuses(one, 2) == [200, 200]
        assert statuses(other, 2) == [200, 429]
        assert statuses(one, 1) == [429]


def test_without_redis_each_process_counts_for_itself(lab: Settings) -> None:
    nowhere = Settings.model_validate({**lab.model_dump(), "redis_url": "redis://127.0.0.1:1/0"})
    with served(nowhere, rate_per_user=2) as api:
        assert statuses(api, 3) == [200, 200, 429]
        assert statuses(api, 1, **WRONG) == [401]


def test_the_limits_are_generous(settings: Settings) -> None:
    """Hundreds of posts and looks of a script in a row."""
    with served(settings) as api:
        assert set(statuses(api, 300)) == {200}


@pytest.mark.parametrize(
    ("redis_url", "shared"),
    [("redis://127.0.0.1:1", True), ("rediss://127.0.0.1:1", True), (None, False)],
)
def test_processes_share_their_counts_if_there_is_a_redis(
    settings: Settings, redis_url: str | None, shared: bool
) -> None:
    lab = settings.model_copy(update={"redis_url": redis_url and SecretStr(redis_url)})
    assert (rates._redis(lab) is not None) == shared
