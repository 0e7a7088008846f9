"""Select the media type of an answer by the Accept header."""

import json
from collections.abc import Mapping
from enum import StrEnum
from http import HTTPStatus
from typing import Any, TypeVar

import orjson
from fastapi import Request, Response
from pydantic import BaseModel

Form = TypeVar("Form", bound=StrEnum)


def accepted(request: Request, media_types: Mapping[Form, str]) -> Form:
    """Return the form of the first known media type in the header Accept, or the first form if
    there is none. Qualities (`q=`) are ignored."""
    forms = {media_type: form for form, media_type in media_types.items()}
    for part in request.headers.get("accept", "").split(","):
        media_type = part.partition(";")[0].strip().lower()
        if media_type in forms:
            return forms[media_type]
    return next(iter(media_types))


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
