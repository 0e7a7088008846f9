"""What handlers are given: the database, the settings, the user."""

from http import HTTPStatus
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from service.database import Database
from service.errors import ApiError
from service.settings import Settings
from service.users import User, user_of_key

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


def current_user(
    database: DatabaseDep,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> User:
    """The user whose key the request carries; else 401."""
    if credentials is not None:
        with database.snapshot() as session:
            user = user_of_key(session, credentials.credentials)
        if user is not None:
            return user
    raise ApiError(
        HTTPStatus.UNAUTHORIZED,
        "unauthorized",
        "give a valid API key: Authorization: Bearer mpt_…",
        headers={"WWW-Authenticate": "Bearer"},
    )


UserDep = Annotated[User, Depends(current_user)]
