"""A request's key, scopes and query parameters are checked before any of its body is read, and
bodies are parsed outside the event loop."""

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute, iter_route_contexts
from fastapi.testclient import TestClient
from pydantic import BaseModel, model_validator
from sqlalchemy import Engine, event, update
from starlette.datastructures import QueryParams

from mptcore.specs import parse_json
from service import app as main
from service.accounts.keys import new_key
from service.accounts.models import ROLE_SCOPES, ApiKey, Role, User
from service.accounts.users import store_key
from service.app import create_app
from service.db.engine import Database, now
from service.settings import Settings
from service.web import bodies
from service.web.bodies import (
    LARGE_BYTES,
    MAX_USER_LARGE,
    PUBLIC_BYTES,
    JsonBody,
    PublicRoute,
    StrictRoute,
)
from service.web.parameters import MAX_PARAMETERS
from tests.support.ppca_spec import ppca_spec

WITHOUT_KEY = {"/v1/sign-in", "/v1/sign-out", "/v1/sign-in:preview", "/openapi.json"}
WITHOUT_SCOPE = {"/v1/me", "/v1/sign-in:renew", "/v1/sign-in-codes"}


@dataclass
class Exchange:
    """A request whose body has no end, in pieces that are counted as they are taken."""

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
        status: int = self.answered[0]["status"]
        return status

    @property
    def answer_headers(self) -> dict[bytes, bytes]:
        return dict(self.answered[0]["headers"])


@pytest.fixture
def app(settings: Settings) -> FastAPI:
    return create_app(settings.model_copy(update={"rate_per_address": 10**6}))


def routes(app: FastAPI) -> Iterator[tuple[str, str]]:
    """Every method and path, filled in, but those of pages and probes."""
    for route in iter_route_contexts(app.routes):
        assert route.path_format is not None
        is_page = not route.path_format.startswith("/v1/") and route.methods == {"GET"}
        if not is_page or route.path_format == "/metrics":
            for method in route.methods or ():
                yield method, re.sub(r"\{.*?\}", "a", route.path_format)


@pytest.fixture
def keys(settings: Settings, database: Database) -> dict[str, str]:
    """A key that was revoked, and one without a scope."""
    made = {"revoked": new_key(), "no scope": new_key()}
    with database.transaction() as session:
        user = User(name="ann", role=Role.ADMIN)
        session.add(user)
        session.flush()
        for kind in ("revoked", "no scope"):
            store_key(
                session, user, made[kind], [] if kind == "no scope" else ROLE_SCOPES[Role.ADMIN]
            )
        revoked = update(ApiKey).where(ApiKey.id == made["revoked"].split("_")[1])
        session.execute(revoked.values(revoked_at=now()))
    return made


def test_no_body_is_read_for_a_refused_key(app: FastAPI, keys: dict[str, str]) -> None:
    """Check all routes, including those added later."""
    answered: dict[str, set[str]] = {kind: set() for kind in ("no key", *keys)}

    async def ask_all() -> None:
        for method, path in routes(app):
            for kind, found in answered.items():
                bearer = {"Authorization": f"Bearer {keys[kind]}"} if kind in keys else {}
                one = Exchange(method, path, bearer)
                refused = await one.asked(app) == (403 if kind == "no scope" else 401)
                if one.pieces or not refused:
                    found.add(path)
                else:
                    assert one.answer_headers[b"connection"] == b"close"

    asyncio.run(ask_all())
    assert answered == {
        **dict.fromkeys(("no key", "revoked"), WITHOUT_KEY),
        "no scope": WITHOUT_KEY | WITHOUT_SCOPE,
    }


def test_callers_without_a_key_send_only_small_bodies(app: FastAPI) -> None:
    one = Exchange("POST", "/v1/sign-in")
    assert one.ask(app) == 413
    assert one.pieces <= PUBLIC_BYTES / 1000 + 1
    said = Exchange("POST", "/v1/sign-in", {"Content-Length": str(PUBLIC_BYTES + 1)})
    assert (said.ask(app), said.pieces) == (413, 0)


def test_a_router_without_authentication_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for route_class in (APIRoute, PublicRoute):
        monkeypatch.setattr(main, "ROUTERS", [APIRouter(route_class=route_class)])
        with pytest.raises(AssertionError):
            main._routes.__wrapped__()


def test_a_key_is_queried_once(api: TestClient) -> None:
    looks: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        looks.extend([statement] if "FROM users JOIN api_keys" in statement else [])

    event.listen(Engine, "before_cursor_execute", note)
    try:
        answer = api.post("/v1/experiments:validate", json={"spec": ppca_spec()})
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert answer.status_code == 200
    assert len(looks) == 1


class Noted(BaseModel):
    """Notes each validation, and the thread that it runs in."""

    x: int
    threads: list[int] = []

    @model_validator(mode="after")
    def _note(self) -> "Noted":
        self.threads.append(threading.get_ident())
        return self


def test_a_body_is_parsed_and_validated_once_and_not_on_the_event_loop(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large ones one at a time."""
    app = create_app(settings)
    parsed_in: list[int] = []
    parsing: list[int] = []

    def noting(text: bytes) -> Any:
        parsed_in.append(threading.get_ident())
        parsing.append(app.state.bodies.parsing.borrowed_tokens)
        return parse_json(text)

    monkeypatch.setattr(bodies, "parse_json", noting)
    router = APIRouter(route_class=StrictRoute)

    @router.post("/noted")
    async def noted(body: JsonBody[Noted]) -> list[int]:
        return [*body.threads, threading.get_ident()]

    app.include_router(router)
    key = settings.key_file.read_text().strip()
    with TestClient(app, headers={"Authorization": f"Bearer {key}"}) as api:
        *validated_in, loop = api.post("/noted", json={"x": 1}).json()
        assert len(validated_in) == len(parsed_in) == 1
        assert loop not in [*validated_in, *parsed_in]
        assert api.post("/noted", json={"x": 1, "unread": " " * LARGE_BYTES}).status_code == 200
    assert parsing == [0, 1]


def test_a_body_that_would_be_validated_on_the_event_loop_is_an_error() -> None:
    router = APIRouter(route_class=StrictRoute)
    with pytest.raises(AssertionError, match="JsonBody"):

        @router.post("/noted")
        async def noted(body: Noted) -> None: ...


def test_no_connection_is_held_while_a_body_arrives(app: FastAPI, settings: Settings) -> None:
    """Neither a database connection nor a turn to write is held."""
    key = settings.key_file.read_text().strip()
    body = json.dumps({"spec": ppca_spec()}).encode()
    held: list[tuple[int, bool]] = []

    class Slow(Exchange):
        async def receive(self) -> dict[str, Any]:
            await asyncio.sleep(0)
            checked_out = app.state.database.engine.pool.checkedout()
            held.append((checked_out, app.state.writers.taken > 0))
            self.pieces += 1
            piece = body[10 * self.pieces - 10 : 10 * self.pieces]
            return {"type": "http.request", "body": piece, "more_body": len(piece) == 10}

    one = Slow("POST", "/v1/experiments", {"Authorization": f"Bearer {key}"})
    assert one.ask(app) == 202
    assert len(held) > 10
    assert set(held) == {(0, False)}


@pytest.mark.parametrize("path", ["/v1/experiments", "/v1/experiments/a/curves", "/healthz"])
def test_query_parameters_are_bounded_before_they_are_parsed(
    app: FastAPI, settings: Settings, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = settings.key_file.read_text().strip()
    parsed: list[int] = []

    class Noting(QueryParams):
        def __init__(self, *given: Any):
            parsed.append(1)
            super().__init__(*given)

    monkeypatch.setattr("starlette.requests.QueryParams", Noting)
    many = "&".join(f"a{i}=1" for i in range(MAX_PARAMETERS + 1))
    one = Exchange("GET", path, {"Authorization": f"Bearer {key}"}, query=many)
    assert one.ask(app) == 422
    assert not parsed
    (wrong,) = json.loads(one.answered[1]["body"])["errors"]
    assert wrong == {"pointer": "/query", "detail": f"at most {MAX_PARAMETERS} parameters"}


@dataclass
class Stalled(Exchange):
    """A request whose body stops after its first piece."""

    first: bytes = b"{"

    async def receive(self) -> dict[str, Any]:
        self.pieces += 1
        if self.pieces > 1:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": self.first, "more_body": True}


@asynccontextmanager
async def under_way(app: FastAPI, stalled: list[Stalled]) -> AsyncIterator[None]:
    """Requests whose bodies the service waits for."""
    tasks = [asyncio.create_task(one.asked(app)) for one in stalled]
    while any(one.pieces < 2 for one in stalled):
        await asyncio.sleep(0.01)
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("is_public", [True, False])
def test_few_bodies_are_received_at_once(
    app: FastAPI, settings: Settings, monkeypatch: pytest.MonkeyPatch, is_public: bool
) -> None:
    """Without a key, and of one user."""
    monkeypatch.setattr(bodies, "PUBLIC_BODY_S", 600.0)
    monkeypatch.setattr(bodies, "MAX_PUBLIC_BODIES", 2 if is_public else 0)
    monkeypatch.setattr(bodies, "MAX_USER_BODIES", 0 if is_public else 2)
    key = settings.key_file.read_text().strip()
    path = "/v1/sign-in:preview" if is_public else "/v1/experiments"
    request: Any = ("POST", path, {} if is_public else {"Authorization": f"Bearer {key}"})

    async def ask_all() -> Exchange:
        async with under_way(app, [Stalled(*request) for _ in range(2)]):
            refused = Exchange(*request)
            await refused.asked(app)
            assert await Exchange("GET", "/healthz").asked(app) == 200
        return refused

    refused = asyncio.run(ask_all())
    assert refused.answered[0]["status"] == (503 if is_public else 429)
    assert refused.pieces == 0
    assert refused.answer_headers[b"retry-after"] == b"2"
    assert b"too_many_bodies" in refused.answered[1]["body"]
    assert not app.state.bodies._counts


def test_one_address_leaves_room_for_bodies_of_others(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One address, or one network of IPv6."""
    monkeypatch.setattr(bodies, "PUBLIC_BODY_S", 600.0)
    path = "/v1/sign-in"

    async def ask_all() -> tuple[int, int]:
        slow = [
            Stalled("POST", path, address=f"2001:db8::{i}")
            for i in range(1, bodies.MAX_ADDRESS_BODIES + 1)
        ]
        async with under_way(app, slow):
            same = await Exchange("POST", path, address="2001:db8::ffff").asked(app)
            other = await Exchange("POST", path, address="2001:db8:0:1::1").asked(app)
        return same, other

    assert asyncio.run(ask_all()) == (429, 413)
    assert not app.state.bodies._counts


def test_a_body_without_a_key_has_a_shorter_timeout(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Than the setting `body_s` says, which is 30 s."""
    monkeypatch.setattr(bodies, "PUBLIC_BODY_S", 0.01)
    one = Stalled("POST", "/v1/sign-in")
    assert one.ask(app) == 408
    assert json.loads(one.answered[1]["body"])["detail"] == "a body must arrive within 0.01 s"


def test_large_bodies_of_a_user_are_limited(app: FastAPI, settings: Settings) -> None:
    """Each is kept in memory until it is there, for half a minute."""
    bearer = {"Authorization": f"Bearer {settings.key_file.read_text().strip()}"}

    first = b" " * (LARGE_BYTES + 1)

    async def ask_all() -> Exchange:
        others = [Stalled("POST", "/v1/sweeps", bearer, first=first) for _ in range(MAX_USER_LARGE)]
        async with under_way(app, others):
            refused = Exchange("POST", "/v1/sweeps", bearer)
            assert await refused.asked(app) == 429
        small = [Stalled("POST", "/v1/sweeps", bearer, first=first[1:]) for _ in others]
        async with under_way(app, small):
            assert "large" not in {kind for kind, _ in app.state.bodies._counts}
        assert await Exchange("GET", "/v1/me", bearer).asked(app) == 200
        return refused

    refused = asyncio.run(ask_all())
    assert b"too_many_large_bodies" in refused.answered[1]["body"]
    assert not app.state.bodies._counts


def test_few_unknown_parameters_are_compared_with_the_known_ones(api: TestClient) -> None:
    """199 of them took the event loop 40 ms."""
    answer = api.get("/v1/experiments?" + "&".join(f"famly{i}=1" for i in range(9)))
    told = ["did you mean family?" in one["detail"] for one in answer.json()["errors"]]
    assert told == [True] * 5 + [False] * 4
