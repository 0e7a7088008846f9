"""Refuse a request: a plain exception, which the web layer turns into an answer."""

from collections.abc import Sequence
from http import HTTPStatus
from importlib.metadata import version

from mptcore.specs import MAX_PROBLEMS, Problem, SpecError

MAX_DETAIL = 2000
"""Maximum number of characters of an answer's `detail`."""
MAX_ITEM_DETAIL = 1000
"""Maximum number of characters of the `detail` of one of its errors."""

THIS_VERSION = f"MPT Lab {version('mptlab-server')}"
"""It is named where a client of another version may ask for what this version does not have."""


class ApiError(Exception):
    """An error response: its status, a stable reason, the first MAX_PROBLEMS problems, and the
    `count` of all problems."""

    def __init__(
        self,
        status: HTTPStatus,
        reason: str,
        detail: str,
        problems: Sequence[Problem] = (),
        headers: dict[str, str] | None = None,
        count: int | None = None,
    ):
        self.detail = cut(detail, MAX_DETAIL)
        super().__init__(self.detail)
        self.status = status
        self.headers = headers
        self.reason = reason
        self.problems = problems[:MAX_PROBLEMS]
        self.count = len(problems) if count is None else count


def invalid(problems: Sequence[Problem] | SpecError) -> ApiError:
    """Return the answer (422) to a request with these problems."""
    error = problems if isinstance(problems, SpecError) else SpecError(problems)
    return ApiError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "invalid_request",
        _told_together(error),
        error.problems,
        count=error.count,
    )


def unauthorized(detail: str) -> ApiError:
    """Return the answer (401) to a request without a valid key."""
    headers = {"WWW-Authenticate": "Bearer"}
    return ApiError(HTTPStatus.UNAUTHORIZED, "unauthorized", detail, headers=headers)


def unavailable(reason: str, detail: str, after_s: int = 2) -> ApiError:
    """Return the answer (503) to a request that may be sent again after some seconds."""
    headers = {"Retry-After": str(after_s)}
    return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, reason, detail, headers=headers)


def disk_full() -> ApiError:
    """Return the answer (507) if the store's disk has no space for a file."""
    detail = "the disk of the store is too full for this: delete data sets, or ask an administrator"
    return ApiError(HTTPStatus.INSUFFICIENT_STORAGE, "disk_full", detail)


def _told_together(error: SpecError) -> str:
    """Return the sentences of the first problems, up to MAX_DETAIL, and how many more there are."""
    told: list[str] = []
    left = MAX_DETAIL - len("; and 999999 more")
    for problem in error.problems:
        place = f"{problem.pointer}: " if problem.pointer else ""
        one = cut(f"{place}{problem.detail}", MAX_ITEM_DETAIL)
        left -= len(one) + 2
        if left < 0:
            break
        told.append(one)
    more = error.count - len(told)
    return "; ".join([*told, f"and {more} more"] if more else told)


def cut(text: str, length: int) -> str:
    """Return a text, cut to a length."""
    return text if len(text) <= length else f"{text[: length - 1]}…"
