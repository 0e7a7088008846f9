"""Dependencies of handlers: the database, the settings, the user."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Annotated

from cachetools import TTLCache
from fastapi import BackgroundTasks, Depends, Header, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.dependencies.models import Dependant
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy.orm import Session

from service.accounts.models import ROLE_SCOPES, Scope
from service.accounts.permissions import check_still_valid
from service.accounts.sign_ins import caller_of_cookie
from service.accounts.users import USE_NOTED_S, Caller, KeyRefused, caller_of_key, note_use, parsed
from service.db.engine import Database
from service.db.errors import TRANSIENT_DB_ERRORS
from service.events.poller import Poller
from service.queue.snapshot import QueueSnapshots
from service.refusals import ApiError, unauthorized, unavailable
from service.settings import Settings
from service.submission.idempotency import IdempotentRequest
from service.sweeps import store
from service.web.csrf import check_own_page
from service.web.rates import Credential

log = logging.getLogger(__name__)

NotedKeys = TTLCache[str, None]


def noted_keys() -> NotedKeys:
    """Return a cache of the key ids whose use this process has recorded lately. While the row is
    locked, at most one thread for each key waits to record it."""
    return TTLCache(10_000, ttl=USE_NOTED_S)


_bearer = HTTPBearer(auto_error=False, description="An API key, mpt_<id>_<secret>_<checksum>")


# Async although it never awaits: a plain function would need a thread switch.
async def _settings(request: Request) -> Settings:
    settings: Settings = request.app.state.settings
    return settings


SettingsDep = Annotated[Settings, Depends(_settings)]

CHECK_LASTS_S = 1.0
"""Time after which a writing request checks its caller again."""
FEW = 63
"""Maximum number of experiments of a sweep whose changes are as short as those of single
experiments."""
USERS_PART = 3
"""One user's requests have a third of the readers' places at most, or one."""


PlaceOfUser = Callable[[int | None], AbstractAsyncContextManager[None]]
"""Function that takes the id of a user, and holds a place of a limiter for the user."""


@asynccontextmanager
async def reading(request: Request) -> AsyncIterator[Database]:
    """Yield the database to one of a few concurrent readers of a user. Otherwise the slow requests
    of one user would use all threads and connections. Waiting readers hold neither."""
    async with one_of(request, request.app.state.readers.one):
        yield request.app.state.database


async def _readable(request: Request) -> AsyncIterator[Database]:
    async with reading(request) as database:
        yield database


@asynccontextmanager
async def _writing(
    request: Request, is_long: Callable[[], Awaitable[bool]] | None = None
) -> AsyncIterator[Database]:
    """Yield the database to one of a few concurrent writers. Otherwise writers that wait for a lock
    would use all threads and connections, and block the readers. Waiting writers hold neither. The
    caller is checked again if the body or the wait has taken long."""
    state = request.app.state
    async with one_of(request, partial(state.writers.one, is_long=is_long)):
        database = state.database
        caller: Caller | None = getattr(request.state, "caller", None)
        if caller is not None and time.monotonic() - request.state.checked_at > CHECK_LASTS_S:
            await run_in_threadpool(_check_still_valid, database, caller)
        yield database


async def _writable(request: Request) -> AsyncIterator[Database]:
    async with _writing(request) as database:
        yield database


async def _writable_in_bulk(request: Request) -> AsyncIterator[Database]:
    async with _writing(request, partial(_concerns_many, request)) as database:
        yield database


async def _concerns_many(request: Request) -> bool:
    """Return whether a request may change more than FEW experiments: those of its sweep, or any."""
    sweep_id = request.path_params.get("sweep_id")
    if sweep_id is None:
        return True
    return await run_in_threadpool(_has_many, request.app.state.database, sweep_id)


def _has_many(database: Database, sweep_id: str) -> bool:
    with database.snapshot() as session:
        return store.has_more_experiments(session, sweep_id, FEW)


@contextmanager
def counted(request: Request) -> Iterator[None]:
    """Count a request of the caller while it waits for a place and holds one. Otherwise a client
    that abandons its requests, whose work goes on, would fill the process with them. Raises
    ApiError (429) if there are too many."""
    state, caller = request.state, getattr(request.state, "caller", None)
    if caller is None or getattr(state, "is_counted", False):
        yield
        return
    _check_count(request, caller.id)
    counts: Counter[tuple[int, bool]] = request.app.state.user_requests
    of_kind = _of_kind(request, caller.id)
    counts[of_kind] += 1
    state.is_counted = True
    try:
        yield
    finally:
        state.is_counted = False
        counts[of_kind] -= 1
        if not counts[of_kind]:
            del counts[of_kind]


def _of_kind(request: Request, user_id: int) -> tuple[int, bool]:
    return user_id, request.method == "GET"  # those that wait to write refuse no reads


def _check_count(request: Request, user_id: int) -> None:
    limit = request.app.state.settings.max_user_requests
    if request.app.state.user_requests[_of_kind(request, user_id)] >= limit:
        detail = f"{limit} requests of yours are under way, the maximum: try again"
        headers = {"Retry-After": "1"}
        raise ApiError(HTTPStatus.TOO_MANY_REQUESTS, "too_many_at_once", detail, headers=headers)


async def check_client(request: Request) -> None:
    """Raise ApiError (408) if the client has gone. The body has been read."""
    if await request.is_disconnected():
        raise client_gone()


def client_gone() -> ApiError:
    """Return an answer that nobody receives. It must not count as a failure of the service."""
    detail = "the client has gone before its turn"
    return ApiError(HTTPStatus.REQUEST_TIMEOUT, "client_gone", detail)


@asynccontextmanager
async def one_of(
    request: Request, place: PlaceOfUser, wait_s: float | None = None
) -> AsyncIterator[None]:
    """Hold a place of the caller while the block runs. Raises ApiError (503) if none becomes free
    in `wait_s` seconds (default: the setting `write_wait_s`), or if a client that reads has gone
    meanwhile. A request that has its turn (`turns.py`) takes no place."""
    if getattr(request.state, "has_turn", False):
        yield
        return
    settings: Settings = request.app.state.settings
    caller: Caller | None = getattr(request.state, "caller", None)
    async with AsyncExitStack() as held:
        held.enter_context(counted(request))
        try:
            async with asyncio.timeout(wait_s or settings.write_wait_s):
                user_id = None if caller is None else caller.id
                await held.enter_async_context(place(user_id))
        except TimeoutError:
            detail = "too many requests wait for their turn; nothing was changed, try again"
            raise unavailable("busy", detail) from None
        if request.method == "GET":
            await check_client(request)
        yield


DatabaseDep = Annotated[Database, Depends(_readable, scope="function")]
"""For plain handlers that read."""
WriterDep = Annotated[Database, Depends(_writable, scope="function")]
"""For plain handlers that write."""
BulkWriterDep = Annotated[Database, Depends(_writable_in_bulk, scope="function")]
"""For plain handlers that may change thousands of rows. They have at most half of the places,
unless their sweep has few experiments."""


async def authenticate(request: Request) -> Caller:
    """Store the owner of the request's key, or the user of the signed-in browser, in the request's
    state. Raises ApiError (401) without a valid key or sign-in. The body is not read for this. A
    key is looked up at every request: a revoked key is refused from that moment on, in any
    process."""
    given = Credential.of(request.headers)
    database, rates = request.app.state.database, request.app.state.rates
    if (user_id := rates.user_of(given)) is not None:
        _check_count(request, user_id)  # before the key costs a query
    try:
        if given.key is not None:
            parsed(given.key)  # a mistyped key costs no query
            user, unnoted = await run_in_threadpool(_look_up, database, caller_of_key, given.key)
        elif given.cookie is not None:
            check_own_page(request)
            find = caller_of_cookie
            user, unnoted = await run_in_threadpool(_look_up, database, find, given.cookie)
        else:
            raise unauthorized("give a valid API key: Authorization: Bearer mpt_…")
    except KeyRefused as refused:
        rates.forget(given)
        raise unauthorized(str(refused)) from None
    rates.know(given, user.id)
    request.state.caller, request.state.unnoted = user, unnoted
    request.state.checked_at = time.monotonic()
    return user


async def current_user(
    request: Request,
    documented: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
    after: BackgroundTasks,
) -> Caller:
    """Return the caller that `authenticate` found, and note later that the key was used."""
    user: Caller = request.state.caller
    noted: NotedKeys = request.app.state.noted_keys
    if request.state.unnoted and user.key_id not in noted:
        noted[user.key_id] = None
        after.add_task(_note_use, request.app.state.database, user.key_id)
    return user


Find = Callable[[Session, str], tuple[Caller, bool]]


def _look_up(database: Database, find: Find, credential: str) -> tuple[Caller, bool]:
    with database.snapshot() as session:
        return find(session, credential)


def _check_still_valid(database: Database, caller: Caller) -> None:
    with database.snapshot() as session:
        check_still_valid(session, caller)


def _note_use(database: Database, key_id: str) -> None:
    try:
        with database.transaction() as session:
            note_use(session, key_id)
    except TRANSIENT_DB_ERRORS as error:
        log.warning("the use of a key cannot be noted, the database is unreachable: %s", error)


UserDep = Annotated[Caller, Depends(current_user)]


@dataclass(frozen=True)
class WithScope:
    """Dependency of a handler that is for keys with this scope."""

    scope: Scope

    async def __call__(self, user: UserDep) -> Caller:
        return user


def scopes_of(handler: Dependant) -> frozenset[Scope]:
    """Return the scopes that a handler asks for."""
    own = [handler.call.scope] if isinstance(handler.call, WithScope) else []
    return frozenset(own).union(*map(scopes_of, handler.dependencies))


def check_scopes(user: Caller, scopes: frozenset[Scope]) -> None:
    """Raise ApiError (403) where the caller's key lacks one of the scopes."""
    for scope in scopes - user.scopes:
        raise _forbidden(user, scope)


def _forbidden(user: Caller, scope: Scope) -> ApiError:
    if scope in ROLE_SCOPES[user.role]:
        detail = f"this API key lacks the scope {scope}: ask an admin for one that has it"
        return ApiError(HTTPStatus.FORBIDDEN, "scope_missing", detail)
    detail = f"this needs the scope {scope}, which a {user.role} cannot have: ask an admin"
    return ApiError(HTTPStatus.FORBIDDEN, "role_insufficient", detail)


Reader = Annotated[Caller, Depends(WithScope(Scope.READ))]
Submitter = Annotated[Caller, Depends(WithScope(Scope.SUBMIT))]
Canceller = Annotated[Caller, Depends(WithScope(Scope.CANCEL))]
Admin = Annotated[Caller, Depends(WithScope(Scope.ADMIN))]
Scraper = Annotated[Caller, Depends(WithScope(Scope.METRICS))]
"""The caller. StrictRoute has checked that the key has the scope; else the answer is 403."""


IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=200,
        description="Key of your choice. A repeated request with the same key is not done again.",
    ),
]


async def _idempotent(
    request: Request,
    idempotency_key: IdempotencyKey = None,
) -> IdempotentRequest | None:
    if idempotency_key is None:
        return None
    target = f"{request.method} {request.scope['path']}"
    return IdempotentRequest(idempotency_key, target, await request.body())


Idempotency = Annotated[IdempotentRequest | None, Depends(_idempotent)]
"""The request itself if it has an Idempotency-Key."""


async def _queue_snapshots(request: Request) -> QueueSnapshots:
    queue_snapshots: QueueSnapshots = request.app.state.queue_snapshots
    return queue_snapshots


QueueSnapshotsDep = Annotated[QueueSnapshots, Depends(_queue_snapshots)]


async def _poller(request: Request) -> Poller:
    poller: Poller = request.app.state.poller
    return poller


PollerDep = Annotated[Poller, Depends(_poller)]
