"""Answer 304 to a reader that has the content already: ETag and If-None-Match (RFC 9110).

Caches must ask at each request, even about a run that has ended: its owner may delete it or stop
sharing it, and the key may be revoked. If nothing has changed, this costs milliseconds."""

import hashlib
import json
from http import HTTPStatus
from importlib.metadata import version
from typing import Annotated

from fastapi import Header, Response

IfNoneMatch = Annotated[
    str | None,
    Header(description="ETag of an earlier answer. 304 if the answer would be the same."),
]
NOT_MODIFIED: dict[int | str, dict[str, object]] = {
    304: {"description": "The content has the ETag of If-None-Match; there is no body"}
}
ASK_EACH_TIME = {"Cache-Control": "private, no-cache", "Vary": "Authorization, Cookie, Accept"}
VERSION = version("mptlab-server")


def etag(*parts: object) -> str:
    """Return an ETag of these parts and the version of the service."""
    text = json.dumps([VERSION, *parts])
    return f'"{hashlib.blake2b(text.encode(), digest_size=12).hexdigest()}"'


def is_known(tag: str, if_none_match: str | None) -> bool:
    known = [one.strip().removeprefix("W/") for one in (if_none_match or "").split(",")]
    return tag in known or known == ["*"]


def not_modified(tag: str) -> Response:
    return Response(status_code=HTTPStatus.NOT_MODIFIED, headers={**ASK_EACH_TIME, "ETag": tag})


def tagged(response: Response, tag: str) -> Response:
    response.headers.update({**ASK_EACH_TIME, "ETag": tag})
    return response


def by_content(response: Response, if_none_match: str | None) -> Response:
    """Return the response with the ETag of its content, or 304 if the client has it."""
    tag = f'"{hashlib.blake2b(response.body, digest_size=12).hexdigest()}"'
    return not_modified(tag) if is_known(tag, if_none_match) else tagged(response, tag)
