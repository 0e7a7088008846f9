"""Convert every error to an RFC 9457 problem, with one handler for each kind."""

import errno
import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from asgi_correlation_id import correlation_id
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.routing import compile_path

from mptcore.specs import Problem
from mptcore.specs.parsing.problems import spec_error
from mptcore.specs.parsing.sentences import sentence
from service.db.errors import DISK_FULL, TRANSIENT_DB_ERRORS, write_trouble
from service.db.revisions import NotMigrated
from service.refusals import (
    MAX_ITEM_DETAIL,
    THIS_VERSION,
    ApiError,
    cut,
    disk_full,
    invalid,
    unavailable,
)
from service.schemas import ResponseModel

log = logging.getLogger(__name__)

PROBLEM = "application/problem+json"
DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)

SERVICE_PATTERNS = {
    r"^[A-Za-z0-9 ._()-]{1,150}\.[A-Za-z0-9]{2,7}$": "a file's name with its ending, such as "
    "mine.csv: letters, digits, spaces and ._()-",
    "^[a-z_]+$": "the name of a series, as score or lml",
    r"^[a-z0-9][a-z0-9._-]{0,63}$": "a user's name: up to 64 small letters, digits, . _ and -",
    "^[0-9A-Za-z]{1,16}$": "the id of a key: its first part, as in mpt_<id>_…",
    r"^[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*){0,9}$": "a path into the spec, as model.latent_dim",
}
"""Descriptions of the service's text patterns. Specs have their own."""


class ErrorItem(ResponseModel):
    """A problem at a location."""

    pointer: str
    """JSON pointer into the body, or /query/NAME, /path/NAME or /header/NAME."""
    detail: str
    """Description of the problem: what is allowed."""


class ProblemDocument(ResponseModel):
    """A problem (RFC 9457)."""

    title: str
    """Phrase of the HTTP status."""
    status: int
    """HTTP status."""
    detail: str
    """Description of the problem."""
    reason: str
    """Stable name of the problem, for programs."""
    errors: list[ErrorItem]
    """The first hundred problems with their locations. Empty: there is only `detail`."""
    error_count: int
    """Number of all problems."""
    request_id: str | None
    """Id of the request in the service's log."""


def _item(problem: Problem) -> ErrorItem:
    pointer, detail = (cut(text, MAX_ITEM_DETAIL) for text in (problem.pointer, problem.detail))
    return ErrorItem(pointer=pointer, detail=detail)


def install_handlers(app: FastAPI) -> None:
    app.add_exception_handler(ApiError, _refusal)
    app.add_exception_handler(StarletteHTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    for away in TRANSIENT_DB_ERRORS:
        app.add_exception_handler(away, _database_error)
    app.add_exception_handler(NotMigrated, _not_migrated)
    app.add_exception_handler(OSError, _disk_error)
    app.add_exception_handler(Exception, _unexpected_error)


def problem_response(error: ApiError) -> JSONResponse:
    """Return the answer for an error."""
    document = ProblemDocument(
        title=error.status.phrase,
        status=error.status,
        detail=error.detail,
        reason=error.reason,
        errors=[_item(one) for one in error.problems],
        error_count=error.count,
        request_id=correlation_id.get(),
    )
    return JSONResponse(
        document.model_dump(),
        error.status,
        headers=error.headers,
        media_type=PROBLEM,
    )


async def _refusal(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    return problem_response(error)


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StarletteHTTPException)
    status = HTTPStatus(error.status_code)
    headers = dict(error.headers or {})
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        methods = (_allowed(request) or headers["Allow"]).split(", ")
        if "GET" in methods and "HEAD" not in methods:
            methods.insert(methods.index("GET") + 1, "HEAD")
        headers["Allow"] = ", ".join(methods)
        detail = f"{request.method} is not allowed here, only {headers['Allow']}"
    elif status == HTTPStatus.NOT_FOUND:
        detail = f"{THIS_VERSION} has no such path: /openapi.json lists them all"
    else:
        detail = str(error.detail)
    reason = status.phrase.lower().replace(" ", "_")
    return problem_response(ApiError(status, reason, detail, headers=headers))


def _allowed(request: Request) -> str:
    """Return all methods of a path; the router knows only those of one route. If several paths
    match, such as `…/{id}` and `…/{id}:cancel`, the longest is used. Pages are not in the
    document."""
    paths: dict[str, Any] = request.app.openapi()["paths"]
    fitting = [path for path in paths if compile_path(path)[0].match(request.url.path)]
    if not fitting:
        return ""
    return ", ".join(method.upper() for method in paths[max(fitting, key=len)])


async def _validation_error(request: Request, error: Exception) -> JSONResponse:
    """Answer the errors that FastAPI found: in the path, the query and the headers, and a body that
    is missing or not JSON. `wrong_body` reports errors inside JSON."""
    assert isinstance(error, RequestValidationError)
    errors = error.errors()
    in_body = [item for item in errors if item["loc"][0] == "body"]
    problems = [
        Problem("/".join(("", *map(str, item["loc"]))), sentence(_told(item)))
        for item in errors
        if item["loc"][0] != "body"
    ]
    if in_body and error.body is None:
        problems.append(Problem("", "the body must be a JSON object, but it is missing"))
    elif in_body:
        problems.append(Problem("/header/Content-Type", "send Content-Type: application/json"))
    return problem_response(invalid(problems))


def wrong_body(errors: Sequence[Any], body: Any, model: type[BaseModel]) -> ApiError:
    """Return the answer to a JSON body that pydantic found these errors in."""
    fields = model.model_fields
    if isinstance(body, dict) and "spec" in fields and "spec" not in body and "model" in body:
        detail = 'this field is required: wrap the spec in {"spec": {…}}'
        return invalid([Problem("/spec", detail)])
    return invalid(spec_error(errors, body, model, lambda item: sentence(_told(item))))


def _told(item: Any) -> Any:
    """Return the error, with the service's own patterns explained in words."""
    own = SERVICE_PATTERNS.get(item.get("ctx", {}).get("pattern"))
    return {**item, "type": "in_words", "msg": own} if own else item


async def _database_error(request: Request, error: Exception) -> JSONResponse:
    trouble = write_trouble(error)
    if trouble is not None:
        log.error("%s: %s", trouble, _cause(error))
        return problem_response(cannot_write(trouble))
    log.error("the database did not answer: %s", _cause(error))
    detail = "the database does not answer; nothing was changed, try again"
    return problem_response(unavailable("database_unavailable", detail))


def _cause(error: Exception) -> object:
    """Return the driver's own message, without the statement and its parameters."""
    return getattr(error, "orig", None) or error


def cannot_write(trouble: str) -> ApiError:
    """Return the answer if the database cannot write. A full disk stays full until someone frees
    space, so clients are then not asked to try again."""
    if trouble == DISK_FULL:
        detail = f"{trouble}; nothing was changed. An administrator must free space on it"
        return ApiError(HTTPStatus.INSUFFICIENT_STORAGE, "disk_full", detail)
    return unavailable("database_unavailable", f"{trouble}; nothing was changed, try again")


async def _not_migrated(request: Request, error: Exception) -> JSONResponse:
    log.error("%s", error)
    return problem_response(unavailable("database_not_migrated", str(error), after_s=60))


async def _disk_error(request: Request, error: Exception) -> JSONResponse:
    """Answer if the store's disk cannot store a file. Raises all other errors again."""
    code = getattr(error, "errno", None)
    if code not in (*DISK_FULL_ERRORS, errno.EROFS):
        raise error
    log.error("the disk of the store cannot store a file: %s", error)
    if code == errno.EROFS:
        detail = "the disk of the store is read-only; nothing was changed. Ask an administrator"
        return problem_response(ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "disk_read_only", detail))
    return problem_response(disk_full())


async def _unexpected_error(request: Request, error: Exception) -> JSONResponse:
    log.exception("unexpected error", exc_info=error)
    detail = "an internal error of the service; its log has the request id"
    return problem_response(ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, "internal_error", detail))
