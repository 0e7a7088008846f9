"""Dependencies of handlers: the database, the settings, the user."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated

from cachetools import TTLCache
from fastapi import BackgroundTasks, Depends, Header, Request
from fastapi.dependencies.models import Dependant
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from mptcore.specs import Problem
from service.accounts.users import USE_NOTED_S, Caller, note_use
from service.db.engine import Database, hold_still, limit_statements
from service.db.errors import TRANSIENT_DB_ERRORS, is_over_time
from service.events.poller import Poller
from service.queue.snapshot import QueueSnapshots
from service.refusals import ApiError, invalid
from service.settings import Settings
from service.submission.idempotency import IdempotentRequest
from service.vocabulary import ROLE_SCOPES, Scope

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

SEARCH_S = 5.0
"""Maximum seconds of a statement that reads. A filter may read all specs of a user."""


# Async although they never wait: plain functions would need a thread switch.
async def _database(request: Request) -> Database:
    database: Database = request.app.state.database
    return database


DatabaseDep = Annotated[Database, Depends(_database)]


@contextmanager
def reading(database: Database) -> Iterator[Session]:
    """Begin a read of one state of the database."""
    with database.snapshot() as session:
        hold_still(session)
        yield session


@contextmanager
def limited(database: Database) -> Iterator[Session]:
    """Begin a search in one state of the database. Its statements may take SEARCH_S. Raises
    ApiError (422) if one takes longer."""
    try:
        with database.snapshot() as session:
            limit_statements(session, SEARCH_S)
            yield session
    except OperationalError as error:
        if not is_over_time(error):
            raise
        detail = (
            f"the search took longer than {SEARCH_S:g} s: add filters such as status, family or "
            "created_after, or compare fewer fields"
        )
        raise invalid([Problem("/query", detail)]) from None


async def _heavy() -> None: ...


HEAVY = Depends(_heavy)
"""Dependency that marks a route which may take seconds. The gate admits two such requests at a
time, and one of a user."""


def is_heavy(handler: Dependant) -> bool:
    """Return whether a route is marked as heavy."""
    return any(part.call is _heavy for part in handler.dependencies)


def release_places(request: Request) -> None:
    """Give back the places of a request that now waits for events."""
    request.state.end_turn()
    request.state.leave()


async def check_client(request: Request) -> None:
    """Raise ApiError (408) if the client has gone. Nobody receives the answer, and it must not
    count as a failure of the service."""
    if await request.is_disconnected():
        detail = "the client has gone before its turn"
        raise ApiError(HTTPStatus.REQUEST_TIMEOUT, "client_gone", detail)


async def current_user(
    request: Request,
    documented: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
    after: BackgroundTasks,
) -> Caller:
    """Return the caller that the gate let in, and note later that the key was used."""
    user: Caller = request.state.caller
    noted: NotedKeys = request.app.state.noted_keys
    if request.state.unnoted and user.key_id not in noted:
        noted[user.key_id] = None
        after.add_task(_note_use, request.app.state.database, user.key_id)
    return user


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
"""The caller. The gate has checked that the key has the scope; else the answer is 403."""


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
