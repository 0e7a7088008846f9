"""A request is checked before any of its body is read, and waits for its turn among users."""

import asyncio
import json
import re
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio.to_thread
import pytest
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute, iter_route_contexts
from fastapi.testclient import TestClient
from httpx2 import Response
from pydantic import BaseModel
from sqlalchemy import text, update

from service import app as main
from service.accounts.keys import new_key
from service.accounts.models import ApiKey, User
from service.accounts.users import store_key
from service.app import create_app
from service.db.engine import Database, now
from service.queue import lease
from service.settings import Settings
from service.submission import submit
from service.submission.preparation import Prepared
from service.vocabulary import ROLE_SCOPES, Role, Status
from service.web import gate, route
from service.web.gate import HEAVY, PLACES_OF_USER
from service.web.parameters import MAX_PARAMETERS
from service.web.route import LargeRoute, PublicRoute, StrictRoute
from tests.support.attempts import claimed
from tests.support.locks import wait_for_waiting
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import wait_until

ME = "/v1/me"
WITHOUT_KEY = {
    *("/v1/sign-in", "/v1/sign-in:preview", "/v1/sign-in:begin", "/v1/sign-in:finish"),
    *("/v1/sign-out", "/openapi.json"),
}
WITHOUT_SCOPE = {ME, "/v1/sign-in-codes"}


@dataclass
class Exchange:
    """A request whose body has no end, in pieces that are counted as they are read."""

    method: str
    path: str
    headers: dict[str, str] = field(default_factory=dict)
    query: str = ""
    address: str = "192.0.2.1"
    pieces: int = 0
    answered: list[Any] = field(default_factory=list)

    async def receive(self) -> dict[str, Any]:
        self.pieces += 1
        return {"type": "http.request", "body": b" " * 1000, "more_body": True}

    async def send(self, message: Any) -> None:
        self.answered.append(message)

    def ask(self, app: FastAPI) -> int:
        return asyncio.run(self.asked(app))

    async def asked(self, app: FastAPI) -> int:
        pairs = {"Host": "x", "Content-Type": "application/json", "Transfer-Encoding": "chunked",
                 "Sec-Fetch-Site": "same-origin"}  # fmt: skip
        headers = [(k.lower().encode(), v.encode()) for k, v in {**pairs, **self.headers}.items()]
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http",
            "method": self.method, "path": self.path, "raw_path": self.path.encode(),
            "query_string": self.query.encode(), "headers": headers, "root_path": "",
            "client": (self.address, 1), "server": ("x", 80), "state": {},
        }  # fmt: skip
        await app(scope, self.receive, self.send)
        return self.status

    @property
    def status(self) -> int:
        status: int = self.answered[0]["status"]
        return status

    @property
    def problem(self) -> Any:
        return json.loads(self.answered[1]["body"])


@dataclass
class Stalled(Exchange):
    """A request whose body stops after its first piece."""

    async def receive(self) -> dict[str, Any]:
        self.pieces += 1
        if self.pieces > 1:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": b"{", "more_body": True}


@dataclass
class Late(Exchange):
    """A request whose key is revoked before its body arrives."""

    revoke: Callable[[], object] = bool

    async def receive(self) -> dict[str, Any]:
        self.revoke()
        await asyncio.sleep(0.02)
        return {"type": "http.request", "body": b"{}", "more_body": False}


@dataclass
class Unread(Exchange):
    """A request whose answer is not read after its head until `reads` is set."""

    reads: asyncio.Event = field(default_factory=asyncio.Event)

    async def receive(self) -> dict[str, Any]:
        if self.pieces:
            await asyncio.Event().wait()
        self.pieces += 1
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(self, message: Any) -> None:
        await super().send(message)
        await self.reads.wait()


@asynccontextmanager
async def under_way(app: FastAPI, requests: list[Exchange]) -> AsyncIterator[None]:
    """Requests that the service waits for: for their bodies, or until their answers are read."""
    tasks = [asyncio.create_task(one.asked(app)) for one in requests]
    while not all(one.answered or one.pieces > 1 for one in requests):
        await asyncio.sleep(0.01)
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def app(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> FastAPI:
    monkeypatch.setattr(gate, "RATE_PER_ADDRESS", 10**6)
    return create_app(settings)


@pytest.fixture
def bearer(settings: Settings) -> dict[str, str]:
    return {"Authorization": f"Bearer {settings.key_file.read_text().strip()}"}


def add_key(database: Database, name: str, role: Role = Role.MEMBER, scopes: Any = None) -> str:
    key = new_key()
    with database.transaction() as session:
        user = User(name=name, role=role)
        session.add(user)
        session.flush()
        store_key(session, user, key, ROLE_SCOPES[role] if scopes is None else scopes)
    return key


def routes(app: FastAPI) -> Iterator[tuple[str, str]]:
    """Every method and path, filled in, but those of pages and probes."""
    for one in iter_route_contexts(app.routes):
        assert one.path_format is not None
        is_page = not one.path_format.startswith("/v1/") and one.methods == {"GET"}
        if not is_page or one.path_format == "/metrics":
            for method in one.methods or ():
                yield method, re.sub(r"\{.*?\}", "a", one.path_format)


def test_no_body_is_read_for_a_refused_key(app: FastAPI, database: Database) -> None:
    """Check all routes, including those added later."""
    keys = {
        "revoked": add_key(database, "revoked"),
        "no scope": add_key(database, "no-scope", Role.ADMIN, []),
    }
    with database.transaction() as session:
        revoked = update(ApiKey).where(ApiKey.id == keys["revoked"].split("_")[1])
        session.execute(revoked.values(revoked_at=now()))
    answered: dict[str, set[str]] = {kind: set() for kind in ("no key", *keys)}

    async def ask_all() -> None:
        for method, path in routes(app):
            for kind, let_in in answered.items():
                headers = {"Authorization": f"Bearer {keys[kind]}"} if kind in keys else {}
                one = Exchange(method, path, headers)
                refused = await one.asked(app) == (403 if kind == "no scope" else 401)
                if one.pieces or not refused:
                    let_in.add(path)
                else:
                    assert dict(one.answered[0]["headers"])[b"connection"] == b"close"

    asyncio.run(ask_all())
    assert answered == {
        **dict.fromkeys(("no key", "revoked"), WITHOUT_KEY),
        "no scope": WITHOUT_KEY | WITHOUT_SCOPE,
    }


def test_a_router_without_authentication_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for route_class in (APIRoute, PublicRoute):
        monkeypatch.setattr(main, "ROUTERS", [APIRouter(route_class=route_class)])
        with pytest.raises(AssertionError):
            main._routes.__wrapped__()


def test_a_body_that_would_be_validated_on_the_event_loop_is_an_error() -> None:
    class Body(BaseModel):
        x: int

    router = APIRouter(route_class=StrictRoute)
    with pytest.raises(AssertionError, match="JsonBody"):

        @router.post("/anything")
        async def handle(body: Body) -> None: ...


def test_bodies_without_a_key_are_small_and_arrive_soon(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    arriving = Exchange("POST", "/v1/sign-in")
    assert arriving.ask(app) == 413
    assert arriving.pieces <= PublicRoute.max_body_bytes / 1000 + 1
    declared = Exchange(
        "POST", "/v1/sign-in", {"Content-Length": str(PublicRoute.max_body_bytes + 1)}
    )
    assert (declared.ask(app), declared.pieces) == (413, 0)
    monkeypatch.setattr(PublicRoute, "body_s", 0.01)
    slow = Stalled("POST", "/v1/sign-in")
    assert (slow.ask(app), slow.problem["reason"]) == (408, "body_stalled")


def test_bodies_with_a_key_are_bounded(
    app: FastAPI, bearer: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StrictRoute, "max_body_bytes", 3000)
    monkeypatch.setattr(LargeRoute, "max_body_bytes", 10_000)
    monkeypatch.setattr(StrictRoute, "body_s", 0.05)
    sizes = {"experiments": 3000, "experiments:batch": 10_000, "experiments/a:retry": 3000}
    for path, size in sizes.items():
        one = Exchange("POST", f"/v1/{path}", {**bearer, "Idempotency-Key": "a"})
        assert (one.ask(app), one.problem["reason"]) == (413, "body_too_large")
        assert one.pieces == size / 1000 + 1
    slow = Stalled("POST", "/v1/experiments", bearer)
    assert (slow.ask(app), slow.problem["reason"]) == (408, "body_stalled")


@pytest.mark.parametrize("path", ["/v1/experiments", "/v1/experiments/a/curves"])
def test_query_parameters_are_bounded(app: FastAPI, bearer: dict[str, str], path: str) -> None:
    many = "&".join(f"a{i}=1" for i in range(MAX_PARAMETERS + 1))
    one = Exchange("GET", path, bearer, query=many)
    assert (one.ask(app), one.problem["errors"][0]["pointer"]) == (422, "/query")


def test_a_key_that_is_revoked_while_a_body_arrives_is_refused(
    app: FastAPI, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An admin's could make itself another."""
    monkeypatch.setattr(route, "VALID_S", 0.01)
    key = add_key(database, "ann", Role.ADMIN)

    def revoke() -> None:
        with database.transaction() as session:
            own = update(ApiKey).where(ApiKey.id == key.split("_")[1])
            session.execute(own.values(revoked_at=now()))

    headers = {"Authorization": f"Bearer {key}"}
    late = Late("POST", "/v1/users/ann/keys", headers, revoke=revoke)
    assert late.ask(app) == 401
    assert Late("POST", "/v1/experiments:validate", headers).ask(app) == 401


def test_few_requests_of_a_user_are_under_way(
    app: FastAPI, database: Database, bearer: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Further ones wait with their bodies unread, and other users wait for none of them."""
    monkeypatch.setattr(gate, "WAIT_S", 0.05)
    other = {"Authorization": f"Bearer {add_key(database, 'ann')}"}

    async def ask_all() -> Exchange:
        slow: list[Exchange] = [
            Stalled("POST", "/v1/experiments", bearer) for _ in range(PLACES_OF_USER)
        ]
        async with under_way(app, slow):
            refused = Exchange("POST", "/v1/experiments", bearer)
            assert await refused.asked(app) == 429
            assert await Exchange("GET", ME, other).asked(app) == 200
            assert await Exchange("GET", "/healthz").asked(app) == 200
        assert await Exchange("GET", ME, bearer).asked(app) == 200
        return refused

    refused = asyncio.run(ask_all())
    assert (refused.pieces, refused.problem["reason"]) == (0, "too_many_at_once")
    assert dict(refused.answered[0]["headers"])[b"retry-after"] == b"1"
    monkeypatch.setattr(gate, "WAIT_S", 600.0)
    monkeypatch.setattr(gate, "MAX_WAITING", 0)  # so none waits
    assert asyncio.run(ask_all()).problem["reason"] == "too_many_at_once"


def test_large_answers_are_sent_in_pieces(
    app: FastAPI, bearer: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a request whose answer nobody reads keeps its place."""
    monkeypatch.setattr(route, "PIECE_BYTES", 10)
    one = Exchange("GET", "/v1/presets", bearer)
    assert one.ask(app) == 200
    pieces = [message["body"] for message in one.answered[1:]]
    assert {len(piece) for piece in pieces[:-1]} == {10}
    assert json.loads(b"".join(pieces))["items"]


def test_one_address_without_a_key_leaves_room_to_others(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One address, or one network of IPv6."""
    monkeypatch.setattr(gate, "WAIT_S", 0.05)
    monkeypatch.setattr(PublicRoute, "body_s", 600.0)
    path = "/v1/sign-in"

    async def ask_all() -> tuple[int, int]:
        slow: list[Exchange] = [
            Stalled("POST", path, address=f"2001:db8::{i}") for i in range(1, PLACES_OF_USER + 1)
        ]
        async with under_way(app, slow):
            same = await Exchange("POST", path, address="2001:db8::ffff").asked(app)
            other = await Exchange("POST", path, address="2001:db8:0:1::1").asked(app)
        return same, other

    assert asyncio.run(ask_all()) == (429, 413)


def test_bodies_that_arrive_and_answers_that_are_sent_hold_up_nobody(
    settings: Settings, database: Database
) -> None:
    """Neither a connection to the database nor a place of the process is held, however many users
    are slow."""
    app = create_app(settings.model_copy(update={"api_connections": 2}))
    bearers = [{"Authorization": f"Bearer {add_key(database, f'user{i}')}"} for i in range(4)]

    async def ask_all() -> None:
        slow: list[Exchange] = []
        for headers in bearers:
            slow += [Stalled("POST", "/v1/experiments", headers), Unread("GET", ME, headers)]
        async with under_way(app, slow):
            assert app.state.database.engine.pool.checkedout() == 0
            for headers in bearers:
                assert await Exchange("GET", "/v1/experiments", headers).asked(app) == 200

    asyncio.run(ask_all())


@contextmanager
def served(settings: Settings, **limits: object) -> Iterator[TestClient]:
    """The service with the local key, after a successful request."""
    key = settings.key_file.read_text().strip()
    app = create_app(settings.model_copy(update=limits))
    with TestClient(app, headers={"Authorization": f"Bearer {key}"}) as api:
        assert api.get(ME).status_code == 200
        yield api


@contextmanager
def write_lock(settings: Settings) -> Iterator[None]:
    """Write lock of SQLite, held by another connection while the block runs."""
    holder = sqlite3.connect(settings.store / "mptlab.sqlite3", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    yield
    holder.rollback()
    holder.close()


def post(api: TestClient, **options: Any) -> Response:
    return api.post("/v1/experiments", json={"spec": ppca_spec()}, **options)


def test_readers_are_answered_while_writers_wait(
    settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many requests of two users wait for the database."""
    monkeypatch.setattr(gate, "WAIT_S", 240.0)
    users = [{"Authorization": f"Bearer {add_key(database, name)}"} for name in ("ann", "bob")]
    with served(settings) as api, ThreadPoolExecutor(40) as pool:
        with write_lock(settings):
            posts = [pool.submit(post, api, headers=user) for user in users * 20]
            time.sleep(0.5)
            for path in ("/v1/experiments", "/v1/workers", "/readyz"):
                assert api.get(path).status_code == 200
            looked_up = api.post("/v1/experiments:batchGet", json={"ids": ["a"]}, timeout=60)
            assert looked_up.status_code == 404
            assert not any(one.done() for one in posts)
        assert {one.result().status_code for one in posts} == {202}


def test_slow_requests_of_one_user_leave_threads_and_connections_to_others(
    lab: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL, with a locked table that one user reads repeatedly."""
    monkeypatch.setattr(gate, "WAIT_S", 240.0)
    database = Database(lab.url)
    ann = {"Authorization": f"Bearer {add_key(database, 'ann')}"}
    with served(lab) as api, ThreadPoolExecutor(45) as pool:
        with database.transaction() as session:
            session.execute(text("LOCK TABLE webhooks"))
            slow = [pool.submit(api.get, "/v1/webhooks", headers=ann) for _ in range(45)]
            wait_for_waiting(database, (lab.api_connections - gate.LOOK_UPS) // 3)
            for path in ("/v1/experiments", "/v1/workers", "/readyz"):
                assert api.get(path).status_code == 200
        assert {one.result().status_code for one in slow} == {200}


def test_a_request_that_waits_too_long_is_asked_to_try_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "WAIT_S", 0.05)
    with served(settings, api_connections=2) as api, ThreadPoolExecutor(2) as pool:
        with write_lock(settings):
            posts = [pool.submit(post, api) for _ in range(2)]
            wait_until(lambda: any(one.done() for one in posts), 10)
            (refused,) = [one.result() for one in posts if one.done()]
            assert (refused.status_code, refused.json()["reason"]) == (503, "busy")
            assert refused.headers["retry-after"]


def test_heavy_requests_wait_for_each_other_alone(
    settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user has one, and a process two."""
    monkeypatch.setattr(gate, "HEAVY_WAIT_S", 0.05)
    may_go_on, prepare = threading.Event(), vars(submit)["prepare"]

    def prepared(*arguments: Any) -> Prepared:
        assert may_go_on.wait(60)
        result: Prepared = prepare(*arguments)
        return result

    monkeypatch.setattr(submit, "prepare", prepared)
    users = [{"Authorization": f"Bearer {add_key(database, f'user{i}')}"} for i in range(3)]
    body = {"spec": ppca_spec(), "grid": {"seeds": [[1], [2]]}}
    with served(settings) as api, ThreadPoolExecutor(HEAVY) as pool:
        send = partial(api.post, "/v1/sweeps", json=body)
        first = pool.submit(send, headers=users[0])
        time.sleep(0.5)
        assert send(headers=users[0]).json()["reason"] == "busy"
        second = pool.submit(send, headers=users[1])
        time.sleep(0.5)
        assert send(headers=users[2]).json()["reason"] == "busy"
        for user in users:
            assert api.get("/v1/sweeps", headers=user).status_code == 200
        may_go_on.set()
        assert (first.result().status_code, second.result().status_code) == (202, 202)
        assert send(headers=users[2]).status_code == 202


def test_a_user_downloads_two_bundles_at_a_time(
    app: FastAPI, database: Database, bearer: dict[str, str]
) -> None:
    """However slowly: a bundle that is sent takes 40 MB. Other requests do not wait for them."""
    claim = claimed(database)
    with database.transaction() as session:
        lease.finish(session, claim, Status.SUCCEEDED)
    path = f"/v1/experiments/{claim.experiment_id}/bundle"

    async def ask_all() -> None:
        slow = [Unread("GET", path, bearer) for _ in range(2)]
        third = Unread("GET", path, bearer)
        third.reads.set()
        async with under_way(app, [*slow]):
            waiting = asyncio.create_task(third.asked(app))
            assert await Exchange("GET", "/v1/experiments", bearer).asked(app) == 200
            await asyncio.sleep(0.3)
            assert not third.answered
            slow[0].reads.set()
            assert await waiting == 200

    asyncio.run(ask_all())


def test_requests_that_wait_for_an_experiment_hold_no_place(settings: Settings) -> None:
    with served(settings) as api, ThreadPoolExecutor(2 * PLACES_OF_USER) as pool:
        url = f"/v1/experiments/{post(api).json()['id']}"
        prefer = {"Prefer": "wait=60"}
        waiting = [pool.submit(api.get, url, headers=prefer) for _ in range(2 * PLACES_OF_USER)]
        time.sleep(0.5)
        assert api.get(ME).status_code == 200
        assert api.post(f"{url}:cancel").status_code == 202
        assert {one.result().json()["status"] for one in waiting} == {"cancelled"}


def test_healthz_needs_no_thread(settings: Settings) -> None:
    with served(settings) as api, ThreadPoolExecutor(1) as pool:
        portal = api.portal
        assert portal is not None

        async def leave_one_thread() -> None:
            anyio.to_thread.current_default_thread_limiter().total_tokens = 1

        portal.call(leave_one_thread)
        with write_lock(settings):
            waiting = pool.submit(post, api)
            time.sleep(0.2)
            assert api.get("/healthz").status_code == 200
        assert waiting.result().status_code == 202  # it had not given up
