"""Receive uploaded files in pieces and inspect them in a separate process."""

import asyncio
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from mptcore.runtime.durable import sync_folder
from mptcore.specs import Problem
from service.child_environment import run_environment
from service.datasets import quota
from service.quota import UNLIMITED, Room
from service.refusals import ApiError, disk_full, invalid
from service.settings import Settings

INSPECTION_TIMEOUT_S = 120.0
PIECE_BYTES = 2**20
"""Bytes that a thread writes and hashes at a time. Between two pieces the process serves other
requests."""


@dataclass(frozen=True)
class Received:
    """Size and digest of a received file."""

    bytes: int
    sha256: str


async def receive(
    request: Request, file: Path, settings: Settings, room: Room = UNLIMITED
) -> Received:
    """Write a request's body to a file as it arrives. The file is on disk when this returns. Raises
    ApiError if it exceeds a limit, breaks off or stalls, and OSError where the disk is full."""
    declared = int(request.headers.get("Content-Length", 0))
    with open(file, "wb") as output:
        writer = _Writer(output, settings, room)
        writer.check_room(declared)
        async for piece in _pieces(request, settings.upload_stall_s):
            await run_in_threadpool(writer.write, piece)
        await run_in_threadpool(os.fsync, output.fileno())
    return Received(writer.size, writer.digest.hexdigest())


async def _pieces(request: Request, stall_s: float) -> AsyncIterator[bytes]:
    stream = request.stream()
    ended = False
    while not ended:
        piece = bytearray()
        try:
            async with asyncio.timeout(stall_s):
                while len(piece) < PIECE_BYTES and not ended:
                    part = await anext(stream, None)
                    ended = part is None
                    piece += part or b""
        except TimeoutError:
            detail = f"less than {PIECE_BYTES} bytes came within {stall_s:g} s"
            raise ApiError(HTTPStatus.REQUEST_TIMEOUT, "upload_stalled", detail) from None
        except ClientDisconnect:
            detail = "the upload broke off"
            raise ApiError(HTTPStatus.BAD_REQUEST, "upload_incomplete", detail) from None
        yield bytes(piece)


@dataclass
class _Writer:
    output: BinaryIO
    settings: Settings
    room: Room
    size: int = 0
    digest: Any = field(default_factory=hashlib.sha256)

    def check_room(self, more: int) -> None:
        """Check that this many more bytes are within the limits and leave the disk's reserve."""
        quota.check(self.room, self.size + more)
        limit = self.settings.max_upload_bytes
        if self.size + more > limit:
            detail = f"an upload is at most {limit} bytes"
            raise ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "upload_too_large", detail)
        if shutil.disk_usage(self.settings.store).free - more < self.settings.reserve_bytes:
            raise disk_full()

    def write(self, piece: bytes) -> None:
        self.check_room(len(piece))
        self.size += len(piece)
        self.digest.update(piece)
        self.output.write(piece)
        self.output.flush()


def move(file: Path, place: Path) -> None:
    """Move a file to its place, durably."""
    place.parent.mkdir(parents=True, exist_ok=True)
    os.replace(file, place)
    sync_folder(place.parent)
    sync_folder(place.parent.parent)


def inspect(file: Path, max_cells: int) -> dict[str, Any]:
    """Return the contents of a file. Raises ApiError if it is neither numbers nor text, or does not
    match its extension."""
    try:
        found: dict[str, Any] = json.loads(_inspected(file, max_cells))
    except (subprocess.TimeoutExpired, ValueError):
        found = {"problems": ["it could not be read: it takes too much time or memory"]}
    if found["problems"]:
        raise invalid([Problem("", problem) for problem in found["problems"]])
    return found


def _inspected(file: Path, max_cells: int) -> bytes:
    """Return the inspection's output. The inspection ends with this thread and leaves no process
    behind."""
    command = [sys.executable, "-m", "mptcore.data.inspect", str(file), str(max_cells)]
    with subprocess.Popen(
        command,
        env=run_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            return process.communicate(timeout=INSPECTION_TIMEOUT_S)[0]
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
