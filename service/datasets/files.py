"""Uploaded files: received in pieces, looked at by a process that may not hurt us."""

import hashlib
import json
import subprocess
import sys
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fastapi import Request

from mptcore.specs import Problem
from service.errors import ApiError, invalid

INSPECTION_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Received:
    """What came: its size and its digest."""

    bytes: int
    sha256: str


async def receive(request: Request, file: Path, limit: int) -> Received:
    """Write a request's body to a file as it comes. Raises ApiError beyond `limit` bytes."""
    digest, size = hashlib.sha256(), 0
    with open(file, "wb") as output:
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit:
                detail = f"an upload is at most {limit} bytes"
                raise ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "upload_too_large", detail)
            digest.update(chunk)
            output.write(chunk)
    return Received(size, digest.hexdigest())


def inspect(file: Path) -> dict[str, Any]:
    """What a file holds. Raises ApiError where it is neither numbers nor text, or not
    what its name says."""
    command = [sys.executable, "-m", "mptcore.data.inspect", str(file)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSPECTION_TIMEOUT_S, check=False
        )
        found: dict[str, Any] = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        found = {"problems": ["it could not be read: it takes too much time or memory"]}
    if found["problems"]:
        raise invalid([Problem("", problem) for problem in found["problems"]])
    return found
