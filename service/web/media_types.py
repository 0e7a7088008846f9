"""Select the media type of an answer by the Accept header."""

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from http import HTTPStatus
from typing import Any, TypeVar

import orjson
from fastapi import Request, Response
from pydantic import BaseModel

from service.refusals import ApiError

Form = TypeVar("Form", bound=StrEnum)


MAX_RANGES = 50
"""Maximum number of media ranges that are read of a header Accept. Browsers send ten at most."""


def accepted(request: Request, media_types: Mapping[Form, str]) -> Form:
    """Return the form that the header Accept prefers, the first of several that it prefers equally.
    Raise ApiError."""
    accept = ",".join(request.headers.getlist("accept")) or "*/*"
    best: tuple[float, Form | None] = (0.0, None)
    for part in accept.split(",", MAX_RANGES)[:MAX_RANGES]:
        media_type, *parameters = (one.strip().lower() for one in part.split(";"))
        quality = max(0.0, min(1.0, _quality(parameters)))
        for form, known in media_types.items():
            if _covers(media_type, known) and quality > best[0]:
                best = quality, form
    if best[1] is None:
        detail = f"the formats are {', '.join(media_types.values())}"
        raise ApiError(HTTPStatus.NOT_ACCEPTABLE, "not_acceptable", detail)
    return best[1]


def _quality(parameters: Sequence[str]) -> float:
    for one in parameters:
        name, _, value = one.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


def _covers(media_range: str, media_type: str) -> bool:
    return media_range in (media_type, "*/*", media_type.partition("/")[0] + "/*")


def as_json(answer: BaseModel, status: HTTPStatus = HTTPStatus.OK) -> Response:
    """Return a response without a second validation, which costs more than everything else."""
    return Response(answer.model_dump_json(), status, media_type="application/json")


def plain_json(answer: Mapping[str, Any]) -> Response:
    """Return a response from dicts and lists, without objects of pydantic."""
    try:
        content = orjson.dumps(answer)
    except TypeError:  # an integer of more than 64 bits
        content = json.dumps(answer, allow_nan=False).encode()
    return Response(content, media_type="application/json")
