"""Receive an uploaded file in pieces."""

import asyncio
import os
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from service.datasets.files import Received, _Writer
from service.queue.quota import UNLIMITED, Room
from service.refusals import ApiError
from service.settings import Settings

PIECE_BYTES = 2**20
"""Bytes that a thread writes and hashes at a time. Between two pieces the process serves other
requests."""
STALL_S = 50.0
"""Seconds in which a piece must arrive. Slower uploads are ended. Caddy ends those of which nothing
arrives for a minute, and gives no reason."""


async def receive(
    request: Request, file: Path, settings: Settings, room: Room = UNLIMITED
) -> Received:
    """Write a request's body to a file as it arrives. The file is on disk when this returns. Raises
    ApiError if the body exceeds a limit, is interrupted or stalls, and OSError if the disk is
    full."""
    declared = int(request.headers.get("Content-Length", 0))
    with open(file, "wb") as output:
        writer = _Writer(output, settings, room)
        writer.check_room(declared)
        async for piece in _pieces(request):
            await run_in_threadpool(writer.write, piece)
        await run_in_threadpool(os.fsync, output.fileno())
    return Received(writer.size, writer.digest.hexdigest())


async def _pieces(request: Request) -> AsyncIterator[bytes]:
    stream = request.stream()
    ended = False
    while not ended:
        piece = bytearray()
        try:
            async with asyncio.timeout(STALL_S):
                while len(piece) < PIECE_BYTES and not ended:
                    part = await anext(stream, None)
                    ended = part is None
                    piece += part or b""
        except TimeoutError:
            detail = f"fewer than {PIECE_BYTES} bytes arrived within {STALL_S:g} s"
            raise ApiError(HTTPStatus.REQUEST_TIMEOUT, "upload_stalled", detail) from None
        except ClientDisconnect:
            detail = "the upload was interrupted"
            raise ApiError(HTTPStatus.BAD_REQUEST, "upload_incomplete", detail) from None
        yield bytes(piece)
