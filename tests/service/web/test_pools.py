"""Writers behind a held lock leave threads and connections to readers: on real databases."""

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from inspect import iscoroutinefunction
from threading import Event, Semaphore
from typing import Any

import anyio
import anyio.to_thread
import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from httpx2 import Response
from sqlalchemy import text

from service.app import MAX_USER_BUNDLES, ROUTERS, create_app
from service.db.engine import Database
from service.events.poller import READS_AT_ONCE
from service.experiments import result_routes as experiment_results
from service.limiter import FairLimiter
from service.settings import Settings
from service.web import dependencies
from service.web.dependencies import USERS_PART, _readable, _writable, _writable_in_bulk
from service.web.turns import SIZES
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import wait_until

CLIENTS = 45
MANY = {"max_user_requests": 1000}


@contextmanager
def served(settings: Settings) -> Iterator[TestClient]:
    key = settings.key_file.read_text().strip()
    headers = {"Authorization": f"Bearer {key}"}
    with TestClient(create_app(settings), headers=headers) as client:
        yield client


@contextmanager
def write_lock(settings: Settings) -> Iterator[None]:
    """Write lock of SQLite, held by another connection while the block runs."""
    holder = sqlite3.connect(settings.store / "mptlab.sqlite3", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    yield
    holder.rollback()
    holder.close()


def post(api: TestClient) -> Response:
    return api.post("/v1/experiments", json={"spec": ppca_spec()})


def all_wait(api: TestClient) -> bool:
    """Return whether all places of the user are taken, after some more time."""
    time.sleep(0.2)
    writers: FairLimiter = api.app.state.writers  # type: ignore[attr-defined]
    return writers.is_full(user_id=1)


def test_readers_are_answered_while_writers_wait(settings: Settings) -> None:
    patient = settings.model_copy(update={"write_wait_s": 240.0, **MANY})
    with served(patient) as api, ThreadPoolExecutor(CLIENTS) as pool:
        with write_lock(settings):
            posts = [pool.submit(post, api) for _ in range(CLIENTS)]
            wait_until(lambda: all_wait(api), 10)
            for path in ("/v1/experiments", "/v1/workers", "/readyz"):
                assert api.get(path).status_code == 200
            assert not any(one.done() for one in posts)
        assert {one.result().status_code for one in posts} == {202}


def test_a_user_leaves_a_thread_to_others() -> None:
    async def places() -> list[bool]:
        writers = FairLimiter(3, of_user=2)
        async with writers.one(1), writers.one(1):
            full = [writers.is_full(1), writers.is_full(2)]
            async with writers.one(2):
                full.append(writers.is_full(3))
        return [*full, writers.is_full(1)]

    assert asyncio.run(places()) == [True, False, True, False]


def test_a_user_has_one_place_in_the_queue() -> None:
    """Another user is next, though the first has several requests that wait for longer."""
    order: list[int] = []

    async def ask(places: FairLimiter, user_id: int) -> None:
        async with places.one(user_id):
            await asyncio.sleep(0)
            order.append(user_id)

    async def ask_all() -> None:
        places = FairLimiter(1, of_user=1)
        await asyncio.gather(*(ask(places, one) for one in (1, 1, 1, 1, 2)))

    asyncio.run(ask_all())
    assert order == [1, 2, 1, 1, 1]


async def affirmed() -> bool:
    """Answer that a request is long."""
    return True


def test_a_long_request_that_waits_for_its_user_holds_no_place_of_others() -> None:
    async def others_get_places() -> bool:
        places = FairLimiter(4, of_user=1)

        async def wait() -> None:
            async with places.one(1, is_long=affirmed):
                pass

        async with places.one(1):
            waiting = asyncio.create_task(wait())
            await asyncio.sleep(0)
            async with (
                asyncio.timeout(5),
                places.one(2, is_long=affirmed),
                places.one(3, is_long=affirmed),
            ):
                pass
        await waiting
        return True

    assert asyncio.run(others_get_places())


def test_readers_leave_a_connection_to_each_request_that_has_a_turn(settings: Settings) -> None:
    with served(settings) as api, ExitStack() as held:
        readers: FairLimiter = api.app.state.readers  # type: ignore[attr-defined]
        assert api.portal is not None
        for user in range(settings.api_connections - len(SIZES)):
            assert not readers.is_full(99)
            held.enter_context(api.portal.wrap_async_context_manager(readers.one(user)))
        assert readers.is_full(99)


def calls(dependant: Dependant) -> set[object]:
    """Functions that a handler depends on, directly or not."""
    nested = (calls(one) for one in dependant.dependencies)
    return {dependant.call}.union(*nested)


def test_every_writing_handler_uses_the_pool_of_writers() -> None:
    """`:validate` and `:batchGet` are POSTs that only read, and an upload holds no thread while it
    comes."""
    routes = [route for router in ROUTERS for route in router.routes]
    found = {
        route.path
        for route in routes
        if isinstance(route, APIRoute)
        and not (route.methods or set()) <= {"GET"}
        and not {_writable, _writable_in_bulk} & calls(route.dependant)
    }
    reading = {"/v1/experiments:validate", "/v1/experiments:batchGet", "/v1/curves:batchGet"}
    assert found == {*reading, "/v1/datasets"}


def test_a_writer_that_waits_too_long_gets_an_error(settings: Settings) -> None:
    few = settings.model_copy(update={"api_writers": 1, "write_wait_s": 0.05})
    with served(few) as api, ThreadPoolExecutor(2) as pool, write_lock(settings):
        posts = [pool.submit(post, api) for _ in range(2)]
        wait_until(lambda: any(one.done() for one in posts), 10)
        (refused,) = [one.result() for one in posts if one.done()]
        assert (refused.status_code, refused.json()["reason"]) == (503, "busy")
        assert refused.headers["retry-after"]


def test_only_one_request_of_a_user_is_asked_whether_it_is_long() -> None:
    """The answer may need a thread and a connection, and may change while the user waits."""
    asked: list[int] = []

    async def ask_two() -> None:
        places = FairLimiter(4, of_user=1)

        async def is_long() -> bool:
            asked.append(places.taken)
            return False

        async def take() -> None:
            async with places.one(1, is_long=is_long):
                await asyncio.sleep(0.01)
                assert len(asked) == 1 or places.taken == 1

        await asyncio.gather(take(), take())

    asyncio.run(ask_two())
    assert asked == [0, 0]


@pytest.mark.parametrize(("kind", "places"), [("settings", 1), ("lab", 2)])
def test_changes_of_many_experiments_leave_places_to_others(
    kind: str, places: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have two of four places, or one on SQLite, which has one writer; those of a sweep with
    few experiments may have any. The caller is user 1."""
    settings: Settings = request.getfixturevalue(kind)
    hasty = settings.model_copy(update={"write_wait_s": 0.5})
    monkeypatch.setattr(dependencies, "FEW", 2)
    with served(hasty) as api:
        writers: FairLimiter = api.app.state.writers  # type: ignore[attr-defined]
        of_three, of_two = (
            f"/v1/sweeps/{api.post('/v1/sweeps', json=sweep).json()['id']}"
            for sweep in (
                {"spec": ppca_spec(), "grid": {"seeds": [[n] for n in range(count)]}}
                for count in (3, 2)
            )
        )
        url = of_three
        many: list[tuple[str, str, Any]] = [
            ("PATCH", url, {"priority": 1}),
            ("POST", f"{url}:cancel", None),
            ("POST", "/v1/experiments:cancel?status=queued", None),
            ("DELETE", url, None),
        ]
        assert api.portal is not None
        for taken, status in ((places, 503), (places - 1, 0)):
            with ExitStack() as held:
                for user in range(8, 8 + taken):
                    place = writers.one(user, is_long=affirmed)
                    held.enter_context(api.portal.wrap_async_context_manager(place))
                for method, path, body in many:
                    answer = api.request(method, path, json=body)
                    assert answer.status_code == status or (not status and answer.is_success)
                assert post(api).status_code == 202
                if status == 503:
                    for method, path, body in many:
                        if url in path:
                            few = path.replace(url, of_two)
                            assert api.request(method, few, json=body).is_success
                    nowhere = api.request("DELETE", "/v1/sweeps/no-such-one")
                    assert nowhere.status_code == 404


def test_few_requests_of_a_user_are_under_way(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three members each abandoned 30 requests a second, whose work went on: others' lists took
    seconds, long after the clients were gone."""
    few = settings.model_copy(update={"max_user_requests": 2})
    with served(few) as api, ThreadPoolExecutor(2) as pool, ExitStack() as held:
        state = api.app.state  # type: ignore[attr-defined]
        assert api.portal is not None
        for user in range(2, 2 + 30):
            if not state.readers.is_full(user):
                place = state.readers.one(user)
                held.enter_context(api.portal.wrap_async_context_manager(place))
        urls = "/v1/experiments", "/v1/experiments?q=a"
        waiting = [pool.submit(api.get, url) for url in urls]
        wait_until(lambda: state.user_requests == {(1, True): 2})
        monkeypatch.setattr(dependencies, "caller_of_key", None)  # the key costs no query
        for method, url in (("GET", "/v1/queue"), ("GET", "/v1/experiments?q=a")):
            refused = api.request(method, url)
            assert refused.json()["reason"] == "too_many_at_once"
            assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
        monkeypatch.undo()
        assert post(api).status_code == 202
        assert api.get("/healthz").status_code == 200
        held.close()
        assert [one.result().status_code for one in waiting] == [200, 200]
        assert state.user_requests == {}


def test_pages_of_events_count_and_end(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that clients had abandoned were all read, for minutes, while others' pages waited for
    the same three places."""
    few = settings.model_copy(update={"max_user_requests": 2, "write_wait_s": 1.0})
    with served(few) as api, ThreadPoolExecutor(2) as pool, ExitStack() as held:
        state = api.app.state  # type: ignore[attr-defined]
        assert api.portal is not None

        for user in range(2, 2 + READS_AT_ONCE):
            place = state.poller.readers.one(user)
            held.enter_context(api.portal.wrap_async_context_manager(place))
        waiting = [pool.submit(api.get, "/v1/events") for _ in range(2)]
        wait_until(lambda: state.user_requests == {(1, True): 2})
        refused = api.get("/v1/events")
        assert (refused.status_code, refused.json()["reason"]) == (429, "too_many_at_once")
        assert [one.result().json()["reason"] for one in waiting] == ["busy"] * 2
        held.close()
        assert api.get("/v1/events").status_code == 200
        assert state.user_requests == {}


def test_a_user_writes_with_one_request_at_a_time(settings: Settings) -> None:
    """The others wait for it and hold no place of all meanwhile."""
    hasty = settings.model_copy(update={"write_wait_s": 0.05})
    with served(hasty) as api:
        writers: FairLimiter = api.app.state.writers  # type: ignore[attr-defined]
        assert api.portal is not None
        for is_long in (affirmed, None):
            with api.portal.wrap_async_context_manager(writers.one(1, is_long=is_long)):
                assert (writers.is_full(1), writers.is_full(2)) == (True, False)
                assert post(api).status_code == 503
                assert writers.taken == 1
        assert post(api).status_code == 202


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


def test_an_api_process_keeps_to_its_connections(lab: Settings) -> None:
    few = lab.model_copy(update={"api_connections": 3, **MANY})
    with served(few) as api, ThreadPoolExecutor(CLIENTS) as pool:
        api.get("/v1/experiments")
        answers = list(pool.map(lambda _: api.get("/v1/experiments"), range(CLIENTS * 4)))
        assert {answer.status_code for answer in answers} == {200}
        counted = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        with Database(lab.url).snapshot() as session:
            assert session.scalar(text(counted)) <= 1 + few.api_connections


def test_slow_requests_of_one_user_leave_threads_and_connections_to_others(lab: Settings) -> None:
    """On PostgreSQL, with a locked table that one user reads repeatedly."""
    patient = lab.model_copy(update={"write_wait_s": 240.0, **MANY})
    database = Database(lab.url)
    with served(patient) as api, ThreadPoolExecutor(CLIENTS) as pool:
        api.post("/v1/users", json={"name": "ann"})
        key = api.post("/v1/users/ann/keys", json={}).json()["key"]
        ann = {"Authorization": f"Bearer {key}"}
        readers: FairLimiter = api.app.state.readers  # type: ignore[attr-defined]
        with database.transaction() as session:
            session.execute(text("LOCK TABLE webhooks"))
            slow = [pool.submit(api.get, "/v1/webhooks", headers=ann) for _ in range(CLIENTS)]
            most = (patient.api_connections - len(SIZES)) // USERS_PART
            wait_until(lambda: readers.taken == most, 30)
            time.sleep(0.2)
            for path in ("/v1/experiments", "/v1/workers", "/readyz"):
                assert api.get(path).status_code == 200
            assert not any(one.done() for one in slow)
        assert {one.result().status_code for one in slow} == {200}
    database.close()


def test_a_process_builds_few_bundles_of_a_user_at_once(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two are being sent: a third one is refused after a while, and another user's is sent."""
    hasty = settings.model_copy(update={"write_wait_s": 0.5})
    sent, may_end = Semaphore(0), Event()

    def zipped(*_: object) -> Iterator[bytes]:
        yield b"begun"
        sent.release()
        assert may_end.wait(120)

    monkeypatch.setattr(experiment_results, "zipped", zipped)
    with served(hasty) as api, ThreadPoolExecutor(MAX_USER_BUNDLES + 1) as pool:
        api.post("/v1/users", json={"name": "ann"})
        ann = {"Authorization": f"Bearer {api.post('/v1/users/ann/keys', json={}).json()['key']}"}
        one = post(api).json()["id"]
        assert api.post(f"/v1/experiments/{one}:cancel").is_success
        assert api.patch(f"/v1/experiments/{one}", json={"visibility": "lab"}).is_success
        path = f"/v1/experiments/{one}/bundle"
        mine = [pool.submit(api.get, path) for _ in range(MAX_USER_BUNDLES)]
        assert all(sent.acquire(timeout=60) for _ in mine)
        refused = api.get(path)
        assert (refused.status_code, refused.json()["reason"]) == (503, "busy")
        assert refused.headers["Retry-After"] == "2"
        hers = pool.submit(api.get, path, headers=ann)
        assert sent.acquire(timeout=60)
        may_end.set()
        assert {one.result().status_code for one in (*mine, hers)} == {200}
        assert api.get(path).content == b"begun"


def test_every_reading_handler_uses_the_pool_of_readers() -> None:
    routes = [route for router in ROUTERS for route in router.routes]
    found = {
        route.path
        for route in routes
        if isinstance(route, APIRoute)
        and not iscoroutinefunction(route.endpoint)
        and not {_readable, _writable, _writable_in_bulk} & calls(route.dependant)
    }
    assert found == {"/v1/presets", "/v1/presets/{name}"}
