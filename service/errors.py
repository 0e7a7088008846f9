"""Every error as an RFC 9457 problem, through one handler each."""

import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from asgi_correlation_id import correlation_id
from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.routing import compile_path

from mptcore.specs import Problem, problems_of
from service.database import AWAY, NotMigrated

log = logging.getLogger(__name__)

PROBLEM = "application/problem+json"


class ErrorItem(BaseModel):
    """One thing that is wrong. `pointer` is a JSON pointer into the body, or /query/…, /path/…."""

    pointer: str
    detail: str


class ProblemDocument(BaseModel):
    """RFC 9457, with a stable `reason` for programs."""

    title: str
    status: int
    detail: str
    reason: str
    errors: list[ErrorItem]
    request_id: str | None


class ApiError(HTTPException):
    """An answer other than success: its status, a stable reason, and what was wrong."""

    def __init__(
        self,
        status: HTTPStatus,
        reason: str,
        detail: str,
        problems: Sequence[Problem] = (),
        headers: dict[str, str] | None = None,
    ):
        super().__init__(status, detail, headers)
        self.reason = reason
        self.problems = problems


def invalid(problems: Sequence[Problem]) -> ApiError:
    return ApiError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "invalid_request",
        "; ".join(f"{p.pointer or '/'}: {p.detail}" for p in problems),
        problems,
    )


def install_handlers(app: FastAPI) -> None:
    app.add_exception_handler(StarletteHTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    for away in AWAY:
        app.add_exception_handler(away, _database_error)
    app.add_exception_handler(NotMigrated, _not_migrated)
    app.add_exception_handler(Exception, _unexpected_error)


def problem_response(error: ApiError) -> JSONResponse:
    """The answer that an error becomes."""
    document = ProblemDocument(
        title=HTTPStatus(error.status_code).phrase,
        status=error.status_code,
        detail=error.detail,
        reason=error.reason,
        errors=[ErrorItem(pointer=p.pointer, detail=p.detail) for p in error.problems],
        request_id=correlation_id.get(),
    )
    return JSONResponse(
        document.model_dump(),
        error.status_code,
        headers=error.headers,
        media_type=PROBLEM,
    )


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StarletteHTTPException)
    if isinstance(error, ApiError):
        return problem_response(error)
    status = HTTPStatus(error.status_code)
    headers = dict(error.headers or {})
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = _allowed(request)
    reason = status.phrase.lower().replace(" ", "_")
    return problem_response(ApiError(status, reason, str(error.detail), headers=headers))


def _allowed(request: Request) -> str:
    """All methods of a path, of which the router names those of one route. Of the paths of the
    document that it fits, `…/{id}` and `…/{id}:cancel`, the longest is meant."""
    paths: dict[str, Any] = request.app.openapi()["paths"]
    fitting = [path for path in paths if compile_path(path)[0].match(request.url.path)]
    return ", ".join(method.upper() for method in paths[max(fitting, key=len)])


async def _validation_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return problem_response(invalid(_request_problems(request, error)))


def _request_problems(request: Request, error: RequestValidationError) -> list[Problem]:
    body_model = getattr(request.scope["route"], "body_model", BaseModel)
    problems = []
    for item in error.errors():
        where, *location = item["loc"]
        if where == "body":
            problems += problems_of([{**item, "loc": location}], error.body, body_model)
        else:
            pointer = "/".join(("", str(where), *map(str, location)))
            detail = item["msg"].replace("Input should be ", "").replace("String should ", "")
            problems.append(Problem(pointer, detail))
    return problems


async def _database_error(request: Request, error: Exception) -> JSONResponse:
    log.error("the database did not answer: %s", error)
    return problem_response(
        ApiError(
            HTTPStatus.SERVICE_UNAVAILABLE,
            "database_unavailable",
            "the database does not answer; nothing was changed, try again",
            headers={"Retry-After": "2"},
        )
    )


async def _not_migrated(request: Request, error: Exception) -> JSONResponse:
    log.error("%s", error)
    return problem_response(
        ApiError(
            HTTPStatus.SERVICE_UNAVAILABLE,
            "database_not_migrated",
            str(error),
            headers={"Retry-After": "60"},
        )
    )


async def _unexpected_error(request: Request, error: Exception) -> JSONResponse:
    log.exception("unexpected error", exc_info=error)
    detail = "an error of the service itself; its log has the request id"
    return problem_response(ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, "internal_error", detail))
