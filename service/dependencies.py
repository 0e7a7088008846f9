"""What handlers are given: the database, the settings, the user."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Annotated

from cachetools import TTLCache
from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from service.database import Database
from service.errors import ApiError
from service.settings import Settings
from service.users import User, user_of_key

KnownKeys = TTLCache[bytes, User]


def known_keys() -> KnownKeys:
    """Whose the keys of the last second were, by their digests: who looks often is looked up once a
    second, and without a change of threads. A key that is revoked serves that second more."""
    return TTLCache(10_000, ttl=1.0)


_bearer = HTTPBearer(auto_error=False, description="An API key, mpt_<id>_<secret>")


# These two are async, though they wait for nothing: a plain function costs a change of threads.
async def _database(request: Request) -> Database:
    database: Database = request.app.state.database
    return database


async def _settings(request: Request) -> Settings:
    settings: Settings = request.app.state.settings
    return settings


DatabaseDep = Annotated[Database, Depends(_database)]
SettingsDep = Annotated[Settings, Depends(_settings)]


async def _writable(
    request: Request, database: DatabaseDep, settings: SettingsDep
) -> AsyncIterator[Database]:
    """The database for one of a few writers: behind a lock that someone holds they must not take
    all threads and connections from the readers. Who waits for its turn has neither."""
    writers: asyncio.Semaphore = request.app.state.writers
    try:
        await asyncio.wait_for(writers.acquire(), settings.write_wait_s)
    except TimeoutError:
        detail = "too many requests wait to write; nothing was changed, try again"
        raise ApiError(
            HTTPStatus.SERVICE_UNAVAILABLE, "busy", detail, headers={"Retry-After": "2"}
        ) from None
    try:
        yield database
    finally:
        writers.release()


WriterDep = Annotated[Database, Depends(_writable, scope="function")]
"""For plain handlers that write."""


async def current_user(
    request: Request,
    database: DatabaseDep,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> User:
    """The user whose key the request carries; else 401."""
    if credentials is not None:
        known: KnownKeys = request.app.state.known_keys
        digest = hashlib.sha256(credentials.credentials.encode()).digest()
        user = known.get(digest)
        if user is None:
            user = await run_in_threadpool(_look_up, database, credentials.credentials)
            if user is not None:
                known[digest] = user
        if user is not None:
            return user
    raise ApiError(
        HTTPStatus.UNAUTHORIZED,
        "unauthorized",
        "give a valid API key: Authorization: Bearer mpt_…",
        headers={"WWW-Authenticate": "Bearer"},
    )


def _look_up(database: Database, key: str) -> User | None:
    with database.snapshot() as session:
        return user_of_key(session, key)


UserDep = Annotated[User, Depends(current_user)]
