"""Large requests are computed one at a time in a process, and hold nothing while they wait."""

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from fastapi import Request
from fastapi.testclient import TestClient
from httpx2 import Response
from sqlalchemy import select

from service.experiments.models import Experiment, Metric
from service.limiter import FairLimiter
from service.sweeps import store
from service.web import bodies, turns
from service.web.dependencies import PlaceOfUser, one_of
from tests.service.accounts.test_users import bearer, database_of, member
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import wait_until

OTHER = 99
"""A user whose large request is under way."""
Ask = Callable[[TestClient, str], Response]


def sweep_of(count: int) -> dict[str, Any]:
    return {"spec": ppca_spec(), "grid": {"seeds": [[i] for i in range(count)]}, "cache": False}


def batch_of(count: int) -> dict[str, Any]:
    return {"experiments": [{"spec": ppca_spec()}] * count}


REQUESTS: dict[str, Ask] = {
    "sweep": lambda api, _: api.post("/v1/sweeps", json=sweep_of(3)),
    "points": lambda api, url: api.post(f"{url}/points", json={"grid": {"seeds": [[7], [8], [9]]}}),
    "batch": lambda api, _: api.post("/v1/experiments:batch", json=batch_of(3)),
    "retry": lambda api, url: api.post(f"{url}:retry"),
    "table": lambda api, url: api.get(f"{url}/table"),
}


def places(api: TestClient, name: str) -> FairLimiter:
    found: FairLimiter = getattr(api.app.state, name)  # type: ignore[attr-defined]
    return found


def turns_of(api: TestClient) -> list[FairLimiter]:
    found: list[FairLimiter] = api.app.state.turns  # type: ignore[attr-defined]
    return found


@contextmanager
def a_large_one_is_computed(api: TestClient) -> Iterator[None]:
    assert api.portal is not None
    with api.portal.wrap_async_context_manager(turns_of(api)[-1].one(OTHER)):
        yield


@pytest.fixture
def impatient(api: TestClient, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """Three parts are large, and wait for a moment."""
    monkeypatch.setattr(turns, "SIZES", (3, 3, 3))
    monkeypatch.setattr(turns, "WAIT_S", 0.1)
    return api


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> list[FairLimiter]:
    """The limiters for which requests have come to wait, for as long as it takes."""
    found: list[FairLimiter] = []

    def noted(request: Request, place: PlaceOfUser, wait_s: float) -> Any:
        limiter = place.args[0] if isinstance(place, partial) else getattr(place, "__self__", None)
        assert isinstance(limiter, FairLimiter)
        found.append(limiter)
        return one_of(request, place, 240.0)

    monkeypatch.setattr(turns, "one_of", noted)
    return found


@pytest.mark.parametrize("name", REQUESTS)
def test_a_large_request_waits_for_its_turn(impatient: TestClient, name: str) -> None:
    url = f"/v1/sweeps/{impatient.post('/v1/sweeps', json=sweep_of(3)).json()['id']}"
    assert impatient.post(f"{url}:cancel").status_code == 202  # so that there is a retry
    with a_large_one_is_computed(impatient):
        answer = REQUESTS[name](impatient, url)
        assert (answer.status_code, answer.json()["reason"]) == (503, "busy")
    assert REQUESTS[name](impatient, url).status_code in (200, 202)


def test_small_requests_wait_for_none(impatient: TestClient) -> None:
    with a_large_one_is_computed(impatient):
        made = impatient.post("/v1/sweeps", json=sweep_of(1))
        url = f"/v1/sweeps/{made.json()['id']}"
        answers = [
            made,
            impatient.post("/v1/experiments:batch", json=batch_of(2)),
            impatient.post(f"{url}/points", json={"grid": {"seeds": [[7]]}}),
            impatient.post(f"{url}:retry"),
            impatient.get(f"{url}/table"),
            impatient.post("/v1/experiments", json={"spec": ppca_spec()}),
        ]
    assert [one.status_code for one in answers] == [202, 202, 202, 202, 200, 202]


def test_requests_of_different_sizes_do_not_wait_for_each_other(
    impatient: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "SIZES", (2, 3, 4))
    assert impatient.portal is not None
    with a_large_one_is_computed(impatient):
        assert impatient.post("/v1/sweeps", json=sweep_of(4)).status_code == 503
        assert impatient.post("/v1/sweeps", json=sweep_of(3)).status_code == 202
    with impatient.portal.wrap_async_context_manager(turns_of(impatient)[1].one(OTHER)):
        for count, status in ((1, 202), (2, 202), (3, 503), (4, 202)):
            assert impatient.post("/v1/sweeps", json=sweep_of(count)).status_code == status


@pytest.mark.parametrize(("user", "status"), [(1, 503), (OTHER, 202)])
def test_a_large_one_that_writes_waits_for_its_user_s_other_writes(
    impatient: TestClient, user: int, status: int
) -> None:
    """They lock rows that it needs, and others would wait for its turn meanwhile. The caller is
    user 1."""
    url = f"/v1/sweeps/{impatient.post('/v1/sweeps', json=sweep_of(3)).json()['id']}"
    assert impatient.post(f"{url}:cancel").status_code == 202  # so that there is a retry
    assert impatient.portal is not None
    with impatient.portal.wrap_async_context_manager(places(impatient, "writers").one(user)):
        for name, ask in REQUESTS.items():
            assert ask(impatient, url).status_code == (200 if name == "table" else status)


def test_one_that_waits_for_its_user_s_other_writes_leaves_the_turn_to_others(
    impatient: TestClient, waiting: list[FairLimiter]
) -> None:
    """It takes the turn again when they have ended."""
    turn, portal = turns_of(impatient)[-1], impatient.portal
    assert portal is not None
    with ThreadPoolExecutor(1) as pool:
        with portal.wrap_async_context_manager(places(impatient, "writers").one(1)):
            asked = pool.submit(REQUESTS["sweep"], impatient, "")
            wait_until(lambda: bool(waiting))
            for _ in range(3):
                with portal.wrap_async_context_manager(turn.one(OTHER)):
                    assert not asked.done()
        assert asked.result().status_code == 202


def test_small_writes_do_not_wait_while_a_large_one_of_their_user_waits_for_its_turn(
    impatient: TestClient, waiting: list[FairLimiter]
) -> None:
    with ThreadPoolExecutor(1) as pool:
        with a_large_one_is_computed(impatient):
            asked = pool.submit(REQUESTS["sweep"], impatient, "")
            wait_until(lambda: bool(waiting))
            assert impatient.post("/v1/experiments", json={"spec": ppca_spec()}).status_code == 202
            assert not asked.done()
        assert asked.result().status_code == 202


@pytest.mark.parametrize(("user", "status"), [(1, 503), (OTHER, None)])
def test_one_request_of_a_user_is_measured_at_a_time(
    impatient: TestClient, user: int, status: int | None
) -> None:
    url = f"/v1/sweeps/{impatient.post('/v1/sweeps', json=sweep_of(3)).json()['id']}"
    assert impatient.post(f"{url}:cancel").status_code == 202  # so that there is a retry
    assert impatient.portal is not None
    with impatient.portal.wrap_async_context_manager(places(impatient, "measured").one(user)):
        for name, ask in REQUESTS.items():
            usual = 200 if name == "table" else 202
            is_measured = name not in ("sweep", "batch")
            assert ask(impatient, url).status_code == (status if is_measured and status else usual)


def test_few_points_of_a_large_spec_are_large(
    impatient: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a body, and in a sweep that gets more points or a retry."""
    body = sweep_of(2)
    size = len(impatient.build_request("POST", "/v1/sweeps", json=body).content)
    url = f"/v1/sweeps/{impatient.post('/v1/sweeps', json=body).json()['id']}"
    assert impatient.post(f"{url}:cancel").status_code == 202
    more = {"grid": {"seeds": [[7], [8]]}}
    base = len(json.dumps(body["spec"]))
    added = len(impatient.build_request("POST", "/", json=more).content) + base
    with database_of(impatient).snapshot() as session:
        sizes = session.scalars(select(Experiment.spec_bytes)).all()
    asked: list[tuple[Callable[[], Response], int]] = [
        (lambda: impatient.get(f"{url}/table"), sum(sizes)),
        (lambda: impatient.post("/v1/sweeps", json=body), 2 * size),
        (lambda: impatient.post(f"{url}:retry"), sum(sizes)),
        (lambda: impatient.post(f"{url}/points", json=more), 2 * added),
    ]
    for ask, size_of in asked:
        with a_large_one_is_computed(impatient):
            monkeypatch.setattr(turns, "POINT_BYTES", size_of // 3)
            assert ask().status_code == 503
            monkeypatch.setattr(turns, "POINT_BYTES", size_of // 3 + 1)
            assert ask().is_success


def test_few_points_with_many_metrics_are_large(
    impatient: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"/v1/sweeps/{impatient.post('/v1/sweeps', json=sweep_of(2)).json()['id']}"
    with database_of(impatient).transaction() as session:
        one = session.scalars(select(Experiment.id)).first()
        assert one is not None
        session.add_all(
            Metric(experiment_id=one, seq=i, name=f"m{i}", labels="{}", value=1.0) for i in range(6)
        )
    with a_large_one_is_computed(impatient):
        monkeypatch.setattr(turns, "POINT_METRICS", 2)
        assert impatient.get(f"{url}/table").status_code == 503
        monkeypatch.setattr(turns, "POINT_METRICS", 3)
        assert impatient.get(f"{url}/table").status_code == 200


def test_the_one_that_has_the_turn_waits_for_no_place(
    impatient: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other large ones wait for the turn meanwhile."""
    writers = FairLimiter(1, of_user=1)
    monkeypatch.setattr(impatient.app.state, "writers", writers)  # type: ignore[attr-defined]
    assert impatient.portal is not None
    with impatient.portal.wrap_async_context_manager(writers.one(OTHER)):
        assert writers.is_full(1)
        assert impatient.post("/v1/sweeps", json=sweep_of(3)).status_code == 202


@pytest.mark.parametrize("headers", [{}, {"Content-Type": "text/plain"}])
@pytest.mark.parametrize("path", ["/v1/sweeps", "/v1/experiments:batch", "/v1/sweeps/a/points"])
@pytest.mark.parametrize("body", [b"", b"x"])
def test_a_body_that_is_not_json_is_refused(
    api: TestClient, path: str, headers: dict[str, str], body: bytes
) -> None:
    assert api.post(path, content=body, headers=headers).status_code == 422


def test_nobody_waits_for_a_turn_to_read_a_sweep_of_others(impatient: TestClient) -> None:
    url = impatient.post("/v1/sweeps", json=sweep_of(3)).json()["urls"]["table"]
    key = member(impatient)["key"]
    with a_large_one_is_computed(impatient):
        assert impatient.get(url, headers=bearer(key)).status_code == 404
        assert impatient.get(url).status_code == 503


def test_few_requests_of_a_user_wait(
    impatient: TestClient, waiting: list[FairLimiter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "MAX_USER_TURNS", 2)
    with ThreadPoolExecutor(2) as pool:
        with a_large_one_is_computed(impatient):
            asked = [pool.submit(REQUESTS["sweep"], impatient, "") for _ in range(2)]
            wait_until(lambda: waiting.count(turns_of(impatient)[-1]) == len(asked))
            refused = REQUESTS["sweep"](impatient, "")
            assert (refused.status_code, refused.json()["reason"]) == (
                429,
                "too_many_large_requests",
            )
        assert [one.result().status_code for one in asked] == [202, 202]
    assert REQUESTS["sweep"](impatient, "").status_code == 202


def test_requests_hold_nothing_while_they_wait(
    impatient: TestClient, waiting: list[FairLimiter]
) -> None:
    url = f"/v1/sweeps/{impatient.post('/v1/sweeps', json=sweep_of(3)).json()['id']}"
    assert impatient.post(f"{url}:cancel").status_code == 202  # so that there is a retry
    waiting.clear()
    with ThreadPoolExecutor(len(REQUESTS)) as pool:
        with a_large_one_is_computed(impatient):
            asked = [pool.submit(ask, impatient, url) for ask in REQUESTS.values()]
            wait_until(lambda: waiting.count(turns_of(impatient)[-1]) == len(asked))
            assert (places(impatient, "writers").taken, places(impatient, "readers").taken) == (
                0,
                0,
            )
            assert not any(one.done() for one in asked)
        assert {one.result().status_code for one in asked} <= {200, 202}


@pytest.mark.parametrize("gone", ["before", "measure", "turn"])
def test_nothing_is_computed_for_a_client_that_has_gone(
    impatient: TestClient,
    waiting: list[FairLimiter],
    monkeypatch: pytest.MonkeyPatch,
    gone: str,
) -> None:
    """Before it comes to wait, or while it waits. The service has not failed."""
    made = impatient.post("/v1/sweeps", json=sweep_of(3)).json()
    monkeypatch.setattr(store, "points" if gone == "turn" else "number_of_points", None)
    path, headers = f"/v1/sweeps/{made['id']}/table", impatient.headers.raw
    waiting.clear()
    sent: list[Any] = []
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http",
        "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": [(name.lower(), value) for name, value in headers], "root_path": "",
        "client": ("127.0.0.1", 1), "server": ("x", 80), "state": {},
    }  # fmt: skip
    body = {"type": "http.request", "body": b"", "more_body": False}
    received = iter([] if gone == "before" else [body])
    held = turns_of(impatient)[-1].one(OTHER)
    if gone == "measure":
        held = places(impatient, "measured").one(1)

    async def receive() -> Any:
        return next(received, {"type": "http.disconnect"})

    async def send(message: Any) -> None:
        sent.append(message)

    async def ask() -> None:
        async with held:
            asked = asyncio.ensure_future(impatient.app(scope, receive, send))
            while not (waiting or asked.done()):
                await asyncio.sleep(0.01)
        await asked

    assert impatient.portal is not None
    impatient.portal.call(ask)
    assert sent[0]["status"] == 408
    assert b"client_gone" in sent[-1]["body"]
