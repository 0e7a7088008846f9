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
from mptcore.specs.parsing.sentences import sentence
from mptcore.specs.parsing.suggestions import meant
from service.database import AWAY, NotMigrated

log = logging.getLogger(__name__)

PROBLEM = "application/problem+json"

SERVICE_PATTERNS = {
    r"^[A-Za-z0-9 ._()-]{1,150}\.(npy|npz|csv|parquet|txt|jsonl)$": "a file's name that ends with "
    ".npy, .npz, .csv, .parquet, .txt or .jsonl: letters, digits, spaces and ._()-",
    "^[a-z_]+$": "the name of a series, as score or lml",
    r"^[a-z0-9][a-z0-9._-]{0,63}$": "a user's name: up to 64 small letters, digits, . _ and -",
    "^[0-9A-Za-z]{1,16}$": "the id of a key: what stands first in it, as mpt_<id>_…",
    r"^[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*){0,9}$": "a path into the spec, as model.latent_dim",
}
"""What text must be that a pattern holds to; specs have their own."""

MOST_OF_A_PATH = 200
"""So much of a path is compared with those that there are."""


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
        headers["Allow"] = _allowed(request) or headers["Allow"]
        detail = f"{request.method} is not for this path: {headers['Allow']} is"
    elif status == HTTPStatus.NOT_FOUND:
        detail = _no_path(request)
    else:
        detail = str(error.detail)
    reason = status.phrase.lower().replace(" ", "_")
    return problem_response(ApiError(status, reason, detail, headers=headers))


def _no_path(request: Request) -> str:
    path = request.url.path[:MOST_OF_A_PATH]
    near = meant(path, {_filled(one, path) for one in request.app.openapi()["paths"]})
    return f"there is no such path: {near}/openapi.json lists them all"


def _filled(template: str, path: str) -> str:
    """The template of a path with what stands in a path of as many parts."""
    parts, given = template.split("/"), path.split("/")
    if len(parts) != len(given):
        return template
    pairs = zip(parts, given, strict=True)
    return "/".join(own if part.endswith("}") else part for part, own in pairs)


def _allowed(request: Request) -> str:
    """All methods of a path, of which the router names those of one route. Of the paths of the
    document that it fits, `…/{id}` and `…/{id}:cancel`, the longest is meant. Pages are in none."""
    paths: dict[str, Any] = request.app.openapi()["paths"]
    fitting = [path for path in paths if compile_path(path)[0].match(request.url.path)]
    if not fitting:
        return ""
    return ", ".join(method.upper() for method in paths[max(fitting, key=len)])


async def _validation_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return problem_response(invalid(_request_problems(request, error)))


def _request_problems(request: Request, error: RequestValidationError) -> list[Problem]:
    body_model = getattr(request.scope["route"], "body_model", BaseModel)
    in_body = [item for item in error.errors() if item["loc"][0] == "body"]
    problems = [
        Problem("/".join(("", *map(str, item["loc"]))), _sentence(item))
        for item in error.errors()
        if item["loc"][0] != "body"
    ]
    if whole := _wrong_as_a_whole(request, in_body, error.body, body_model):
        return [*problems, whole]
    told = [_told(item) for item in in_body]
    return [*problems, *problems_of(told, error.body, body_model)]


def _wrong_as_a_whole(
    request: Request, errors: Sequence[Any], body: Any, model: type[BaseModel]
) -> Problem | None:
    """What is wrong with a body that holds nothing of what is asked for."""
    if body is None and errors:
        return Problem("", "the body is a JSON object, and there is none")
    if any(item["loc"] == ("body",) for item in errors):
        if "json" not in request.headers.get("Content-Type", ""):
            return Problem("/header/Content-Type", "say Content-Type: application/json")
    fields = model.model_fields
    if isinstance(body, dict) and "spec" in fields and "spec" not in body and "model" in body:
        return Problem("/spec", 'this field is required: wrap the spec in {"spec": {…}}')
    return None


def _told(item: Any) -> Any:
    """The error, located in the body, in which patterns of the service's own have their words."""
    own = SERVICE_PATTERNS.get(item.get("ctx", {}).get("pattern"))
    words = {"type": "in_words", "msg": own} if own else {}
    return {**item, "loc": item["loc"][1:], **words}


def _sentence(item: Any) -> str:
    return sentence(_told(item))


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
